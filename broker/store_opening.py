"""Opening a store directory: lock it, recover the log and its projections, and say what was found.

Order, and why:
 1. the lock, before anything is read (RocketMQ takes it last; two recoveries at once would fight);
 2. refuse what cannot be served: other sizes, a newer format, forms that are not supported;
 3. the log's files, then the projections with the position up to which they can be trusted;
 4. scan the log from that position to its end and apply what the consume queues lack (the key index may lag
    and reads on later);
 5. cut what is behind the end, sync what was recovered, and only then mark the store as open (`abort`).

A store is *clean* when `abort` is missing: its files are trusted and only the tail is verified. Otherwise
nothing is trusted beyond the positions of `trovemq/state.json`, or, in a store that RocketMQ left, beyond
the time of its checkpoint.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from broker.dispatch.dispatcher import NO_RECORDS, Dispatcher, LogRuns
from broker.index.consume_queues import ConsumeQueues
from broker.index.key_index import KeyIndex
from broker.log import checkpoint, state
from broker.log.checkpoint import Checkpoint
from broker.log.commit_log import CommitLog
from broker.log.reader import Damage, LogReader
from broker.log.recovery import (
    STORE_TIMESTAMP_END,
    foreign_scan_start,
    scan_log,
    store_timestamp_of,
    zero_behind,
)
from broker.log.segments import DIRECTORY
from broker.log.state import StoreState
from broker.projection import DispatchBatch, Projection
from broker.storage.files import FileSystem, StorageError
from broker.store_settings import StoreSettings
from broker.topics.deletions import TopicDeletions
from broker.topics.offsets import ConsumerOffsets
from broker.topics.topics import TopicTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

LOCK_PATH: Final = "lock"
ABORT_PATH: Final = "abort"
UNSUPPORTED_DIRECTORIES: Final = ("batchconsumequeue", "dledger-commitlog", "tieredstore")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening the store found; for the log line, `broker.tools verify` and tests."""

    clean: bool
    scan_begin: int
    end: int
    records_scanned: int
    bytes_cut: int
    damages: tuple[Damage, ...]


@dataclass(slots=True)
class OpenedStore:
    """The parts of an open store, wired to each other."""

    files: FileSystem
    settings: StoreSettings
    log: CommitLog
    topics: TopicTable
    deletions: TopicDeletions
    offsets: ConsumerOffsets
    consume_queues: ConsumeQueues
    key_index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint: Checkpoint
    saved_key_index_position: int
    last_store_timestamp: int
    report: RecoveryReport


@dataclass(slots=True)
class IndexFileNames:
    """Names of new index files: `now_ms`, kept current by the store, as `yyyyMMddHHmmssSSS` in UTC."""

    now_ms: int = 0

    def __call__(self) -> str:
        seconds, milliseconds = divmod(self.now_ms, 1000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%d%H%M%S}{milliseconds:03d}"


def open_store(
    files: FileSystem, settings: StoreSettings, names: IndexFileNames, process_id: int
) -> OpenedStore:
    """TroveError STORE_LOCKED, STORE_SETTINGS_MISMATCH, STORE_NEWER, DISK_FULL; the lock is then released."""
    take_lock(files)
    try:
        opened = recover(files, settings, names)
        files.write_atomic(ABORT_PATH, str(process_id).encode())
    except BaseException:
        files.unlock(LOCK_PATH)
        raise
    return opened


def take_lock(files: FileSystem) -> None:
    try:
        files.lock(LOCK_PATH)
    except StorageError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise TroveError(errors.STORE_LOCKED) from error
        raise


def recover(files: FileSystem, settings: StoreSettings, names: IndexFileNames) -> OpenedStore:
    """Steps 2 to 5. Idempotent: may be interrupted anywhere and run again."""
    _refuse_unsupported(files)
    saved = state.load(files)
    if saved is not None:
        state.check_sizes(saved, settings)
    clean = not files.exists(ABORT_PATH)
    marks = checkpoint.load(files)
    reserved = {settings.cluster, settings.broker, f"{settings.cluster}_REPLY_TOPIC"}
    topics, deletions = TopicTable.load(files, reserved=reserved), TopicDeletions.load(files)
    offsets = ConsumerOffsets.load(files)
    log = CommitLog(files, settings.commit_log_file_size)
    log.segments.load()

    consume_queues = ConsumeQueues(files, settings)
    key_index = KeyIndex(files, settings, names) if settings.message_index_enable else None
    trusted = _load_projections(log, saved, marks, clean, consume_queues, key_index)
    _forget_deleted(consume_queues, deletions)

    known_end = saved.log_end if saved is not None else (trusted if clean else 0)
    begin = max(trusted, log.min_offset)
    dispatcher = Dispatcher(
        consume_queues,
        [key_index] if key_index is not None else [],
        deletions,
        _log_runs(log),
        begin,
    )
    found = scan_log(log, begin, min(known_end, log.segments.capacity_end), dispatcher.apply)
    end = max(found.end, log.min_offset)
    bytes_cut = 0
    if not clean:
        log.segments.drop_from(end)
        offsets.cap_all(consume_queues.next_offset)
    if not clean or saved is None:
        bytes_cut = zero_behind(files, log, end)
    _settle(files, log, begin, end)
    dispatcher.position = max(dispatcher.position, end)
    deletions.truncate_to(end)
    return OpenedStore(
        files=files,
        settings=settings,
        log=log,
        topics=topics,
        deletions=deletions,
        offsets=offsets,
        consume_queues=consume_queues,
        key_index=key_index,
        dispatcher=dispatcher,
        checkpoint=marks,
        saved_key_index_position=saved.key_index_position if saved else 0,
        last_store_timestamp=max(_last_store_timestamp(log, consume_queues), found.last_store_timestamp),
        report=RecoveryReport(clean, begin, end, found.records, bytes_cut, tuple(found.damages)),
    )


