"""The leader of a group: answers each Hello, sends the log by window, counts progress, moves the commit.

    hello(stream, hello)   -> Welcome, or a refusal; then data
    appended(), flushed()  -> data to all; the commit may move
    progress(stream, ...)  -> more data; the commit may move
    tick()                 -> heartbeats, changes of the in-sync set; again at next_tick_ms

Each returns actions. The caller reads `commit` afterwards, and lets readers see the log up to it.

Invariants
- A report counts only up to the bytes that this stream was sent (rocketmq#3015).
- One node has one stream: a second one ends the first.
- A follower has at most WINDOW_BYTES, and one frame, that it has not reported.
- A copy that catches up is sent `catch_up_bytes_per_s` at most. One of a set that counts, or that lacks no
  more than a window, is never held.
- One that lacks more than a window is sent one frame at a time, of CATCH_UP_BYTES_MAX; the next input or tick
  sends the next, so that producers are served between two.
- A commit travels with data. A heartbeat for it alone is sent only to a follower that has answered the one
  before: one that reads nothing collects a heartbeat each HEARTBEAT_MS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from zlib_ng.zlib_ng import crc32

from trovemq_broker.replication.commit import CommitOffset
from trovemq_broker.replication.frames import (
    SENT_BYTES_MAX,
    Data,
    Epoch,
    Heartbeat,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    Node,
    NodeLog,
    NowMs,
    Offset,
    Progress,
    Welcome,
)
from trovemq_broker.replication.in_sync import Copy, InSyncChanges
from trovemq_broker.replication.kept_log import KeptLimits, KeptLog, kept_log
from trovemq_broker.replication.meeting_point import meeting_point
from trovemq_broker.replication.peers import Peer, Stream, as_copy, is_witnessed
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.epochs import Epochs

WINDOW_BYTES: Final = 16 << 20
HEARTBEAT_MS: Final = 500
CATCH_UP_AHEAD_MS: Final = 100
"""A copy that catches up may be this far ahead of its rate."""
CATCH_UP_BYTES_MAX: Final = 384 << 10
"""Of a frame to a copy that lacks more than a window: read and written it costs the loop 0.4 ms;
docs/internals/replication.md has the longest time of the loop. Of one with 256 records or fewer the
follower's index puts off the work, which costs it more."""
COMMIT_MS: Final = 2
"""Maximum wait of a moved commit for data to travel with, before a heartbeat carries it."""


