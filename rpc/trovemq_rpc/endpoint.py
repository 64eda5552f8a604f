"""One connection on an event loop: it reads into the loop's shared buffer. Its writes are in writing.py.

Flow control withholds WINDOW_UPDATE frames; reading never stops for long, so that control frames always
arrive. (It pauses for the iterations in which the rest of a large read is handled: rest.py.)
"""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from typing import Any, Final, cast

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.errors import ConnectionFault
from trovemq_rpc.http2.events import Event
from trovemq_rpc.http2.streams import Buffer, Stream
from trovemq_rpc.listening import name_of
from trovemq_rpc.loop_parts import LoopParts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import Options
from trovemq_rpc.rest import READ_SIZE_SHORT, RECORD_WORK, RESTS_SIZE_MAX, WORK_MAX, Rest, Share
from trovemq_rpc.tls import Tls
from trovemq_rpc.writing import Writing

LINGER_S: Final = 1.0  # how long the peer may take to read a GOAWAY before its connection is closed
WRITE_HIGH: Final = 1 << 20
"""The transport's buffer: above it streams wait, and are written a frame of each at a time. An iteration of
the loop takes no more than this from streams that waited, however far a peer opens their windows at once.
No benchmark has a case for it.
"""
WRITE_LOW: Final = 256 << 10  # they continue while the kernel still has something to send
DRAIN_PAYLOAD: Final = b"draining"


