"""The context that messages carry, and the choice of those that get one."""

from __future__ import annotations

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

from tests.support import rocketmq_client
from tests.support.rocketmq_received import received_message
from trovemq.otel import TRACEPARENT, TracedSettlement, Tracing, creation_context, properties_of
from trovemq.received import ReceivedMessage

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


def received(properties: dict[str, str]) -> ReceivedMessage:
    return received_message(rocketmq_client.message("orders", b"x", user_properties=properties), "broker-a")


@pytest.mark.parametrize(
    "text",
    ["", "00", "00-0-0-00", PARENT + "-more", PARENT.upper(), PARENT.replace("0af7", "zzzz"),
     "ff" + PARENT[2:], "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 100_000, "\x00", "ü"],
)  # fmt: skip
def test_a_context_that_is_none_is_left_out(text: str) -> None:
    assert creation_context({TRACEPARENT: text}) is None


def test_a_context_with_its_state_comes_back_as_it_went() -> None:
    own = SpanContext(7, 9, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "b")]))
    found = creation_context(properties_of(own))
    assert found is not None
    assert (found.trace_id, found.span_id, found.trace_flags, found.trace_state) == (7, 9, 1, own.trace_state)


@pytest.mark.parametrize(
    ("properties", "trace_context", "span_id"),
    [
        ({}, "", None),
        ({TRACEPARENT: PARENT}, "", 0xB7AD6B7169203331),
        ({}, PARENT, 0xB7AD6B7169203331),
        ({TRACEPARENT: PARENT}, "00-" + "1" * 32 + "-" + "2" * 16 + "-01", 0xB7AD6B7169203331),
        ({}, "some other text", None),
    ],
)
def test_rocketmqs_trace_context_counts_where_there_is_no_traceparent(
    properties: dict[str, str], trace_context: str, span_id: int | None
) -> None:
    message = received(properties=properties)
    Tracing(TracerProvider()).take(message, trace_context)
    assert isinstance(message.settlement, TracedSettlement)
    creation = message.settlement.creation
    assert (None if creation is None else creation.span_id) == span_id


def test_below_a_ratio_of_one_sampled_traces_alone_are_continued() -> None:
    tracing = Tracing(TracerProvider(), root_ratio=0.0)
    assert not tracing.wants_send()
    for provider, wanted in ((TracerProvider(), True), (TracerProvider(sampler=ALWAYS_OFF), False)):
        with provider.get_tracer("test").start_as_current_span("request"):
            assert tracing.wants_send() is wanted
    token = context.attach(context.set_value("something", "else"))
    assert not tracing.wants_send()
    context.detach(token)
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(("carried", "followed"), [(PARENT, True), (UNSAMPLED, False), (None, False)])
def test_below_a_ratio_of_one_sampled_messages_alone_are_followed(
    carried: str | None, followed: bool
) -> None:
    message = received(properties={} if carried is None else {TRACEPARENT: carried})
    Tracing(TracerProvider(), root_ratio=0.0).take(message, "")
    assert (message.tracing is not None) is followed
    assert isinstance(message.settlement, TracedSettlement) is followed
