"""A connection of the channel. Calls become streams, and events go to their calls."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from trovemq_rpc.budget import BytesBudget
from trovemq_rpc.channel.polling import Polling
from trovemq_rpc.endpoint import Endpoint
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.headers import Fields
from trovemq_rpc.loop_parts import LoopParts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import NEVER_S, Options
from trovemq_rpc.tls import Tls

NOTHING = memoryview(b"")
TCP_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", 0)  # only Linux has it
AF_UNIX: Final = getattr(socket, "AF_UNIX", None)


class ChannelEndpoint(Endpoint):
    """The subchannel sets `on_ready`, `on_capacity` and `on_gone`."""

    def __init__(
        self, parts: LoopParts, options: Options, budget: BytesBudget, metrics: Metrics, tls: Tls | None
    ) -> None:
        super().__init__(parts, Connection(True, options.limits), options, budget, metrics, tls)
        self.ready = False
        self.draining = False
        self.reason = "the connection was closed"
        self.trailers_ok: Fields | None = None  # the decoder's one list for the trailers that most calls have
        self._one_at_a_time = False
        self._polling = Polling(self.loop, options.busy_poll_us) if options.busy_poll_us else None
        self.on_ready: Callable[[ChannelEndpoint], None] | None = None
        self.on_capacity: Callable[[], None] | None = None
        self.on_gone: Callable[[ChannelEndpoint], None] | None = None

    @property
    def can_open(self) -> bool:
        """Whether one more call may go here."""
        return self.ready and not self.draining and not self.closing and self.connection.can_open

    def flush_call(self) -> None:
        """A call was sent. It is written at the end of the loop's iteration, with others. If it is the only
        open call, and the call before it was alone, too, it is written at once: no other call would join it.
        """
        if len(self.connection.streams) > 1:
            self._one_at_a_time = False
            self.flush_soon()
        elif self._one_at_a_time and not self.gathering:
            self.flush()
            self.poll()
        else:
            self._one_at_a_time = True
            self.flush_soon()

    def poll(self) -> None:
        """The only request under way was written: see polling.py."""
        if self._polling is not None:
            self._polling.begin()

    # --- life -------------------------------------------------------------------------------------------
    def on_connected(self) -> None:
        self._limit_silence()
        if self.tls is not None:
            self.tls.handshake()
            self._write(self.tls.take_output())
        else:
            self.on_secured()
            self.flush()

    def _limit_silence(self) -> None:
        """The kernel gives up the connection when bytes are not acknowledged for as long as keepalive waits:
        that holds also for calls that are over before a PING's time.
        """
        seconds = self.options.keepalive_time_s + self.options.keepalive_timeout_s
        assert self.transport is not None
        kernel = self.transport.get_extra_info("socket")  # None in memory
        if TCP_USER_TIMEOUT and seconds < NEVER_S and kernel is not None and kernel.family != AF_UNIX:
            kernel.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, int(seconds * 1_000))

    def on_secured(self) -> None:
        self.may_write = True

    def on_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.closing:
            self.reason = str(exc) or type(exc).__name__
        streams = tuple(self.connection.streams.values())
        if self.on_gone is not None:
            self.on_gone(self)
        for stream in streams:
            if stream.owner is not None:
                stream.owner.on_lost(self.reason)

    def refuse(self, reason: str) -> None:
        """The server speaks another protocol, or TLS failed. The subchannel reports the reason."""
        self.reason = reason
        self.metrics.refused_connections += 1
        self.abort()

    def on_unresponsive(self) -> None:
        self.reason = "no answer to a ping, the server or the network stands still"

    def may_ping(self) -> bool:
        return self.ready and (self.options.keepalive_without_calls or bool(self.connection.streams))

    def drain(self) -> None:
        """No new calls; closes when the open ones are over."""
        self.draining = True
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self.draining and not self.connection.streams and not self.closing:
            self.flush()
            self.close()

    # --- events -----------------------------------------------------------------------------------------
    def on_events(self, events: list[ev.Event]) -> None:
        if self._polling is not None:
            self._polling.waits = False
        for kind, stream, value, ended in events:
            owner = stream.owner if stream is not None else None
            if kind == ev.DATA:
                if owner is None:
                    self.to_acknowledge += len(value)
                elif ended or owner.receiver is None or not owner.pass_on(value):
                    owner.on_data(value, ended)
            elif kind == ev.HEADERS:
                if owner is not None:
                    owner.on_headers(value, ended)
            elif kind == ev.TRAILERS:
                if owner is not None:
                    owner.on_trailers(value)
            elif kind == ev.RESET:
                name = ErrorCode(value).name if value in ErrorCode._value2member_map_ else str(value)
                self.metrics.count(self.metrics.resets_received, name)
                if owner is not None:
                    owner.on_reset(value)
            else:
                self._on_other(kind, stream, value)
        if self.draining:
            self._close_if_drained()

    def _on_other(self, kind: int, stream: Any, value: Any) -> None:
        if kind == ev.WRITABLE:
            if stream.owner is not None:
                stream.owner.on_writable()
        elif kind == ev.TOO_LARGE:
            if stream.owner is not None:
                stream.owner.on_too_large()
        elif kind == ev.SETTINGS:
            if not self.ready:
                self.ready = True
                if self.on_ready is not None:
                    self.on_ready(self)
            elif self.on_capacity is not None:
                self.on_capacity()
        elif kind == ev.GOAWAY:
            self._on_goaway(*value)
        elif kind == ev.FAULT:
            self.reason = str(value)
            self.fault(value)
            self.abort()

    def _on_goaway(self, last_id: int, code: int, debug: bytes) -> None:
        """The server did not look at streams above the id: their calls go to another connection."""
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
        self.metrics.count(self.metrics.goaways_received, name)
        self.reason = f"GOAWAY {name} {debug.decode('utf-8', 'replace')}".rstrip()
        if code == ErrorCode.ENHANCE_YOUR_CALM and debug == b"too_many_pings":
            self.options.keepalive_time_s *= 2
        first = not self.draining
        self.draining = True
        if first and self.on_gone is not None:
            self.on_gone(self)
        for stream in tuple(self.connection.streams.values()):
            if stream.id > last_id and stream.owner is not None:
                owner = stream.owner
                self.connection.forget(stream, 1)
                owner.on_unprocessed(self.reason)

    def call_over(self) -> None:
        """A stream has ended: a call that waits may get one."""
        if self.draining:
            self.loop.call_soon(self._close_if_drained)
        elif self.on_capacity is not None:
            self.on_capacity()

    def reset(self, stream: Any, code: ErrorCode = ErrorCode.CANCEL) -> None:
        self.connection.reset(stream, code)
        self.flush_soon()
