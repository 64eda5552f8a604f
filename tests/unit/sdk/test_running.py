"""Handlers at work on a scripted broker: policies, batches, values, rates, middleware, and the drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

import trovemq
from tests.support.event_loop import EARLY_S
from tests.support.fake_consuming import FakeConsuming
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import (
    Call,
    Client,
    Handlers,
    ReceivedBatch,
    ReceivedMessage,
    Retry,
    TroveError,
    UndecodableBody,
    errors,
    serializers,
    sync,
)
from trovemq.handlers import Policy
from trovemq.running import SIGNALS_DEFAULT
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def client(broker: FakeServer, connect: Connect) -> Client:
    return await connect(broker)


@pytest.fixture
def fake(broker: FakeServer) -> FakeConsuming:
    return broker.consuming


class Refused(Exception):  # noqa: N818  a name from a bank
    pass


class RefusedByTheBank(Refused):
    pass


# --- the end of a message -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "dead", "gone", "attempts"),
    [
        ({}, [], [b"a"], 2),  # the group's back-off
        ({Refused: "dead_letter"}, [b"a"], [], 1),
        ({Refused: "discard"}, [], [b"a"], 1),
        ({Refused: "discard", RefusedByTheBank: "dead_letter"}, [b"a"], [], 1),
        ({Exception: Retry(delay=0.001, attempts_max=2)}, [], [b"a"], 2),
        ({Exception: Retry(delay=lambda attempt: attempt / 1000, attempts_max=1)}, [b"a"], [], 1),
        ({Refused: Retry(delay=lambda _: -1)}, [], [b"a"], 2),  # a delay that is none: the group's
    ],
)
async def test_the_nearest_class_of_an_exception_decides(
    client: Client, fake: FakeConsuming, policy: Policy, dead: list[bytes], gone: list[bytes], attempts: int
) -> None:
    handlers, seen = Handlers(on_error={Exception: "discard"} if not policy else None), []
    own = policy or {Refused: Retry()}

    @handlers.handle("orders", "g", on_error=own)
    async def bill(message: ReceivedMessage) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            raise RefusedByTheBank

    async with client.run(handlers):
        await fake.offer(b"a")
        await fake.until(lambda: fake.dead == dead and fake.gone == gone)
    assert seen == list(range(1, attempts + 1))


async def test_a_handler_that_settles_its_message_has_the_last_word(
    client: Client, fake: FakeConsuming
) -> None:
    handlers = Handlers()

    @handlers.handle("orders", "g")
    async def bill(message: ReceivedMessage) -> None:
        await message.ack()
        raise Refused

    async with client.run(handlers):
        await fake.offer(b"a")
        await fake.until(lambda: fake.gone == [b"a"])
    assert fake.requests("RETURN") == []


async def test_handlers_run_side_by_side_up_to_their_concurrency(client: Client, fake: FakeConsuming) -> None:
    handlers, together = Handlers(), asyncio.Barrier(3)

    @handlers.handle("orders", "g", concurrency=3)
    async def bill(message: ReceivedMessage) -> None:
        await together.wait()

    async with client.run(handlers):
        await fake.offer(*(b"%d" % i for i in range(6)))
        await fake.until(lambda: len(fake.gone) == 6)


async def test_a_plain_function_runs_in_a_thread(client: Client, fake: FakeConsuming) -> None:
    handlers, threads = Handlers(), set()

    @handlers.handle("orders", "g", concurrency=2)
    def bill(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name.rpartition("_")[0])

    async with client.run(handlers):
        await fake.offer(b"a", b"b")
        await fake.until(lambda: len(fake.gone) == 2)
    assert threads == {bill.__qualname__}


async def test_no_more_messages_a_second_than_the_rate(client: Client, fake: FakeConsuming) -> None:
    handlers, times = Handlers(), []

    @handlers.handle("orders", "g", rate_max=200)
    async def bill(message: ReceivedMessage) -> None:
        times.append(asyncio.get_running_loop().time())

    async with client.run(handlers):
        began = asyncio.get_running_loop().time()  # a handler may begin late after its message came
        await fake.offer(*(b"%d" % i for i in range(5)))
        await fake.until(lambda: len(fake.gone) == 5)
    assert times[-1] - began >= 4 / 200 - EARLY_S


async def test_a_batch_counted_as_one_message_of_the_rate(client: Client, fake: FakeConsuming) -> None:
    handlers, times = Handlers(), []

    @handlers.handle_batch("orders", "g", count_max=10, wait=30, rate_max=200)
    async def bill(messages: list[ReceivedMessage]) -> None:
        times.append(asyncio.get_running_loop().time())

    async with client.run(handlers):
        began = asyncio.get_running_loop().time()  # a handler may begin late after its messages were received
        await fake.offer(*(b"%d" % i for i in range(20)))
        await fake.until(lambda: len(fake.gone) == 20)
    assert len(times) == 2
    assert times[-1] - began >= 10 / 200 - EARLY_S


# --- values ---------------------------------------------------------------------------------------------
@dataclass
class Order:
    number: int


async def test_a_handler_gets_the_value_and_an_undecodable_body_is_dead(
    client: Client, fake: FakeConsuming
) -> None:
    handlers, seen = Handlers(), []

    @handlers.handle("orders", "g", body=serializers.Msgspec(Order))
    async def bill(order: Order, message: ReceivedMessage) -> None:
        seen.append((order, message.body))

    async with client.run(handlers):
        await fake.offer(b'{"number":1}', b'{"number":"one"}')
        await fake.until(lambda: len(fake.gone) == len(fake.dead) == 1)
    assert seen == [(Order(1), b'{"number":1}')]
    assert fake.dead == [b'{"number":"one"}']


@pytest.mark.parametrize(
    ("on_error", "gone", "dead"),
    [
        ({ValueError: Retry(delay=0), Exception: "discard"}, [], [b"no json"]),
        ({UndecodableBody: "discard"}, [b"no json"], []),
    ],
)
async def test_a_body_that_cannot_be_decoded_was_tried_again_as_a_value_error(
    client: Client, fake: FakeConsuming, on_error: Policy, gone: list[bytes], dead: list[bytes]
) -> None:
    handlers = Handlers()

    @handlers.handle("orders", "g", body=serializers.Json(), on_error=on_error)
    async def bill(value: object, message: ReceivedMessage) -> None: ...

    async with client.run(handlers):
        await fake.offer(b"no json")
        await fake.until(lambda: len(fake.gone) + len(fake.dead) == 1)
    assert (fake.gone, fake.dead) == (gone, dead)
    assert fake.requests("RETURN") == []


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_exception_without_a_readable_text_ended_the_worker(
    client: Client, fake: FakeConsuming
) -> None:
    handlers = Handlers()

    @handlers.handle("orders", "g", on_error={UnreadableError: "discard"})
    async def bill(message: ReceivedMessage) -> None:
        raise UnreadableError

    async with client.run(handlers):
        await fake.offer(b"1")
        await fake.offer(b"2")
        await fake.until(lambda: len(fake.gone) == 2)


@pytest.mark.parametrize(
    ("serializer", "value", "wrong"),
    [
        (serializers.Json(), {"number": [1, "ü", None]}, b"{"),
        (serializers.Msgspec(Order), Order(1), b"[]"),
        (serializers.Msgspec(Order, "msgpack"), Order(1), b"\xc1"),
        (serializers.Protobuf(v2.Resource), v2.Resource(name="n"), b"\xff"),
    ],
    ids=["json", "msgspec", "msgpack", "protobuf"],
)
async def test_what_a_serializer_encodes_it_decodes(serializer: Any, value: object, wrong: bytes) -> None:
    assert serializer.decode(serializer.encode(value)) == value
    with pytest.raises(Exception, match=r".+"):
        serializer.decode(wrong)


async def test_pydantic_serves_where_it_is_installed() -> None:
    try:
        serializer = serializers.Pydantic(dict[str, int])
    except ImportError as missing:
        assert "pip install pydantic" in str(missing)  # noqa: PT017  of either case one is true
    else:
        assert serializer.decode(serializer.encode({"a": 1})) == {"a": 1}


# --- batches --------------------------------------------------------------------------------------------
async def test_a_batch_is_full_or_waits_no_longer_than_it_may(client: Client, fake: FakeConsuming) -> None:
    handlers, sizes = Handlers(), []

    @handlers.handle_batch("orders", "g", count_max=4, wait=0.01, concurrency=1)
    async def bill(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    await fake.offer(*(b"%d" % i for i in range(6)))
    async with client.run(handlers):
        await fake.until(lambda: len(fake.gone) == 6)
    assert max(sizes) <= 4
    assert sum(sizes) == 6


async def test_a_batch_fails_as_a_whole_but_for_messages_it_settled(
    client: Client, fake: FakeConsuming
) -> None:
    handlers = Handlers()

    @handlers.handle_batch(
        "orders", "g", count_max=3, wait=30, body=serializers.Json(), on_error={Refused: "dead_letter"}
    )
    async def bill(values: list[int], messages: list[ReceivedMessage]) -> None:
        assert values == [int(message.body) for message in messages]
        await messages[0].ack()
        raise Refused

    async with client.run(handlers):
        await fake.offer(b"1", b"2", b"three")
        await fake.until(lambda: fake.gone == [b"1"] and sorted(fake.dead) == [b"2", b"three"])
    assert sorted(one.body for one in fake.requests("DEAD_LETTER")) == [b"2", b"three"], (
        "a settled message was settled again"
    )


async def test_a_cancelled_wait_for_a_batch_returns_its_messages(client: Client, fake: FakeConsuming) -> None:
    async with client.subscribe("orders", "g") as messages:
        waiting = asyncio.create_task(messages.next_batch(2, wait=60))
        await fake.offer(b"a")
        await fake.until_received()
        for _ in range(10):
            await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await fake.until(lambda: bool(fake.requests("RETURN")))
        batches = messages.batches(2, wait=0)
        assert [message.body for message in await anext(batches)] == [b"a"]
        await batches.aclose()


async def test_a_list_is_acknowledged_but_for_settled_messages(client: Client, fake: FakeConsuming) -> None:
    await fake.offer(b"a", b"b", b"c")
    async with client.subscribe("orders", "g") as messages:
        batch: ReceivedBatch = await messages.next_batch(3, wait=60)
        async with batch.process():
            await batch[1].nack(60)
    assert all(message.settled for message in batch)
    await fake.until(lambda: sorted(fake.gone) == [b"a", b"c"])
    assert len(fake.requests("RETURN")) == 1
    assert sorted(one.body for one in fake.requests("ACKNOWLEDGE")) == [b"a", b"c"], (
        "a returned one was acknowledged"
    )


async def test_an_exception_returns_the_messages_of_a_list(client: Client, fake: FakeConsuming) -> None:
    await fake.offer(b"a", b"b")
    async with client.subscribe("orders", "g") as messages:
        batch = await messages.next_batch(2, wait=60)
        with suppress(Refused):
            async with batch.process():
                await batch[0].ack()
                raise Refused
        await fake.until(lambda: len(fake.requests("RETURN")) == 1)
        assert fake.gone == [b"a"]


class Full:
    """The settlement of one message, as with tracing: it always waits for earlier results."""

    at_capacity = True

    def __init__(self, consumed: list[bytes]) -> None:
        self.consumed = consumed

    def check_loop(self) -> None:
        """It has one loop."""

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        self.consumed.extend(message.body for message in messages)

    async def wait_for_capacity(self) -> None:
        await asyncio.Event().wait()


async def test_a_cancelled_wait_left_messages_of_a_list_unsettled(
    client: Client, fake: FakeConsuming
) -> None:
    """They were marked as settled, so they were neither acknowledged nor returned while the client lived."""
    await fake.offer(b"a", b"b", b"c")
    async with client.subscribe("orders", "g") as messages:
        batch, consumed = await messages.next_batch(3, wait=60), list[bytes]()
        for message in batch:
            message.settlement = cast("Any", Full(consumed))
        with suppress(TimeoutError):
            async with asyncio.timeout(0), batch.process():
                pass
    assert consumed == [b"a", b"b", b"c"]


async def test_messages_taken_out_of_a_list_were_acknowledged_with_the_others(
    client: Client, fake: FakeConsuming
) -> None:
    """By the synchronous client."""
    await fake.offer(b"a", b"b", b"c")
    async with client.subscribe("orders", "g") as messages:
        batch, work = await messages.next_batch(3, wait=60), list[Awaitable[None]]()
        shown = sync.ReceivedBatch(batch, cast("Any", SimpleNamespace(run=work.append)))
        with shown.process():
            del shown[1]
        await work[0]
        await fake.until(lambda: sorted(fake.gone) == [b"a", b"c"])
    assert [message.settled for message in batch] == [True, False, True]


@pytest.mark.parametrize(
    ("on_error", "end"),
    [
        ({Refused: "discard"}, "and it is discarded: Refused: no card"),
        ({Refused: "dead_letter"}, "and it is a dead letter: Refused: no card"),
        ({Refused: Retry(attempts_max=1)}, "and it is a dead letter: Refused: no card"),
        ({}, None),
    ],
)
async def test_only_an_unexpected_failure_is_logged_with_its_traceback(
    client: Client,
    fake: FakeConsuming,
    caplog: pytest.LogCaptureFixture,
    on_error: Policy,
    end: str | None,
) -> None:
    handlers = Handlers()

    @handlers.handle("orders", "g", on_error=on_error)
    async def bill(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise Refused("no\ncard")

    async with client.run(handlers):
        await fake.offer(b"a")
        await fake.until(lambda: len(fake.gone) + len(fake.dead) == 1)
    (record,) = [one for one in caplog.records if one.name == "trovemq._run.worker"]
    assert (record.levelname, record.exc_info is None) == (
        ("ERROR", False) if end is None else ("WARNING", True)
    )
    assert record.getMessage().endswith(f"attempt 1, {end}" if end else "attempt 1")
    assert "\n" not in record.getMessage()


# --- middleware -----------------------------------------------------------------------------------------
async def test_middleware_is_around_the_call_the_first_outermost(
    client: Client, fake: FakeConsuming, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trovemq.handlers")
    steps: list[str] = []

    def step(name: str) -> Any:
        async def middleware(call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
            steps.append(f"{name} {call.topic} {call.group} {len(call.messages)}")
            try:
                await proceed()
            finally:
                steps.append(f"{name} ends")

        return middleware

    metrics = trovemq.middleware.CallMetrics()
    handlers = Handlers(middleware=[step("one"), metrics, trovemq.middleware.log_calls(), step("two")])

    @handlers.handle("orders", "g", on_error={Refused: "discard"})
    async def bill(message: ReceivedMessage) -> None:
        steps.append("call")
        if message.body == b"b":
            raise Refused

    async with client.run(handlers):
        await fake.offer(b"a")
        await fake.until(lambda: fake.gone == [b"a"])
        assert steps == ["one orders g 1", "two orders g 1", "call", "two ends", "one ends"]
        await fake.offer(b"b")
        await fake.until(lambda: fake.gone == [b"a", b"b"])
    counts = metrics.statistics()["orders", "g"]
    assert (counts.done, counts.failed, counts.messages) == (1, 1, 2)
    assert 0 < counts.seconds_max <= counts.seconds
    done, failed = [record.getMessage() for record in caplog.records if record.name == "trovemq.handlers"]
    assert "bill done in" in done
    assert "bill failed in" in failed
    samples = [(s.name, s.labels.get("result"), s.value) for f in metrics.collect() for s in f.samples]
    assert ("trovemq_handler_calls_total", "failed", 1) in samples


# --- the end --------------------------------------------------------------------------------------------
class Slow:
    """A handler in the middle of its call."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.handlers = Handlers()
        self.handlers.handle("orders", "g", concurrency=1)(self.call)

    async def call(self, message: ReceivedMessage) -> None:
        self.begun.set()
        await self.may_end.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_calls_end_and_returns_the_rest(
    client: Client, fake: FakeConsuming, number: signal.Signals
) -> None:
    slow, before = Slow(), signal.getsignal(number)
    await fake.offer(b"a", b"b")
    running = asyncio.ensure_future(_run(client, slow.handlers))
    await slow.begun.wait()
    os.kill(os.getpid(), number)
    await asyncio.sleep(0)
    slow.may_end.set()
    await running
    assert (fake.gone, fake.visible()) == ([b"a"], [b"b"])
    assert fake.held[0].attempt == 0, "a message that no handler got has no attempt counted"
    assert signal.getsignal(number) == before


