"""StoreService: checks and backups of the store of a running broker.

Both run while requests are served, one of each at a time.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from trovemq_broker.server.core.pace import REPORT_S, Pace
from trovemq_broker.server.native.store_backup import BackupRun
from trovemq_broker.server.native.store_scrub import begin_scrub, scrub_steps
from trovemq_broker.server.wire import store_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.backup.copying import storage_error
from trovemq_store.backup.writer import BackupWriter, checked_target
from trovemq_store.check.findings import Finding
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import reported
from trovemq_store.files.files import StorageError

_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(slots=True)
class StoreCounters:
    """Counters since the start."""

    scrubs: int = 0
    scrubbed_bytes: int = 0
    scrub_damages: int = 0
    backups: int = 0
    backup_bytes: int = 0
    backup_failures: int = 0


class StoreService:
    """The methods are those of store.proto; every refusal is a TroveError.

    root: the store's directory. changing: the lock that is held while files of queues or segments are
    removed. backup_root: backups may be made below it; None: backups are off.
    """

    def __init__(
        self,
        store: MessageStore,
        root: Path,
        changing: asyncio.Lock,
        clock_ms: Callable[[], EpochMs],
        backup_root: Path | None = None,
    ) -> None:
        self._backup_root = backup_root
        self._store = store
        self._root = root
        self._changing = changing
        self._clock_ms = clock_ms
        self._running: set[str] = set()
        self.counters: Final = StoreCounters()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    @contextmanager
    def _exclusive(self, what: str) -> Iterator[None]:
        if what in self._running:
            raise TroveError(errors.LIMIT_EXCEEDED, f"a {what} of this store is running")
        self._running.add(what)
        try:
            yield
        finally:
            self._running.discard(what)

    # --- scrub --------------------------------------------------------------------------------------
    async def scrub(self, request: Request, _context: Context) -> AsyncIterator[Reply]:
        rate = wire.scrub_rate(request)
        with self._exclusive("scrub"):
            found: list[Finding] = []
            scrub = await begin_scrub(self._store, found)
            reported, counted = time.monotonic(), 0
            try:
                async with aclosing(scrub_steps(scrub, self._root, Pace(rate))) as steps:
                    async for size in steps:
                        self.counters.scrubbed_bytes += size
                        self.counters.scrub_damages += scrub.findings.finding_count - counted
                        counted = scrub.findings.finding_count
                        if found or time.monotonic() - reported > REPORT_S:
                            reported = time.monotonic()
                            yield wire.scrub_reply(scrub, found)
                            found.clear()
            finally:
                self.counters.scrub_damages += scrub.findings.finding_count - counted
            self.counters.scrubs += 1
            yield wire.scrub_reply(scrub, found, done=True)
        get_logger().info(
            "store.scrubbed", records=scrub.progress.records, damages=scrub.findings.finding_count
        )

    # --- backup -------------------------------------------------------------------------------------
    async def backup(self, request: Request, _context: Context) -> AsyncIterator[Reply]:
        command = wire.backup_of(request)
        with self._exclusive("backup"):
            target = await run_in_thread(lambda: self._backup_target(command.directory))
            writer = BackupWriter(self._root, target)
            self._store.removal_holds += 1
            whole = False
            try:
                run = BackupRun(self._store, self._changing, self._clock_ms, self._count_read)
                steps = run.steps(writer, Pace(command.rate), link=not command.copy)
                async with aclosing(steps):
                    async for progress in steps:
                        whole = progress.done
                        yield wire.backup_reply(progress)
            except OSError as error:
                raise _failure(storage_error(error, "backup", target)) from error
            finally:
                self._store.removal_holds -= 1
                if not whole:
                    self.counters.backup_failures += 1
                    await run_in_thread(writer.discard)
            self.counters.backups += 1
        get_logger().info("store.backed_up", directory=str(target))

    def _backup_target(self, directory: str) -> Path:
        """The directory of a backup. Raises REQUEST_ILLEGAL."""
        if self._backup_root is None:
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                "backups are switched off: start the broker with backup_root, the directory to hold them",
                field="directory",
            )
        target = checked_target(directory, self._root)
        if not target.is_relative_to(self._backup_root.resolve()):
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                f"{target} is not below backup_root, {self._backup_root}",
                field="directory",
            )
        return target

    def _count_read(self, size: int) -> None:
        self.counters.backup_bytes += size


def _failure(error: StorageError) -> TroveError:
    illegal = error.errno in _NOT_ALLOWED
    return reported(error, "the backup failed", errors.REQUEST_ILLEGAL if illegal else errors.UNKNOWN_ERROR)
