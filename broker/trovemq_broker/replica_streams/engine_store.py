"""A follower's promise, cut, join and in-sync set on the real engine, in threads.

A cut and a join close the store and open it again: everything that uses it ends first (`closing`, which also
waits for a sync that runs) and begins again afterwards (`opened`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from trovemq_broker.replica_streams.engine_log import EngineLog, Grown
from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.frames import Epoch, InSyncSet, Offset
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile


class EngineStore:
    """A FollowerStore.

    Args:
        log: Its store is replaced by a cut and a join.
        replica: `replica.json` of that store; opened again with it.
        state: Gets each change when it is on disk.
        store_set: Stores and syncs an in-sync set; in a thread.
        wall_ms: The time of a clean stop.
        closing: Ends everything that uses the store.
        reopen: Opens the store again, with that commit limit; in a thread.
        opened: The store is open again.
        appended: Bytes are to be synced.
        available: Queues have grown.
    """

    def __init__(
        self,
        log: EngineLog,
        replica: ReplicaFile,
        state: ReplicaState,
        *,
        store_set: Callable[[InSyncSet], None],
        wall_ms: Callable[[], EpochMs],
        closing: Callable[[], Awaitable[None]],
        reopen: Callable[[Offset], tuple[MessageStore, ReplicaFile]],
        opened: Callable[[MessageStore], Awaitable[None]],
        appended: Callable[[], None],
        available: Callable[[Grown], None],
    ) -> None:
        self._log = log
        self._replica = replica
        self._state = state
        self._store_set = store_set
        self._wall_ms = wall_ms
        self._closing = closing
        self._reopen = reopen
        self._opened = opened
        self._appended = appended
        self._available = available

    # --- stored, in the order of the calls ------------------------------------------------------------
    async def promise(self, epoch: Epoch) -> None:
        """TroveError EPOCH_STALE: an operator's promotion has a higher promise by now."""
        if epoch < self._replica.promised_epoch:
            text = f"epoch {epoch} ended: {self._replica.promised_epoch} is promised"
            raise TroveError(errors.EPOCH_STALE, text)
        await run_in_thread(partial(self._replica.promise, epoch))
        self._state.promised = epoch

    async def store_set(self, in_sync: InSyncSet) -> None:
        await run_in_thread(partial(self._store_set, in_sync))
        self._state.in_sync = in_sync

    async def cut(self, to: Offset, epochs: Epochs) -> None:
        """TroveError STORE_DIVERGED: nothing has changed, because a record above is committed."""
        store = self._log.store
        if to == store.end_offset:
            await run_in_thread(partial(self._replica.end_at, to))
        else:
            end = store.end_offset
            get_logger().warning("replica.log_cut", cut_at=to, end=end, kept="trovemq/cut/")
            await self._closed_for(partial(store.begin_truncation, self._replica, to))
            assert self._log.end == to, "the start has ended the cut"
        assert self._replica.epochs == epochs, "both sides have cut the list of epochs alike"
        self._state.epochs = epochs

    async def join(self, begin: Offset, epochs: Epochs) -> None:
        get_logger().warning("replica.log_began_again", begin=begin, former_end=self._log.end)
        self._state.commit = begin
        await self._closed_for(partial(self._log.store.begin_new_log, begin, epochs))
        assert self._log.begin == self._log.end == begin, "the start has made the new log"
        self._state.epochs = epochs

    async def _closed_for(self, begin: Callable[[], None]) -> None:
        """Begins a change that the next start ends; closes the store and opens it again, whatever happens."""
        store = self._log.store
        await self._closing()
        try:
            await run_in_thread(partial(_change, store, begin, self._wall_ms()))
        finally:
            self._log.store, self._replica = await run_in_thread(partial(self._reopen, self._state.commit))
            self._log.file = self._replica
            await self._opened(self._log.store)

    # --- at once --------------------------------------------------------------------------------------
    def appended(self) -> None:
        self._appended()

    def committed(self, commit: Offset) -> None:
        self._available(self._log.committed(commit))


def _change(store: MessageStore, begin: Callable[[], None], now_ms: EpochMs) -> None:
    try:
        begin()
    finally:
        store.close(now_ms)