async def test_a_block_of_handlers_took_its_programs_signals(client: Client) -> None:
    before = [signal.getsignal(number) for number in SIGNALS_DEFAULT]
    async with client.run(Slow().handlers):
        assert [signal.getsignal(number) for number in SIGNALS_DEFAULT] == before


async def test_a_handler_of_the_program_is_called_too(client: Client, fake: FakeConsuming) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        slow = Slow()
        await fake.offer(b"a")
        running = asyncio.ensure_future(_run(client, slow.handlers))
        await slow.begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        slow.may_end.set()
        await running
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_handler_that_came_later_stays(client: Client) -> None:
    before = signal.getsignal(signal.SIGUSR1)

    def later(_number: int, _frame: object) -> None:
        """Another part's."""

    try:
        async with client.run(Slow().handlers, signals=[signal.SIGUSR1]):
            assert signal.getsignal(signal.SIGUSR1) is not before
            signal.signal(signal.SIGUSR1, later)
        assert signal.getsignal(signal.SIGUSR1) is later
    finally:
        signal.signal(signal.SIGUSR1, before)


async def _run(client: Client, handlers: Handlers) -> None:
    await client.run(handlers)


async def test_a_second_stop_cancels_calls_and_returns_their_messages(
    client: Client, fake: FakeConsuming
) -> None:
    slow = Slow()
    await fake.offer(b"a")
    async with client.run(slow.handlers) as running:
        await slow.begun.wait()
        running.stop()
        running.stop()
        await running.wait()
    assert (fake.gone, fake.visible()) == ([], [b"a"])


