"""The look of a connection at its peer, once a second: is it there, does it finish its frames, does it read
its answers?

Most limits are counted in ticks, not by the clock. While our own loop stood still, the peer did nothing
wrong. A server's connection on which nothing is under way needs no look until its next keepalive.
"""

from __future__ import annotations

from typing import Any, Final

from trovemq_rpc.http2.constants import DATA, ErrorCode

FRAME_PROGRESS_MIN: Final = 512
"""Bytes by which an incomplete frame has to grow within `stall_timeout_s`: no network carries less at once.
"""
KEEPALIVE_PAYLOAD: Final = b"keepaliv"
OUTPUT_UNCOUNTED: Final = 64 << 10
"""The output that a connection may hold without the budget: small answers are not worth the counting."""
UNREAD_SIZE_MAX: Final = 1 << 20
"""Of headers and control frames for a client that takes nothing. Honest ones wait for the answers to 1,000
calls at most, which are a tenth of it.
"""


class Upkeep:
    """This part of Endpoint."""

    def tick(self: Any, now: float) -> None:
        if self._active:
            self._active = False
            self._last_active = now
            self._ping_sent = 0.0
            self.connection.allowances.refill()
        elif now < self.quiet_until and not self.connection.held_back and not self.output_held:
            return
        if not self.connection.got_settings:
            self._ticks_setup += 1
            if self._ticks_setup >= self.options.setup_timeout_s:
                self.refuse("no HTTP/2 within the time for it")
                return
        if self._tail:
            self._look_for_frames()
        self._keepalive(now)
        if self.output_held:
            self.count_output()
        if self._unread or self.connection.held_back:
            self._look_for_readers()
        for call in () if self.closing else tuple(self.assembling):
            call.look_for_progress()
        self.on_tick(now)
        busy = self._tail or self._ping_sent or self._unread or self.assembling
        quiet_until = 0.0 if busy or not self.connection.got_settings else self.until_next_look()
        self.quiet_until = min(quiet_until, self._last_active + self.options.keepalive_time_s)

    def _look_for_frames(self: Any) -> None:
        """Ends a connection whose incomplete frame does not grow: its peer might send a byte a second. A part
        of a DATA frame counts as progress of its stream's message, which gets the bytes only with the whole
        frame.
        """
        tail = self._tail
        if self.consumed != self._consumed_before or len(tail) - self._tail_before >= FRAME_PROGRESS_MIN:
            self._consumed_before = self.consumed
            self._tail_before = len(tail)
            self._ticks_still = 1
            if len(tail) >= FRAME_PROGRESS_MIN and tail[3] == DATA:
                stream = self.connection.streams.get(int.from_bytes(tail[5:9], "big"))
                if stream is not None and stream.owner in self.assembling:
                    stream.owner.progress += FRAME_PROGRESS_MIN
            return
        self._ticks_still += 1
        if self._ticks_still >= self.options.stall_timeout_s:
            self.metrics.calls_stalled += 1
            self.goaway(ErrorCode.ENHANCE_YOUR_CALM, "a frame that does not end")

    def _look_for_readers(self: Any) -> None:
        """Resets streams whose bytes the peer does not take: they would wait here for ever."""
        unread, self._unread = self._unread, {}
        for stream in tuple(self.connection.streams.values()):
            if not stream.pending:
                continue
            first = stream.pending[0]
            before, ticks = unread.get(stream, (first, 0))
            ticks = ticks + 1 if before is first else 0
            if ticks < self.options.unread_timeout_s:
                self._unread[stream] = first, ticks
                continue
            self.metrics.calls_unread += 1
            self.options.log_refusal(self.peer(), "a call was ended: its answer is not read")
            owner = stream.owner
            self.connection.reset(stream, ErrorCode.CANCEL)
            if owner is not None:
                owner.on_reset()
        self.flush()

    def count_output(self: Any) -> None:
        """Reports to the budget how many bytes wait until the peer takes them."""
        connection = self.connection
        size = connection.held_back + connection.output_size
        if not connection.can_write and self.transport is not None:
            size += self.transport.get_write_buffer_size()
        if size <= OUTPUT_UNCOUNTED:
            size = 0
        if size != self.output_held and self.counts_output:
            self.budget.set_output(self, size)

    def look_for_unread(self: Any) -> None:
        """Ends a server's connection whose client asks and asks, and takes no answer. (A GOAWAY would be the
        last of them.)
        """
        connection = self.connection
        if connection.unread_size > UNREAD_SIZE_MAX and self.counts_output and not connection.failed:
            connection.failed = True
            self.metrics.calls_unread += 1
            self.options.log_refusal(self.peer(), "the connection was ended: its answers are not read")
            self.abort()

    def _keepalive(self: Any, now: float) -> None:
        """Sends a PING when nothing came for long. If its answer does not come in time, the peer is gone."""
        if self._ping_sent:
            if now - self._ping_sent >= self.options.keepalive_timeout_s:
                self.metrics.keepalive_timeouts += 1
                self.on_unresponsive()
                self.abort()
        elif now - self._last_active >= self.options.keepalive_time_s and self.may_ping():
            self._ping_sent = now
            self.connection.ping(KEEPALIVE_PAYLOAD)
            self.flush()