class Endpoint(Writing, asyncio.BufferedProtocol):
    """The base of the server's and the channel's connections."""

    held = 0  # these three are the budget's counts for this connection
    output_held = 0
    admissions = 0
    share: Share | None = None  # a server's; a channel's user asked for its messages
    counts_output = False  # a server does; a channel's user knows how much it sends
    _lingers: asyncio.TimerHandle | None = None
    quiet_until = 0.0  # the loop's time; no tick has anything to do before, unless bytes come or wait
    may_write = False  # our SETTINGS wait for TLS; a server's wait for the client's first bytes, too
    is_paused = False  # by a guest of a server's port
    answers_soon = False  # a callback handler gets calls of this read in this iteration; its caller writes

    def __init__(
        self,
        parts: LoopParts,
        connection: Connection,
        options: Options,
        budget: BytesBudget,
        metrics: Metrics,
        tls: Tls | None,
    ) -> None:
        self.parts = parts
        self.loop = parts.loop
        self.connection = connection
        connection.output_max = WRITE_HIGH
        self.options = options
        self.budget = budget
        self.metrics = metrics
        self.tls = tls
        self.transport: asyncio.Transport | None = None
        self.closing = False
        self.to_acknowledge = 0
        self.withheld = 0
        self.assembling: set[Any] = set()  # calls of which a message is incomplete
        self._peer = ""
        self._tail = b""
        self._rest = Rest(parts)
        self._view: memoryview | None = None
        self._flush_scheduled = self._drain_scheduled = False
        self.gathering = False  # ended by `end_iteration`, which writes
        self._started = 0.0
        self.consumed = 0  # bytes of whole frames
        self._consumed_before = 0
        self._tail_before = 0
        self._ticks_still = 0  # since a frame that is incomplete grew
        self._ticks_setup = 0  # since the last step of TLS and of the peer's first SETTINGS
        self._unread: dict[Stream, tuple[Buffer, int]] = {}  # the waiting bytes of each, since how many ticks
        # Keepalive
        self._active = False
        self._last_active = 0.0
        self._ping_sent = 0.0

    # --- asyncio's side ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(WRITE_HIGH, WRITE_LOW)
        self._started = self._last_active = self.loop.time()
        self.parts.add(self)
        self.metrics.connections += 1
        self.metrics.connections_opened += 1
        self.on_connected()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        try:
            self._let_go(exc)
        finally:  # even if a callback of the server raised: nothing may be sent on a lost transport
            self.connection.discard_output()
            self.transport = None

    def _let_go(self, exc: Exception | None) -> None:
        self.parts.discard(self)
        self._rest.end()
        if self._lingers is not None:
            self._lingers.cancel()  # or it keeps all of the connection for the rest of that time
        if self.output_held:
            self.budget.set_output(self, 0)
        self.budget.forget(self)
        self.counts_output = False
        self.metrics.connections -= 1
        self.metrics.window_stalls += self.connection.window_stalls
        for code, count in self.connection.resets_sent.items():
            self.metrics.count(self.metrics.resets_sent, ErrorCode(code).name, count)
        self.connection.failed = True
        self.on_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        parts = self.parts
        view = parts.receive_buffer.view()
        if parts.rests_size >= RESTS_SIZE_MAX:
            view = view[: len(self._tail) + READ_SIZE_SHORT]
        self._view = view
        tail = self._tail
        if tail and self.tls is None:
            view[: len(tail)] = tail
            return view[len(tail) :]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        view = self._view
        assert view is not None
        self._view = None
        self._active = True
        size = nbytes
        if self.tls is None:
            size += len(self._tail)
            self.parts.receive_buffer.position += size
            if self._rest.data is None:
                self._receive(view[:size], WORK_MAX)
            else:
                self._rest.add(view[:size])
        else:
            self.tls.feed(view[:nbytes])
            self._receive_sealed(WORK_MAX)
        if size == len(view) and self._rest.data is None and not self.closing:
            self._leave(memoryview(self._tail))  # else uvloop reads up to 32 times in an iteration

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.connection.transport_writable(False)

    def resume_writing(self) -> None:
        self.connection.transport_writable(True)
        self._handle_events()
        self.flush()

    # --- reading ----------------------------------------------------------------------------------------
    def _receive(self, data: memoryview, work_max: int) -> None:
        if not self.may_write and not self.on_first_bytes(data):
            return
        self.gathering = True
        connection = self.connection
        used = connection.parse(data, work_max)
        self.consumed += used
        if connection.stopped:
            self._leave(data[used:])
        else:
            self._tail = bytes(data[used:]) if used < len(data) else b""
        self._handle_events()
        if connection.pings_received:
            self.on_pings(connection.pings_received)
            connection.pings_received = 0
        self.gathering = False
        if (connection.output or self.output_held) and not self.answers_soon:
            self.flush()

    def _leave(self, rest: memoryview) -> None:
        """Keeps the rest of a read for the next iteration of the loop, and pauses reading until then."""
        self._tail = b""
        if self._rest.data is None and self.transport is not None:
            self.transport.pause_reading()
        self._rest.keep(rest, 0 if self.tls is None else self.tls.sealed_size)
        self.loop.call_soon(self._continue)

    def _continue(self) -> None:
        rest = self._rest
        if self.transport is None or rest.data is None:
            return
        work_max = WORK_MAX
        if rest.data:
            self._receive(rest.data, work_max)
            if self.connection.stopped and not self.closing:
                return
            work_max = self.connection.work_remaining
        rest.end()
        if not self.is_paused:
            self.transport.resume_reading()
        if self.tls is not None:
            self._receive_sealed(work_max)

    def _handle_events(self) -> None:
        connection = self.connection
        while events := connection.events:
            connection.events = []
            self.on_events(events)
        if self.to_acknowledge:
            connection.unacknowledged += self.to_acknowledge
            self.to_acknowledge = 0
            if (
                connection.unacknowledged >= connection.unacknowledged_max
                or connection.receive_window < connection.receive_window_min
            ):
                connection.acknowledge(0)

    def _receive_sealed(self, work_max: int) -> None:
        """Handles the TLS records that have come, up to `work_max` units of work; the rest waits."""
        tls = self.tls
        assert tls is not None
        try:
            if not tls.established:
                done = tls.handshake()
                output = tls.take_output()
                if output:
                    self._ticks_setup = 0
                self._write(output)
                if not done:
                    return
                if not self.accepts_protocol(tls.protocol):
                    self.refuse("the peer did not choose h2 by ALPN")
                    return
                self.on_secured()
                self.flush()
            while tls.has_input and not self.closing and self._rest.data is None:
                if work_max <= 0:
                    self._leave(memoryview(self._tail))
                    break
                view = self.parts.plain_buffer.view()
                tail = self._tail
                view[: len(tail)] = tail
                size = tls.read_into(view[len(tail) :])
                if size <= 0:
                    if size < 0:
                        self.close()
                    break
                size += len(tail)
                self.parts.plain_buffer.position += size
                self._receive(view[:size], work_max)
                work_max = self.connection.work_remaining - RECORD_WORK
        except ssl.SSLError as error:
            self._write(tls.take_output())
            self.refuse(f"TLS: {error.reason or error}")

    def on_budget(self) -> None:
        """The budget has space again: the peer gets the WINDOW_UPDATE that was withheld."""
        if self.withheld and self.transport is not None:
            self.connection.acknowledge(self.withheld)
            self.withheld = 0
            self.flush_soon()

    # --- the end ----------------------------------------------------------------------------------------
    def fault(self, fault: ConnectionFault) -> None:
        """The peer broke the protocol. It gets GOAWAY and LINGER_S to read it."""
        self.metrics.count(self.metrics.goaways_sent, fault.code.name)
        self.flush()
        self.linger()

    def linger(self) -> None:
        """Ends our side and closes a moment later: a reset by the kernel would overtake our last bytes."""
        self.closing = True
        if self.transport is None:
            return
        if self.tls is None and self.transport.can_write_eof() and self._write_eof():
            self._lingers = self.loop.call_later(LINGER_S, self.close)
        else:
            self.close()

    def _write_eof(self) -> bool:
        """False: the peer is gone already, and the loop has not said so yet."""
        assert self.transport is not None, "it lingers"
        try:
            self.transport.write_eof()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.closing = True
        if self.transport is not None and not self.transport.is_closing():
            if self.tls is not None and self.tls.established:
                self._write(self.tls.close())
                self.may_write = False  # nothing can be sealed any more
            self.transport.close()

    def abort(self) -> None:
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    def refuse(self, reason: str) -> None:
        """The peer speaks another protocol or is not allowed to connect."""
        self.metrics.refused_connections += 1
        self.options.log_refusal(self.peer(), f"the connection was ended: {reason}")
        self.close()

    def goaway(self, code: ErrorCode, reason: str) -> None:
        """Ends the connection from our side."""
        self.connection.fail(ConnectionFault(code, reason))
        self._handle_events()

    # --- names ------------------------------------------------------------------------------------------
    def peer(self) -> str:
        """The peer's address in gRPC's form: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000, unix:path."""
        if not self._peer and self.transport is not None:
            self._peer = name_of(self.transport.get_extra_info("peername"))
        return self._peer

    # --- for the two ends -------------------------------------------------------------------------------
    def on_connected(self) -> None:
        """The transport is there."""

    def accepts_protocol(self, chosen: str | None) -> bool:
        """Whether TLS may have chosen it by ALPN; None: the peer has offered none."""
        return chosen == "h2"

    def on_secured(self) -> None:
        """TLS is established."""

    def on_first_bytes(self, data: memoryview) -> bool:
        """Looks at the peer's first bytes. False if they belong to another protocol."""
        return True

    def on_pings(self, count: int) -> None:
        """This read had `count` PING frames."""

    def on_unresponsive(self) -> None:
        """Keepalive found the peer gone."""

    def on_tick(self, now: float) -> None:
        """A second passed."""

    def until_next_look(self) -> float:
        """When `on_tick` has something to do, if nothing comes and no call ends before; 0: at once."""
        return 0.0

    def may_ping(self) -> bool:
        return True

    @abstractmethod
    def on_events(self, events: list[Event]) -> None: ...

    @abstractmethod
    def on_lost(self, exc: Exception | None) -> None: ...
