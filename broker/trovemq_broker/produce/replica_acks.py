"""Appends of a replica group that wait for the copies, and the part of the log that is visible.

An append is *committed* when every in-sync copy holds it, on disk where the flush mode is sync. When the
commit moves, the store shows the records up to it, the readers that wait for them are called, and the appends
that wait for it are resolved, in this order.

Invariants
- No record beyond the commit is visible, whatever level its acknowledgement waits for.
- An append is resolved without an error only after its records are visible, unless a projection lags.
- After REPLICA_TIMEOUT the record is in the log, and may be committed later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from trovemq_broker.produce.replicated_commit import ReplicaAckSettings, ReplicatedCommit
from trovemq_broker.produce.waiters import Resolve, Waiters, When, store_failed
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId

Grown = list[tuple[str, QueueId]]


class CommitStore(Protocol):
    """The store, as commits move it."""

    @property
    def end_offset(self) -> PhysicalOffset: ...
    @property
    def flushed_offset(self) -> PhysicalOffset: ...
    @property
    def failed(self) -> bool: ...
    def limit_commits(self, commit_limit: PhysicalOffset | None, /) -> None: ...
    def dispatch(self) -> Grown: ...


@dataclass(frozen=True, kw_only=True)
class LocalCommit:
    """The group commit of this node's own log. when_synced: resolves at the sync. announce: of queues that
    grew. moved: something was committed. fail: the store failed. late_sync: counts a FLUSH_DISK_TIMEOUT."""

    sync: bool
    when_synced: When
    announce: Callable[[Grown], None]
    moved: Callable[[], None]
    fail: Callable[[Exception], None]
    late_sync: Callable[[int], TroveError]


class ReplicaAcks(Waiters):
    """The waiting appends, and the commit limit of the store. The errors of the time-out are REPLICA_TIMEOUT
    and FLUSH_DISK_TIMEOUT: the message is in the log."""

    def __init__(
        self,
        store: CommitStore,
        replicated: ReplicatedCommit,
        settings: ReplicaAckSettings,
        local: LocalCommit,
    ) -> None:
        super().__init__(settings.ack_timeout_ms)
        self._store = store
        self._replicated = replicated
        self.settings = settings
        self._local = local
        self._commit_offset = replicated.commit_offset
        store.limit_commits(self._commit_offset)
        replicated.on_commit(self._moved)

    def apply(self, *, uncommitted_bytes_max: int) -> None:
        """Sets the limit from now on."""
        self.settings = replace(self.settings, uncommitted_bytes_max=uncommitted_bytes_max)

    # --- for producers ------------------------------------------------------------------------------
    @property
    def copies(self) -> int:
        """How many copies hold a committed record, the leader's included."""
        return self._replicated.copies

    @property
    def needed_from(self) -> PhysicalOffset:
        """Retention removes nothing from here on, because other copies lack it."""
        return self._replicated.needed_from

    @property
    def uncommitted_bytes(self) -> int:
        return self._store.end_offset - self._commit_offset

    @property
    def full(self) -> bool:
        """Whether the bytes that wait for the copies exceed their limit, or appends are held."""
        return self._replicated.is_held or self.uncommitted_bytes >= self.settings.uncommitted_bytes_max

    def check_append(self) -> None:
        """Raises the error with which every append is refused now; one that is held waits."""
        if not self._replicated.is_held:
            self._replicated.check_append()

    def appended(self) -> None:
        """The log grew."""
        self._replicated.appended()

    def when_durable(self, end: PhysicalOffset, resolve: Resolve) -> None:
        """wait(), and on disk in async mode, too."""
        if self._local.sync:
            self.wait(end, resolve)
            return

        def synced(error: TroveError | None) -> None:
            if error is None:
                self.wait(end, resolve)
            else:
                resolve(error)

        self._local.when_synced(end, synced)

    # --- for the group commit -----------------------------------------------------------------------
    def flushed(self) -> None:
        """flushed_offset moved, and its records were announced."""
        self._resolve_up_to(self._safe_offset)
        self._replicated.flushed()

    def fail(self, error: Exception) -> None:
        """The store failed: every waiter gets the error."""
        self.failure = error
        self._fail_waiters(store_failed(error))

    def stop(self) -> None:
        """The broker stops. If nothing may be appended any more, no commit will come."""
        try:
            self._replicated.check_append()
        except TroveError as error:
            self.end_waits(error.message)

    def end_waits(self, reason: str) -> None:
        """This node leads no more: every waiter gets REPLICA_TIMEOUT with that reason, because the next
        leader decides about its record."""
        self._fail_waiters(TroveError(errors.REPLICA_TIMEOUT, reason))

    def close(self) -> None:
        """Ends the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # --- the commit ---------------------------------------------------------------------------------
    def _moved(self) -> None:
        if self.failure is not None or self._store.failed:
            return
        offset = self._replicated.commit_offset
        if offset <= self._commit_offset:
            self._local.moved()  # appends are held no more
            return
        try:
            self._store.limit_commits(offset)
            grown = self._store.dispatch()
            self._commit_offset = offset
            if grown:
                self._local.announce(grown)
            self._resolve_up_to(self._safe_offset)
        except Exception as error:
            self._local.fail(error)  # ends the daemon: an acknowledged message must be readable
            return
        self._local.moved()

    @property
    def _safe_offset(self) -> PhysicalOffset:
        if not self._local.sync:
            return self._commit_offset
        return min(self._commit_offset, self._store.flushed_offset)

    def _want(self) -> None:
        """The copies get each append without being asked."""

    def _timed_out(self, end: PhysicalOffset) -> TroveError:
        waited_ms = self._wait_max_ms
        if self._local.sync and end > self._store.flushed_offset:
            return self._local.late_sync(waited_ms)
        self.timeout_count += 1
        text = f"the copies did not have the record within {waited_ms} ms"
        return TroveError(errors.REPLICA_TIMEOUT, text)
