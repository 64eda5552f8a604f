"""A follower: promises the leader's epoch, cuts its log to the common point, appends, and reports.

    hello()            opens the stream
    welcome(frame)     -> Promise, Cut or Join; done() after each
    data(frame)        -> appended; heartbeat(frame) -> StoreSet
    flushed(), done()  -> Progress, where it differs from the last one

Where the group syncs, the report of data comes with its sync: one report a frame instead of two.

While an action is under way the caller gives no frame, and opens no other stream: hello() comes after done().

Invariants
- A promise is on disk before anything is appended or reported in its epoch (rule 3).
- The log is cut to the common point of both lists only, never to the commit, and never below it (rule 4).
- A frame that does not continue the log, or is of a lower epoch, writes nothing.
- A leadership is in the list of epochs, on disk, before its first record is in the log.
- The commit never goes back, and is never beyond the end of this log, nor within an atomic run.
- Nothing is removed that the leader's log still has, nor before this log is on disk up to the leader's commit
  of that time: the leader may have appended records of the removed part again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from zlib_ng.zlib_ng import crc32

from trovemq_broker.replication.frames import (
    FRAME_BYTES_MAX,
    Data,
    Epoch,
    Heartbeat,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    NodeLog,
    NowMs,
    Offset,
    Progress,
    Welcome,
)
from trovemq_broker.replication.meeting_point import meeting_point
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epoch as StartedEpoch
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.whole_end import whole_until

UNREPORTED_BYTES_MAX: Final = 1 << 20
"""Of data that is not on disk yet, before it is reported without its sync: a sixteenth of the leader's
window, which a long sync would close."""
SILENCE_MS: Final = 3_000
"""Time without a frame after which the stream is ended, and opened again."""


class FollowerLog(NodeLog, Protocol):
    """The follower's own log. Truncations and joins are the caller's."""

    def append_raw(self, offset: Offset, data: bytes | memoryview, blank: int) -> None:
        """TroveError: nothing was written."""

    def begin_epoch(self, epoch: StartedEpoch) -> None:
        """Adds it to the state's epochs, on disk. Once for each leadership; it blocks."""


@dataclass(slots=True)
class ReplicaState:
    """A node's file beside its log. The caller changes it when an action is done."""

    promised: Epoch
    epochs: Epochs
    commit: Offset
    in_sync: InSyncSet | None


# --- actions; done() follows each of the first four ----------------------------------------
class Promise(NamedTuple):
    """`promised` is to be stored and synced."""

    epoch: Epoch


class Cut(NamedTuple):
    """The log is to end there, with these epochs: crash-safe, all in one."""

    to: Offset
    epochs: Epochs


class Join(NamedTuple):
    """The log is to begin at that offset, empty, with these epochs and the leader's state."""

    begin: Offset
    epochs: Epochs


class StoreSet(NamedTuple):
    """The in-sync set is to be stored and synced."""

    in_sync: InSyncSet


class SendProgress(NamedTuple):
    progress: Progress


class End(NamedTuple):
    """The stream is to be ended. `is_final`: the node follows again only after an operator has looked."""

    error: TroveError
    is_final: bool = False


FollowerAction: TypeAlias = Promise | Cut | Join | StoreSet | SendProgress | End


