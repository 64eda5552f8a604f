"""Commands to clients: which client gets them, the answers, and that nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest

from tests.unit.sdk.records_made import record_at
from trovemq_broker.server.core import commands as module
from trovemq_broker.server.core.clients import ClientDescription, ClientRegistry
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.wire.client_commands import (
    Answer,
    ClientCommand,
    StoredMessage,
    telemetry_answer,
    telemetry_command,
)
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_broker.server.wire.rocketmq_messages import message_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand, ThreadStackTrace, VerifyMessageResult

NOW_MS = EpochMs(1_700_000_000_000)
STORED = StoredMessage(record_at(7), "orders", QueueId(0), QueueOffset(7))
MESSAGE = message_of(*STORED)


class Stream:
    def __init__(self) -> None:
        self.sent: list[TelemetryCommand] = []
        self.full = False

    def send(self, command: ClientCommand) -> None:
        if self.full:
            raise TroveError(errors.LIMIT_EXCEEDED)
        self.sent.append(telemetry_command(command))

    def may_be_asked(self, topic: str) -> bool:
        return True

    def close(self) -> None:
        pass


class Bench:
    def __init__(self) -> None:
        self.registry = ClientRegistry()
        numbers = count()
        self.commands = ClientCommands(self.registry, lambda: f"nonce-{next(numbers)}")

    def consumer(self, client_id: str, group: str = "workers") -> Stream:
        description = ClientDescription(client_type=ClientType.PUSH_CONSUMER, group=group)
        return self._attached(client_id, description)

    def producer(self, client_id: str, *topics: str) -> Stream:
        return self._attached(
            client_id, ClientDescription(client_type=ClientType.PRODUCER, topics=frozenset(topics))
        )

    def _attached(self, client_id: str, description: ClientDescription) -> Stream:
        stream = Stream()
        self.registry.settle(client_id, description, NOW_MS)
        self.registry.attach(client_id, stream)
        return stream

    def ask(self, client_id: str = "c", timeout_ms: int = 60_000) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.commands.verify_message(client_id, "workers", STORED, timeout_ms))

    def answer(self, client_id: str, nonce: str, code: v2.Code | None, text: str = "") -> None:
        command = TelemetryCommand(verify_message_result=VerifyMessageResult(nonce=nonce))
        if code is not None:
            command.status.code = code
            command.status.message = text
        self.commands.answered(client_id, *telemetry_answer(command))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (v2.OK, v2.OK),
        (None, v2.OK),
        (v2.CODE_UNSPECIFIED, v2.OK),  # it must not be passed on: no status may have this code
        (v2.FAILED_TO_CONSUME_MESSAGE, v2.FAILED_TO_CONSUME_MESSAGE),
        (v2.VERIFY_FIFO_MESSAGE_UNSUPPORTED, v2.VERIFY_FIFO_MESSAGE_UNSUPPORTED),
        (v2.MESSAGE_CORRUPTED, v2.MESSAGE_CORRUPTED),
    ],
)
@pytest.mark.asyncio
async def test_the_listeners_result_is_the_answer(code: v2.Code | None, expected: v2.Code) -> None:
    bench = Bench()
    stream = bench.consumer("c")
    asked = bench.ask()
    await until(lambda: bool(stream.sent))
    command = stream.sent[0].verify_message_command
    assert command.message == MESSAGE
    bench.answer("c", command.nonce, code, "text" if code else "")
    answer = await asked
    assert answer.code == expected
    assert answer.text == ("text" if code else "")
    assert bench.commands.pending_count == 0


@pytest.mark.asyncio
async def test_a_client_that_does_not_do_this_is_an_error() -> None:
    bench = Bench()
    stream = bench.consumer("c")
    asked = asyncio.create_task(bench.commands.print_stack_trace("c", "workers"))
    await until(lambda: bool(stream.sent))
    trace = ThreadStackTrace(nonce=stream.sent[0].print_thread_stack_trace_command.nonce)
    bench.commands.answered(
        "c",
        *telemetry_answer(
            TelemetryCommand(status=v2.Status(code=v2.NOT_IMPLEMENTED), thread_stack_trace=trace)
        ),
    )
    with pytest.raises(TroveError, match="NOT_IMPLEMENTED"):
        await asked


@pytest.mark.asyncio
async def test_a_client_that_never_answers_is_forgotten() -> None:
    """Python's consumers pass these commands over."""
    bench = Bench()
    stream = bench.consumer("c")
    with pytest.raises(TroveError, match="CONSUME_MSG_TIMEOUT"):
        await bench.ask(timeout_ms=1)
    assert bench.commands.pending_count == 0
    bench.answer("c", stream.sent[0].verify_message_command.nonce, v2.OK)  # too late: no call waits