def _refuse_unsupported(files: FileSystem) -> None:
    for name in UNSUPPORTED_DIRECTORIES:
        if files.list(name):
            raise TroveError(errors.STORE_NEWER, f"the store has {name}/, a form that is not supported")


def _load_projections(
    log: CommitLog,
    saved: StoreState | None,
    marks: Checkpoint,
    clean: bool,
    consume_queues: ConsumeQueues,
    key_index: KeyIndex | None,
) -> int:
    """Loads both; the position up to which the consume queues are whole."""
    if clean:
        consume_queues.load(None)
        if key_index is not None:
            key_index.load(None)
        if saved is not None and _whole(saved, consume_queues):
            _move(consume_queues, saved.log_end)
            if key_index is not None and last_indexed_offset(key_index) == saved.key_index_last_offset:
                _move(key_index, saved.key_index_position)
        return consume_queues.position
    if saved is not None:
        queues_at, index_at = saved.consume_queue_position, saved.key_index_position
    else:
        queues_at = index_at = foreign_scan_start(log, marks)
    consume_queues.load(queues_at)
    if key_index is not None:
        key_index.load(index_at, store_timestamp_at=partial(_store_timestamp_at, log))
    return queues_at


def _whole(saved: StoreState, consume_queues: ConsumeQueues) -> bool:
    """Whether every queue still reaches as far as at the clean stop; else all are rebuilt from the log."""
    for topic, queues in saved.queue_ends.items():
        for queue_id, max_offset in queues.items():
            if consume_queues.next_offset(topic, queue_id) < max_offset:
                consume_queues.truncate_to(0)
                return False
    return True


def last_indexed_offset(key_index: KeyIndex | None) -> int:
    """Physical offset of the record that was indexed last; -1 = none was, -2 = no index is kept."""
    if key_index is None:
        return -2
    timestamp, physical_offset = key_index.last_update()
    return physical_offset if timestamp or physical_offset else -1


def _move(projection: Projection, position: int) -> None:
    """What was saved may be ahead of the last entry: the records between them have none."""
    if position > projection.position:
        projection.apply(DispatchBatch(NO_RECORDS, position, position))


def _store_timestamp_at(log: CommitLog, physical_offset: int) -> int | None:
    record = log.read(physical_offset, STORE_TIMESTAMP_END)
    return store_timestamp_of(record) if len(record) else None


def _forget_deleted(consume_queues: ConsumeQueues, deletions: TopicDeletions) -> None:
    """Removes queues of a topic's earlier life: their files had not gone, or came back, when it stopped."""
    for topic, below in deletions.entries().items():
        for queue in consume_queues.queues(topic):
            units = queue.units(queue.min_offset, 1)
            if len(units) and int(units["physical_offset"][0]) < below:
                consume_queues.delete_queue(topic, queue.queue_id)


def _last_store_timestamp(log: CommitLog, consume_queues: ConsumeQueues) -> int:
    """STORETIMESTAMP of the last record that has a unit; 0 where there is none."""
    last = 0
    for topic in consume_queues.topics():
        for queue in consume_queues.queues(topic):
            if queue.max_offset == queue.min_offset:
                continue
            units = queue.units(queue.max_offset - 1, 1)
            if len(units):
                last = max(last, int(units["physical_offset"][0]))
    return _store_timestamp_at(log, last) or 0


def _log_runs(log: CommitLog) -> LogRuns:
    def runs(begin: int, end: int, run_bytes_max: int) -> LogReader:
        begin = max(begin, log.min_offset)
        return LogReader(log, begin, end, limit=end, check_crc=False, run_bytes_max=run_bytes_max)

    return runs


def _settle(files: FileSystem, log: CommitLog, scanned_from: int, end: int) -> None:
    """Everything that the scan found is on disk before anyone relies on it: a killed broker's last
    records may have been in the page cache only."""
    if len(log.segments):
        files.sync_directory(DIRECTORY)
    for segment in log.segments.covering(scanned_from, end):
        segment.file.sync()
    log.open_at(end)
