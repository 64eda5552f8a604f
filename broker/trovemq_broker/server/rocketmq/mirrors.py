"""Telemetry streams of this broker's clients at other brokers, to which their calls are forwarded.

The other broker knows the client so: it renews the leases of its messages, releases them when it goes away,
counts it as a member of its group, and can ask it about transactions.

| here                                    | at the other broker                                              |
|-----------------------------------------|------------------------------------------------------------------|
| a send or a receive is forwarded        | the client's stream is opened, with its last settings            |
| the client sends settings, a heartbeat  | the last settings are sent again: they count as a heartbeat;     |
|                                         | a stream that broke is opened again                              |
| it answers a command                    | gets the answer: it knows by the nonce if it has asked           |
| its stream ends                         | its stream ends                                                  |
| its next stream has sent settings       | its stream is opened again                                       |
| gets its commands, but not its settings | sends a command                                                  |

There are at most STREAMS_MAX; a client beyond that is not known at the other broker, whose leases then last
as long as the client asked for.

Invariant: a stream at another broker has the user and the address of the stream here that gets its commands.
Clients of other users may have the same id.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.forwarding import ForwardCalls, ForwardedStream
from trovemq_broker.server.wire.forwarded_messages import ForwardedClient
from trovemq_broker.server.wire.telemetry import read_command
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

STREAMS_MAX: Final = 8_192
WAITING_MAX: Final = 64
"""Commands that wait to be sent on one stream."""
COMES_BACK: Final = (
    errors.BROKER_NOT_FOUND,
    errors.BROKER_UNREACHABLE,
    errors.REQUEST_TIMEOUT,
    errors.AUTHENTICATION_FAILED,
)
"""The errors of a broker that starts again: the next heartbeat opens the stream again. After others the next
call does."""


class ClientKey(NamedTuple):
    """A client of a user. `caller`: the access key, empty without users."""

    caller: str
    client_id: str


def client_key(client_id: str) -> ClientKey:
    """Of the client of the present call."""
    return ClientKey(present_creator().name, client_id)


class Receiving(Protocol):
    """A client's stream here."""

    def pass_on(self, command: object) -> None:
        """Sends the command of another broker to the client."""
        ...


class Origin(NamedTuple):
    """Whose stream it is, as other brokers get it, and whether it came by TLS."""

    client: ForwardedClient
    by_tls: bool


@dataclass(slots=True, eq=False)
class _Known:
    """A client with a stream here. `settings`: its last ones, serialised."""

    stream: Receiving
    settings: bytes
    origin: Origin
    mirrors: dict[str, _Mirror] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Mirror:
    waiting: asyncio.Queue[bytes]
    task: asyncio.Task[None] | None = None


class Mirrors:
    """`calls` opens the streams."""

    def __init__(self, calls: ForwardCalls) -> None:
        self._calls = calls
        self._known: dict[ClientKey, _Known] = {}
        self._wanted: dict[ClientKey, dict[str, None]] = {}
        """The brokers to which calls of a client were forwarded, also while it has no stream here; the client
        whose last such call is the oldest is forgotten first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # --- for the client's stream here -----------------------------------------------------------------
    def settled(self, key: ClientKey, stream: Receiving, settings: bytes, origin: Origin) -> None:
        known = self._known.get(key)
        if known is not None and known.stream is stream:
            known.settings = settings
            self.heard(key)
            return
        if known is not None:
            self._end(known)
        self._known[key] = known = _Known(stream, settings, origin)
        self._open_wanted(key, known)

    def heard(self, key: ClientKey) -> None:
        """The client is alive."""
        known = self._known.get(key)
        if known is not None:
            self._send(known, known.settings)
            self._open_wanted(key, known)

    def answered(self, key: ClientKey, command: bytes) -> None:
        """The client's answer to a command."""
        known = self._known.get(key)
        if known is not None:
            self._send(known, command)

    def ended(self, key: ClientKey, stream: Receiving) -> None:
        known = self._known.get(key)
        if known is not None and known.stream is stream:
            del self._known[key]
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
    def ensure(self, key: ClientKey, broker: str) -> None:
        """The client's stream at that broker is opened, if it has one here and none there; if it has none
        here, as soon as it has."""
        wanted = self._wanted.pop(key, None) or {}
        wanted[broker] = None
        self._wanted[key] = wanted
        if len(self._wanted) > STREAMS_MAX:
            del self._wanted[next(iter(self._wanted))]
        known = self._known.get(key)
        if known is not None:
            self._open(key, known, broker)

    def _open_wanted(self, key: ClientKey, known: _Known) -> None:
        for broker in self._wanted.get(key, ()):
            self._open(key, known, broker)

    def _open(self, key: ClientKey, known: _Known, broker: str) -> None:
        if broker in known.mirrors or self._count >= STREAMS_MAX:
            return
        mirror = known.mirrors[broker] = _Mirror(asyncio.Queue())
        mirror.waiting.put_nowait(known.settings)
        self._count += 1
        mirror.task = asyncio.create_task(self._run(key, known, broker, mirror), name="telemetry-mirror")
        mirror.task.add_done_callback(partial(self._ended, known, broker))

    def _ended(self, known: _Known, broker: str, _task: asyncio.Task[None]) -> None:
        """Also of a task that was cancelled before it began."""
        self._count -= 1
        del known.mirrors[broker]

    async def _run(self, key: ClientKey, known: _Known, broker: str, mirror: _Mirror) -> None:
        stream: ForwardedStream | None = None
        origin = known.origin
        try:
            stream = await self._calls.open_telemetry(broker, origin.client, by_tls=origin.by_tls)
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(_write_all(mirror.waiting, stream))
                await _pass_on_all(stream, known.stream)
                writer.cancel()
        except* TroveError as failed:
            first = failed.exceptions[0]
            comes_back = isinstance(first, TroveError) and first.spec in COMES_BACK
            if not comes_back:
                self._wanted.get(key, {}).pop(broker, None)
            if stream is not None or not comes_back:  # else each heartbeat would log it
                get_logger().info("telemetry.not_forwarded", broker=broker, message=str(first))
        finally:
            if stream is not None:
                stream.cancel()


async def _write_all(waiting: asyncio.Queue[bytes], stream: ForwardedStream) -> None:
    while True:
        await stream.write(await waiting.get())


async def _pass_on_all(stream: ForwardedStream, to: Receiving) -> None:
    while (data := await stream.read()) is not None:
        command = read_command(data)
        if command is not None:
            to.pass_on(command)
