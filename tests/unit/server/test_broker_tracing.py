"""The broker's own spans: which messages have one, its parent, its links, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.engine import record, with_crc_property
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.monitoring import tracing
from trovemq_broker.server.monitoring.tracing import LINKS_MAX, SPANS_MAX, BrokerTracing, context_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

TRACE = "0af7651916cd43dd8448eb211c80319c"


def parent(number: int, flags: str = "01") -> str:
    return f"00-{TRACE}-{number:016x}-{flags}"


class Traced:
    """The v2 handlers of a broker that traces; `spans()` closes it."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = BrokerTracing(self.exporter, "broker-a", "1.2.3")
        store = replace(ROOMY, **settings)
        self.parts = TestBroker(
            store, consumers=ConsumerSettings(new_group_start="begin"), tracing=self.tracing
        )

    def spans(self, name: str) -> Sequence[ReadableSpan]:
        with closing(self.tracing):
            pass
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def parents(spans: Sequence[ReadableSpan]) -> list[int]:
    return [span.parent.span_id for span in spans if span.parent is not None]


@fake_time
async def test_a_message_in_a_sampled_trace_is_followed_through_the_broker() -> None:
    traced = Traced()
    await traced.parts.send(message(properties={"traceparent": parent(7), "tracestate": "a=b"}))
    await turns()
    await traced.parts.receive(context=RpcContext("c-1", traceparent=parent(9)))

    (append,) = traced.spans("append orders")
    (deliver,) = traced.spans("deliver orders")
    assert (append.kind, deliver.kind) == (SpanKind.SERVER, SpanKind.SERVER)
    assert parents([append, deliver]) == [7, 9]
    assert append.context.trace_id == int(TRACE, 16)
    assert append.context.trace_state.to_header() == "a=b"
    assert [link.context.span_id for link in deliver.links] == [7]
    assert append.attributes == {
        "messaging.system": "trovemq",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "01AA",
    }
    assert deliver.attributes is not None
    assert deliver.attributes["messaging.consumer.group.name"] == "g"
    assert deliver.attributes["messaging.client.id"] == "c-1"
    assert deliver.attributes["messaging.batch.message_count"] == 1
    assert append.resource.attributes["service.name"] == "trovemq-broker"
    assert append.resource.attributes["service.instance.id"] == "broker-a"


def followed(*numbers: int) -> list[v2.Message]:
    return [
        message(message_id=f"M{number}", properties={"traceparent": parent(number)}) for number in numbers
    ]


def dead_letter_request(handle: str) -> service_pb2.ForwardMessageToDeadLetterQueueRequest:
    return service_pb2.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="orders"), receipt_handle=handle
    )


def change_request(handle: str) -> service_pb2.ChangeInvisibleDurationRequest:
    request = service_pb2.ChangeInvisibleDurationRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="orders"), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(10_000)
    return request


@fake_time
async def test_every_end_of_a_delivery_has_a_span_that_links_to_the_message() -> None:
    traced = Traced()
    parts = traced.parts
    await asyncio.gather(*(parts.send(one) for one in (*followed(7, 8), message(message_id="M9"))))
    await turns()
    received = await parts.messages(batch_size=3)
    first, second, untraced = (one.system_properties.receipt_handle for one in received)
    changed = await parts.acknowledger.change_invisible(change_request(first), RpcContext())
    await parts.acknowledge(changed.receipt_handle, untraced)
    await parts.acknowledge(changed.receipt_handle)  # once more: nothing ends
    await parts.acknowledger.dead_letter(dead_letter_request(second), RpcContext())

    (change,), (ack,) = traced.spans("change_invisible orders"), traced.spans("ack orders")
    (dead_letter,) = traced.spans("dead_letter orders")
    linked = [[link.context.span_id for link in span.links] for span in (change, ack, dead_letter)]
    assert linked == [[7], [7], [8]]
    assert ack.kind is SpanKind.SERVER
    assert ack.attributes == {
        "messaging.system": "trovemq",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.batch.message_count": 1,
    }


@fake_time
async def test_messages_that_are_acknowledged_together_share_a_span() -> None:
    traced = Traced()
    await asyncio.gather(*(traced.parts.send(one) for one in followed(1, 2, 3)))
    await turns()
    received = await traced.parts.messages(batch_size=3)
    await traced.parts.acknowledge(*(one.system_properties.receipt_handle for one in received))

    (ack,) = traced.spans("ack orders")
    assert [link.context.span_id for link in ack.links] == [1, 2, 3]


@fake_time
async def test_contexts_of_deliveries_that_never_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "DELIVERIES_MAX", 2)
    traced = Traced()
    await asyncio.gather(*(traced.parts.send(one) for one in followed(1, 2, 3)))
    await turns()
    received = await traced.parts.messages(batch_size=3)
    await traced.parts.acknowledge(*(one.system_properties.receipt_handle for one in received))

    links = [link.context.span_id for span in traced.spans("ack orders") for link in span.links]
    assert links == [2, 3]


@fake_time
async def test_rocketmqs_context_counts_where_there_is_no_other() -> None:
    traced = Traced()
    await traced.parts.send(message(trace_context=parent(7)))
    assert parents(traced.spans("append orders")) == [7]


@fake_time
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"traceparent": parent(7, "00")},
        {"traceparent": "none"},
        {"traceparent": parent(0)},
        {"tracestate": "a=b"},
    ],
)
async def test_a_message_in_no_sampled_trace_has_no_span(properties: dict[str, str]) -> None:
    traced = Traced()
    body = b"traceparent\x01" + parent(7).encode()  # a body is no context
    await traced.parts.send(message(body, properties=properties))
    await turns()
    assert len(await traced.parts.messages()) == 1

    assert traced.spans("append orders") == traced.spans("deliver orders") == []


@fake_time
async def test_sends_that_share_an_append_have_each_its_own_parent() -> None:
    traced = Traced()
    count = SPANS_MAX + 3
    sends = (
        message(message_id=f"M{number}", properties={"traceparent": parent(number + 1)})
        for number in range(count)
    )
    await asyncio.gather(*(traced.parts.send(one) for one in sends))
    await turns()
    assert len(await traced.parts.messages(batch_size=32)) == 32

    assert parents(traced.spans("append orders")) == list(range(1, SPANS_MAX + 1))
    (deliver,) = traced.spans("deliver orders")
    assert len(deliver.links) == min(32, LINKS_MAX)
    assert deliver.parent is None


def test_a_span_ends_with_the_sync_or_with_the_refusal() -> None:
    traced = Traced(flush_mode="sync")
    data = with_crc_property(record(b"x", properties={"traceparent": parent(7)}))

    async def scene() -> None:
        traced.parts.appender.append("orders", QueueId(0), data, None)
        assert traced.exporter.get_finished_spans() == ()
        assert traced.parts.group_commit.waiting == 1
        worker = asyncio.create_task(traced.parts.group_commit.run())
        await traced.parts.group_commit.durable(traced.parts.store.end_offset)
        worker.cancel()
        traced.parts.store.mark_failed()
        with pytest.raises(TroveError):
            traced.parts.appender.append("orders", QueueId(0), data, None)

    asyncio.run(scene())
    good, refused = traced.spans("append orders")
    assert good.status.status_code is StatusCode.UNSET
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == errors.STORE_FAILED.symbol


def test_a_context_is_w3cs_and_nothing_else() -> None:
    found = context_of({"traceparent": parent(7), "TRACE_CONTEXT": parent(8)})
    assert found is not None
    assert found.span_id == 7
    assert context_of({"traceparent": "x" * 5_000}) is None
