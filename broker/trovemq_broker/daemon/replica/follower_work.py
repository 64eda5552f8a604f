"""The syncs and the maintenance of a store that only follows: no client sends to it or receives from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from trovemq_broker.daemon.replica.follower_scrub import FollowerScrub
from trovemq_broker.daemon.replica.follower_trim import FollowerTrim
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import background
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes
from trovemq_broker.maintenance.tree_task import TreeTask
from trovemq_broker.produce.group_commit import GroupCommit, Grown
from trovemq_broker.replication.frames import Offset
from trovemq_daemon.threads import until_done
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.kernel_sync import KernelSync


class FollowerWork:
    """`start()`, `stop()`, and again where the store is opened again. `flushed`: the log's synced end has
    moved. `failed`: the work has ended by that error, and the store with it. `grown`: these queues have new
    messages that are on disk. `trim_to`: segments before it are removed; None: none are."""

    def __init__(
        self,
        settings: BrokerSettings,
        flushed: Callable[[], None],
        failed: Callable[[BaseException], None],
        grown: Callable[[Grown], None] = lambda _queues: None,
        trim_to: Callable[[], Offset] | None = None,
    ) -> None:
        self._settings: Final = settings
        self._grown = grown
        self._flushed = flushed
        self._failed = failed
        self._trim_to = trim_to
        self._commit: GroupCommit | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._appended = asyncio.Event()

    def start(self, store: MessageStore) -> None:
        settings = self._settings
        kernel = KernelSync.open() if settings.flush_in_kernel_enable else None
        self._commit = GroupCommit(store, settings, self._dispatched, kernel)
        flushes = ProjectionFlushes(
            store, settings.projection_flush_interval_ms, settings.many_queues_flush_interval_ms
        )
        work = {
            "follower-commit": self._commit.run(),
            "follower-projections": flushes.run(),
            "follower-catch-up": background.catch_up(store),
            "follower-trees": TreeTask(store, settings.tree_index_share_percent).run(),
            "follower-reserve": background.keep_reserve(store, self._grown),
            "follower-segments": background.make_segments_ahead(store, self._appended),
        }
        if self._trim_to is not None:
            work["follower-trim"] = FollowerTrim(
                store, self._trim_to, self._commit.durable, self._grown
            ).run()
            if settings.replica_scrub_bytes_per_s:
                scrub = FollowerScrub(store, settings.store_path, settings.replica_scrub_bytes_per_s)
                work["follower-scrub"] = scrub.run()
        self._tasks = [asyncio.create_task(one, name=name) for name, one in work.items()]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _dispatched(self, queues: Grown) -> None:
        self._flushed()
        self._grown(queues)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def appended(self) -> None:
        """The log grew."""
        self._appended.set()
        if self._commit is not None:
            self._commit.appended()

    async def stop(self) -> None:
        """Syncs all that was appended, unless the store has failed. No thread uses the store afterwards, also
        where the caller is cancelled meanwhile."""
        commit, tasks = self._commit, self._tasks
        self._commit, self._tasks = None, []
        if commit is not None:
            await until_done(asyncio.create_task(_end(commit, tasks), name="follower-stop"))


async def _end(commit: GroupCommit, tasks: Sequence[asyncio.Task[None]]) -> None:
    commit.stop()
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    commit.close()
