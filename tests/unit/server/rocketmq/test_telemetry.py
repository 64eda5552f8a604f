"""The telemetry stream: the messages to clients, and how a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.support.fake_loop import fake_time
from tests.support.memory_broker import ROOMY, TestBroker
from tests.support.rpc_context import Aborted, RpcContext
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.rocketmq.mirrors import ClientKey, Origin
from trovemq_broker.server.rocketmq.telemetry import OUTBOX_MAX, Telemetry
from trovemq_broker.server.wire.statuses import client_id_of, reader
from trovemq_daemon.addresses import Address
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import (
    ReconnectEndpointsCommand,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageResult,
)
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import RetryPolicy, SubscriptionGroup

NOW_MS = EpochMs(1_700_000_000_000)
GROUPS = (
    SubscriptionGroup("workers"),
    SubscriptionGroup(
        "ordered",
        orderly=True,
        retry_max=3,
        retry_policy=RetryPolicy("exponential", initial_ms=5_500, max_ms=7_200_000, multiplier=2.0),
    ),
)


class Bench:
    def __init__(self, settings_wait_s: float = 30.0, clients_max: int = 100) -> None:
        self.core = core = TestBroker(
            replace(ROOMY, body_size_max=4_194_304), auto_create_group=False, clients_max=clients_max
        )
        for group in GROUPS:
            core.groups.create(group)
        self.registry, self.commands = core.registry, core.commands
        self.telemetry = Telemetry(core, settings_wait_s)
        self.read = reader(TelemetryCommand)

    def open(self, client_id: str = "client-1", **metadata: Any) -> tuple[RpcContext, asyncio.Task[None]]:
        context: Any = RpcContext(client_id, **metadata)
        return context, asyncio.create_task(self.telemetry.telemetry(None, context))

    def send(self, context: RpcContext, command: TelemetryCommand) -> None:
        context.requests.put_nowait(self.read(command.SerializeToString()))

    async def settled(self, context: RpcContext, settings: v2.Settings) -> v2.Settings:
        """The answer to the settings."""
        before = len(context.written)
        self.send(context, TelemetryCommand(settings=settings))
        await until(lambda: len(context.written) > before)
        answer = context.written[before]
        assert answer.status.code == v2.OK
        assert answer.HasField("settings")
        found: v2.Settings = answer.settings
        return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0)


async def end_of(task: asyncio.Task[None]) -> Aborted:
    with pytest.raises(Aborted) as caught:
        await task
    return caught.value


def ms(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def producer_settings(*topics: str) -> v2.Settings:
    return v2.Settings(
        client_type=v2.PRODUCER,
        access_point=v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=8081)]),
        request_timeout=Duration(seconds=3),
        publishing=v2.Publishing(
            topics=[v2.Resource(name=topic) for topic in topics], max_body_size=134_217_728
        ),
        user_agent=v2.UA(language=v2.PYTHON, version="5.1.2", hostname="here"),
        backoff_policy=v2.RetryPolicy(
            max_attempts=7, customized_backoff=v2.CustomizedBackoff(next=[Duration(seconds=9)])
        ),
        metric=v2.Metric(on=True),
    )


def consumer_settings(
    kind: v2.ClientType = v2.PUSH_CONSUMER,
    group: str = "workers",
    topic: str = "orders",
    expression: str = "*",
) -> v2.Settings:
    entry = v2.SubscriptionEntry(
        topic=v2.Resource(name=topic), expression=v2.FilterExpression(type=v2.TAG, expression=expression)
    )
    return v2.Settings(
        client_type=kind,
        subscription=v2.Subscription(group=v2.Resource(name=group), subscriptions=[entry]),
    )


@pytest.mark.asyncio
async def test_a_producer_gets_what_its_clients_need() -> None:
    bench = Bench()
    context, task = bench.open()
    asked = producer_settings("orders", "payments")
    answer = await bench.settled(context, asked)
    assert answer.publishing.max_body_size == 4_194_304
    assert answer.publishing.validate_message_type
    assert list(answer.publishing.topics) == list(asked.publishing.topics)
    assert answer.backoff_policy.WhichOneof("strategy") == "exponential_backoff", (
        "Java and Node.js throw else"
    )
    backoff = answer.backoff_policy.exponential_backoff
    assert (answer.backoff_policy.max_attempts, ms(backoff.initial), ms(backoff.max), backoff.multiplier) == (
        3,
        10,
        1_000,
        2.0,
    )
    assert not answer.metric.on
    assert answer.access_point == asked.access_point
    assert (answer.client_type, answer.user_agent) == (v2.PRODUCER, asked.user_agent)
    client = bench.registry.get("client-1")
    assert client is not None
    assert client.description.topics == {"orders", "payments"}
    assert (client.description.language, client.description.hostname) == ("PYTHON", "here")
    assert bench.registry.request_timeout_ms("client-1") == 3_000
    context.requests.put_nowait(grpc.aio.EOF)
    await task


@pytest.mark.asyncio
async def test_a_push_consumer_gets_its_groups_policy() -> None:
    bench = Bench()
    context, task = bench.open(x_mq_language="JAVA", x_mq_client_version="5.2.0")
    answer = await bench.settled(context, consumer_settings())
    assert not answer.subscription.fifo
    assert answer.subscription.receive_batch_size == 32
    assert ms(answer.subscription.long_polling_timeout) == 20_000
    assert answer.subscription.group.name == "workers"
    assert len(answer.subscription.subscriptions) == 1
    assert answer.backoff_policy.max_attempts == 17
    steps = [ms(step) for step in answer.backoff_policy.customized_backoff.next]
    assert (steps[0], steps[-1], len(steps)) == (1_000, 7_200_000, 18)
    (member,) = bench.registry.members("workers")
    assert (member.description.language, member.description.version) == ("JAVA", "5.2.0")
    answer = await bench.settled(context, consumer_settings(group="ordered"))
    assert answer.subscription.fifo
    assert answer.backoff_policy.max_attempts == 4
    exponential = answer.backoff_policy.exponential_backoff
    assert (ms(exponential.initial), ms(exponential.max), exponential.multiplier) == (5_500, 7_200_000, 2.0)
    context.requests.put_nowait(grpc.aio.EOF)
    await task


@pytest.mark.asyncio
async def test_a_simple_consumer_keeps_its_polling_time() -> None:
    bench = Bench()
    context, task = bench.open()
    settings = consumer_settings(v2.SIMPLE_CONSUMER)
    settings.subscription.long_polling_timeout.seconds = 40
    answer = await bench.settled(context, settings)
    assert ms(answer.subscription.long_polling_timeout) == 40_000
    settings.subscription.long_polling_timeout.seconds = 0
    answer = await bench.settled(context, settings)
    assert ms(answer.subscription.long_polling_timeout) == 20_000, "0 would be a busy loop"
    context.requests.put_nowait(grpc.aio.EOF)
    await task


def _too_many_properties() -> v2.Settings:
    settings = producer_settings()
    settings.client_properties.update({f"name{number}": "" for number in range(33)})
    return settings


def _with_property(name: str, value: str) -> v2.Settings:
    settings = producer_settings()
    settings.client_properties[name] = value
    return settings


def _large_properties() -> v2.Settings:
    settings = producer_settings()
    settings.client_properties.update({f"name{number}": "v" * 250 for number in range(20)})
    return settings


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (producer_settings("not legal"), "INVALID_ARGUMENT"),
        (producer_settings("TBW102"), "INVALID_ARGUMENT"),
        (producer_settings(*map(str, range(1_025))), "INVALID_ARGUMENT"),
        (consumer_settings(group="not legal"), "INVALID_ARGUMENT"),
        (consumer_settings(group=""), "INVALID_ARGUMENT"),
        (consumer_settings(group="TOOLS_CONSUMER"), "INVALID_ARGUMENT"),
        (consumer_settings(group="unknown"), "INVALID_ARGUMENT"),
        (consumer_settings(topic=""), "INVALID_ARGUMENT"),
        (consumer_settings(expression="a" * 8_193), "INVALID_ARGUMENT"),
        (v2.Settings(client_type=v2.PRODUCER), "INVALID_ARGUMENT"),
        (v2.Settings(), "INVALID_ARGUMENT"),
        (_too_many_properties(), "INVALID_ARGUMENT"),
        (_large_properties(), "INVALID_ARGUMENT"),
        (_with_property("1st", "x"), "INVALID_ARGUMENT"),
        (_with_property("n" * 65, "x"), "INVALID_ARGUMENT"),
        (_with_property("name", "x" * 257), "INVALID_ARGUMENT"),
        (v2.Settings(client_type=v2.PRODUCER, user_agent=v2.UA(platform="x" * 300_000)), "INVALID_ARGUMENT"),
        (consumer_settings(v2.PULL_CONSUMER), "INTERNAL"),
        (consumer_settings(v2.LITE_PUSH_CONSUMER), "INTERNAL"),
        (consumer_settings(v2.LITE_SIMPLE_CONSUMER), "INTERNAL"),
        (consumer_settings(v2.PRODUCER), "INTERNAL"),
        (consumer_settings(77), "INTERNAL"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.asyncio
async def test_settings_that_are_not_served_end_the_stream(settings: v2.Settings, code: str) -> None:
    bench = Bench()
    context, task = bench.open()
    bench.send(context, TelemetryCommand(settings=settings))
    end = await end_of(task)
    assert end.code.name == code
    assert end.details
    assert context.written == []
    assert len(bench.registry) == 0
    assert len(bench.telemetry) == 0


@pytest.mark.asyncio
async def test_the_largest_legal_client_properties_are_echoed() -> None:
    bench = Bench()
    context, task = bench.open()
    settings = _with_property("n" * 64, "x" * 256)
    settings.client_properties.update({f"a_.-{number}": "y" for number in range(31)})
    answer = await bench.settled(context, settings)
    assert dict(answer.client_properties) == dict(settings.client_properties)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
async def test_a_stream_without_a_client_id_is_reported_and_ended() -> None:
    bench = Bench()
    context, task = bench.open("")
    assert (await end_of(task)).code is grpc.StatusCode.INVALID_ARGUMENT
    (reported,) = context.written
    assert reported.status.code == v2.CLIENT_ID_REQUIRED
    assert reported.WhichOneof("command") is None


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x12\x05ab", b"\x12\x02\xff\xff"])
@pytest.mark.asyncio
async def test_bytes_that_are_no_command_end_the_stream(data: bytes) -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, producer_settings())
    context.requests.put_nowait(bench.read(data))
    assert (await end_of(task)).code is grpc.StatusCode.INVALID_ARGUMENT
    client = bench.registry.get("client-1")
    assert client is not None
    assert client.stream is None, "the client may open another stream"


@fake_time
async def test_a_half_open_stream_is_ended() -> None:
    bench = Bench(settings_wait_s=30)
    context, task = bench.open()
    bench.send(context, TelemetryCommand(status=v2.Status(code=v2.OK)))
    assert (await end_of(task)).code is grpc.StatusCode.INVALID_ARGUMENT
    assert asyncio.get_running_loop().time() == pytest.approx(30)
    second, serving = bench.open("client-2")
    await bench.settled(second, producer_settings())
    await asyncio.sleep(90)
    assert not serving.done(), "a client that has sent its settings may be silent"
    second.requests.put_nowait(grpc.aio.EOF)
    await serving


@pytest.mark.asyncio
async def test_the_number_of_streams_is_bounded() -> None:
    bench = Bench(clients_max=1)
    open_ones = [bench.open(f"client-{number}") for number in range(2)]
    await until(lambda: len(bench.telemetry) == 2)
    _, third = bench.open("client-3")
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        await third
    for context, task in open_ones:
        context.requests.put_nowait(grpc.aio.EOF)
        await task
    assert len(bench.telemetry) == 0


@pytest.mark.asyncio
async def test_a_reconnected_client_is_the_same_client() -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, consumer_settings())
    again, again_task = bench.open()
    await bench.settled(again, consumer_settings())
    stack = asyncio.create_task(bench.commands.print_stack_trace("client-1", "workers"))
    await until(lambda: len(again.written) == 2)
    assert len(context.written) == 1, "commands go to the new stream"
    nonce = again.written[1].print_thread_stack_trace_command.nonce
    trace = ThreadStackTrace(nonce=nonce, thread_stack_trace="main")
    bench.send(again, TelemetryCommand(status=v2.Status(code=v2.OK), thread_stack_trace=trace))
    assert (await stack).text == "main"
    context.requests.put_nowait(grpc.aio.EOF)
    await task
    assert len(bench.registry.members("workers")) == 1
    again.requests.put_nowait(grpc.aio.EOF)
    await again_task
    assert len(bench.registry.members("workers")) == 1, "it may come back"


@pytest.mark.asyncio
async def test_a_termination_ends_the_stream_with_ok() -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, consumer_settings())
    bench.registry.terminate("client-1", NOW_MS)
    await task
    assert len(bench.registry) == 0


@pytest.mark.asyncio
async def test_a_stopping_broker_ends_the_streams() -> None:
    bench = Bench()
    _, task = bench.open()
    await until(lambda: len(bench.telemetry) == 1)
    await bench.telemetry.end_all(5)
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await task
    _, late = bench.open()
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await late


@pytest.mark.asyncio
async def test_one_element_is_written_at_a_time() -> None:
    """RpcContext.write fails where two writes meet."""
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, producer_settings())
    for _ in range(20):
        bench.commands.reconnect("client-1")
        bench.send(context, TelemetryCommand(settings=producer_settings()))
    await until(lambda: len(context.written) == 41)
    context.requests.put_nowait(grpc.aio.EOF)
    await task


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_fills_its_outbox_and_no_more() -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, producer_settings())
    context.may_write.clear()
    for _ in range(OUTBOX_MAX):
        bench.commands.reconnect("client-1")
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        bench.commands.reconnect("client-1")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    client = bench.registry.get("client-1")
    assert client is not None
    assert client.stream is None


@pytest.mark.asyncio
async def test_a_write_that_fails_ends_the_stream() -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, producer_settings())

    async def broken(_message: object) -> None:
        raise grpc.aio.UsageError("the call is over")

    context.write = broken  # type: ignore[method-assign, assignment]
    bench.commands.reconnect("client-1")
    await task
    client = bench.registry.get("client-1")
    assert client is not None
    assert client.stream is None


@pytest.mark.asyncio
async def test_answers_that_nobody_waits_for_change_nothing() -> None:
    bench = Bench()
    context, task = bench.open()
    await bench.settled(context, consumer_settings())
    for strange in (
        TelemetryCommand(verify_message_result=VerifyMessageResult(nonce="unknown")),
        TelemetryCommand(thread_stack_trace=ThreadStackTrace(nonce="")),
        TelemetryCommand(reconnect_endpoints_command=ReconnectEndpointsCommand(nonce="x")),
        TelemetryCommand(),
    ):
        bench.send(context, strange)
    await bench.settled(context, consumer_settings())
    assert len(context.written) == 2
    context.requests.put_nowait(grpc.aio.EOF)
    await task


@pytest.mark.asyncio
async def test_thousands_of_clients_are_served() -> None:
    bench = Bench(clients_max=1_000)
    opened = [bench.open(f"client-{number}") for number in range(1_000)]
    for context, _ in opened:
        bench.send(context, TelemetryCommand(settings=consumer_settings()))
    await until(lambda: bool(opened[-1][0].written))
    assert len(bench.registry.members("workers")) == 1_000
    bench.core.now_ms += 200_000
    assert len(bench.registry.expire(bench.core.now_ms)) == 1_000
    await asyncio.gather(*(task for _, task in opened))
    assert len(bench.telemetry) == 0


class Passed:
    """The client's streams at other brokers."""

    def __init__(self) -> None:
        self.settings: list[bytes] = []
        self.answers: list[bytes] = []
        self.users: list[tuple[ClientKey, str]] = []

    def settled(self, key: ClientKey, _stream: object, settings: bytes, origin: Origin) -> None:
        self.settings.append(settings)
        self.users.append((key, origin.client.caller))

    def answered(self, _key: object, answer: bytes) -> None:
        self.answers.append(answer)

    def ended(self, _key: object, _stream: object) -> None:
        pass


