"""The owner of the cluster's configuration: the only broker that changes it.

    begin(changes) -> run() -> finish()      a change: checked, versions given out, on disk
    parts_for(stream)                        sent from then on
    reported(...)                            the follower has stored it
    result(position)                         acknowledged: the owner and one other live broker hold it

A follower is live when it is a member, its stream is open, and it lacks few changes: at most LACKING_MAX at a
report. One that needs long for missed changes would keep each new one waiting. A live one that reports
nothing for REPORT_TIMEOUT_MS after something was sent to it is overdue: the caller closes its stream. Where
no other broker is live, the owner alone acknowledges, after CONNECT_WAIT_MS; the caller calls tick() when
time has passed. An unreachable broker is never an error: the result lists it as pending. A broker that was
removed still reports for a moment: that acknowledges nothing, because it may be switched off for good.

Invariants
- A change is on disk before it is sent, and before it is acknowledged.
- A version is given out once in a generation; a change that could not be stored was given none.
- A broker that has seen a higher generation changes nothing any more (`promised` of the store).
- A deletion is forgotten when every member of the cluster has reported a version that includes it, since this
  owner started: no copy of a member has the deleted entry then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ClockMs,
    ConfigChange,
    Entry,
    Generation,
    Kind,
    Position,
    check_mark,
)
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart, parts_of
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_broker.cluster_config.table import Head, Update
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

REPORT_TIMEOUT_MS: Final = 3_000
CONNECT_WAIT_MS: Final = 2_000
"""Maximum wait after its start, and after a stream has ended, of an owner with other members for one of them
to connect, before it acknowledges alone."""
CHANGES_AT_ONCE_MAX: Final = 256
LACKING_MAX: Final = 256
FORGET_FROM: Final = 256
"""Deletions that all members have stored are forgotten together, at least this many."""
STORE_ID: Final = "store_id"


@dataclass(slots=True, eq=False)
class FollowerStream:
    """An open stream. Messages of one that another stream of its broker has replaced change nothing.
    `membership`: the change that makes the broker a member, or notes its new store; None if it is one."""

    broker: str
    store_id: str
    membership: ConfigChange | None
    sent: Position | None
    """None: all entries are sent next."""
    stored_version: int
    live: bool
    awaited_since_ms: ClockMs | None = None


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """An acknowledged change. `entry`: as it is now (the deletion of a deleted one). `pending`: members that
    have not stored it yet; they finish later."""

    entry: Entry
    held_by: tuple[str, ...]
    pending: tuple[str, ...]


@dataclass(slots=True)
class OwnerWork:
    """Changes that have begun: one result, or one refusal, for each. `stored` is None if there is nothing to
    store."""

    entries: list[Entry | None]
    refusals: list[TroveError | None]
    stored: StoredWork | None = None

    def run(self) -> None:
        """Blocks. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, LIMIT_EXCEEDED; then none of the changes
        was made."""
        if self.stored is not None:
            self.stored.run()


def begin_founding(stored: StoredTable, broker: str, store_id: str, *, cluster: str, mark: str) -> StoredWork:
    """Begins the table of a new cluster on a broker without one: the first owner, alone in it. `cluster` and
    `mark` are drawn by chance by the caller. TroveError CONFIG_OTHER_CLUSTER if there is a table."""
    if stored.table.exists:
        what = f"this store has the configuration of cluster {stored.head.cluster}"
        raise TroveError(errors.CONFIG_OTHER_CLUSTER, what)
    generation = Generation(stored.promised.number + 1, check_mark(mark))
    position = Position(generation, 1)
    member = Entry(Kind.BROKER, broker, position, position, {STORE_ID: store_id})
    head = Head(cluster, broker, generation, 1)
    return stored.begin(Update(None, replace(head, digest=head.next_digest([member], 1, 0)), (member,)))


class Owner:
    """The owner on the broker of that name. The table of `stored` names it as the owner."""

    def __init__(self, stored: StoredTable, broker: str, now_ms: ClockMs) -> None:
        assert stored.head.owner == broker, "the table names its owner"
        self._stored = stored
        self._broker = broker
        self._followers: dict[str, FollowerStream] = {}
        self._reported: dict[str, int] = {}
        """The version of each broker that has reported, also after its stream has ended."""
        self._applied = 0
        self._alone_from_ms = now_ms + CONNECT_WAIT_MS
        self.acknowledged = 0
        """Changes up to this version are acknowledged. After a start, too, none is until another broker has
        shown that it holds it, or the owner is alone."""
        self.contradicted = ""
        """The broker whose table showed that this one was put back from an older copy; empty if none did."""
        self.tick(now_ms)

    @property
    def head(self) -> Head:
        return self._stored.head

    @property
    def live(self) -> list[str]:
        """The followers that a change waits for."""
        live = (name for name, follower in self._followers.items() if follower.live)
        return sorted(name for name in live if self._stored.table.live(Kind.BROKER, name) is not None)

    def check(self) -> None:
        """TroveError CONFIG_OWNER_MOVED, CONFIG_OWNER_OLD if this broker may not change the table."""
        if self._stored.promised > self.head.generation:
            what = f"generation {self._stored.promised} has taken over from {self._broker}"
            raise TroveError(errors.CONFIG_OWNER_MOVED, what, generation=str(self._stored.promised))
        if self.contradicted:
            what = f"broker {self.contradicted} has changes that the owner {self._broker} lacks"
            raise TroveError(errors.CONFIG_OWNER_OLD, what, broker=self.contradicted)

    # --- changes --------------------------------------------------------------------------------------
    def begin(self, changes: Sequence[ConfigChange]) -> OwnerWork:
        """Begins up to CHANGES_AT_ONCE_MAX changes of different entries, with one write. A change that is
        refused stops no other one. TroveError CONFIG_OWNER_MOVED, CONFIG_OWNER_OLD, SERVICE_NOT_AVAILABLE,
        and for each change those of ConfigTable.entry_after."""
        self.check()
        assert len(changes) <= CHANGES_AT_ONCE_MAX, "the caller gathers no more"
        assert len({change.key for change in changes}) == len(changes), "one change of an entry at a time"
        made: list[Entry] = []
        entries: list[Entry | None] = []
        refusals: list[TroveError | None] = []
        table = self._stored.table
        for change in changes:
            position = Position(self.head.generation, self.head.version + len(made) + 1)
            try:
                entry = table.entry_after(change, position, made)
            except TroveError as error:
                entries.append(None)
                refusals.append(error)
                continue
            made.extend([entry] if entry is not None else [])
            entries.append(entry or table.get(change.kind, change.name))
            refusals.append(None)
        work = OwnerWork(entries, refusals)
        if made:
            work.stored = self._stored.begin(_update(self.head, made, self.head.horizon))
        return work

    def finish(self, work: OwnerWork, now_ms: ClockMs) -> None:
        """Ends the changes; to be called after run(), even if that failed. Then parts_for() has new parts."""
        if work.stored is not None:
            self._stored.finish(work.stored)
        self.tick(now_ms)

    def begin_forgetting(self) -> OwnerWork | None:
        """Begins to forget deletions that every member has stored; None if there are too few, or during a
        change. TroveError CONFIG_OWNER_MOVED, CONFIG_OWNER_OLD."""
        self.check()
        members = [name for name in self._stored.table.members() if name != self._broker]
        horizon = min([self._applied, *(self._version_of(name) for name in members)])
        gone = [e for e in self._stored.table if e.deleted and e.version.version <= horizon]
        if len(gone) < FORGET_FROM or self._stored.busy:
            return None
        return OwnerWork([], [], self._stored.begin(_update(self.head, [], horizon)))

    def result(self, entry: Entry) -> ChangeResult | None:
        """The result of a change by the entry that begin() returned; None until it is acknowledged.
        TroveError CONFIG_OWNER_MOVED, CONFIG_OWNER_OLD with `in_doubt` if another owner may not have the
        change."""
        version = entry.version.version
        if self.acknowledged < version:
            try:
                self.check()
            except TroveError as error:
                what = f"{error.message}; {entry.key} may or may not have been changed"
                raise TroveError(error.spec, what, in_doubt="true") from error
            return None
        others = [name for name in self._stored.table.members() if name != self._broker]
        held = [name for name in others if self._version_of(name) >= version]
        pending = tuple(name for name in others if name not in held)
        return ChangeResult(entry, (self._broker, *held), pending)

    def take_acknowledged(self) -> tuple[Entry, ...]:
        """The entries that have been acknowledged since the last call, for the owner's own tables: see
        reconcile.py; the first calls return the whole table. An entry that no other broker holds yet changes
        nothing here: a topic is not deleted by a change that a take-over could still drop."""
        entries = self._stored.table.since(self._applied)
        ready = tuple(entry for entry in entries if entry.version.version <= self.acknowledged)
        self._applied = max(self._applied, self.acknowledged)
        return ready

    # --- followers ------------------------------------------------------------------------------------
    def connected(self, hello: Hello, now_ms: ClockMs) -> FollowerStream:
        """A follower has opened its stream, which replaces an earlier one of the same broker. parts_for() has
        the first parts.

        TroveError CONFIG_OTHER_CLUSTER; BROKER_NAME_TAKEN; CONFIG_OWNER_MOVED if the follower has seen a
        higher generation, which the caller then stores by StoredTable.begin_promise(hello.promised);
        CONFIG_OWNER_OLD if its table shows that this one was put back from an older copy.
        """
        if hello.cluster not in ("", self.head.cluster):
            what = (
                f"broker {hello.broker} belongs to cluster {hello.cluster}, the owner to {self.head.cluster}"
            )
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, broker=hello.broker)
        if hello.cluster and hello.promised > self.head.generation:
            what = f"broker {hello.broker} has seen generation {hello.promised}, the owner is of an older one"
            raise TroveError(errors.CONFIG_OWNER_MOVED, what, generation=str(hello.promised))
        self.check()
        other = self._followers.get(hello.broker)
        if hello.broker == self._broker or (other is not None and other.store_id != hello.store_id):
            what = f"another live broker of this cluster is called {hello.broker}"
            raise TroveError(errors.BROKER_NAME_TAKEN, what, broker=hello.broker)
        sent = self._common(hello)
        if other is not None:
            self.disconnected(other, now_ms)
        version, live = sent.version if sent is not None else 0, sent == self.head.position
        membership = self._membership(hello)
        stream = FollowerStream(hello.broker, hello.store_id, membership, sent, version, live)
        self._followers[hello.broker] = stream
        self._reported[hello.broker] = version  # also a lower one: its disk was put back
        self.tick(now_ms)
        return stream

    def _common(self, hello: Hello) -> Position | None:
        """The position from which changes continue the follower's table; None if it needs all entries."""
        end = self.head.end_of(hello.position.generation)
        if hello.position.generation == self.head.generation:
            known = self._stored.digest_at(hello.position.version)
            if hello.position.version > end or (known and known != hello.digest):
                self.contradicted = hello.broker
                self.check()
        if not 0 <= hello.position.version <= end:
            return None
        return hello.position if self._stored.digest_at(hello.position.version) == hello.digest else None

    def _membership(self, hello: Hello) -> ConfigChange | None:
        member = self._stored.table.live(Kind.BROKER, hello.broker)
        if member is None:
            settings = {STORE_ID: hello.store_id}
            return ConfigChange(ChangeKind.CREATE, Kind.BROKER, hello.broker, settings=settings)
        if member.settings.get(STORE_ID) == hello.store_id:
            return None
        settings = {**member.settings, STORE_ID: hello.store_id}
        return ConfigChange(ChangeKind.ALTER, Kind.BROKER, hello.broker, member.version, settings=settings)

    def parts_for(self, follower: FollowerStream, now_ms: ClockMs) -> list[TablePart]:
        """The parts to send to the follower now; empty if it has been sent everything."""
        if follower.sent == self.head.position or not self._is_open(follower):
            return []
        update = self._stored.table.image()
        if follower.sent is not None and follower.sent.version >= self.head.horizon:
            update = replace(
                update, base=follower.sent, entries=self._stored.table.since(follower.sent.version)
            )
        follower.sent = self.head.position
        if follower.awaited_since_ms is None:
            follower.awaited_since_ms = now_ms
        return list(parts_of(update))

    def reported(self, follower: FollowerStream, report: Report, now_ms: ClockMs) -> None:
        """A follower has stored everything up to that position. TroveError CONFIG_GAP if it was not sent that
        far by this stream, or the stream has ended."""
        sent = follower.sent if self._is_open(follower) else None
        if sent is None or not self._sent_to(sent, report.position):
            what = f"broker {follower.broker} reports {report.position}, which was not sent to it"
            raise TroveError(errors.CONFIG_GAP, what, broker=follower.broker)
        follower.live |= self.head.version - report.position.version <= LACKING_MAX
        follower.stored_version = max(follower.stored_version, report.position.version)
        follower.awaited_since_ms = None if follower.stored_version == sent.version else now_ms
        self._reported[follower.broker] = follower.stored_version
        self.tick(now_ms)

    def _sent_to(self, sent: Position, reported: Position) -> bool:
        return reported.generation == self.head.generation and reported.version <= sent.version

    def _is_open(self, follower: FollowerStream) -> bool:
        return self._followers.get(follower.broker) is follower

    def disconnected(self, follower: FollowerStream, now_ms: ClockMs) -> None:
        """The follower's stream has ended; its reports still count."""
        if not self._is_open(follower):
            return
        del self._followers[follower.broker]
        if follower.live:
            self._alone_from_ms = now_ms + CONNECT_WAIT_MS
        self.tick(now_ms)

    def overdue(self, now_ms: ClockMs) -> list[FollowerStream]:
        """Live followers that were sent something and have not answered in time. The caller ends their
        streams and calls disconnected(): changes do not wait for them."""
        return [
            follower
            for follower in self._followers.values()
            if follower.live
            and follower.awaited_since_ms is not None
            and now_ms - follower.awaited_since_ms >= REPORT_TIMEOUT_MS
        ]

    def positions(self) -> Mapping[str, int]:
        """The version that each member is known to have; 0 if it has not reported to this owner yet."""
        return {name: self._version_of(name) for name in self._stored.table.members()}

    # --- acknowledgement ------------------------------------------------------------------------------
    def _version_of(self, broker: str) -> int:
        """The version that the broker has stored, as it has said last."""
        if broker == self._broker:
            return self.head.version
        return self._reported.get(broker, 0)

    def tick(self, now_ms: ClockMs) -> None:
        """Acknowledges the changes that another member holds, or all where no other one is live; none if this
        broker may not change the table any more. To be called when time has passed."""
        if self._stored.is_superseded or self.contradicted:
            return
        members = self._stored.table.members()
        held = max((self._reported.get(name, 0) for name in members), default=0)
        alone = not self.live and (members == [self._broker] or now_ms >= self._alone_from_ms)
        self.acknowledged = max(self.acknowledged, self.head.version if alone else held)


def _update(head: Head, entries: Sequence[Entry], horizon: int) -> Update:
    """The update of these changes; forgetting takes a version, too."""
    version = entries[-1].version.version if entries else head.version + 1
    digest = head.next_digest(entries, version, horizon)
    after = replace(head, version=version, digest=digest, horizon=horizon)
    return Update(head.position, after, tuple(entries))