class Follower:
    """`state` is the caller's: it changes promised, epochs and in_sync there when they are on disk.
    `is_sync`: appended data is synced at once."""

    def __init__(
        self,
        cluster: str,
        group: str,
        me: Identity,
        log: FollowerLog,
        state: ReplicaState,
        segment_size: int,
        sealing_key_id: str = "",
        *,
        is_sync: bool = False,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._me = me
        self._log = log
        self.state: Final = state
        self._segment_size = segment_size
        self._sealing_key_id = sealing_key_id
        self._is_sync = is_sync
        self.epoch: Epoch = 0
        """Of the leader that is followed; 0 before its Welcome is applied."""
        self._welcome: Welcome | None = None
        self._stored_version = 0
        self._heard_ms: NowMs = 0
        self._echo_ms: NowMs = 0
        """Of the last heartbeat of this stream."""
        self._reported: Progress | None = None
        self._leader_end: Offset = LOG_ORIGIN
        self._leader_begin: tuple[Offset, Offset] = (LOG_ORIGIN, LOG_ORIGIN)
        """Where the leader's log begins, and its commit when that was heard first."""
        self._under_way = False
        """Whether an action was given out, and done() has not followed."""
        self._ahead: tuple[StartedEpoch, ...] = ()
        """Leaderships of which this log has no record yet."""

    # --- the stream -------------------------------------------------------------------------------------
    def hello(self, now_ms: NowMs, *, learner: bool = False) -> Hello:
        """The first frame of a new stream."""
        assert not self._under_way, "a second Cut or Join would take records that were reported meanwhile"
        self.epoch, self._welcome, self._stored_version = 0, None, 0
        self._heard_ms, self._echo_ms, self._reported = now_ms, 0, None
        self._leader_begin = (LOG_ORIGIN, LOG_ORIGIN)
        state, log = self.state, self._log
        return Hello(
            self._cluster,
            self._group,
            self._me,
            state.promised,
            state.epochs,
            log.begin,
            log.end,
            state.commit,
            state.in_sync,
            self._segment_size,
            learner,
            self._sealing_key_id,
        )

    def frame(self, frame: LeaderFrame, now_ms: NowMs) -> list[FollowerAction]:
        """A frame of the leader. Nothing follows an End."""
        assert not self._under_way, "frames wait while an action is under way"
        self._heard_ms = now_ms
        return self._given(self._taken(frame))

    def _taken(self, frame: LeaderFrame) -> list[FollowerAction]:
        try:
            match frame:
                case Welcome():
                    return self._take_welcome(frame)
                case Data():
                    return self._take_data(frame)
                case Heartbeat():
                    return self._take_heartbeat(frame)
        except TroveError as error:
            return [End(error, is_final=error.spec is errors.STORE_DIVERGED)]

    def done(self) -> list[FollowerAction]:
        """The action is done, and `state` says so: the next one, or the report."""
        assert self._under_way, "done() follows an action"
        self._under_way = False
        if self._welcome is not None:
            return self._given(self._next_of_welcome(self._welcome))
        return self._report()

    def ended(self) -> None:
        """The stream has ended. The done() of an action that is under way gives no other."""
        self.epoch, self._welcome = 0, None

    def flushed(self) -> list[FollowerAction]:
        """The log's synced end has moved."""
        return self._report()

    def tick(self, now_ms: NowMs) -> list[FollowerAction]:
        """Time has passed."""
        if self._under_way:
            self._heard_ms = now_ms  # the leader's frames wait: it is not the silent one
        if now_ms - self._heard_ms >= SILENCE_MS:
            return [End(TroveError(errors.BROKER_UNREACHABLE, f"the leader is silent for {SILENCE_MS} ms"))]
        return []

    @property
    def lag_bytes(self) -> int:
        """Behind the leader's end, as far as it is known."""
        return max(0, self._leader_end - self._log.end)

    @property
    def trim_to(self) -> Offset:
        """The records before it may be removed; LOG_ORIGIN: none."""
        begin, commit = self._leader_begin
        return begin if self.epoch and self._log.flushed >= commit else LOG_ORIGIN

    # --- helpers ----------------------------------------------------------------------------------------
    def _given(self, actions: list[FollowerAction]) -> list[FollowerAction]:
        self._under_way = any(isinstance(one, Promise | Cut | Join | StoreSet) for one in actions)
        return actions

    def _take_welcome(self, welcome: Welcome) -> list[FollowerAction]:
        if self.epoch or self._welcome is not None:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, "a second Welcome")
        if welcome.epoch < self.state.promised:
            text = f"epoch {welcome.epoch} ended: {self.state.promised} is promised"
            raise TroveError(errors.EPOCH_STALE, text)
        if welcome.epochs.last != welcome.epoch or welcome.epochs.at(welcome.end) != welcome.epoch:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, "epochs or positions of the Welcome do not fit")
        log, state = self._log, self.state
        point = meeting_point(state.epochs, log.end, state.commit, welcome.epochs, welcome.begin, welcome.end)
        expected = welcome.begin if point is None else point
        if welcome.cut_to != expected or welcome.joins != (point is None):
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, f"cut to {welcome.cut_to}, not to {expected}")
        self._welcome = welcome
        return self._next_of_welcome(welcome)

    def _next_of_welcome(self, welcome: Welcome) -> list[FollowerAction]:
        log, state = self._log, self.state
        if state.promised < welcome.epoch:
            return [Promise(welcome.epoch)]
        if welcome.joins and (log.begin, log.end) != (welcome.begin, welcome.begin):
            return [Join(welcome.begin, welcome.epochs.truncated(welcome.begin))]
        epochs = state.epochs.truncated(welcome.cut_to)  # the leader may know fewer, or more
        if log.end != welcome.cut_to or state.epochs != epochs:
            return [Cut(welcome.cut_to, epochs)]
        self.epoch, self._leader_end = welcome.epoch, welcome.end
        self._ahead = tuple(one for one in welcome.epochs if one.start >= welcome.cut_to)
        self._welcome = None
        return self._report()

    def _take_data(self, frame: Data) -> list[FollowerAction]:
        self._check_epoch(frame.epoch)
        log = self._log
        if frame.offset != log.end or not _has_frame_size(frame.data) or frame.blank < 0:
            text = f"{len(frame.data)} bytes at {frame.offset}; the log ends at {log.end}"
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, text)
        if crc32(frame.data) != frame.crc:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, f"the CRC of the frame at {frame.offset} is wrong")
        starts = [one for one in self._ahead[:2] if one.start < frame.end]
        if starts and starts[-1].start != frame.offset:
            text = f"epoch {starts[-1].epoch} begins at {starts[-1].start}, within a frame"
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, text)
        if starts:
            # before its first record, which a restart would take for an older one's
            log.begin_epoch(starts[0])
            self._ahead = self._ahead[1:]
        log.append_raw(frame.offset, frame.data, frame.blank)
        self._leader_end = max(self._leader_end, log.end)
        if frame.commit <= log.end:
            self._committed(frame.commit)
        else:
            # the rest of the last atomic run may come with the next frame
            self._committed(log.end if frame.blank else whole_until(frame.data, frame.offset))
        reported = LOG_ORIGIN if self._reported is None else self._reported.end
        if self._is_sync and log.end - reported < UNREPORTED_BYTES_MAX:
            return []
        return self._report()

    def _take_heartbeat(self, frame: Heartbeat) -> list[FollowerAction]:
        self._check_epoch(frame.epoch)
        self._echo_ms, self._leader_end = frame.sent_ms, frame.end
        if frame.begin > self._leader_begin[0]:
            self._leader_begin = (frame.begin, frame.commit)
        if frame.commit <= self._log.end:
            self._committed(frame.commit)
        in_sync = frame.in_sync
        if in_sync.epoch != self.epoch:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, f"an in-sync set of epoch {in_sync.epoch}")
        if self._me in in_sync.copies and in_sync.version > self._stored_version:
            if self.state.in_sync != in_sync:
                return [StoreSet(in_sync)]
            self._stored_version = in_sync.version
        return self._report()

    def _check_epoch(self, epoch: Epoch) -> None:
        if not self.epoch or self._welcome is not None:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, "a frame before the Welcome was applied")
        if epoch != self.epoch or epoch < self.state.promised:
            text = f"a frame of epoch {epoch}; {max(self.epoch, self.state.promised)} is followed or promised"
            raise TroveError(errors.EPOCH_STALE, text)

    def _committed(self, commit: Offset) -> None:
        self.state.commit = max(self.state.commit, commit)

    def _report(self) -> list[FollowerAction]:
        if not self.epoch or self.state.promised > self.epoch:
            return []
        if self.state.in_sync is not None and self.state.in_sync.epoch == self.epoch:
            self._stored_version = self.state.in_sync.version
        log = self._log
        report = Progress(self.epoch, log.end, log.flushed, self._stored_version, self._echo_ms)
        if report == self._reported:
            return []
        self._reported = report
        return [SendProgress(report)]


def _has_frame_size(data: bytes | memoryview) -> bool:
    """At most FRAME_BYTES_MAX, or one record that is larger: its first four bytes are its size."""
    size = len(data)
    return 0 < size <= FRAME_BYTES_MAX or (size > 0 and int.from_bytes(data[:4]) == size)
