"""Spans of a real client at a real broker: names, kinds, links, and the context that a message carries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import trovemq
import trovemq.sync
from tests.support.rocketmq_client import RawClient
from trovemq import ClientOptions, GroupSettings
from trovemq.otel import SCHEMA_URL, TRACEPARENT, Tracing
from trovemq.testing import BrokerProcess
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.slow

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Program = Callable[[trovemq.Client], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=tmp_path_factory.mktemp("tracing") / "store") as broker:
        yield broker


class Traced:
    """Runs a program with a client whose spans it collects."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)

    def run(self, program: Program, tracing: Tracing | None = None) -> None:
        async def connected() -> None:
            options = ClientOptions(tracing=tracing or self.tracing)
            async with trovemq.connect(self.address, options=options) as client:
                await program(client)

        asyncio.run(connected())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traced(broker: BrokerProcess) -> Traced:
    return Traced(broker.address)


def contexts(span: ReadableSpan) -> set[int]:
    """The spans that it links to."""
    return {link.context.span_id for link in span.links}


async def topic_and_group(client: trovemq.Client, topic: str, group: str, kind: str = "NORMAL") -> None:
    await client.admin.create_topic(topic, queue_count=1, message_type=kind)
    await client.admin.groups.create(group, GroupSettings(retry_max=3))
    await client.admin.groups.reset(group, topic, to_min=True)


def test_a_message_is_followed_from_send_to_ack(traced: Traced) -> None:
    async def program(client: trovemq.Client) -> None:
        await topic_and_group(client, "orders", "billing")
        await client.send("orders", b"x", properties={"own": "1"})
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                async with message.process():
                    assert message.properties["own"] == "1"
                    inside.append(trace.get_current_span().get_span_context().span_id)
                break

    inside: list[int] = []
    traced.run(program)
    send, receive, process, ack = map(
        traced.one, ("send orders", "receive orders", "process orders", "ack orders")
    )
    assert [span.kind for span in (send, receive, process, ack)] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    assert all(contexts(span) == {send.context.span_id} for span in (receive, process, ack))
    assert process.parent is None, "it links to the producer, and is no child of it"
    assert inside == [process.context.span_id]
    assert ack.parent is not None
    assert ack.parent.span_id == process.context.span_id
    assert send.attributes is not None
    assert process.attributes is not None
    assert dict(send.attributes) == {
        "messaging.system": "trovemq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": send.attributes["messaging.message.id"],
    }
    assert process.attributes["messaging.consumer.group.name"] == "billing"
    assert process.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]
    assert send.instrumentation_scope is not None
    assert send.instrumentation_scope.schema_url == SCHEMA_URL
    assert sorted((receive, process, ack), key=lambda span: span.start_time or 0) == [receive, process, ack]


def test_each_message_of_a_batch_has_a_context_of_its_own(traced: Traced) -> None:
    async def program(client: trovemq.Client) -> None:
        await topic_and_group(client, "rows", "loading")
        async with client.producer("rows") as producer:
            await producer.send_batch(
                [b"1", b"2", b"3"], properties=[None, {"own": "1"}, {TRACEPARENT: FOREIGN}]
            )
        handlers = trovemq.Handlers()

        @handlers.handle_batch("rows", "loading", count_max=3, wait=5.0)
        async def load(messages: list[trovemq.ReceivedMessage]) -> None:
            assert len(messages) == 3
            running.stop()

        async with client.run(handlers, signals=()) as running:
            await running.wait()

    traced.run(program)
    send, process, created = traced.one("send rows"), traced.one("process rows"), traced.named("create rows")
    made = {span.context.span_id for span in created}
    assert len(made) == 2, "the third one came with a context"
    assert contexts(send) == contexts(process) == made | {int(FOREIGN.split("-")[2], 16)}
    assert all(span.parent is not None and span.parent.span_id == send.context.span_id for span in created)
    assert send.kind is SpanKind.CLIENT
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 3
    assert traced.named("receive rows") == [], "a handler is called; it does not ask"
    assert len(traced.named("ack rows")) == 3


def test_failures_and_returns_are_seen(traced: Traced) -> None:
    async def program(client: trovemq.Client) -> None:
        await topic_and_group(client, "mails", "mailer")
        await client.send("mails", b"x")
        with pytest.raises(TroveError):
            await client.send("no-such-topic", b"x")
        async with client.subscribe("mails", group="mailer") as messages:
            async for message in messages:
                with pytest.raises(ZeroDivisionError):
                    async with message.process():
                        raise ZeroDivisionError
                break

    traced.run(program)
    refused, process = traced.one("send no-such-topic"), traced.one("process mails")
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "TOPIC_NOT_FOUND"
    assert refused.status.status_code is StatusCode.ERROR
    assert process.attributes is not None
    assert process.attributes["error.type"] == "ZeroDivisionError"
    assert contexts(traced.one("nack mails")) == {traced.one("send mails").context.span_id}


