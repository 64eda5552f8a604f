"""A client's telemetry stream at another broker, which gets its forwarded calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trovemq_broker.server.rocketmq import mirrors as module
from trovemq_broker.server.rocketmq.mirrors import ClientKey, Mirrors, Origin
from trovemq_broker.server.wire.forwarded_messages import ForwardedClient
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand

pytestmark = pytest.mark.asyncio

SETTINGS = TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER)).SerializeToString()
ALICE, MALLORY = ClientKey("alice", "c"), ClientKey("mallory", "c")


class There:
    """The other brokers, and the stream there. `commands`: the messages that it sends; None ends it.
    `refusal`: the error of the next streams."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.commands: asyncio.Queue[Any] = asyncio.Queue()
        self.opened: list[str] = []
        self.cancelled = 0
        self.refusal: TroveError | None = None

    async def open_telemetry(self, _broker: str, client: ForwardedClient, *, by_tls: bool) -> There:
        assert not by_tls
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(client.caller)
        return self

    async def write(self, command: bytes) -> None:
        self.got.append(command)

    async def read(self) -> bytes | None:
        found: bytes | None = await self.commands.get()
        if isinstance(found, TroveError):
            raise found
        return found

    def cancel(self) -> None:
        self.cancelled += 1


class Here:
    """The client's own stream."""

    def __init__(self) -> None:
        self.passed: list[Any] = []

    def pass_on(self, command: object) -> None:
        self.passed.append(command)


def mirrors_at(there: Any) -> Mirrors:
    return Mirrors(there)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def settle(mirrors: Mirrors, stream: Here, key: ClientKey = ALICE) -> None:
    client = ForwardedClient(key.caller, "ipv4:10.0.0.9:5000", ())
    mirrors.settled(key, stream, SETTINGS, Origin(client, by_tls=False))


def stack_trace_command() -> TelemetryCommand:
    command = TelemetryCommand()
    command.print_thread_stack_trace_command.nonce = "n"
    return command


async def test_settings_heartbeats_and_answers_reach_the_other_broker() -> None:
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    for _ in range(2):
        mirrors.ensure(ALICE, "b")
    await turns()
    assert (there.got, len(mirrors)) == ([SETTINGS], 1)
    mirrors.heard(ALICE)
    mirrors.answered(ALICE, b"answer")
    await turns()
    assert there.got == [SETTINGS, SETTINGS, b"answer"]
    mirrors.ended(ALICE, here)
    await turns()
    assert (there.cancelled, len(mirrors)) == (1, 0)


async def test_the_client_gets_the_other_brokers_commands_only() -> None:
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    mirrors.ensure(ALICE, "b")
    await turns()
    for data in (SETTINGS, b"\xff", stack_trace_command().SerializeToString(), None):
        there.commands.put_nowait(data)
    await turns()
    assert here.passed == [stack_trace_command()]
    assert (there.cancelled, len(mirrors)) == (1, 0), "it has ended there"
    mirrors.ensure(ALICE, "b")
    await turns()
    assert there.got == [SETTINGS, SETTINGS], "the next call opens it again"
    mirrors.ended(ALICE, here)
    await turns()


async def test_another_users_client_with_the_same_id_gets_no_commands() -> None:
    alices, mallorys, there = Here(), Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, alices)
    settle(mirrors, mallorys, MALLORY)
    mirrors.ensure(ALICE, "b")
    await turns()
    there.commands.put_nowait(stack_trace_command().SerializeToString())
    await turns()
    assert (there.opened, alices.passed, mallorys.passed) == (["alice"], [stack_trace_command()], [])
    mirrors.ended(MALLORY, mallorys)
    await turns()
    assert len(mirrors) == 1
    mirrors.ended(ALICE, alices)
    await turns()


async def test_a_new_stream_of_the_client_replaces_the_old_one() -> None:
    first, second, there = Here(), Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, first)
    mirrors.ensure(ALICE, "b")
    await turns()
    settle(mirrors, second)
    mirrors.ended(ALICE, first)
    mirrors.ensure(ALICE, "b")
    await turns()
    assert (there.cancelled, len(mirrors)) == (1, 1)
    there.commands.put_nowait(stack_trace_command().SerializeToString())
    await turns()
    assert (len(first.passed), len(second.passed)) == (0, 1)
    mirrors.ended(ALICE, second)
    await turns()
    assert len(mirrors) == 0


async def test_a_client_that_leaves_at_once_is_not_counted_for_ever() -> None:
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    mirrors.ensure(ALICE, "b")
    mirrors.ended(ALICE, here)
    await turns()
    assert (there.opened, len(mirrors)) == ([], 0)


async def test_a_broker_that_cannot_be_reached_leaves_nothing() -> None:
    here, there = Here(), There()
    there.refusal = TroveError(errors.BROKER_UNREACHABLE, "nothing listens")
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    mirrors.ensure(ALICE, "b")
    await turns()
    assert len(mirrors) == 0


async def test_streams_at_other_brokers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 1)
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    for broker in ("a", "b"):
        mirrors.ensure(ALICE, broker)
    assert len(mirrors) == 1
    mirrors.ended(ALICE, here)
    await turns()


async def test_a_client_that_connects_again_is_known_there_again() -> None:
    """Its waiting receive begins before its telemetry stream, and no other call comes meanwhile."""
    first, second, there = Here(), Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, first)
    mirrors.ensure(ALICE, "b")
    await turns()
    mirrors.ended(ALICE, first)
    mirrors.ensure(ALICE, "b")
    await turns()
    assert len(mirrors) == 0
    settle(mirrors, second)
    await turns()
    assert (there.got, len(mirrors)) == ([SETTINGS, SETTINGS], 1)
    mirrors.ended(ALICE, second)
    await turns()


@pytest.mark.parametrize(
    ("error", "comes_back"), [(errors.BROKER_UNREACHABLE, True), (errors.ACCESS_DENIED, False)]
)
async def test_a_heartbeat_opens_a_stream_again_that_broke(error: Any, comes_back: bool) -> None:
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    settle(mirrors, here)
    mirrors.ensure(ALICE, "b")
    await turns()
    there.commands.put_nowait(TroveError(error, "it broke"))
    await turns()
    assert len(mirrors) == 0
    mirrors.heard(ALICE)
    await turns()
    assert len(mirrors) == comes_back
    mirrors.ended(ALICE, here)
    await turns()


async def test_the_clients_that_have_been_forwarded_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 1)
    here, there = Here(), There()
    mirrors = mirrors_at(there)
    for key in (ALICE, MALLORY):
        mirrors.ensure(key, "b")
    settle(mirrors, here)
    assert len(mirrors) == 0, "the oldest is forgotten"
    settle(mirrors, here, MALLORY)
    assert len(mirrors) == 1
    mirrors.ended(MALLORY, here)
    await turns()
