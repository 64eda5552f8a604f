"""Telemetry streams of this broker's clients at other brokers, to which their calls are forwarded.

The other broker knows the client so: it renews the leases of its messages, releases them when it goes away,
counts it as a member of its group, and can ask it about transactions.

| here                                    | at the other broker                                              |
|-----------------------------------------|------------------------------------------------------------------|
| a send or a receive is forwarded        | the client's stream is opened, with its last settings            |
| the client sends settings, a heartbeat  | the last settings are sent again: they count as a heartbeat      |
| it answers a command                    | gets the answer: it knows by the nonce if it has asked           |
| its stream ends                         | its stream ends                                                  |
| gets its commands, but not its settings | sends a command                                                  |

A stream that breaks is opened again by the next call. There are at most STREAMS_MAX; a client beyond that is
not known at the other broker, whose leases then last as long as the client asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from trovemq_broker.server.core.forwarding import ForwardedStream
from trovemq_broker.server.wire.telemetry import read_command
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError

STREAMS_MAX: Final = 8_192
WAITING_MAX: Final = 64
"""Commands that wait to be sent on one stream."""

Open = Callable[[], Any]
"""Opens the stream: an awaitable of a ForwardedStream."""


class Receiving(Protocol):
    """A client's stream here."""

    def pass_on(self, command: object) -> None:
        """Sends the command of another broker to the client."""
        ...


@dataclass(slots=True, eq=False)
class _Known:
    """A client with a stream here. `settings`: its last ones, serialised."""

    stream: Receiving
    settings: bytes
    mirrors: dict[str, _Mirror] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Mirror:
    waiting: asyncio.Queue[bytes]
    task: asyncio.Task[None] | None = None


class Mirrors:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # --- for the client's stream here -----------------------------------------------------------------
    def settled(self, client_id: str, stream: Receiving, settings: bytes) -> None:
        known = self._known.get(client_id)
        if known is None or known.stream is not stream:
            if known is not None:
                self._end(known)
            self._known[client_id] = _Known(stream, settings)
            return
        known.settings = settings
        self.heard(client_id)

    def heard(self, client_id: str) -> None:
        """The client is alive."""
        known = self._known.get(client_id)
        if known is not None and known.mirrors:
            self._send(known, known.settings)

    def answered(self, client_id: str, command: bytes) -> None:
        """The client's answer to a command."""
        known = self._known.get(client_id)
        if known is not None:
            self._send(known, command)

    def ended(self, client_id: str, stream: Receiving) -> None:
        known = self._known.get(client_id)
        if known is not None and known.stream is stream:
            del self._known[client_id]
            self._end(known)

    def _send(self, known: _Known, command: bytes) -> None:
        for mirror in known.mirrors.values():
            if mirror.waiting.qsize() < WAITING_MAX:
                mirror.waiting.put_nowait(command)

    def _end(self, known: _Known) -> None:
        for mirror in known.mirrors.values():
            if mirror.task is not None:
                mirror.task.cancel()

    # --- for forwarded calls --------------------------------------------------------------------------
    def ensure(self, client_id: str, broker: str, open_: Open) -> None:
        """The client's stream at that broker is opened, if it has one here and none there."""
        known = self._known.get(client_id)
        if known is None or broker in known.mirrors or self._count >= STREAMS_MAX:
            return
        mirror = known.mirrors[broker] = _Mirror(asyncio.Queue())
        mirror.waiting.put_nowait(known.settings)
        self._count += 1
        mirror.task = asyncio.create_task(self._run(known, broker, mirror, open_), name="telemetry-mirror")

    async def _run(self, known: _Known, broker: str, mirror: _Mirror, open_: Open) -> None:
        stream: ForwardedStream | None = None
        try:
            stream = await open_()
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(_write_all(mirror.waiting, stream))
                await _pass_on_all(stream, known.stream)
                writer.cancel()
        except* TroveError as failed:
            first = failed.exceptions[0]
            get_logger().info("telemetry.not_forwarded", broker=broker, message=str(first))
        finally:
            if stream is not None:
                stream.cancel()
            self._count -= 1
            if known.mirrors.get(broker) is mirror:
                del known.mirrors[broker]


async def _write_all(waiting: asyncio.Queue[bytes], stream: ForwardedStream) -> None:
    while True:
        await stream.write(await waiting.get())


async def _pass_on_all(stream: ForwardedStream, to: Receiving) -> None:
    while (data := await stream.read()) is not None:
        command = read_command(data)
        if command is not None:
            to.pass_on(command)
