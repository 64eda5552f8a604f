"""A client's telemetry stream at another broker, which gets its forwarded calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trovemq_broker.server.rocketmq import mirrors as module
from trovemq_broker.server.rocketmq.mirrors import Mirrors
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand

pytestmark = pytest.mark.asyncio

SETTINGS = TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER)).SerializeToString()


class There:
    """The stream at the other broker. `commands`: the messages that it sends; None ends it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.commands: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = 0

    async def open(self) -> There:
        return self

    async def write(self, command: bytes) -> None:
        self.got.append(command)

    async def read(self) -> bytes | None:
        found: bytes | None = await self.commands.get()
        return found

    def cancel(self) -> None:
        self.cancelled += 1


class Here:
    """The client's own stream."""

    def __init__(self) -> None:
        self.passed: list[Any] = []

    def pass_on(self, command: object) -> None:
        self.passed.append(command)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_settings_heartbeats_and_answers_reach_the_other_broker() -> None:
    mirrors, here, there = Mirrors(), Here(), There()
    mirrors.ensure("c", "b", there.open)
    await turns()
    assert there.got == [], "the client has no stream here"
    mirrors.settled("c", here, SETTINGS)
    for _ in range(2):
        mirrors.ensure("c", "b", there.open)
    await turns()
    assert (there.got, len(mirrors)) == ([SETTINGS], 1)
    mirrors.heard("c")
    mirrors.answered("c", b"answer")
    await turns()
    assert there.got == [SETTINGS, SETTINGS, b"answer"]
    mirrors.ended("c", here)
    await turns()
    assert (there.cancelled, len(mirrors)) == (1, 0)


async def test_the_client_gets_the_other_brokers_commands_only() -> None:
    mirrors, here, there = Mirrors(), Here(), There()
    mirrors.settled("c", here, SETTINGS)
    mirrors.ensure("c", "b", there.open)
    await turns()
    command = TelemetryCommand()
    command.print_thread_stack_trace_command.nonce = "n"
    for data in (SETTINGS, b"\xff", command.SerializeToString(), None):
        there.commands.put_nowait(data)
    await turns()
    assert here.passed == [command]
    assert (there.cancelled, len(mirrors)) == (1, 0), "it has ended there"
    mirrors.ensure("c", "b", there.open)
    await turns()
    assert there.got == [SETTINGS, SETTINGS], "the next call opens it again"
    mirrors.ended("c", here)
    await turns()


async def test_a_new_stream_of_the_client_replaces_the_old_one() -> None:
    mirrors, first, second, there = Mirrors(), Here(), Here(), There()
    mirrors.settled("c", first, SETTINGS)
    mirrors.ensure("c", "b", there.open)
    await turns()
    mirrors.settled("c", second, SETTINGS)
    mirrors.ended("c", first)
    await turns()
    assert (there.cancelled, len(mirrors)) == (1, 0)
    mirrors.ensure("c", "b", there.open)
    await turns()
    assert len(mirrors) == 1
    mirrors.ended("c", second)
    await turns()
    assert len(mirrors) == 0


async def test_a_broker_that_cannot_be_reached_leaves_nothing() -> None:
    mirrors = Mirrors()
    mirrors.settled("c", Here(), SETTINGS)

    async def refused() -> Any:
        raise TroveError(errors.BROKER_UNREACHABLE, "nothing listens")

    mirrors.ensure("c", "b", refused)
    await turns()
    assert len(mirrors) == 0


async def test_streams_at_other_brokers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 1)
    mirrors, here, there = Mirrors(), Here(), There()
    mirrors.settled("c", here, SETTINGS)
    for broker in ("a", "b"):
        mirrors.ensure("c", broker, there.open)
    assert len(mirrors) == 1
    mirrors.ended("c", here)
    await turns()