async def test_calls_that_outlast_the_drain_are_cancelled(client: Client, fake: FakeConsuming) -> None:
    slow = Slow()
    await fake.offer(b"a")
    async with client.run(slow.handlers, drain_seconds=0, signals=()):
        await slow.begun.wait()
    assert (fake.gone, fake.visible()) == ([], [b"a"])


async def test_a_group_that_denies_the_client_ends_all_with_its_error(
    client: Client, fake: FakeConsuming
) -> None:
    handlers = Handlers()
    handlers.handle("orders", "g")(print)
    async with client.run(handlers) as running:
        fake.hooks["deliver"] = lambda _: TroveError(errors.PERMISSION_MISSING)
        await fake.notify()
        with pytest.raises(TroveError) as ended:
            await running.wait()
        assert ended.value.spec is errors.PERMISSION_MISSING
        fake.hooks.clear()
        with pytest.raises(TroveError):
            await running.wait()
        await client.close()


async def test_what_cannot_run_is_refused_before_anything_is_opened(
    client: Client, fake: FakeConsuming
) -> None:
    handlers = Handlers()
    with pytest.raises(TroveError, match="no handlers"):
        client.run(handlers)
    for arguments in (
        {"rate_max": 0},
        {"on_error": {ValueError: "drop"}},
    ):
        with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
            handlers.handle("orders", "g", **arguments)(print)
    with pytest.raises(TroveError, match="count_max"):
        handlers.handle_batch("orders", "g", count_max=0)(print)
    handlers.handle("orders", "g", concurrency=0)(print)
    with pytest.raises(TroveError, match="concurrency"):
        client.run(handlers)
    assert fake.members == []