@pytest.mark.asyncio
async def test_streams_at_other_brokers_are_of_the_streams_own_user() -> None:
    bench, passed = Bench(), Passed()
    mirrors: Any = passed
    bench.telemetry = Telemetry(bench.core, mirrors=mirrors)
    opened = []
    for user in ("alice", "mallory"):
        token = set_creator(Creator(user))
        opened.append(bench.open("same-id"))
        reset_creator(token)
        await bench.settled(opened[-1][0], producer_settings("orders"))
    await until(lambda: len(passed.users) == 2)
    assert passed.users == [(ClientKey(user, "same-id"), user) for user in ("alice", "mallory")]
    for context, task in opened:
        context.requests.put_nowait(grpc.aio.EOF)
        await task


@pytest.mark.asyncio
async def test_of_a_large_message_no_more_is_kept_than_its_settings() -> None:
    bench, passed = Bench(), Passed()
    mirrors: Any = passed
    bench.telemetry = Telemetry(bench.core, mirrors=mirrors)
    context, task = bench.open()
    settings = producer_settings("orders")
    padding = v2.Status(message="x" * 2_000_000)
    bench.send(context, TelemetryCommand(settings=settings, status=padding))
    await until(lambda: bool(passed.settings))
    assert TelemetryCommand.FromString(passed.settings[0]) == TelemetryCommand(settings=settings)
    for trace in ("x" * 2_000_000, "short"):
        answer = ThreadStackTrace(thread_stack_trace=trace)
        bench.send(context, TelemetryCommand(thread_stack_trace=answer))
    await until(lambda: bool(passed.answers))
    (found,) = passed.answers
    assert TelemetryCommand.FromString(found).thread_stack_trace.thread_stack_trace == "short"
    context.requests.put_nowait(grpc.aio.EOF)
    await task


@pytest.mark.asyncio
async def test_the_address_by_which_a_client_came_is_noted_before_its_answer() -> None:
    bench, noted = Bench(), list[tuple[str, Any]]()

    def note(context: Any, dialled: Any) -> None:
        assert not context.written
        noted.append((client_id_of(context), dialled))

    bench.telemetry = Telemetry(bench.core, note=note)
    illegal = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="", port=8081)])
    for client_id, access_point in (("known", None), ("illegal", illegal), ("none", v2.Endpoints())):
        context, task = bench.open(client_id)
        settings = producer_settings("orders")
        if access_point is not None:
            settings.access_point.CopyFrom(access_point)
        await bench.settled(context, settings)
        context.requests.put_nowait(grpc.aio.EOF)
        await task
    assert noted == [("known", [Address("127.0.0.1", 8_081)]), ("illegal", ()), ("none", ())]
    context = RpcContext("forwarded")
    task = asyncio.create_task(bench.telemetry.forwarded(context))
    await bench.settled(context, producer_settings("orders"))
    assert len(noted) == 3, "it came to another broker"
    context.requests.put_nowait(grpc.aio.EOF)
    await task
