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
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.server.core.pace import REPORT_S, Pace
from trovemq_broker.server.native.store_backup import BackupRun
from trovemq_broker.server.native.store_scrub import begin_scrub, scrub_reply, scrub_steps
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import store_pb2
from trovemq_store.backup.copying import storage_error
from trovemq_store.backup.writer import BackupWriter, checked_target
from trovemq_store.check.findings import Finding
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import reported
from trovemq_store.files.files import StorageError

SERVICE: Final = store_pb2.DESCRIPTOR.services_by_name["StoreService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

RATE_DEFAULT: Final = 64 << 20  # bytes a second
RATE_MIN: Final = 1 << 10
RATE_MAX: Final = 1 << 40
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
        add_service(server, SERVICE, self)

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
    async def scrub(
        self, request: store_pb2.ScrubRequest, _context: Context
    ) -> AsyncIterator[store_pb2.ScrubReply]:
        rate = _checked_rate(request.bytes_per_second)
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
                            yield scrub_reply(scrub, found)
                            found.clear()
            finally:
                self.counters.scrub_damages += scrub.findings.finding_count - counted
            self.counters.scrubs += 1
            yield scrub_reply(scrub, found, done=True)
        get_logger().info(
            "store.scrubbed", records=scrub.progress.records, damages=scrub.findings.finding_count
        )

    # --- backup -------------------------------------------------------------------------------------
    async def backup(
        self, request: store_pb2.BackupRequest, _context: Context
    ) -> AsyncIterator[store_pb2.BackupReply]:
        rate = _checked_rate(request.bytes_per_second)
        with self._exclusive("backup"):
            target = await run_in_thread(lambda: self._backup_target(request.directory))
            writer = BackupWriter(self._root, target)
            self._store.removal_holds += 1
            whole = False
            try:
                run = BackupRun(self._store, self._changing, self._clock_ms, self._count_read)
                async with aclosing(run.steps(writer, Pace(rate), link=not request.copy)) as replies:
                    async for reply in replies:
                        whole = reply.done
                        yield reply
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


def _checked_rate(bytes_per_second: int) -> int:
    rate = bytes_per_second or RATE_DEFAULT
    if not RATE_MIN <= rate <= RATE_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"{rate} bytes a second are not in {RATE_MIN}..{RATE_MAX}",
            field="bytes_per_second",
        )
    return rate
