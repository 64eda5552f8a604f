"""The lag of a follower's readers: the bytes, and the time, that they lack against the leader's readers.

Each heartbeat says up to where the leader's readers saw its log when it was sent. The follower had all of
that as soon as its own readers see as much; the lag is the time since the sending of the newest such
heartbeat.

Invariants
- The lag counts the time that a heartbeat lay in buffers, for example while this process was stopped: its
  sending is dated by the quickest heartbeat of the last one to two minutes. A steady delay of the
  network, and the drift of two clocks within two minutes, are not seen.
- Without heartbeats the lag grows by one millisecond in each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_broker.replication.frames import NowMs, Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN

QUICKEST_MS: Final = 60_000
"""Minimum time that the quickest heartbeat counts, and twice that at most: two clocks drift."""


class ReaderLag(NamedTuple):
    """`size`: bytes of the log that the leader's readers see, and this follower's do not. None: it has not
    heard from a leader yet."""

    size: int | None
    ms: int | None


def check_lag(lag: ReaderLag, max_lag_ms: int) -> None:
    """`max_lag_ms`: of a request; 0: any lag will do. TroveError REPLICA_LAG_EXCEEDED, REQUEST_ILLEGAL."""
    if max_lag_ms < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, f"max_lag_ms {max_lag_ms} is negative")
    if not max_lag_ms or (lag.ms is not None and lag.ms <= max_lag_ms):
        return
    if lag.ms is None:
        text = "this replica has not had all of its leader's log since it began to follow"
        raise TroveError(errors.REPLICA_LAG_EXCEEDED, text)
    text = f"this replica has a lag of {lag.ms} ms; max_lag_ms is {max_lag_ms}"
    raise TroveError(errors.REPLICA_LAG_EXCEEDED, text, lag_ms=lag.ms, lag_bytes=lag.size)


class ReadLag:
    """Times are of one clock of this machine that runs while it is suspended, in milliseconds."""

    def __init__(self) -> None:
        self._commit: Offset = LOG_ORIGIN
        self._caught_up_ms: NowMs | None = None
        self._sought: tuple[Offset, NowMs] | None = None
        """The oldest heartbeat since the last one of which all was seen."""
        self._newest: tuple[Offset, NowMs] | None = None
        self._offset_ms: NowMs | None = None
        """This clock minus the leader's by the quickest heartbeat, of the present period."""
        self._offset_before_ms: NowMs | None = None
        self._period_began_ms: NowMs = 0

    def new_stream(self) -> None:
        """A leader, maybe another one, with its own clock, begins to send heartbeats."""
        self._offset_ms = self._offset_before_ms = None

    def heard(self, commit: Offset, sent_ms: NowMs, visible: Offset, now_ms: NowMs) -> None:
        """A heartbeat: the leader's commit, by its clock. `visible`: where the log ends that this node's
        readers see."""
        self._see(visible)
        at_ms = now_ms - self._delay_ms(now_ms - sent_ms, now_ms)
        self._commit = max(self._commit, commit)
        self._newest = commit, at_ms
        self._sought = self._sought or self._newest
        self._see(visible)

    def lag(self, visible: Offset, now_ms: NowMs) -> ReaderLag:
        """The lag of readers who see up to `visible`."""
        self._see(visible)
        if self._newest is None:
            return ReaderLag(None, None)
        size = max(0, self._commit - visible)
        ms = None if self._caught_up_ms is None else max(0, now_ms - self._caught_up_ms)
        return ReaderLag(size, ms)

    def _see(self, visible: Offset) -> None:
        sought, newest = self._sought, self._newest
        if sought is None or newest is None or visible < sought[0]:
            return
        found = newest if visible >= newest[0] else sought
        self._sought = None if found is newest else newest
        self._caught_up_ms = max(found[1], found[1] if self._caught_up_ms is None else self._caught_up_ms)

    def _delay_ms(self, offset_ms: NowMs, now_ms: NowMs) -> int:
        """How much longer than the quickest one this heartbeat took."""
        if self._offset_ms is None:
            self._offset_ms, self._period_began_ms = offset_ms, now_ms
        elif now_ms - self._period_began_ms >= QUICKEST_MS:
            self._offset_before_ms, self._offset_ms = self._offset_ms, offset_ms
            self._period_began_ms = now_ms
        self._offset_ms = min(self._offset_ms, offset_ms)
        before = self._offset_ms if self._offset_before_ms is None else self._offset_before_ms
        return offset_ms - min(self._offset_ms, before)