class LeaderLog(NodeLog, Protocol):
    """The leader's own log."""

    def read(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        """Whole records of one segment from the offset on; and the number of zeros after the last of them,
        where they fill the segment. A record that is larger than size_max comes alone."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`voters`: by node, whether it may be in the in-sync set. `is_sync`: a copy counts once it is synced.
    `stores`, `removed`: of the list of members (members.py). `sealing_key_id`: of the key that seals
    users' secrets; empty if callers do not log in. `is_coordinated`: elections and in-sync sets are a
    coordinator's (election.py)."""

    cluster: str
    group: str
    voters: Mapping[Node, bool]
    segment_size: int
    is_sync: bool = True
    in_sync_min: int = 2
    lag_max_ms: int = 1_500
    stores: Mapping[Node, str] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    sealing_key_id: str = ""
    kept: KeptLimits = field(default_factory=KeptLimits)
    catch_up_bytes_per_s: int = 0
    """0: no limit."""
    is_coordinated: bool = False


# --- actions ----------------------------------------------------------------------------------
class Send(NamedTuple):
    stream: Stream
    frame: LeaderFrame


class EndStream(NamedTuple):
    stream: Stream
    error: TroveError


class StoreSet(NamedTuple):
    """To be stored and synced, then reported by set_stored(). With a coordinator: to be written there, then
    reported by set_confirmed()."""

    in_sync: InSyncSet


class StepDown(NamedTuple):
    """A higher epoch was promised elsewhere: no more appends, and nothing is acknowledged."""

    epoch: Epoch


LeaderAction: TypeAlias = Send | EndStream | StoreSet | StepDown


class CopyState(NamedTuple):
    """A follower: where its log ends, and is synced, and how long ago it had all that the leader had then."""

    identity: Identity
    end: Offset
    flushed: Offset
    lag_ms: int
    is_connected: bool


class Leader:
    """`stored`: the in-sync set that this node had stored when it was promoted; with a coordinator that of
    its election. `known_commit`: of the epochs before. The epoch's first record is already appended, and ends
    at the log's end."""

    def __init__(
        self,
        settings: GroupSettings,
        log: LeaderLog,
        me: Identity,
        epochs: Epochs,
        stored: InSyncSet,
        known_commit: Offset,
        now_ms: NowMs,
    ) -> None:
        self.settings = settings
        self.epoch: Final = epochs.last
        self._log = log
        self._me = me
        self._epochs = epochs
        self._epoch_end = log.end
        self._commit = CommitOffset(known_commit, log.end)
        self.in_sync: Final = InSyncChanges(
            stored,
            self.epoch,
            me,
            in_sync_min=settings.in_sync_min,
            lag_max_ms=settings.lag_max_ms,
            is_coordinated=settings.is_coordinated,
        )
        self._my_version = 0
        self._began_ms: Final = now_ms
        self._looked_ms = now_ms
        """When the copies were judged last."""
        self._beaten_ms: NowMs | None = None
        self._commit_due_ms: NowMs | None = None
        """Then the followers that do not know the commit are sent it."""
        self._held_until_ms: NowMs | None = None
        """Then a copy that catches up is sent more."""
        self._counted: list[Peer] | None = None
        """The followers that a commit waits for; None: to be found again."""
        self._peers: dict[Node, Peer] = {
            one.node: Peer(one, settings.voters.get(one.node, False), now_ms)
            for one in sorted(stored.copies)
            if one != me
        }

    @property
    def commit(self) -> Offset:
        return self._commit.offset

    @property
    def log_end(self) -> Offset:
        return self._log.end

    @property
    def is_open(self) -> bool:
        """Whether producers are served: all of the epochs before is committed."""
        return self._commit.is_open

    @property
    def connected_copies(self) -> int:
        """Copies of the in-sync set that are here; an append needs `in_sync_min` of them."""
        there = {peer.identity for peer in self._peers.values() if peer.stream is not None}
        return 1 + len(self.in_sync.newest.copies & there)

    def copies(self, now_ms: NowMs) -> list[CopyState]:
        """The followers, for operators."""
        return [
            CopyState(
                peer.identity,
                peer.end,
                peer.flushed,
                0 if self._position(peer) >= self._log.end else max(0, now_ms - peer.since_ms),
                peer.stream is not None,
            )
            for peer in self._peers.values()
        ]

    @property
    def next_tick_ms(self) -> NowMs:
        """The next tick() is due then, or before."""
        beat = self._began_ms if self._beaten_ms is None else self._beaten_ms + HEARTBEAT_MS
        if self._commit_due_ms is not None:
            beat = min(beat, self._commit_due_ms)
        return beat if self._held_until_ms is None else min(beat, self._held_until_ms)

    def kept_log(self, now_ms: NowMs) -> KeptLog:
        """The part that retention keeps for the other members."""
        log, settings = self._log, self.settings
        others = [node for node in settings.voters if node != self._me.node]
        return kept_log(others, self._peers, settings.kept, log.begin, log.end, self._began_ms, now_ms)

    def answered_by_all_ms(self, now_ms: NowMs) -> NowMs | None:
        """Each other copy that counts has answered a heartbeat that was sent then, or later. None: one has
        answered none. Without others it is now."""
        known = {peer.identity: peer.answered_ms for peer in self._peers.values()}
        answers = [known.get(one, 0) for one in self.in_sync.counted if one != self._me]
        return (min(answers) or None) if answers else now_ms

    def check_append(self) -> None:
        """TroveError NOT_ENOUGH_REPLICAS: nothing may be appended for a replicated acknowledgement."""
        if (found := self.connected_copies) < self.settings.in_sync_min:
            raise TroveError(
                errors.NOT_ENOUGH_REPLICAS,
                f"{found} of the {self.settings.in_sync_min} copies that group {self.settings.group} needs",
            )

    # --- inputs -----------------------------------------------------------------------------------------
    def begin(self) -> list[LeaderAction]:
        """The first action of a leadership."""
        return [] if self.settings.is_coordinated else [StoreSet(self.in_sync.newest)]

    def hello(self, stream: Stream, hello: Hello, now_ms: NowMs) -> list[LeaderAction]:
        """A follower has opened a stream."""
        try:
            self._check(hello)  # first: a stranger's promise ends nothing
            if hello.promised > self.epoch:
                text = f"epoch {self.epoch} ended: {hello.promised} is promised"
                return [StepDown(hello.promised), EndStream(stream, TroveError(errors.EPOCH_STALE, text))]
            welcome = self._welcome(hello)
        except TroveError as error:
            return [EndStream(stream, error)]
        node, actions = hello.identity.node, list[LeaderAction]()
        former = self._peers.get(node)
        if former is not None and former.stream is not None:
            other = TroveError(errors.REPLICA_STREAM_TAKEN, f"node {node} has opened another stream")
            actions.append(EndStream(former.stream, other))
        peer = Peer(hello.identity, self.settings.voters[node] and not hello.learner, now_ms, stream)
        is_first = self.settings.stores.get(node) == hello.identity.store_id
        peer.has_state = is_first or hello.in_sync is not None
        peer.hello_ms = peer.heard_ms = now_ms
        peer.is_learner = hello.learner
        peer.since_ms = now_ms - self.settings.lag_max_ms - 1  # it has to catch up first
        if former is not None and former.identity == hello.identity:
            peer.continues(former)
        peer.sent = peer.end = welcome.cut_to
        peer.mark_end, peer.mark_ms = self._log.end, now_ms
        self._peers[node], self._counted = peer, None
        actions.append(Send(stream, welcome))
        actions.append(self._beat(peer, self._heartbeat(now_ms)))
        return actions + self._data(peer, {}, now_ms)

    def progress(self, stream: Stream, progress: Progress, now_ms: NowMs) -> list[LeaderAction]:
        """A follower has appended or synced."""
        peer = self._of(stream)
        if peer is None:
            return []
        if progress.epoch > self.epoch:
            return [StepDown(progress.epoch)]
        peer.heard_ms = now_ms
        if error := self._wrong(peer, progress):
            peer.stream, peer.left_ms, self._counted = None, now_ms, None
            return [EndStream(stream, error)]
        peer.end, peer.flushed, peer.has_reported = progress.end, progress.flushed, True
        peer.answered(progress.echo_ms)
        position = self._position(peer)
        if position >= peer.mark_end:
            peer.since_ms, peer.mark_end, peer.mark_ms = peer.mark_ms, self._log.end, now_ms
        if position >= self._log.end:
            peer.since_ms = now_ms
        if peer.is_voter and self._counted is not None and peer not in self._counted:
            self._counted = None  # it may keep up now
        if progress.set_version > peer.set_version:
            peer.set_version, peer.has_state = progress.set_version, True
            self._confirm()
        self._move_commit(now_ms)
        if peer.commit_sent < self.commit:
            self._commit_is_due(now_ms)
        return self._data(peer, {}, now_ms)

    def appended(self, now_ms: NowMs) -> list[LeaderAction]:
        """An append has ended at the log's end."""
        self._commit.appended(self._log.end)
        self._move_commit(now_ms)
        actions: list[LeaderAction] = []
        made: dict[Offset, Data] = {}
        for peer in self._peers.values():
            actions += self._data(peer, made, now_ms)
        return actions

    def flushed(self, now_ms: NowMs) -> list[LeaderAction]:
        """The log's synced end has moved."""
        self._move_commit(now_ms)
        return []

    def set_stored(self, version: int, now_ms: NowMs) -> list[LeaderAction]:
        """A StoreSet is done."""
        self._my_version = max(self._my_version, version)
        self._confirm()
        self._move_commit(now_ms)
        return []

    def set_confirmed(self, in_sync: InSyncSet, now_ms: NowMs) -> list[LeaderAction]:
        """The coordinator has that set, which was proposed by a StoreSet."""
        if not self.in_sync.confirm_written(in_sync):
            return []
        self._counted = None
        self._move_commit(now_ms)
        return self._heartbeats(now_ms)

    def regroup(self, settings: GroupSettings, now_ms: NowMs) -> list[LeaderAction]:
        """The members have changed (members.py): a node that is none any more loses its stream."""
        self.settings, self.in_sync.in_sync_min = settings, settings.in_sync_min
        actions: list[LeaderAction] = []
        for peer in self._peers.values():
            node = peer.identity.node
            peer.is_voter = settings.voters.get(node, False) and not peer.is_learner
            if node not in settings.voters and peer.stream is not None:
                error = TroveError(errors.NOT_A_MEMBER, f"node {node} of group {settings.group}")
                actions.append(EndStream(peer.stream, error))
                peer.stream, peer.left_ms = None, now_ms
        self._peers = {
            node: peer
            for node, peer in self._peers.items()
            if node in settings.voters or peer.identity in self.in_sync.counted
        }
        self._counted = None
        self._move_commit(now_ms)
        return actions

    def closed(self, stream: Stream, now_ms: NowMs, *, is_dead: bool = False) -> list[LeaderAction]:
        """A stream has ended. is_dead: and the node's host refuses new connections."""
        peer = self._of(stream)
        if peer is None:
            return []
        peer.stream, peer.is_dead, self._counted = None, is_dead, None
        peer.left_ms = now_ms
        self._move_commit(now_ms)
        return self._changes(now_ms)

    def tick(self, now_ms: NowMs) -> list[LeaderAction]:
        """Time has passed; to be called at next_tick_ms, or before."""
        self._counted = None  # a copy that was waited for may lag for too long now
        self._move_commit(now_ms)
        actions = self._changes(now_ms)
        if self._beaten_ms is None or now_ms - self._beaten_ms >= HEARTBEAT_MS:
            self._beaten_ms = now_ms
            actions += self._heartbeats(now_ms)
        if self._commit_due_ms is not None and now_ms >= self._commit_due_ms:
            self._commit_due_ms = None
            frame = self._heartbeat(now_ms)
            actions += [
                self._beat(peer, frame)
                for peer in self._peers.values()
                if peer.commit_sent < self.commit and peer.answered_ms >= peer.beaten_ms
                if peer.stream is not None
            ]
        if self._held_until_ms is not None and now_ms >= self._held_until_ms:
            self._held_until_ms = None
            for peer in self._peers.values():
                actions += self._data(peer, {}, now_ms)
        return actions

    # --- helpers ----------------------------------------------------------------------------------------
    def _check(self, hello: Hello) -> None:
        settings, node = self.settings, hello.identity.node
        if (hello.cluster, hello.group) != (settings.cluster, settings.group):
            raise TroveError(errors.GROUP_MISMATCH, f"group {hello.group} of cluster {hello.cluster}")
        is_removed = hello.identity.store_id in settings.removed
        if node not in settings.voters or node == self._me.node or is_removed:
            raise TroveError(errors.NOT_A_MEMBER, f"node {node} of group {hello.group}")
        if hello.segment_size != settings.segment_size:
            text = f"{hello.segment_size} of {node}, {settings.segment_size} here"
            raise TroveError(errors.SEGMENT_SIZE_MISMATCH, text)
        self._check_key(hello)
        if not hello.begin <= hello.commit <= hello.end or hello.epochs.at(hello.end) != hello.epochs.last:
            raise TroveError(errors.REPLICA_FRAME_ILLEGAL, f"positions or epochs of {node} do not fit")

    def _check_key(self, hello: Hello) -> None:
        """A node with another key could not read the users' secrets when it leads."""
        mine, other = self.settings.sealing_key_id, hello.sealing_key_id
        if mine and other and mine != other:
            text = (
                f"node {hello.identity.node} has key {other}, the leader {self._me.node} has {mine}: copy the"
                f" file of {self._me.node}'s sealing_key_file to that of {hello.identity.node}, and start it"
            )
            raise TroveError(errors.SEALING_KEY_MISMATCH, text)

    def _welcome(self, hello: Hello) -> Welcome:
        log = self._log
        if hello.end > hello.begin and not hello.epochs:
            text = f"{hello.identity.node} has a log that was written outside of any replica group"
            raise TroveError(errors.STORE_DIVERGED, text)
        point = meeting_point(hello.epochs, hello.end, hello.commit, self._epochs, log.begin, log.end)
        joins, cut_to = point is None, log.begin if point is None else point
        return Welcome(self.epoch, self._epochs, log.begin, log.end, self.commit, cut_to, joins)

    def _wrong(self, peer: Peer, progress: Progress) -> TroveError | None:
        if progress.epoch < self.epoch:
            return TroveError(errors.EPOCH_STALE, f"a report of epoch {progress.epoch}; it is {self.epoch}")
        if not (peer.end <= progress.end <= peer.sent and peer.flushed <= progress.flushed <= progress.end):
            text = (
                f"{progress.end} and {progress.flushed} after {peer.end} and {peer.flushed}, {peer.sent} sent"
            )
            return TroveError(errors.REPLICA_FRAME_ILLEGAL, f"{peer.identity.node} reported {text}")
        if not peer.set_version <= progress.set_version <= self.in_sync.newest.version:
            text = f"version {progress.set_version} of the in-sync set"
            return TroveError(errors.REPLICA_FRAME_ILLEGAL, f"{peer.identity.node} reported {text}")
        return None

    def _of(self, stream: Stream) -> Peer | None:
        return next((peer for peer in self._peers.values() if peer.stream == stream), None)

    def _position(self, peer: Peer) -> Offset:
        return peer.position(is_sync=self.settings.is_sync)

    def _confirm(self) -> None:
        versions = {peer.identity: peer.set_version for peer in self._peers.values()}
        if self.in_sync.confirm({**versions, self._me: self._my_version}):
            self._counted = None

    def _move_commit(self, now_ms: NowMs) -> None:
        if not self.in_sync.may_commit:
            return
        mine = self._log.flushed if self.settings.is_sync else self._log.end
        if self._counted is None:
            self._counted = self._waited_for(now_ms)
        if self._commit.held((mine, *(self._position(peer) for peer in self._counted))):
            self._commit_is_due(now_ms)

    def _waited_for(self, now_ms: NowMs) -> list[Peer]:
        """The followers that a commit waits for: of the sets, and others that keep up."""
        counted = self.in_sync.counted - {self._me}
        known = {peer.identity: peer for peer in self._peers.values()}
        found = [known.get(one) or Peer(one, is_voter=True, since_ms=now_ms) for one in sorted(counted)]
        others = [one for one in self._copies(now_ms) if one.identity not in counted]
        return found + [known[one.identity] for one in others if self.in_sync.is_waited_for(one, now_ms)]

    def _commit_is_due(self, now_ms: NowMs) -> None:
        if self._commit_due_ms is None:
            self._commit_due_ms = now_ms + COMMIT_MS

    def _copies(self, now_ms: NowMs) -> list[Copy]:
        peers, settings = self._peers.values(), self.settings
        voters = {node for node, is_voter in settings.voters.items() if is_voter} - {self._me.node}
        return [
            as_copy(
                peer,
                now_ms,
                is_sync=settings.is_sync,
                # a leader that was deposed by a lost promise cannot change the set at the coordinator
                is_witnessed=settings.is_coordinated
                or is_witnessed(
                    peer, peers, voters - {peer.identity.node}, self.in_sync.newest, settings.in_sync_min
                ),
            )
            for peer in peers
        ]

    def _changes(self, now_ms: NowMs) -> list[LeaderAction]:
        self._forgive_own_pause(now_ms)
        copies = self._copies(now_ms)
        change = self.in_sync.propose(copies, now_ms, commit=self.commit, epoch_end=self._epoch_end)
        if change is None:
            return []
        self._counted = None
        return [StoreSet(change), *self._heartbeats(now_ms)]

    def _forgive_own_pause(self, now_ms: NowMs) -> None:
        """While this process stood still it read no report: that is no lag of the copies."""
        stood_ms = now_ms - self._looked_ms - HEARTBEAT_MS
        self._looked_ms = now_ms
        if stood_ms > HEARTBEAT_MS:
            for peer in self._peers.values():
                peer.since_ms = min(now_ms, peer.since_ms + stood_ms)
                peer.mark_ms = min(now_ms, peer.mark_ms + stood_ms)

    def _heartbeat(self, now_ms: NowMs) -> Heartbeat:
        log = self._log
        return Heartbeat(self.epoch, self.commit, log.end, now_ms, self.in_sync.to_store, log.begin)

    def _heartbeats(self, now_ms: NowMs) -> list[LeaderAction]:
        frame = self._heartbeat(now_ms)
        return [self._beat(peer, frame) for peer in self._peers.values() if peer.stream is not None]

    @staticmethod
    def _beat(peer: Peer, frame: Heartbeat) -> Send:
        assert peer.stream is not None, "a follower that is here"
        peer.beaten_ms, peer.commit_sent = frame.sent_ms, frame.commit
        return Send(peer.stream, frame)

    def _epoch_end_after(self, offset: Offset) -> Offset:
        """Where the epoch of the records there ends: a frame has records of one epoch."""
        if offset >= self._epochs.entries[-1].start:
            return self._log.end
        return next(one.start for one in self._epochs if one.start > offset)

    def _is_held(self, peer: Peer, now_ms: NowMs) -> bool:
        """Whether a copy that catches up has had all that its rate permits; then tick() sends more."""
        rate = self.settings.catch_up_bytes_per_s
        if not rate or self._log.end - peer.sent <= WINDOW_BYTES or peer.identity in self.in_sync.counted:
            return False
        due_ms = int(peer.paid_ms) + 1 - CATCH_UP_AHEAD_MS
        if due_ms <= now_ms:
            return False
        self._held_until_ms = due_ms if self._held_until_ms is None else min(due_ms, self._held_until_ms)
        return True

    def _pay(self, peer: Peer, size: int, now_ms: NowMs) -> None:
        if rate := self.settings.catch_up_bytes_per_s:
            peer.paid_ms = max(peer.paid_ms, now_ms) + 1_000 * size / rate

    def _data(self, peer: Peer, made: dict[Offset, Data], now_ms: NowMs) -> list[LeaderAction]:
        """As much as the follower's window and its rate take. `made`: frames of others, by their offset."""
        if peer.stream is None:
            return []
        frames: list[LeaderAction] = []
        log, end = self._log, self._log.end
        while peer.sent < end and peer.sent - peer.end < WINDOW_BYTES and not self._is_held(peer, now_ms):
            is_behind = end - peer.sent > WINDOW_BYTES
            if is_behind and frames:
                self._held_until_ms = now_ms
                break
            frame = made.get(peer.sent)
            if frame is None:
                size_max = CATCH_UP_BYTES_MAX if is_behind else SENT_BYTES_MAX
                size_max = min(size_max, self._epoch_end_after(peer.sent) - peer.sent)
                data, blank = log.read(peer.sent, size_max)
                frame = Data(self.epoch, peer.sent, self.commit, data, crc32(data), blank)
                made[peer.sent] = frame
            if is_behind:
                self._pay(peer, len(frame.data), now_ms)
            peer.sent, peer.commit_sent = frame.end, frame.commit
            frames.append(Send(peer.stream, frame))
        return frames
