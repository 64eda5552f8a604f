"""A group of three nodes that is copied at each step, so that all orders of a few events can be tried.

Frames of one direction arrive together, and bytes are on disk once they are appended: kills, power cuts and
late syncs are in the walks by seed (group_world.py). The cores are the shipped ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

from trovemq_broker.replication import follower as follower_side
from trovemq_broker.replication import leader as leader_side
from trovemq_broker.replication.commit import CommitOffset
from trovemq_broker.replication.follower import Follower, ReplicaState
from trovemq_broker.replication.frames import FollowerFrame, Hello, Identity, InSyncSet, LeaderFrame, Offset
from trovemq_broker.replication.in_sync import InSyncChanges
from trovemq_broker.replication.leader import GroupSettings, Leader
from trovemq_broker.replication.peers import Peer
from trovemq_broker.replication.promotion import Promised, choose, epoch_of_leader, epoch_to_promise
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epoch, Epochs

NAMES = ("a", "b", "c")
SIZE = 10
SETTINGS = GroupSettings("c", "g", dict.fromkeys(NAMES, True), 1 << 20)
Step = tuple[str, ...]


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Values that never change are shared."""
    kind = type(value)
    if kind in (list, deque):
        return kind(_copied(one, copies) for one in value)
    if kind is dict:
        return {key: _copied(one, copies) for key, one in value.items()}
    if kind not in CHANGING:
        return value
    if (found := copies.get(id(value))) is None:
        found = copies[id(value)] = object.__new__(kind)
        for name in value.__slots__ if hasattr(value, "__slots__") else value.__dict__:
            setattr(found, name, _copied(getattr(value, name), copies))
    return found


class SmallLog:
    """Records of SIZE bytes. `state`: that has its epochs."""

    def __init__(self, state: ReplicaState) -> None:
        self.data = b""
        self.begin = LOG_ORIGIN
        self.state = state

    @property
    def end(self) -> Offset:
        return Offset(len(self.data))

    @property
    def flushed(self) -> Offset:
        return self.end

    def read(self, offset: int, _size_max: int) -> tuple[bytes, int]:
        return self.data[offset : offset + SIZE], 0

    def append_raw(self, offset: int, data: bytes | memoryview, _blank: int) -> None:
        assert offset == self.end
        self.data += data

    def begin_epoch(self, epoch: Epoch) -> None:
        self.state.epochs = self.state.epochs.begun(*epoch)


class SmallNode:
    def __init__(self, name: str) -> None:
        self.identity = Identity(name, f"{name}-0", 0)
        self.new_disk()
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.follows = ""
        self.to_leader: list[FollowerFrame] = []
        self.to_follower: list[LeaderFrame] = []

    def new_disk(self) -> None:
        self.state = ReplicaState(0, Epochs(), LOG_ORIGIN, None)
        self.log = SmallLog(self.state)