def test_every_way_of_sending_carries_a_context(traced: Traced) -> None:
    async def program(client: trovemq.Client) -> None:
        await topic_and_group(client, "mixed", "reading", "MIXED")
        async with client.producer("mixed") as producer:
            await producer.send_nowait(b"1")
            producer.send_oneway(b"2")
            await producer.send(b"3", deliver_after=0.01)
            async with producer.transaction() as half:
                await half.send(b"4")
        async with client.transaction() as atomic:
            await atomic.send("mixed", b"5")
        async with client.subscribe("mixed", group="reading") as messages:
            async for message in messages:
                found[message.body] = int(message.properties[TRACEPARENT].split("-")[2], 16)
                await message.ack()
                if len(found) == 5:
                    break

    found: dict[bytes, int] = {}
    traced.run(program)
    sent = {span.context.span_id for span in traced.named("send mixed")}
    assert {found[body] for body in (b"1", b"2", b"3", b"4")} == sent
    assert {found[b"5"]} == {traced.one("create mixed").context.span_id} == contexts(traced.one("commit"))
    assert [len(contexts(span)) for span in traced.named("receive mixed")] == [1] * 5


def test_a_send_that_is_not_sampled_leaves_the_message_as_it_is(broker: BrokerProcess) -> None:
    traced = Traced(broker.address)
    unsampled = TracerProvider(sampler=ALWAYS_OFF)

    async def send(client: trovemq.Client) -> None:
        async with client.producer("quiet") as producer:
            await producer.send(b"1", properties={"own": "1"})
            await producer.send_batch([b"2"])

    async def program(client: trovemq.Client) -> None:
        await client.admin.create_topic("quiet", queue_count=1, exist_ok=True)
        await send(client)

    traced.run(program, Tracing(unsampled))
    traced.run(send, Tracing(unsampled, propagate_unsampled=True))

    async def look(client: trovemq.Client) -> None:
        async for message in client.pull("quiet", queue_id=0, offset=0):
            carried.append(TRACEPARENT in message.user_properties)  # noqa: PERF401  of a generator

    carried: list[bool] = []
    traced.run(look)
    assert carried == [False, False, True, True]


def test_rocketmqs_clients_and_ours_see_each_others_contexts(traced: Traced) -> None:
    async def program(client: trovemq.Client) -> None:
        await topic_and_group(client, "both", "ours")
        await client.admin.groups.create("theirs")
        await client.admin.groups.reset("theirs", "both", to_min=True)
        await client.send("both", b"1")
        with RawClient(traced.address) as other:
            other.send("both", b"2", trace_context=FOREIGN)
            given.extend(await asyncio.to_thread(other.receive_until, "theirs", "both", 2))
        async with client.subscribe("both", group="ours") as messages:
            async for message in messages:
                await message.ack()
                if message.body == b"2":
                    break

    given: list[Any] = []
    traced.run(program)
    send = traced.one("send both").context
    texts = {message.body: message.system_properties.trace_context for message in given}
    assert texts == {
        b"1": f"00-{send.trace_id:032x}-{send.span_id:016x}-{send.trace_flags:02x}",
        b"2": FOREIGN,
    }
    assert [contexts(span) for span in traced.named("ack both")] == [
        {send.span_id},
        {int(FOREIGN.split("-")[2], 16)},
    ]


@pytest.mark.parametrize("properties", [5, [1], "text", {"a": 1}, {1: "a"}, {"": "x"}])
def test_wrong_properties_are_refused_as_without_tracing(broker: BrokerProcess, properties: Any) -> None:
    async def failures(client: trovemq.Client) -> list[str]:
        found = []
        async with client.producer("refusing") as producer:
            for send, body in ((producer.send, b"x"), (producer.send_batch, [b"x"])):
                with pytest.raises(Exception, match=r"\w") as caught:
                    await cast("Any", send)(body, properties=properties)
                found.append(f"{caught.type}: {caught.value}")
        return found

    async def both() -> None:
        traced = ClientOptions(tracing=Tracing(TracerProvider()))
        async with (
            trovemq.connect(broker.address, options=traced) as one,
            trovemq.connect(broker.address) as other,
        ):
            await one.admin.create_topic("refusing", queue_count=1, exist_ok=True)
            assert await failures(one) == await failures(other)

    asyncio.run(both())


def test_threads_have_spans_too(broker: BrokerProcess) -> None:
    traced = Traced(broker.address)
    tracer = traced.provider.get_tracer("test")
    options = ClientOptions(tracing=traced.tracing)
    with trovemq.sync.connect(broker.address, options=options) as client:
        client.admin.create_topic("threads", queue_count=1)
        client.admin.groups.create("workers")
        client.admin.groups.reset("workers", "threads", to_min=True)
        with tracer.start_as_current_span("request"):
            client.send("threads", b"x")
        with client.subscribe("threads", group="workers") as messages:
            for message in messages:
                with message.process():
                    inside = trace.get_current_span().get_span_context().span_id
                break
    send, process = traced.one("send threads"), traced.one("process threads")
    assert send.parent is not None
    assert send.parent.span_id == traced.one("request").context.span_id
    assert inside == process.context.span_id
    assert contexts(process) == {send.context.span_id}


def test_a_client_without_tracing_imports_nothing_of_it(broker: BrokerProcess, tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, trovemq\n"
        "async def main():\n"
        f"    async with trovemq.connect('{broker.address}') as client:\n"
        "        await client.admin.create_topic('plain', queue_count=1)\n"
        "        await client.send('plain', b'x')\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or 'otel' in name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]", done.stdout
