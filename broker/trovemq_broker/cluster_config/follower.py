"""A broker that follows the owner: takes its parts in order, stores them, and reports that.

    hello()                            opens the stream
    begin(part) -> run() -> finish()   an update is complete: on disk, then reported
    disconnected()                     the stream has ended; the caller connects again

The caller then makes the broker's own tables equal, by reconcile.py, with the entries that finish() returns.

Invariants
- Refused, and nothing is stored: a part that does not continue, an older generation than one that was seen or
  promised, another cluster's table, a table of the same generation that is older than the stored one.
- A report names a position that is on disk.
- A broker that joins serves no messages before it has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trovemq_broker.cluster_config.entries import ClockMs, Entry, Position
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart, UpdateAssembly
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_broker.cluster_config.table import Head, Update, dropped_by
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

OWNER_WAIT_MS: Final = 10_000
"""Maximum wait of a broker that returns for the owner, before it serves by its stored table."""


class Serving(StrEnum):
    """`JOINING`: no table yet. `WAITING`: there is one, and the owner may still come. `STORED`: the owner has
    not come; by the stored table, with a warning. `CURRENT`: the owner is connected and its table stored."""

    JOINING = "joining"
    WAITING = "waiting"
    STORED = "stored"
    CURRENT = "current"

    @property
    def serves(self) -> bool:
        return self in (Serving.STORED, Serving.CURRENT)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored update. `entries`: changed ones, for reconcile.py. `dropped`: entries of this broker's former
    table that the owner's never had, because no broker that took part in the take-over held them: the caller
    logs each. `is_whole`: all entries are to be compared, because the whole table came, or because it is the
    first update of a broker that may have been the owner, whose last changes were not applied."""

    report: Report
    entries: tuple[Entry, ...]
    dropped: tuple[Entry, ...]
    is_whole: bool


class FollowerWork:
    def __init__(self, stored: StoredWork, update: Update, dropped: tuple[Entry, ...]) -> None:
        self.stored = stored
        self.update = update
        self.dropped = dropped

    def run(self) -> None:
        """Blocks. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, LIMIT_EXCEEDED; then nothing has
        changed."""
        self.stored.run()


class Follower:
    """The broker of that name, which follows the owner. `replaced_cluster`: the cluster whose table may be
    replaced by another one's, as an operator has said; else that is refused."""

    def __init__(
        self,
        stored: StoredTable,
        broker: str,
        store_id: str,
        started_ms: ClockMs,
        *,
        replaced_cluster: str = "",
    ) -> None:
        self._stored = stored
        self._broker = broker
        self._store_id = store_id
        self._serves_from_ms = started_ms + OWNER_WAIT_MS
        self._replaced_cluster = replaced_cluster
        self._assembly = UpdateAssembly()
        self._current = False
        self._ever_current = False
        self._compared = False

    # --- the stream -----------------------------------------------------------------------------------
    def hello(self) -> Hello:
        """The first message of a stream."""
        self._assembly.clear()
        head = self._stored.head
        if self._replaces(head.cluster):
            return Hello(self._broker, self._store_id)
        position = head.position
        return Hello(self._broker, self._store_id, head.cluster, position, head.digest, self._stored.promised)

    def begin(self, part: TablePart) -> FollowerWork | None:
        """Begins to store the update that this part completes; None if parts are missing.

        TroveError CONFIG_OTHER_CLUSTER, CONFIG_GENERATION_OLD, CONFIG_OWNER_OLD, CONFIG_GAP, LIMIT_EXCEEDED,
        SERVICE_NOT_AVAILABLE: the caller ends the stream.
        """
        self._check(part.base, part.head)
        update = self._assembly.add(part)
        if update is None:
            return None
        dropped = dropped_by(update, self._stored.table)
        return FollowerWork(self._stored.begin(update), update, dropped)

    def finish(self, work: FollowerWork) -> Stored | None:
        """Ends the update; to be called after run(), even if that failed. None if it was not stored."""
        self._stored.finish(work.stored)
        if not work.stored.saved:
            return None
        self._current = self._ever_current = True
        self._replaced_cluster = ""
        report = Report(self._stored.head.position)
        is_whole = work.update.base is None or not self._compared
        self._compared = True
        return Stored(report, work.update.entries, work.dropped, is_whole)

    def connected_current(self) -> None:
        """The owner has answered hello() and has nothing to send: the stored table is the present one."""
        self._current = self._ever_current = True

    @property
    def is_current(self) -> bool:
        """Whether the owner is connected, its table is stored, and no other one has taken over."""
        return self._current and self._stored.promised == self._stored.head.generation

    def disconnected(self) -> None:
        self._assembly.clear()
        self._current = False

    def _check(self, base: Position | None, head: Head) -> None:
        own = self._stored.head
        if own.cluster and head.cluster != own.cluster:
            if self._replaces(own.cluster) and base is None:
                return
            what = (
                f"this broker's store belongs to cluster {own.cluster}, owner {head.owner} to {head.cluster}"
            )
            raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, owner=head.owner)
        if head.generation < self._stored.promised:
            what = f"owner {head.owner} is of generation {head.generation}, this broker has seen"
            raise TroveError(
                errors.CONFIG_GENERATION_OLD, f"{what} {self._stored.promised}", owner=head.owner
            )
        if base is not None and base != own.position:
            what = f"changes from {base} came, this broker's table ends at {own.position}"
            raise TroveError(errors.CONFIG_GAP, what, owner=head.owner)
        same = head.generation == own.generation
        differs = head.version == own.version and head.digest != own.digest
        if same and (head.version < own.version or differs):
            what = f"owner {head.owner} is at {head.position}, this broker at {own.position}, and they differ"
            raise TroveError(errors.CONFIG_OWNER_OLD, what, owner=head.owner)

    def _replaces(self, cluster: str) -> bool:
        return bool(cluster) and cluster == self._replaced_cluster

    # --- serving --------------------------------------------------------------------------------------
    def serving(self, now_ms: ClockMs) -> Serving:
        """Whether messages may be served, and by which table. Once served, messages flow on while the owner
        is away."""
        if not self._stored.table.exists:
            return Serving.JOINING
        if self.is_current:
            return Serving.CURRENT
        if self._ever_current or now_ms >= self._serves_from_ms:
            return Serving.STORED
        return Serving.WAITING

    def check_owner(self) -> str:
        """The owner to which a change is forwarded. TroveError CONFIG_OWNER_UNREACHABLE."""
        owner = self._stored.head.owner
        if not self.is_current:
            what = f"owner {owner} of the cluster's configuration" if owner else "the configuration's owner"
            raise TroveError(errors.CONFIG_OWNER_UNREACHABLE, f"{what} does not answer", owner=owner)
        return owner