@pytest.mark.asyncio
async def test_a_client_that_leaves_while_it_is_asked() -> None:
    bench = Bench()
    stream = bench.consumer("c")
    asked = bench.ask()
    await until(lambda: bool(stream.sent))
    bench.registry.terminate("c", NOW_MS)
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        await asked
    assert bench.commands.pending_count == 0


@pytest.mark.asyncio
async def test_another_clients_answer_does_not_count() -> None:
    bench = Bench()
    stream = bench.consumer("c")
    bench.consumer("other")
    asked = bench.ask()
    await until(lambda: bool(stream.sent))
    nonce = stream.sent[0].verify_message_command.nonce
    bench.answer("other", nonce, v2.FAILED_TO_CONSUME_MESSAGE)
    bench.answer("c", nonce, v2.OK)
    bench.answer("c", nonce, v2.FAILED_TO_CONSUME_MESSAGE)  # the first one counts
    assert (await asked).code == v2.OK


@pytest.mark.asyncio
async def test_only_connected_members_of_the_group_are_asked() -> None:
    bench = Bench()
    stream = bench.consumer("c", group="others")
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        await bench.ask()
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        await bench.ask("unknown")
    member = bench.consumer("m")
    bench.registry.detach("m", member, NOW_MS)
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        await bench.ask("m")
    producer = bench.producer("p")
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        await bench.commands.print_stack_trace("p", "")
    assert not stream.sent
    assert not producer.sent


@pytest.mark.asyncio
async def test_the_number_of_waiting_commands_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 3)
    bench = Bench()
    bench.consumer("c")
    asked = [bench.ask() for _ in range(3)]
    await until(lambda: bench.commands.pending_count == 3)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        await bench.ask()
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    assert bench.commands.pending_count == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 60_001])
@pytest.mark.asyncio
async def test_the_time_is_bounded(timeout_ms: int) -> None:
    bench = Bench()
    bench.consumer("c")
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await bench.ask(timeout_ms=timeout_ms)


def test_a_transaction_is_recovered_by_its_sender_first() -> None:
    bench = Bench()
    sender = bench.producer("sender", "orders")
    other = bench.producer("other", "orders")
    recover = bench.commands.recover_orphaned_transaction
    assert recover("sender", "orders", STORED, "T1") == "sender"
    command = sender.sent[0].recover_orphaned_transaction_command
    assert (command.transaction_id, command.message) == ("T1", MESSAGE)
    bench.registry.detach("sender", sender, NOW_MS)
    assert recover("sender", "orders", STORED, "T1") == "other"
    bench.registry.detach("other", other, NOW_MS)
    assert recover("sender", "orders", STORED, "T1") is None


def test_the_other_producers_are_asked_in_turn() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.producer(name, "orders")
    bench.producer("stranger", "payments")
    asked = [bench.commands.recover_orphaned_transaction("gone", "orders", STORED, "T") for _ in range(6)]
    assert sorted(map(str, asked)) == ["a", "a", "b", "b", "c", "c"]


def test_a_producer_that_does_not_read_is_skipped() -> None:
    bench = Bench()
    bench.producer("sender", "orders").full = True
    assert bench.commands.recover_orphaned_transaction("sender", "orders", STORED, "T") is None
    other = bench.producer("other", "orders")
    assert bench.commands.recover_orphaned_transaction("sender", "orders", STORED, "T") == "other"
    assert len(other.sent) == 1


def test_reconnect() -> None:
    bench = Bench()
    stream = bench.producer("p")
    bench.commands.reconnect("p")
    assert stream.sent[0].reconnect_endpoints_command.nonce
    with pytest.raises(TroveError, match="CONSUMER_NOT_ONLINE"):
        bench.commands.reconnect("unknown")
