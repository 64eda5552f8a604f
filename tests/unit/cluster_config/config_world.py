"""Brokers with the cluster's configuration in one process: links, disks and time are made up.

A step is one message, one change, one crash, one cut of a link, one take-over. The world keeps an account of
the acknowledged changes and their holders, and checks it against the disks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Final

from tests.unit.cluster_config.config_node import (
    Acknowledged,
    Disk,
    Node,
    Stream,
    apply_actions,
    check_forgotten,
    check_refusal,
    check_slot,
    knows_no_take_over,
    note_lost,
    tables_on_disk,
)
from tests.unit.cluster_config.config_parts import SEAL
from trovemq_broker.cluster_config import take_over
from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ClockMs,
    ConfigChange,
    Entry,
    Generation,
    Key,
    Kind,
    Position,
)
from trovemq_broker.cluster_config.follower import FollowerWork, Serving
from trovemq_broker.cluster_config.owner import Owner, OwnerWork, begin_founding
from trovemq_broker.cluster_config.reconcile import plan, plan_of
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

NAMES: Final = ("a", "b", "c", "d")
KINDS: Final = (Kind.TOPIC, Kind.TOPIC, Kind.TOPIC, Kind.GROUP, Kind.USER)
ENTRIES: Final = 6
CLUSTER: Final = "cluster-1"


class World:
    """The brokers. `old_copies`: whether disks are put back from older copies."""

    def __init__(self, source: Random, *, old_copies: bool = False) -> None:
        self.source = source
        self.old_copies = old_copies
        self.now_ms = 0
        self.numbers = count(1)
        self.nodes = {name: Node(name, self.new_disk()) for name in NAMES}
        self.cuts: set[frozenset[str]] = set()
        self.unseen: set[str] = set()
        """Brokers that reach no nameserver: no other one finds them, nor they others. Their streams stay."""
        self.streams: dict[str, Stream] = {}
        self.late: list[tuple[Owner, Stream]] = []
        """Streams whose end their owner has not seen yet."""
        self.waiting: list[tuple[Node, Owner, Entry, bool]] = []
        self.acknowledged: list[Acknowledged] = []
        self.owners: dict[Generation, str] = {}
        self.digests: dict[Position, str] = {}
        self.highest: dict[tuple[str, int], tuple[Generation, Position]] = {}
        self.copies: list[tuple[str, Disk]] = []
        self.taken_over: dict[Generation, set[tuple[str, int]]] = {}
        """The brokers and lineages that took part in each take-over."""
        self.suspended = False
        """An older copy of an owner's disk is in use: its changes may be lost until the next take-over."""
        self.lossy = True
        """Whether parts are lost in a stream."""
        self._found()
        self.settle()

    def new_disk(self) -> Disk:
        number = next(self.numbers)
        return Disk(number, f"store-{number}")

    def mark(self) -> str:
        return f"{self.source.getrandbits(64):016x}"

    def _found(self) -> None:
        node = self.nodes["a"]
        node.start(0)
        work = begin_founding(node.stored, "a", node.disk.store_id, cluster=CLUSTER, mark=self.mark())
        work.run()
        node.stored.finish(work)
        node.follower = None
        node.choose_role(0)
        self.observe(node)

    # --- steps --------------------------------------------------------------------------------------------
    def step(self) -> None:
        steps = [
            (self.deliver, 40),
            (self.change, 22),
            (self.connect, 14),
            (self.start, 6),
            (self.pass_time, 6),
            (self.cut, 3),
            (self.heal, 4),
            (self.lose_nameserver, 3),
            (self.find_nameserver, 4),
            (self.crash, 3),
            (self.break_stream, 2),
            (self.end_late, 5),
            (self.forget, 8),
            (self.leave, 5),
            (self.take_over, 2),
            (self.lose_disk, 1),
            (self.copy_disk, 2 if self.old_copies else 0),
            (self.put_back, 1 if self.old_copies else 0),
        ]
        chosen = self.source.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        chosen()
        self.settle()

    def refused(self, error: TroveError, *expected: ErrorSpec) -> None:
        """The only errors that a caller sees: these, or that an older copy of an owner's disk is used."""
        is_old = self.suspended or (self.old_copies and knows_no_take_over(self.up(), max(self.owners)))
        assert error.spec in (*expected, *([errors.CONFIG_OWNER_OLD] if is_old else [])), error

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.up]

    def reach(self, one: str, other: str) -> bool:
        return self.nodes[one].up and self.nodes[other].up and frozenset((one, other)) not in self.cuts

    def sees(self, one: str, other: str) -> bool:
        """Whether one has the other's address and its place in the configuration from a nameserver."""
        return self.reach(one, other) and not self.unseen & {one, other}

    def deliver(self) -> None:
        if not self.streams:
            return
        self.deliver_one(self.source.choice(sorted(self.streams)))

    def deliver_one(self, name: str) -> bool:
        """One message of the stream, if there is one, in one of the two directions."""
        stream = self.streams[name]
        node, owner = self.nodes[stream.follower], self.nodes[stream.owner].owner
        assert owner is not None
        assert node.follower is not None
        stream.parts.extend(owner.parts_for(stream.link, ClockMs(self.now_ms)))
        if stream.reports and (not stream.parts or self.source.random() < 0.5):
            owner.reported(stream.link, stream.reports.popleft(), ClockMs(self.now_ms))
            return True
        if not stream.parts:
            return False
        if self.lossy and self.source.random() < 0.02:
            stream.parts.popleft()  # lost: the follower has to notice it
            return True
        try:
            work = node.follower.begin(stream.parts.popleft())
        except TroveError as error:
            self.close(name)
            self.refused(error, errors.CONFIG_GENERATION_OLD, errors.CONFIG_GAP)
            return True
        if work is not None:
            self._store(node, work, stream)
        return True

    def _store(self, node: Node, work: FollowerWork, stream: Stream) -> None:
        assert node.follower is not None
        before = {entry.key: entry for entry in node.stored.table}
        try:
            self._run(node, work)
        except TroveError:
            node.follower.finish(work)
            self.close(node.name)
            return
        if self.source.random() < 0.03:  # on disk, and killed before anything knows
            self.crash_node(node)
            return
        stored = node.follower.finish(work)
        assert stored is not None
        self._check_dropped(node, before, stored.dropped)
        stream.reports.append(stored.report)
        if stored.is_whole:
            apply_actions(node, plan(node.stored.table, node.name, node.disk.local.values()).actions)
        else:
            local = node.disk.local
            apply_actions(node, plan_of(node.stored.table, node.name, stored.entries, local).actions)
        self.observe(node)

    def _run(self, node: Node, work: StoredWork | OwnerWork | FollowerWork) -> None:
        node.fails = self.source.random() < 0.02
        try:
            work.run()
        finally:
            node.fails = False

    def change(self) -> None:
        """A caller at any broker, which has read that broker's table and forwards the change."""
        asked = self.source.choice(list(self.nodes.values()))
        if not asked.up:
            return
        owner_node = asked
        if asked.owner is None:
            assert asked.follower is not None
            try:
                owner_node = self.nodes[asked.follower.check_owner()]
            except TroveError as error:
                self.refused(error, errors.CONFIG_OWNER_UNREACHABLE)
                return
        changes = {change.key: change for change in self._changes(asked)}
        self.make(owner_node, list(changes.values()))

    def _changes(self, asked: Node) -> Iterator[ConfigChange]:
        for _ in range(self.source.choice((1, 1, 1, 3))):
            kind = self.source.choice(KINDS)
            name = f"{kind}-{self.source.randrange(ENTRIES)}"
            seen = asked.stored.table.live(kind, name)
            delete = seen is not None and self.source.random() < 0.5
            settings = {} if delete else {"n": str(self.source.randrange(5))}
            placement = {b: self.source.randrange(1, 4) for b in NAMES if self.source.random() < 0.7}
            yield ConfigChange(
                ChangeKind.CREATE if seen is None else ChangeKind.DELETE if delete else ChangeKind.ALTER,
                kind,
                name,
                None if seen is None else seen.version,
                settings,
                placement if kind is Kind.TOPIC and not delete else {},
                b"secret" if kind is Kind.USER and not delete else b"",
            )

    def make(self, node: Node, changes: list[ConfigChange]) -> list[TroveError | None]:
        owner = node.owner
        assert owner is not None, node.name
        before = {change.key: node.stored.table.live(*change.key) for change in changes}
        try:
            work = owner.begin(changes)
        except TroveError as error:
            self.refused(error, errors.CONFIG_OWNER_MOVED)
            return [error]
        for change, refusal in zip(changes, work.refusals, strict=True):
            check_refusal(change, before[change.key], refusal)
        try:
            self._run(node, work)
        except TroveError as error:
            owner.finish(work, ClockMs(self.now_ms))
            return [error]
        if self.source.random() < 0.03:
            self.crash_node(node)
            return []
        owner.finish(work, ClockMs(self.now_ms))
        for change, entry in zip(changes, work.entries, strict=True):
            if entry is not None:
                self.waiting.append((node, owner, entry, entry != before[change.key]))
        self.observe(node)
        return work.refusals

    def connect(self) -> None:
        node = self.source.choice(list(self.nodes.values()))
        self.connect_node(node)

    def connect_node(self, node: Node) -> None:
        if not node.up or node.name in self.streams:
            return
        self.learn(node)
        if node.follower is None:
            return
        target = self.known_owner(node)
        if target is None or not self.reach(node.name, target.name) or target.owner is None:
            return
        hello = node.follower.hello()
        try:
            link = target.owner.connected(hello, ClockMs(self.now_ms))
        except TroveError as error:
            self.refused(error, errors.CONFIG_OWNER_MOVED, *([errors.BROKER_NAME_TAKEN] if self.late else []))
            if error.spec is errors.CONFIG_OWNER_MOVED and hello.promised > target.stored.promised:
                self.promise(target, hello.promised)
            return
        self.streams[node.name] = Stream(node.name, target.name, link)
        if hello.position == target.head.position and hello.digest == target.head.digest:
            node.follower.connected_current()
        if link.membership is not None:
            self.make(target, [link.membership])

    def known_owner(self, node: Node) -> Node | None:
        """The owner of the highest generation in the broker's table and those of the brokers it sees."""
        heads = [other.head for other in self.up() if other is node or self.sees(node.name, other.name)]
        best = max(heads, key=lambda head: head.position)
        return self.nodes.get(best.owner)

    def learn(self, node: Node) -> None:
        """A broker that sees one of a higher generation obeys nothing older: also a former owner."""
        for other in self.up():
            is_later = self.sees(node.name, other.name) and other.head.generation > node.stored.promised
            if is_later and node.stored.table.exists:
                self.promise(node, other.head.generation)

    def promise(self, node: Node, generation: Generation) -> bool:
        work = node.stored.begin_promise(generation, CLUSTER)
        try:
            self._run(node, work)
        except TroveError:
            node.stored.finish(work)
            return False
        node.stored.finish(work)
        if node.owner is not None or self.source.random() < 0.5:  # else the stream ends at the next message
            self._close_all(node)
        node.choose_role(self.now_ms)
        self.observe(node)
        return True

    def _close_all(self, node: Node) -> None:
        for name, stream in list(self.streams.items()):
            if node.name in (stream.owner, stream.follower):
                self.close(name)

    def close(self, name: str) -> None:
        stream = self.streams.pop(name)
        follower, owner = self.nodes[name].follower, self.nodes[stream.owner].owner
        if follower is not None:
            follower.disconnected()
        if owner is not None and self.lossy and self.source.random() < 0.3:
            self.late.append((owner, stream))
        elif owner is not None:
            owner.disconnected(stream.link, ClockMs(self.now_ms))

    def end_late(self) -> None:
        """The owner sees the end of a stream, and its last reports, after the broker has connected again."""
        if not self.late:
            return
        owner, stream = self.late.pop(self.source.randrange(len(self.late)))
        for report in stream.reports:
            try:
                owner.reported(stream.link, report, ClockMs(self.now_ms))
            except TroveError as error:
                self.refused(error, errors.CONFIG_GAP)
        owner.parts_for(stream.link, ClockMs(self.now_ms))
        owner.disconnected(stream.link, ClockMs(self.now_ms))

    def break_stream(self) -> None:
        if self.streams:
            self.close(self.source.choice(sorted(self.streams)))

    def cut(self) -> None:
        one, other = self.source.sample(NAMES, 2)
        self.cuts.add(frozenset((one, other)))
        for name, stream in list(self.streams.items()):
            if {stream.owner, stream.follower} == {one, other}:
                self.close(name)

    def heal(self) -> None:
        if self.cuts:
            self.cuts.remove(self.source.choice(sorted(self.cuts, key=sorted)))

    def lose_nameserver(self) -> None:
        self.unseen.add(self.source.choice(NAMES))

    def find_nameserver(self) -> None:
        if self.unseen:
            self.unseen.remove(self.source.choice(sorted(self.unseen)))

    def crash(self) -> None:
        if self.up():
            self.crash_node(self.source.choice(self.up()))

    def crash_node(self, node: Node) -> None:
        self._close_all(node)
        files = node.disk.files
        if self.source.random() < 0.5:
            files = files.after_process_kill()
        else:
            files = files.after_power_cut(lambda: self.source.random() < 0.5)
        node.stop(files)

    def start(self) -> None:
        down = [node for node in self.nodes.values() if not node.up]
        if down:
            self.start_node(self.source.choice(down))

    def start_node(self, node: Node) -> None:
        node.start(self.now_ms)
        if node.follower is not None:
            expected = Serving.WAITING if node.stored.table.exists else Serving.JOINING
            assert node.follower.serving(ClockMs(self.now_ms)) is expected
            later = node.follower.serving(ClockMs(self.now_ms + 10_000))
            assert later.serves == node.stored.table.exists
        if node.follower is not None and node.stored.table.exists and not node.stored.is_superseded:
            apply_actions(node, plan(node.stored.table, node.name, node.disk.local.values()).actions)
        self.observe(node)
        self.settle()

    def lose_disk(self) -> None:
        down = [node for node in self.nodes.values() if not node.up]
        if down and len(tables_on_disk(self.nodes.values())) > 1:  # without any there is nothing more to show
            self.source.choice(down).disk = self.new_disk()
            note_lost(self.acknowledged, self.nodes.values())

    def leave(self) -> None:
        """An operator removes a broker that is away; it may come back with its table."""
        down = {node.name for node in self.nodes.values() if not node.up}
        for node in self.up():
            members = [e for e in node.stored.table if e.kind is Kind.BROKER and not e.deleted]
            gone = [member for member in members if member.name in down]
            if node.owner is not None and gone:
                member = self.source.choice(gone)
                self.make(node, [ConfigChange(ChangeKind.DELETE, Kind.BROKER, member.name, member.version)])

    def copy_disk(self) -> None:
        node = self.source.choice(list(self.nodes.values()))
        disk = node.disk
        files = disk.files.after_process_kill()
        self.copies.append((node.name, replace(disk, files=files, local=dict(disk.local))))
        del self.copies[:-4]

    def put_back(self) -> None:
        """An older copy of a disk that is down: its lineage holds nothing that came after the copy."""
        name, disk = self.source.choice(self.copies) if self.copies else ("", None)
        if disk is None or self.nodes[name].up or len(tables_on_disk(self.nodes.values())) < 2:
            return
        node = self.nodes[name]
        local, withheld = dict(disk.local), set(disk.withheld)
        files = disk.files.after_process_kill()
        node.disk = Disk(next(self.numbers), disk.store_id, files, local, withheld)
        note_lost(self.acknowledged, self.nodes.values())
        head = StoredTable.load(files, SEAL).head
        node.old = True
        if head.owner == name:
            self.suspended = True

    def pass_time(self) -> None:
        self.now_ms += self.source.randrange(4_000)
        for node in self.up():
            if node.owner is not None:
                node.owner.tick(ClockMs(self.now_ms))
                for link in node.owner.overdue(ClockMs(self.now_ms)):
                    stream = self.streams.get(link.broker)
                    if stream is not None and stream.link is link:
                        self.close(link.broker)
                    node.owner.disconnected(link, ClockMs(self.now_ms))

    def forget(self) -> None:
        for node in self.up():
            if node.owner is None:
                continue
            try:
                work = node.owner.begin_forgetting()
            except TroveError:
                continue
            if work is not None:
                try:
                    self._run(node, work)
                except TroveError:
                    pass
                node.owner.finish(work, ClockMs(self.now_ms))
                check_forgotten(node, self.nodes)
                self.observe(node)

    # --- take-over --------------------------------------------------------------------------------------
    def take_over(self) -> None:
        up = self.up()
        if up:
            self.take_over_by(self.source.choice(up))

    def take_over_by(self, target: Node) -> bool:
        """An operator's command at a broker, with all that it sees; it may end between two steps."""
        nodes = [node for node in self.up() if node is target or self.sees(node.name, target.name)]
        copies = [take_over.status_of(node.stored, node.name) for node in nodes]
        if not any(copy.head.cluster for copy in copies):
            return False
        generation = take_over.next_generation(copies, self.mark())
        nodes = [node for node in nodes if self.promise(node, generation)]
        if target not in nodes or self.source.random() < 0.1:
            return False
        copies = [take_over.status_of(node.stored, node.name) for node in nodes]
        trusted = [copy for copy in copies if not self.nodes[copy.broker].old and copy.head.cluster]
        source = ""
        if self.suspended and trusted:  # an operator knows whose disk was put back
            source = max(trusted, key=lambda copy: copy.head.position).broker
        try:
            chosen = take_over.choose_copy(copies, generation, CLUSTER, source=source)
        except TroveError as error:
            self.refused(error, errors.BROKER_NOT_FOUND)
            return False
        image = self.nodes[chosen.broker].stored.table.image()
        before = {entry.key: entry for entry in target.stored.table}
        work, dropped = take_over.begin_take_over(target.stored, target.name, image, generation)
        try:
            self._run(target, work)
        except TroveError:
            target.stored.finish(work)
            return False
        target.stored.finish(work)
        self._lose(nodes, target)
        self._check_dropped(target, before, dropped)
        if target.name in self.streams:
            self.close(target.name)  # it follows no broker any more
        target.choose_role(self.now_ms)
        self.observe(target)
        self.settle()
        return True

    def _lose(self, nodes: list[Node], target: Node) -> None:
        """Changes that none of the brokers held may be lost from now on; all others must be there."""
        present = {(node.name, node.disk.lineage) for node in nodes}
        self.taken_over[target.head.generation] = present
        for one in self.acknowledged:
            one.lost = one.lost or self.suspended or not one.holders & present
        self.suspended = False
        for node in self.nodes.values():
            node.old = False
        self.check_acknowledged(target)

    # --- the account ------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Callers whose change is acknowledged get their answers; owners apply such changes."""
        waiting, self.waiting = self.waiting, []
        for node, owner, entry, is_new in waiting:
            if not node.up or node.owner is not owner:
                continue  # no answer: in doubt
            try:
                result = owner.result(entry)
            except TroveError as error:
                self.refused(error, errors.CONFIG_OWNER_MOVED)
                continue
            if result is None:
                self.waiting.append((node, owner, entry, is_new))
                continue
            assert len(result.held_by) > 1 or not owner.live or not is_new, "a live broker has to hold it"
            self._answered(owner, result.held_by, entry)
            assert not set(result.pending) & set(result.held_by)
        for node in self.up():
            if node.owner is not None:
                self._apply_acknowledged(node, node.owner)

    def _apply_acknowledged(self, node: Node, owner: Owner) -> None:
        """The owner changes its local tables; once all is acknowledged it compares everything."""
        entries = owner.take_acknowledged()
        others = [other for other in self.nodes.values() if other is not node and hasattr(other, "stored")]
        for entry in entries:
            held = any(other.head.contains(entry.version) for other in others)
            assert held or not owner.live or self.old_copies, f"{entry} is not acknowledged"
        table, local = node.stored.table, node.disk.local
        apply_actions(node, plan_of(table, node.name, entries, local).actions)
        if owner.acknowledged == node.head.version and node.compared is not owner:
            node.compared = owner
            apply_actions(node, plan(table, node.name, local.values()).actions)

    def _answered(self, owner: Owner, held_by: tuple[str, ...], entry: Entry) -> None:
        holders = set()
        for name in held_by:
            node = self.nodes[name]
            if node.old or self.suspended:
                continue
            on_disk = StoredTable.load(node.disk.files.after_power_cut(), SEAL)
            follows = name in self.streams and self.streams[name].owner == owner.head.owner
            if name == owner.head.owner or follows:  # a live one may be gone, and have lost its disk
                assert on_disk.head.contains(entry.version), f"{name} is said to hold {entry.version}"
            if on_disk.head.contains(entry.version):
                holders.add((name, node.disk.lineage))
        later = [p for g, p in self.taken_over.items() if g > entry.version.generation]
        lost = self.suspended or not all(holders & present for present in later)
        self.acknowledged.append(Acknowledged(entry, holders, lost))

    def _check_dropped(self, node: Node, before: dict[Key, Entry], dropped: tuple[Entry, ...]) -> None:
        """An acknowledged change that goes from a disk is reported, never silent."""
        for one in self.acknowledged:
            gone = before.get(one.entry.key) == one.entry and not node.head.contains(one.entry.version)
            assert not gone or one.entry in dropped, f"{one.entry} went from {node.name} silently"

    def observe(self, node: Node) -> None:
        """The invariants of one broker's table, after each change of it."""
        head, promised = node.head, node.stored.promised
        key = (node.name, node.disk.lineage)
        before = self.highest.get(key)
        assert before is None or before <= (promised, head.position), f"{key} fell from {before}"
        self.highest[key] = (promised, head.position)
        if node.owner is not None:
            assert self.owners.setdefault(head.generation, node.name) == node.name, head.generation
        versions = [entry.version.version for entry in node.stored.table]
        assert versions == sorted(versions)
        assert not versions or versions[-1] <= head.version
        if not self.old_copies:
            assert self.digests.setdefault(head.position, head.digest) == head.digest, head.position
        if node.owner is not None and head.generation == max(self.owners):
            self.check_acknowledged(node)

    def check_acknowledged(self, node: Node) -> None:
        """Everything acknowledged that is not lost is in the table of the present owner."""
        if self.suspended:
            return
        for one in self.acknowledged:
            if not one.lost and one.holders:
                assert node.head.contains(one.entry.version), f"{one.entry} is lost: {one.holders}"
                check_slot(node, one.entry)
