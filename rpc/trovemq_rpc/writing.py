"""The writes of a connection: everything that is sent on it in one iteration of the loop is one write."""

from __future__ import annotations

import asyncio

from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.tls import Tls
from trovemq_rpc.upkeep import Upkeep


class Writing(Upkeep):
    """This part of Endpoint."""

    loop: asyncio.AbstractEventLoop
    connection: Connection
    transport: asyncio.Transport | None
    tls: Tls | None
    gathering: bool
    output_held: int
    may_write: bool
    _lingers: asyncio.TimerHandle | None
    _flush_scheduled: bool
    _drain_scheduled: bool

    def resume_writing(self) -> None:
        raise NotImplementedError

    def _handle_events(self) -> None:
        raise NotImplementedError

    def flush_soon(self) -> None:
        """Writes at the end of the loop's iteration. (Output of a read is written after the read.)"""
        if not self._flush_scheduled and not self.gathering:
            self._flush_scheduled = True
            self.loop.call_soon(self.end_iteration)

    def end_iteration(self) -> None:
        self._flush_scheduled = self.gathering = False
        if self.connection.events:
            self._handle_events()
        self.flush()

    def flush(self) -> None:
        connection = self.connection
        transport = self.transport
        pieces = connection.output
        if transport is None or not pieces or not self.may_write or self._lingers is not None:
            if self.output_held:
                self.count_output()
            return
        connection.output = []
        connection.output_size = 0
        if self.tls is not None:
            transport.write(self.tls.seal(pieces))
        elif len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)
        if connection.held_back or self.output_held or not connection.can_write:
            self.count_output()
            self.look_for_unread()
            if connection.may_drain and not self._drain_scheduled:
                self._drain_scheduled = True
                self.loop.call_soon(self._drain_more)

    def _drain_more(self) -> None:
        self._drain_scheduled = False
        if self.connection.can_write:
            self.resume_writing()

    def _write(self, data: bytes) -> None:
        if data and self.transport is not None:
            self.transport.write(data)
