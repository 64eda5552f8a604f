"""A replica group in one process and in virtual time, by seed: nodes with a model of their disks, streams
that are late, end or go silent, kills, power cuts, lost disks, pauses, and an operator who promotes.

The cores are the shipped ones. A log is a list of records of random sizes in segments, of which a prefix is
synced. A kill takes nothing of a node's disk; a power cut takes the bytes that were not synced.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.unit.replication.members_world import Link, MembersWorld, Node, members_of
from tests.unit.replication.model_log import SEGMENT_SIZE, ModelLog
from trovemq_broker.replication import follower as follower_side
from trovemq_broker.replication import leader as leader_side
from trovemq_broker.replication.follower import Follower, ReplicaState
from trovemq_broker.replication.frames import (
    Data,
    FollowerFrame,
    Hello,
    Identity,
    InSyncSet,
    LeaderFrame,
    Offset,
    Progress,
)
from trovemq_broker.replication.leader import Leader
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import Promised, choose, epoch_of_leader, epoch_to_promise
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Members

TICK_MS = 100
DIAL_MS = 200
HELD_MS = 50


class World(MembersWorld):
    node_type: type[Node] = Node

    def __init__(
        self, seed: int, *, nodes: int, in_sync_min: int, is_sync: bool = True, spares: int = 0
    ) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.in_sync_min = in_sync_min
        self.is_sync = is_sync
        self.spares = spares
        names = [f"n{number}" for number in range(nodes)]
        others = [f"n{nodes + number}" for number in range(spares)]
        self.nodes = {
            name: self.node_type(name, Identity(name, f"{name}-0", 0)) for name in (*names, *others)
        }
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.links: dict[int, Link] = {}
        self.cut_off: set[tuple[str, str]] = set()
        self.slow: dict[str, int] = {}
        self.named: str = names[0]
        """The leader that the operator's configuration names."""
        self.acknowledged: dict[int, bytes] = {}
        """By the end of the record."""
        self.waiting: dict[int, list[tuple[int, bytes]]] = {}
        """By epoch: appended, and not yet acknowledged."""
        self.committed = bytearray()
        self.leaders: dict[int, str] = {}
        self.lost: set[str] = set()
        self.log_began: Offset = LOG_ORIGIN
        """The latest begin of a leader's log."""
        self.trims = 0
        self.promotions = self.refusals = self.changes = 0
        first = frozenset(self.nodes[name].identity for name in names)
        for node in self.nodes.values():
            node.log.begin_epoch = node.begin_epoch
        for name in names:
            self.nodes[name].state.in_sync = InSyncSet(0, 1, first)
            self.nodes[name].members = members_of(names)
        for node in self.nodes.values():
            self._every(node)
        while not self.promote():
            pass

    # --- time -------------------------------------------------------------------------------------------
    def at(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_ms + delay_ms, next(self.count), act))

    def run(self, until_ms: int) -> None:
        while self.queue and self.queue[0][0] <= until_ms:
            self.now_ms, _, act = heapq.heappop(self.queue)
            act()
        self.now_ms = until_ms

    def _every(self, node: Node) -> None:
        """A node's own timer: ticks, dials, syncs."""
        life = node.life

        def tick() -> None:
            if not node.up or node.life != life:
                return
            if node.paused_until <= self.now_ms:
                self._tick(node)
            self.at(TICK_MS, tick)

        self.at(self.random.randrange(TICK_MS), tick)

    def _tick(self, node: Node) -> None:
        if node.leader is not None:
            if self.named != node.name and not self.cut_off and self.random.random() < 0.1:
                self._step_down(node)  # a nameserver names a leader of a higher epoch
                return
            self._lead(node, node.leader.tick(self.now_ms))
            self._send_members(node)
        elif node.follower is not None and (link := self._link_of(node)) is not None:
            self._follow(link, node.follower.tick(self.now_ms))
            if node.follower is not None:
                self._trim_follower(node)
        elif self.random.random() < TICK_MS / DIAL_MS:
            self._dial(node)
        self._sync_later(node)

    def _sync_later(self, node: Node) -> None:
        if node.log.flushed == node.log.end or not node.up:
            return
        life, end = node.life, node.log.end
        delay = self.slow.get(node.name) or self.random.choice((1, 2, 5, 30))

        def synced() -> None:
            if node.life != life or not node.up:
                return
            reached = min(end, node.log.end)
            if reached <= node.log.flushed:
                return
            node.log.flushed = reached
            if node.leader is not None:
                self._lead(node, node.leader.flushed(self.now_ms))
            elif node.follower is not None and (link := self._link_of(node)) is not None:
                self._follow(link, node.follower.flushed())

        self.at(delay, synced)

    # --- streams ----------------------------------------------------------------------------------------
    def _link_of(self, node: Node) -> Link | None:
        found = (one for one in self.links.values() if one.follower is node and one.is_open)
        return next((one for one in found if not one.is_ended_by_follower), None)

    def _dial(self, node: Node) -> None:
        target = self.nodes[node.configured or self.named]
        if target is node:
            return
        if not target.up or self._is_cut(node, target) or target.leader is None:
            return
        number = next(self.count)
        link = self.links[number] = Link(number, node, target, (node.life, target.life))
        node.follower = Follower("c", "g", node.identity, node.log, node.state, SEGMENT_SIZE)
        self._to_leader(link, node.follower.hello(self.now_ms))

    def _is_cut(self, one: Node, other: Node) -> bool:
        return (one.name, other.name) in self.cut_off

    def _deliver(self, link: Link, to: Node, from_: Node, act: Callable[[], None]) -> None:
        """In order, later; held while the link is cut, or the node paused."""
        delay = self.random.choice((0, 1, 1, 2, 5, 20))
        ready = max(self.now_ms + delay, link.ready_at.get(to.name, 0))
        link.ready_at[to.name] = ready

        def arrive() -> None:
            lives = (link.follower.life, link.leader.life)
            if not link.is_open or lives != link.lives or not to.up:
                return
            if to.paused_until > self.now_ms or self._is_cut(from_, to):
                waiting = link.waiting.setdefault(to.name, [])
                waiting.append(arrive)
                if len(waiting) == 1:
                    self.at(HELD_MS, lambda: self._go_on(link, to))
                return
            if link.waiting.get(to.name):
                link.waiting[to.name].append(arrive)
                return
            act()

        self.at(ready - self.now_ms, arrive)

    def _go_on(self, link: Link, to: Node) -> None:
        """Frames that were held, in order: a connection loses none, it ends or is late."""
        held, link.waiting[to.name] = link.waiting[to.name], []
        for arrive in held:
            arrive()

    def _to_leader(self, link: Link, frame: FollowerFrame) -> None:
        def act() -> None:
            leader = link.leader.leader
            if leader is None:
                self._close(link)
            elif isinstance(frame, Hello):
                self._lead(link.leader, leader.hello(link.number, frame, self.now_ms))
            else:
                assert isinstance(frame, Progress)
                self._lead(link.leader, leader.progress(link.number, frame, self.now_ms))

        self._deliver(link, link.leader, link.follower, act)

    def _to_follower(self, link: Link, frame: LeaderFrame) -> None:
        def act() -> None:
            if link.follower.follower is not None and not link.is_ended_by_follower:
                self._follow(link, link.follower.follower.frame(frame, self.now_ms))
                self._check_commit(link.follower)
                if isinstance(frame, Data):
                    self._sync_later(link.follower)

        self._deliver(link, link.follower, link.leader, act)

    def _close(self, link: Link, *, is_dead: bool = False) -> None:
        if not link.is_open:
            return
        link.is_open = False
        del self.links[link.number]
        if link.follower.life == link.lives[0] and not link.is_ended_by_follower:
            link.follower.follower = None
        leader = link.leader
        if leader.up and leader.life == link.lives[1] and leader.leader is not None:
            self._lead(leader, leader.leader.closed(link.number, self.now_ms, is_dead=is_dead))

    # --- actions of the cores ---------------------------------------------------------------------------
    def _lead(self, node: Node, actions: Iterable[leader_side.LeaderAction]) -> None:
        for action in actions:
            leader = node.leader
            if leader is None:
                return
            match action:
                case leader_side.Send(stream, frame):
                    if (link := self.links.get(stream)) is not None:
                        self._to_follower(link, frame)
                case leader_side.EndStream(stream, _):
                    if (link := self.links.get(stream)) is not None:
                        node.refused += 1
                        self._close(link)
                case leader_side.StoreSet(in_sync):
                    self._store_set(node, leader, in_sync)
                case leader_side.StepDown(epoch):
                    self._deposed(node, epoch)
        if node.leader is not None:
            self._check_commit(node)
            self._acknowledge(node, node.leader)
            self._tick_when_due(node, node.leader)

    def _store_set(self, node: Node, leader: Leader, in_sync: InSyncSet) -> None:
        assert len(in_sync.copies) >= self.in_sync_min, "a set below the minimum"
        node.state.in_sync = in_sync
        self._lead(node, leader.set_stored(in_sync.version, self.now_ms))

    def _deposed(self, node: Node, _epoch: int) -> None:
        self._step_down(node)

    def _tick_when_due(self, node: Node, leader: Leader) -> None:
        due_ms = leader.next_tick_ms
        if due_ms == node.due_ms or due_ms > self.now_ms + TICK_MS:
            return
        node.due_ms = due_ms

        def tick() -> None:
            if node.leader is leader and node.up and node.paused_until <= self.now_ms:
                self._lead(node, leader.tick(self.now_ms))

        self.at(max(0, due_ms - self.now_ms), tick)

    def _follow(self, link: Link, actions: Iterable[follower_side.FollowerAction]) -> None:
        node = link.follower
        for action in actions:
            if node.follower is None:
                return
            match action:
                case follower_side.Promise(epoch):
                    assert epoch > node.state.promised, "a promise is never taken back"
                    node.state.promised = epoch
                    self._follow(link, node.follower.done())
                case follower_side.Cut(to, epochs):
                    assert to >= node.state.commit, "a committed record was cut"
                    node.log.cut(to)
                    node.state.epochs = epochs
                    self._follow(link, node.follower.done())
                case follower_side.Join(begin, epochs):
                    node.log.restart_at(begin)
                    node.state.epochs, node.state.commit = epochs, begin
                    self._follow(link, node.follower.done())
                case follower_side.StoreSet(in_sync):
                    node.state.in_sync = in_sync
                    self._follow(link, node.follower.done())
                case follower_side.SendProgress(progress):
                    assert progress.epoch <= node.state.promised, "reported before the promise was on disk"
                    self._to_leader(link, progress)
                case follower_side.End(_, is_final):
                    assert not is_final, "no store of this world diverges"
                    self._close(link)

    def _step_down(self, node: Node) -> None:
        node.leader = None
        for link in [one for one in self.links.values() if one.leader is node]:
            self._close(link)

    # --- clients and readers -------------------------------------------------------------------
    def send(self) -> None:
        """A producer's append to one of the nodes that lead."""
        leading = [node for node in self.nodes.values() if node.up and node.leader is not None]
        if leading:
            self.append_at(self.random.choice(leading))

    def append_at(self, node: Node) -> None:
        leader = node.leader
        assert leader is not None
        if node.paused_until > self.now_ms or not leader.is_open:
            return
        try:
            leader.check_append()
        except TroveError:
            self.refusals += 1
            return
        size = self.random.randrange(20, 300)
        record = self.random.randbytes(size)
        node.log.append(record)
        self.waiting.setdefault(leader.epoch, []).append((node.log.end, record))
        self._lead(node, leader.appended(self.now_ms))
        self._sync_later(node)

    def _acknowledge(self, node: Node, leader: Leader) -> None:
        waiting = self.waiting.get(leader.epoch, [])
        while waiting and waiting[0][0] <= leader.commit:
            end, record = waiting.pop(0)
            self.acknowledged[end] = record

    def _check_commit(self, node: Node) -> None:
        """Committed prefixes are equal everywhere, at all times."""
        commit = node.leader.commit if node.leader is not None else node.state.commit
        assert commit >= node.state.commit, "the commit went back"
        node.state.commit = commit
        assert commit <= node.log.end, "committed beyond the end"
        known = len(self.committed)
        low = max(node.log.begin, known)
        if commit > known:
            assert low == known
            self.committed += node.log.data[low - node.log.begin : commit - node.log.begin]

    # --- faults -----------------------------------------------------------------------------------------
    def kill(self, name: str, *, power_cut: bool = False) -> None:
        node = self.nodes[name]
        if not node.up:
            return
        node.up, node.leader, node.follower = False, None, None
        node.life += 1
        for link in [one for one in self.links.values() if node in (one.leader, one.follower)]:
            link.is_open = False
            del self.links[link.number]
            other = link.follower if node is link.leader else link.leader
            if other is link.follower:
                if not link.is_ended_by_follower:
                    other.follower = None
            elif other.up and other.leader is not None:
                self._lead(other, other.leader.closed(link.number, self.now_ms, is_dead=not power_cut))
        if power_cut and node.log.flushed < node.log.end:
            kept = [end for end in node.log.ends if end >= node.log.flushed]
            to = self.random.choice([node.log.flushed, *kept])
            node.log.cut(to if to in node.log.ends or to == node.log.flushed else node.log.flushed)
            node.state.epochs = node.state.epochs.truncated(node.log.end)
            node.state.commit = min(node.state.commit, node.log.end)  # stored up to the synced end only

    def start(self, name: str) -> None:
        node = self.nodes[name]
        if node.up:
            return
        node.up, node.paused_until = True, 0
        node.life += 1
        if not self.is_sync:
            node.identity = node.identity._replace(incarnation=node.identity.incarnation + 1)
        node.log.flushed = node.log.end  # recovery syncs the log
        node.state = replace(node.state)
        self._every(node)

    def lose_disk(self, name: str) -> bool:
        """Where no more copies are lost at a time than was promised."""
        node = self.nodes[name]
        if len(self.lost - {name}) + 1 > self.in_sync_min - 1 or node.state.in_sync is None:
            return False
        self.kill(name, power_cut=True)
        self.lost.add(name)
        self._new_disk(node)
        return True

    def _new_disk(self, node: Node) -> None:
        self.kill(node.name)
        name, number = node.name, int(node.identity.store_id.rsplit("-", 1)[1]) + 1
        node.identity = Identity(name, f"{name}-{number}", 0)
        node.log, node.state = ModelLog(), ReplicaState(0, Epochs(), LOG_ORIGIN, None)
        node.log.begin_epoch = node.begin_epoch
        node.members = None

    def pause(self, name: str, time_ms: int) -> None:
        self.nodes[name].paused_until = self.now_ms + time_ms

    def promote_where_none_leads(self) -> None:
        if not any(node.leader and node.up for node in self.nodes.values()):
            self.promote()

    def trim(self, name: str) -> None:
        """Retention takes segments that are committed, of a leader only."""
        node = self.nodes[name]
        if node.up and node.leader is not None:
            to = Offset(node.leader.commit // SEGMENT_SIZE * SEGMENT_SIZE)
            if to > node.log.begin:
                node.log.trim(to)
                self.log_began = max(self.log_began, to)

    def _trim_follower(self, node: Node) -> None:
        """A follower removes segments, as its core permits."""
        assert node.follower is not None
        to = Offset(min(node.follower.trim_to, node.state.commit) // SEGMENT_SIZE * SEGMENT_SIZE)
        if node.log.begin < to <= node.log.flushed:
            assert to <= self.log_began, "a follower has removed more than any leader"
            node.log.trim(to)
            self.trims += 1

    def healed(self) -> None:
        """A lost disk counts as whole again once its node is in the confirmed set."""
        for node in self.nodes.values():
            if node.leader is not None and node.leader.in_sync.confirmed is not None:
                confirmed = node.leader.in_sync.confirmed.copies
                self.lost = {name for name in self.lost if self.nodes[name].identity not in confirmed}

    def hide_leader(self) -> None:
        """A leader is cut off from the operator, who promotes another one. A node that promised loses its
        disk, and follows the former leader by an older configuration, as others may."""
        leading = [node for node in self.nodes.values() if node.up and node.leader is not None]
        if not leading:
            return
        hidden = self.random.choice(leading)
        if not self.promote(without=hidden.name):
            return
        others = [node.name for node in self.nodes.values() if node is not hidden and node.members]
        for name in self.random.sample(others, self.random.randrange(1, len(others) + 1)):
            if self.random.random() < 0.5 and not self.lose_disk(name):
                continue
            self.nodes[name].configured = hidden.name
            self.start(name)

    def configure(self) -> None:
        """All nodes have the newest configuration."""
        for node in self.nodes.values():
            node.configured = None

    def promote(self, without: str = "") -> bool:
        """The operator asks every node that answers; a node that leads steps down first."""
        reached = [node for node in self.nodes.values() if node.up and node.paused_until <= self.now_ms]
        reached = [node for node in reached if node.name != without]
        odds = self.random.choice((0.95, 0.95, 0.6))
        reached = [node for node in reached if self.random.random() < odds]
        lists = [node.members for node in reached if node.members is not None]
        newest = max(lists, key=lambda one: one.version, default=Members(version=0))
        gatherer = next((node.name for node in reached if node.name in newest.places), None)
        if gatherer is None:
            return False
        highest = max(node.state.promised for node in reached)
        epoch = epoch_to_promise(highest, gatherer, newest.places)
        answers = []
        for node in reached:
            self._step_down(node)
            if (link := self._link_of(node)) is not None:
                self._close(link)
            node.state.promised = epoch
            node.log.flushed = node.log.end
            answers.append(
                Promised(node.identity, epoch, node.state.epochs, node.log.end, node.state.in_sync)
            )
        try:
            name = choose(
                answers,
                epoch,
                voters=newest.places,
                in_sync_min=self.in_sync_min,
                stores=newest.stores,
            )
        except TroveError:
            return False
        leader = self.nodes[name]
        leader.lists = {}
        leader_epoch = epoch_of_leader(epoch, name, newest.places)
        in_sync = leader.state.in_sync
        known = () if in_sync is None else in_sync.nodes
        leader.changes = MemberChanges(newest, leader_epoch, name, known)
        self._store_members(leader, leader.changes.newest)
        self._begin_leadership(leader, leader_epoch)
        return True

    def _begin_leadership(self, node: Node, epoch: int) -> None:
        assert self.leaders.setdefault(epoch, node.name) == node.name, "two leaders of one epoch"
        self.promotions += 1
        self.named = node.name
        self._check_nothing_is_missing(node)
        node.state.promised = epoch
        node.state.epochs = node.state.epochs.truncated(node.log.end).begun(epoch, node.log.end)
        node.log.append(b"epoch" + epoch.to_bytes(4))
        stored = node.state.in_sync
        assert stored is not None
        node.leader = Leader(
            self._settings(node),
            node.log,
            node.identity,
            node.state.epochs,
            stored,
            node.state.commit,
            self.now_ms,
        )
        self._lead(node, node.leader.begin())
        self._sync_later(node)

    def _check_nothing_is_missing(self, node: Node) -> None:
        """Each acknowledged record is in the log of a node that is to lead."""
        for end, record in self.acknowledged.items():
            log = node.log
            if end <= log.begin:
                continue
            found = bytes(log.data[end - len(record) - log.begin : end - log.begin])
            assert found == record, f"the record that ends at {end} is missing at {node.name}"

    # --- the end ----------------------------------------------------------------------------------------
    def settle(self) -> Node | None:
        """All faults end; the leader of the last promotion has everything, and so have all."""
        self.cut_off.clear()
        self.slow.clear()
        self.configure()
        for node in self.nodes.values():
            node.paused_until = 0
            self.start(node.name)
        self.run(self.now_ms + 5_000)
        for _ in range(20):
            leader = self.nodes[self.named].leader
            if leader is not None and leader.is_open:
                break
            self.promote()
            self.run(self.now_ms + 5_000)
        self.run(self.now_ms + 10_000)
        if not self.is_sync and all(node.leader is None for node in self.nodes.values()):
            return None  # each copy was killed before it had synced: an operator has to accept a loss
        leading = [node for node in self.nodes.values() if node.leader is not None]
        assert leading, "no node leads in the end"
        last = max(leading, key=lambda node: node.leader.epoch if node.leader else 0)
        assert last.leader is not None
        assert last.leader.is_open, "no leader is open in the end"
        self._check_nothing_is_missing(last)
        assert last.changes is not None
        for node in [self.nodes[one.node] for one in last.changes.newest.nodes]:
            low = max(node.log.begin, last.log.begin)
            mine = node.log.data[low - node.log.begin :]
            assert mine == last.log.data[low - last.log.begin :], f"{node.name} has another log"
        assert last.leader.commit == last.log.end
        return last