class SmallWorld:
    """`sends`, `promotions`, `waits`, `losses`: how many of each may follow."""

    node_type: type[SmallNode] = SmallNode

    def __init__(self, *, sends: int, promotions: int, waits: int, losses: int) -> None:
        self.sends, self.promotions, self.waits, self.losses = sends, promotions + 1, waits, losses
        self.now_ms = 0
        self.nodes = {name: self.node_type(name) for name in NAMES}
        first = frozenset(node.identity for node in self.nodes.values())
        for node in self.nodes.values():
            node.state.in_sync = InSyncSet(0, 1, first)
        self.acknowledged: tuple[tuple[int, bytes], ...] = ()
        self.take(("promote", *NAMES))
        leader = next(name for name, node in self.nodes.items() if node.leader)
        for name in NAMES:
            if name != leader:
                self.take(("dial", name, leader))
        for _ in range(3):
            for name in NAMES:
                self.take(("to_leader", name))
                self.take(("to_follower", name))

    def copied(self) -> SmallWorld:
        found: SmallWorld = _copied(self, {})
        return found

    def key(self) -> Any:
        """Equal for two worlds that behave alike."""
        return (
            self.sends,
            self.promotions,
            self.waits,
            self.losses,
            self.acknowledged,
            tuple(self._key_of(node) for node in self.nodes.values()),
        )

    def _key_of(self, node: SmallNode) -> Any:
        core, leads = node.leader, None
        if core is not None:
            peers = tuple(
                (
                    peer.identity,
                    peer.stream,
                    peer.sent,
                    peer.end,
                    peer.has_reported,
                    peer.set_version,
                    peer.has_state,
                    peer.answered_ms > peer.hello_ms,
                    self.now_ms - peer.since_ms > SETTINGS.lag_max_ms,
                )
                for peer in core._peers.values()
            )
            sets = core.in_sync.confirmed, tuple(core.in_sync.proposed)
            leads = core.epoch, core.commit, sets, peers
        state = node.state
        return (
            node.identity,
            state.promised,
            state.epochs.entries,
            state.commit,
            state.in_sync,
            node.log.data,
            leads,
            node.follows,
            node.follower.epoch if node.follower else -1,
            tuple(node.to_leader),
            tuple(node.to_follower),
        )

    # --- steps ------------------------------------------------------------------------------------------
    def steps(self) -> Iterator[Step]:
        leading = [name for name, node in self.nodes.items() if node.leader is not None]
        for name, node in self.nodes.items():
            if node.to_leader:
                yield "to_leader", name
            if node.to_follower:
                yield "to_follower", name
            if node.leader is None and not node.follows:
                yield from (("dial", name, leader) for leader in leading)
            if self.losses and node.leader is None and node.state.in_sync is not None:
                yield "lose", name
        for name in leading:
            if self.sends:
                yield "send", name
            if self.waits:
                yield "wait", name
        if self.promotions:
            yield from (("promote", *some) for size in (1, 2, 3) for some in combinations(NAMES, size))

    def take(self, step: Step) -> None:
        match step:
            case ("to_leader", name):
                self._to_leader(self.nodes[name])
            case ("to_follower", name):
                self._to_follower(self.nodes[name])
            case ("dial", name, leader):
                self._dial(self.nodes[name], leader)
            case ("lose", name):
                self.losses -= 1
                self._close(self.nodes[name])
                self.nodes[name].identity = Identity(name, f"{name}-1", 0)
                self.nodes[name].new_disk()
            case ("send", name):
                self.sends -= 1
                self._send(self.nodes[name])
            case ("wait", name):
                self.waits -= 1
                core = self.nodes[name].leader
                assert core is not None
                for _ in range(4):
                    self.now_ms += 500
                    self._lead(self.nodes[name], core.tick(self.now_ms))
            case ("promote", *names):
                self._promote([self.nodes[name] for name in names])

    def _promote(self, reached: list[SmallNode]) -> None:
        self.promotions -= 1
        epoch = epoch_to_promise(
            max(node.state.promised for node in reached), reached[0].identity.node, NAMES
        )
        answers = []
        for node in reached:
            self._step_down(node)
            self._close(node)
            node.state.promised = epoch
            state = node.state
            answers.append(Promised(node.identity, epoch, state.epochs, node.log.end, state.in_sync))
        try:
            name = choose(answers, epoch, voters=NAMES, in_sync_min=2)
        except TroveError:
            return
        node = self.nodes[name]
        for end, record in self.acknowledged:
            assert node.log.data[end - SIZE : end] == record, f"{record!r} is missing at {name}"
        epoch = epoch_of_leader(epoch, name, NAMES)
        node.state.promised = epoch
        node.state.epochs = node.state.epochs.truncated(node.log.end).begun(epoch, node.log.end)
        node.log.data += b"epoch%5d" % epoch
        stored, commit = node.state.in_sync, node.state.commit
        assert stored is not None
        node.leader = Leader(
            SETTINGS, node.log, node.identity, node.state.epochs, stored, commit, self.now_ms
        )
        self._lead(node, node.leader.begin())

    def _send(self, node: SmallNode) -> None:
        core = node.leader
        assert core is not None
        if core.is_open and core.connected_copies >= SETTINGS.in_sync_min:
            node.log.data += b"%d at %5d" % (self.sends, core.epoch)
            self._lead(node, core.appended(self.now_ms))

    def _step_down(self, node: SmallNode) -> None:
        node.leader = None
        for other in self.nodes.values():
            if other.follows == node.identity.node:
                self._close(other)

    def _close(self, node: SmallNode) -> None:
        leader = self.nodes.get(node.follows)
        node.follower, node.follows, node.to_leader, node.to_follower = None, "", [], []
        if leader is not None and leader.leader is not None:
            self._lead(leader, leader.leader.closed(NAMES.index(node.identity.node), self.now_ms))

    def _dial(self, node: SmallNode, leader: str) -> None:
        node.follower = Follower("c", "g", node.identity, node.log, node.state, 1 << 20)
        node.follows = leader
        node.to_leader = [node.follower.hello(self.now_ms)]

    def _to_leader(self, node: SmallNode) -> None:
        frames, node.to_leader = node.to_leader, []
        for frame in frames:
            leader = self.nodes.get(node.follows)
            if leader is None or leader.leader is None:
                return
            stream = NAMES.index(node.identity.node)
            if isinstance(frame, Hello):
                self._lead(leader, leader.leader.hello(stream, frame, self.now_ms))
            else:
                self._lead(leader, leader.leader.progress(stream, frame, self.now_ms))

    def _to_follower(self, node: SmallNode) -> None:
        frames, node.to_follower = node.to_follower, []
        for frame in frames:
            if node.follower is not None:
                self._follow(node, node.follower.frame(frame, self.now_ms))

    def _lead(self, node: SmallNode, actions: Iterable[leader_side.LeaderAction]) -> None:
        for action in actions:
            if node.leader is None:
                return
            match action:
                case leader_side.Send(stream, frame):
                    self.nodes[NAMES[stream]].to_follower.append(frame)
                case leader_side.EndStream(stream, _):
                    self._close(self.nodes[NAMES[stream]])
                case leader_side.StoreSet(in_sync):
                    node.state.in_sync = in_sync
                    self._lead(node, node.leader.set_stored(in_sync.version, self.now_ms))
                case leader_side.StepDown(_):
                    self._step_down(node)
        if node.leader is not None:
            self._committed(node, node.leader.commit)

    def _committed(self, node: SmallNode, commit: Offset) -> None:
        assert node.state.commit <= commit <= node.log.end, "the commit went back, or is beyond the log"
        for begin in range(node.state.commit, commit, SIZE):
            record = node.log.data[begin : begin + SIZE]
            if not record.startswith(b"epoch"):
                self.acknowledged = (*self.acknowledged, (begin + SIZE, record))
        node.state.commit = commit

    def _follow(self, node: SmallNode, actions: Iterable[follower_side.FollowerAction]) -> None:
        for action in actions:
            if node.follower is None:
                return
            match action:
                case follower_side.Promise(epoch):
                    node.state.promised = epoch
                case follower_side.Cut(to, epochs):
                    assert to >= node.state.commit, "a committed record was cut"
                    node.log.data, node.state.epochs = node.log.data[:to], epochs
                case follower_side.StoreSet(in_sync):
                    node.state.in_sync = in_sync
                case follower_side.SendProgress(progress):
                    node.to_leader.append(progress)
                    continue
                case follower_side.End(error, is_final):
                    assert not is_final, error
                    self._close(node)
                    continue
                case follower_side.Join():
                    raise AssertionError("no log of this world is trimmed")
            self._follow(node, node.follower.done())


CHANGING = {
    SmallWorld,
    SmallNode,
    SmallLog,
    ReplicaState,
    Leader,
    CommitOffset,
    InSyncChanges,
    Peer,
    Follower,
}
