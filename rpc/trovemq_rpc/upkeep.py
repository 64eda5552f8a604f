"""A connection looks once a second whether its peer is there, finishes its frames and reads its answers.

Ticks are counted, not time: a pause of our own loop is not the peer's.
"""

from __future__ import annotations

from typing import Any, Final

from trovemq_rpc.http2.constants import DATA, ErrorCode

FRAME_PROGRESS_MIN: Final = 512  # bytes within `stall_timeout_s` of a frame that is incomplete
KEEPALIVE_PAYLOAD: Final = b"keepaliv"


class Upkeep:
    """This part of Endpoint."""

    def tick(self: Any, now: float) -> None:
        if self._active:
            self._active = False
            self._last_active = now
            self._ping_sent = 0.0
            self.connection.allowances.refill()
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

    def _look_for_frames(self: Any) -> None:
        """A frame, too, must grow; a peer may send it a byte a second. The part of a DATA frame that has
        arrived counts for its stream's message, which does not see it yet.
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
        """A stream of which the peer took nothing for long is reset: its bytes would lie here for ever."""
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
            owner = stream.owner
            self.connection.reset(stream, ErrorCode.CANCEL)
            if owner is not None:
                owner.on_reset()
        self.flush()

    def _keepalive(self: Any, now: float) -> None:
        """A PING where nothing came for long; without an answer in time the peer is gone."""
        if self._ping_sent:
            if now - self._ping_sent >= self.options.keepalive_timeout_s:
                self.metrics.keepalive_timeouts += 1
                self.on_unresponsive()
                self.abort()
        elif now - self._last_active >= self.options.keepalive_time_s and self.may_ping():
            self._ping_sent = now
            self.connection.ping(KEEPALIVE_PAYLOAD)
            self.flush()
