"""Opening a store directory: lock it, recover the log and its projections, and report the findings.

Order, and why:
 1. the lock, before anything is read (RocketMQ takes it last; two recoveries at once would fight);
 2. refuse a store that cannot be served: other sizes, a newer format, forms that are not supported; end a cut
    of the log that was begun (trovemq_store.replica.truncation), or a new log (new_log.py);
 3. the log's files, then the projections with the position up to which they can be trusted;
 4. scan the log from that position to its end and apply the records that the consume queues lack (the key
    index may lag, and catches up later); if the queues turn out to lack earlier records, too, scan again from
    the log's beginning;
 5. cut everything after the end, sync the recovered files, and only then mark the store as open (`abort`).

A store is *clean* when `abort` is missing: its files are trusted and only the tail is verified. Otherwise
nothing is trusted beyond the positions of `trovemq/state.json`, or, in a store that RocketMQ left, beyond
the time of its checkpoint.

With a commit limit (a node that shares its log with others), records above it are recovered and kept, but no
projection has them after the start: those that have some lose them in step 3, and step 4 ends at the limit.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

import msgspec

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.check import RecordState
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import (
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_store.engine.deletion_records import DeletionRecords, read_deletions
from trovemq_store.engine.queue_ends import LogQueueEnds, add_queue_ends, last_store_timestamp
from trovemq_store.engine.transaction_run import run_size_max
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.index.consume_queues import GAP_UNITS_MAX, ConsumeQueues, QueueGap, QueueGapError
from trovemq_store.index.dispatcher import NO_RECORDS, UNLIMITED, Dispatcher, LogRuns
from trovemq_store.index.key_index import KeyIndex, synced_end
from trovemq_store.index.undispatched import records_below
from trovemq_store.log import checkpoint, state
from trovemq_store.log.checkpoint import Checkpoint
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch, Projection
from trovemq_store.log.readable import can_read_record
from trovemq_store.log.reader import Damage, LogReader
from trovemq_store.log.recovery import (
    RecoveredLog,
    foreign_scan_start,
    scan_log,
    zero_after,
)
from trovemq_store.log.segments import DIRECTORY
from trovemq_store.log.state import StoreState, committed_end
from trovemq_store.log.time_runs import TimeRuns
from trovemq_store.log.whole_runs import UnfinishedRun, outside_run
from trovemq_store.replica.new_log import finish_new_log
from trovemq_store.replica.truncation import finish_truncation
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.offsets import ConsumerOffsets
from trovemq_store.topics.topics import TopicTable

_QUEUE_ID: Final = Struct(">i")
_QUEUE_OFFSET: Final = Struct(">q")
LOCK_PATH: Final = "lock"
ABORT_PATH: Final = "abort"
UNSUPPORTED_DIRECTORIES: Final = ("batchconsumequeue", "dledger-commitlog", "tieredstore")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of an opening; for the log line, `trovemq store verify` and tests."""

    clean: bool
    scan_begin: PhysicalOffset
    end: PhysicalOffset
    records_scanned: int
    bytes_cut: int
    damages: tuple[Damage, ...]
    gaps: tuple[QueueGap, ...] = ()
    unfinished: tuple[UnfinishedRun, ...] = ()
    """Atomic transactions in the middle of the log that lack records."""
    cut_transaction: UnfinishedRun | None = None
    lowered_offsets: tuple[tuple[str, int], ...] = ()
    """(topic, count of the groups' stored offsets that were above the end of their queue: they are lowered to
    that end)."""
    second_copies: tuple[str, ...] = ()
    """Why a file under config/ was read from its second copy, which lacks the last change."""


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
    saved: StoreState | None
    last_store_timestamp: EpochMs
    time_runs: TimeRuns
    report: RecoveryReport


@dataclass(slots=True)
class IndexFileNames:
    """Names of new index files: `now_ms`, kept current by the store, as `yyyyMMddHHmmssSSS` in UTC."""

    now_ms: EpochMs = EpochMs(0)

    def __call__(self) -> str:
        seconds, milliseconds = divmod(self.now_ms, 1000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%d%H%M%S}{milliseconds:03d}"


def open_store(
    files: FileSystem,
    settings: StoreSettings,
    names: IndexFileNames,
    process_id: int,
    commit_limit: PhysicalOffset | None = None,
) -> OpenedStore:
    """TroveError STORE_LOCKED, STORE_SETTINGS_MISMATCH, STORE_NEWER, STORE_FAILED; StorageError. Then every
    file is closed and the lock released."""
    take_lock(files)
    with ExitStack() as on_failure:
        on_failure.callback(files.unlock, LOCK_PATH)
        opened = _Opening(files, settings, names, process_id, on_failure, commit_limit).run()
        on_failure.pop_all()
    return opened


def take_lock(files: FileSystem) -> None:
    try:
        files.lock(LOCK_PATH)
    except StorageError as error:
        if error.operation == "lock" and error.errno in (errno.EAGAIN, errno.EACCES):
            raise TroveError(errors.STORE_LOCKED) from error
        raise


class _Opening:
    """Steps 2 to 5, once. Idempotent: may be interrupted anywhere and run again. `on_failure` closes the
    files that were opened."""

    def __init__(
        self,
        files: FileSystem,
        settings: StoreSettings,
        names: IndexFileNames,
        process_id: int,
        on_failure: ExitStack,
        commit_limit: PhysicalOffset | None,
    ) -> None:
        self._files = files
        self._settings = settings
        self._process_id = process_id
        self._check_form()
        finish_new_log(files, settings.commit_log_file_size)
        self._saved = state.load(files)
        if self._saved is not None:
            state.check_sizes(self._saved, settings)
        was_cut = finish_truncation(files, settings.commit_log_file_size)
        if was_cut:
            self._saved = state.load(files)
        self._saved_queue_ends = {} if self._saved is None else self._saved.queue_ends
        self._clean = not files.exists(ABORT_PATH) and not was_cut
        self._marked_open = False
        self._known_end = LOG_ORIGIN
        self._limit = UNLIMITED if commit_limit is None else commit_limit
        self._uncommitted_from: PhysicalOffset | None = None
        self._uncommitted_ends: LogQueueEnds = {}
        self._marks = checkpoint.load(files)
        reserved = {settings.cluster, settings.broker, f"{settings.cluster}_REPLY_TOPIC"}
        self._topics = TopicTable.load(files, reserved=reserved)
        self._deletions = TopicDeletions.load(files)
        self._offsets = ConsumerOffsets.load(files)
        self._log = CommitLog(files, settings.commit_log_file_size)
        self._consume_queues = ConsumeQueues(files, settings)
        self._key_index = KeyIndex(files, settings, names) if settings.message_index_enable else None
        self._projections = [p for p in (self._consume_queues, self._key_index) if p is not None]
        on_failure.callback(self._log.close)
        for projection in self._projections:
            on_failure.callback(projection.close_files)

    def _check_form(self) -> None:
        if self._files.exists(LOCK_PATH.upper()) and LOCK_PATH.upper() not in self._files.list(""):
            raise TroveError(
                errors.STORE_FAILED,
                "the store's file system takes LOCK for lock: topics whose names differ in case alone would "
                "have the same files. Put the store on one that distinguishes them",
            )
        for name in UNSUPPORTED_DIRECTORIES:
            if self._files.list(name):
                raise TroveError(errors.STORE_NEWER, f"the store has {name}/, a form that is not supported")

    def run(self) -> OpenedStore:
        log, queues = self._log, self._consume_queues
        self._load_log()
        self._limit = outside_run(log, self._limit)
        fault_point("recovery.after_log")
        trusted = self._load_projections()
        fault_point("recovery.after_projections")
        self._known_end = min(self._written_up_to(trusted), log.segments.capacity_end)
        dispatcher = Dispatcher(
            queues,
            [self._key_index] if self._key_index is not None else [],
            self._deletions,
            log_runs(log),
            max(trusted, log.min_offset),
        )
        begin, found = self._scan(dispatcher)
        fault_point("recovery.after_scan")
        end = max(found.end, log.min_offset)
        bytes_cut = self._cut(end)
        fault_point("recovery.after_cut")
        _settle(self._files, log, begin, end)
        fault_point("recovery.after_settle")
        lowered = self._lower_offsets()
        assert begin <= end, "the log does not end before the scan"
        assert queues.position <= end, "no queue has units after the log's end"
        if self._uncommitted_from is None and end <= self._limit:
            dispatcher.position = max(dispatcher.position, end)
        else:
            dispatcher.leave_unoffered(end)
        self._deletions.truncate_to(end)
        self._mark_open()
        misplaced = tuple(Damage(*place, RecordState.DAMAGED) for place in queues.misplaced)
        return OpenedStore(
            files=self._files,
            settings=self._settings,
            log=log,
            topics=self._topics,
            deletions=self._deletions,
            offsets=self._offsets,
            consume_queues=queues,
            key_index=self._key_index,
            dispatcher=dispatcher,
            checkpoint=self._marks,
            saved=self._saved,
            last_store_timestamp=found.last_store_timestamp
            or max(last_store_timestamp(log, queues), EpochMs(self._marks.physic_msg_timestamp)),
            time_runs=self._time_runs(end),
            report=RecoveryReport(
                self._clean,
                begin,
                end,
                found.records,
                bytes_cut,
                (*found.damages, *misplaced),
                tuple(queues.gaps),
                found.unfinished,
                found.cut,
                lowered,
                tuple(fault for fault in (self._topics.fault, self._offsets.fault) if fault),
            ),
        )

    def _time_runs(self, end: PhysicalOffset) -> TimeRuns:
        saved = self._saved
        runs = TimeRuns(None if saved is None else saved.time_runs)
        known_to = LOG_ORIGIN if saved is None or saved.time_runs is None else saved.log_end
        runs.open_at(self._log.min_offset, known_to, end)
        return runs

    def _load_log(self) -> None:
        saved, segments = self._saved, self._log.segments
        segments.load(None if self._clean or saved is None else saved.log_end)
        if saved is not None and saved.log_end > 0 and not len(segments):
            raise TroveError(
                errors.STORE_FAILED, f"{DIRECTORY}/ is empty, and the log was written up to {saved.log_end}"
            )
        if saved is not None and saved.log_end > segments.capacity_end:
            raise TroveError(
                errors.STORE_FAILED,
                f"the files of {DIRECTORY}/ end at {segments.capacity_end}, and the log was written up to "
                f"{saved.log_end}: put the missing ones back (or remove {state.PATH}, and their content is "
                "lost)",
            )

    def _written_up_to(self, trusted: PhysicalOffset) -> PhysicalOffset:
        """The log was certainly written up to here: below it, bytes that are not a record are damage, not the
        end."""
        if self._saved is not None:
            return self._saved.log_end
        return trusted if self._clean else LOG_ORIGIN

    # --- the projections, each up to the position that can be trusted -------------------------------
    def _load_projections(self) -> PhysicalOffset:
        """The position up to which the consume queues are whole."""
        if self._clean:
            self._load_clean()
        else:
            self._load_after_crash()
        for projection in self._projections:
            if projection.position > self._log.segments.capacity_end:
                projection.truncate_to(self._log.segments.capacity_end)  # files of the log are gone
            if self._log.min_offset > 0:
                projection.trim_before(self._log.min_offset)
        self._forget_uncommitted()
        named = self._settings.tables_in_log
        if named and read_deletions(self._files, self._log, self._consume_queues, self._deletions):
            self._forget_queues()
        return self._consume_queues.position

    def _forget_topic(self, topic: str) -> None:
        self._offsets.delete_topic(topic)
        self._consume_queues.delete_topic(topic)

    def _forget_uncommitted(self) -> None:
        """Removes from the projections the records above the commit limit. If that is interrupted, the next
        start trusts the projections no further."""
        saved, limit = self._saved, self._limit
        if saved is not None and limit < committed_end(saved):
            self._saved_queue_ends = {}
        ahead = [projection for projection in self._projections if projection.position > limit]
        if not ahead:
            return
        self._mark_open()
        if saved is not None:
            queues, index = saved.consume_queue_position, saved.key_index_position
            self._save_state(
                consume_queue_position=min(queues, limit),
                key_index_position=min(index, limit),
                key_index_closed=False,
                queue_ends={},
                queue_begins={},
            )
        for projection in ahead:
            projection.truncate_to(limit)

    def _load_clean(self) -> None:
        saved, key_index = self._saved, self._key_index
        ends_known = saved is not None and bool(saved.queue_ends)
        self._consume_queues.load(None, deleted_below=self._deletions.entries(), ends_known=ends_known)
        if saved is not None:
            if self._queues_are_whole(saved):
                _move(self._consume_queues, saved.log_end)
            else:
                self._forget_queues()
        if key_index is None:
            return
        if saved is not None and not saved.key_index_closed:
            self._load_unclosed_index(key_index, saved)
            return
        key_index.load(None, log_begin=self._log.min_offset)
        if saved is not None and last_indexed_offset(key_index) == saved.key_index_last_offset:
            _move(key_index, saved.key_index_position)

    def _load_after_crash(self) -> None:
        saved, key_index = self._saved, self._key_index
        if saved is not None:
            # Units of records below the log's beginning cannot be rebuilt. They are trusted, because a queue
            # without other units knows its next queue offset from them.
            trusted = max(saved.consume_queue_position, self._log.min_offset)
            self._consume_queues.load(trusted, deleted_below=self._deletions.entries(), names_synced=True)
            if not self._queues_are_whole(saved):
                self._forget_queues()
            if key_index is not None:
                self._load_unclosed_index(key_index, saved)
            return
        scan_start = foreign_scan_start(self._log, self._marks)
        self._consume_queues.load(scan_start, deleted_below=self._deletions.entries())
        if key_index is not None:
            synced = synced_end(self._files, self._marks.index_msg_timestamp)
            self._load_index(key_index, min(scan_start, synced))

    def _load_index(self, key_index: KeyIndex, position: PhysicalOffset) -> None:
        """Everything below `position` was synced."""
        log = self._log
        key_index.load(position, store_timestamp_at=log.store_timestamp_at, log_begin=log.min_offset)

    def _load_unclosed_index(self, key_index: KeyIndex, saved: StoreState) -> None:
        position, last_offset = saved.key_index_position, saved.key_index_last_offset
        self._load_index(key_index, position)
        if last_indexed_offset(key_index) < last_offset < position:
            self._save_state(key_index_position=0, key_index_last_offset=-1)
            key_index.truncate_to(LOG_ORIGIN)  # files of it are gone: all of it is rebuilt

    def _queues_are_whole(self, saved: StoreState) -> bool:
        """Whether every queue that was on disk exists and, unless the log begins later by now, begins where
        it did. After a clean stop each must also end where it did."""
        same_log_begin = saved.log_begin == self._log.min_offset
        for topic, queues in saved.queue_ends.items():
            if self._deletions.deleted_below(topic) >= max(1, saved.consume_queue_position):
                continue  # deleted since
            for queue_id, max_offset in queues.items():
                queue = self._consume_queues.get(topic, queue_id)
                begin = saved.queue_begins.get(topic, {}).get(queue_id)
                if queue is None:
                    if self._clean or begin is not None:
                        return False
                    continue  # all of it comes after consumeQueuePosition
                if self._clean and queue.max_offset < max_offset:
                    return False
                begin = queue.min_offset if begin is None else begin
                if same_log_begin and queue.has_units and queue.min_offset > begin:
                    return False
        return True

    def _forget_queues(self) -> None:
        """Forgets all queues; they are rebuilt from the log. If that is interrupted, the next start begins it
        again."""
        fault_point("recovery.before_forgetting")
        self._save_state(consume_queue_position=0, queue_ends={}, queue_begins={})
        self._mark_open()
        fault_point("recovery.before_rebuild")
        self._consume_queues.forget_from(self._log.min_offset)

    def _save_state(self, **changes: Any) -> None:
        saved = self._saved
        if saved is None:
            saved = StoreState.of(self._settings, log_end=self._known_end)
        self._saved = msgspec.structs.replace(saved, **changes)
        state.save(self._files, self._saved)

    def _mark_open(self) -> None:
        """Marks the store as crashed, until it is closed."""
        if not self._marked_open:
            fault_point("recovery.before_open_mark")
            self._files.write_atomic(ABORT_PATH, str(self._process_id).encode())
            fault_point("recovery.after_open_mark")
            self._marked_open = True

    # --- the log's end ------------------------------------------------------------------------------
    def _scan(self, dispatcher: Dispatcher) -> tuple[PhysicalOffset, RecoveredLog]:
        """Brings the projections up to the log's end; returns where the scan began, and its findings.

        Only damage of the log explains that a queue lacks messages; otherwise its files are not whole, and
        all queues are rebuilt from the log's beginning.
        """
        queues = self._consume_queues

        def apply(run: DispatchBatch, damaged_bytes: int) -> None:
            self._mark_open()
            queues.allow_gaps(damaged_bytes // RECORD_SIZE_MIN)
            self._apply_committed(dispatcher, run)

        def rebuild(run: DispatchBatch, damaged_bytes: int) -> None:
            queues.allow_gaps(GAP_UNITS_MAX, rebuilding=True)
            self._apply_committed(dispatcher, run)

        if self._settings.tables_in_log:
            dispatcher.before_apply = DeletionRecords(self._deletions, self._forget_topic).carry_out
        begin = dispatcher.position
        sealed, step_ms = state.runs_sealed(self._saved), state.step_ms(self._saved)
        try:
            found = scan_log(self._log, begin, self._known_end, apply, runs_sealed=sealed, step_ms=step_ms)
            whole = not any(self._short_queues())
        except QueueGapError:
            whole = False
        if not whole:
            self._forget_queues()
            begin = dispatcher.position = self._log.min_offset
            self._uncommitted_from, self._uncommitted_ends = None, {}
            found = scan_log(self._log, begin, self._known_end, rebuild, runs_sealed=sealed, step_ms=step_ms)
            self._keep_queue_offsets([d for d in found.damages if d.physical_offset < self._limit])
        for damage in found.damages:
            if damage.state is RecordState.DAMAGED and damage.physical_offset < self._limit:
                self._place_damaged(damage)
        queues.allow_gaps(0)
        dispatcher.before_apply = None
        return begin, found

    def _apply_committed(self, dispatcher: Dispatcher, run: DispatchBatch) -> None:
        """Applies the records below the commit limit; the others stay in the log."""
        if run.end <= self._limit:
            dispatcher.apply(run)
            return
        below = records_below(run, self._limit)
        if len(below.records):
            dispatcher.apply(below)
        if self._uncommitted_from is None:
            self._uncommitted_from = run.offset_of(len(below.records))
        alive = self._deletions.alive_mask(run.records, run.physical_offset)
        add_queue_ends(self._uncommitted_ends, replace(run, alive=alive))

    def _end_in_log(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """The end of the queue, with the records that are not committed."""
        end = self._consume_queues.next_offset(topic, queue_id)
        return max(end, self._uncommitted_ends.get((topic, queue_id), end))

    def _short_queues(self) -> Iterator[tuple[str, QueueId, QueueOffset]]:
        """(topic, queue id, end) of the queues that reached up to `end` and do not any more."""
        for topic, queues in self._saved_queue_ends.items():
            if self._deletions.deleted_below(topic) > 0:
                continue  # it is not certain which records were deleted since
            for queue_id, end in queues.items():
                if self._consume_queues.next_offset(topic, queue_id) < end:
                    yield topic, queue_id, end

    def _keep_queue_offsets(self, damages: Sequence[Damage]) -> None:
        """Sees to it that no queue offset is assigned twice, also if the last records of a queue are
        damaged."""
        for topic, queue_id, end in list(self._short_queues()):
            queue = self._consume_queues.get(topic, queue_id)
            last_end = LOG_ORIGIN if queue is None else queue.last_physical_end
            for damage in reversed(damages):
                size = damage.end - damage.physical_offset
                if damage.physical_offset >= last_end and size >= RECORD_SIZE_MIN:
                    self._consume_queues.place_lost(topic, queue_id, end, damage.physical_offset, size)
                    break

    def _place_damaged(self, damage: Damage) -> None:
        """Keeps a place in the queue for a damaged record that says that it is the queue's next message."""
        segment = self._log.segments.at(damage.physical_offset)
        assert segment is not None, "damage is found in segments"
        assert damage.end <= segment.end, "damage is found segment by segment"
        view, position = segment.file.view(), damage.physical_offset - segment.start
        if not can_read_record(segment.file, position, damage.end - segment.start):
            return
        fields = read_fields(view, position, damage.end - segment.start)
        if fields is None or fields.sys_flag & SYS_FLAG_TRANSACTION_MASK:
            return
        topic = str(
            view[fields.topic_position : fields.topic_position + fields.topic_size], "utf-8", "replace"
        )
        (queue_id,) = _QUEUE_ID.unpack_from(view, position + QUEUE_ID_AT)
        (offset,) = _QUEUE_OFFSET.unpack_from(view, position + QUEUE_OFFSET_AT)
        queue = self._consume_queues.get(topic, queue_id)
        if queue is None or not queue.has_units or offset != queue.max_offset:
            return
        dead = damage.physical_offset < self._deletions.deleted_below(topic)
        if not dead and damage.physical_offset >= queue.last_physical_end:
            self._mark_open()
            self._consume_queues.place_lost(topic, queue_id, offset + 1, damage.physical_offset, fields.size)

    def _cut(self, end: PhysicalOffset) -> int:
        """Cuts the log at `end`. Returns how many bytes after it were not zero."""
        if not self._clean:
            self._log.segments.drop_from(end)
        if self._clean and (saved := self._saved) is not None:
            # At most the bytes of one failed append can be there, which could not be zeroed.
            is_zero = saved.log_rest_zero and saved.log_end == end
            run_size = 0 if is_zero else run_size_max(self._settings.commit_log_file_size)
            return zero_after(self._files, self._log, end, max(self._settings.batch_size_max, run_size))
        return zero_after(self._files, self._log, end)

    def _lower_offsets(self) -> tuple[tuple[str, int], ...]:
        """MessageStore lowers those of the log's records, which are read later."""
        if self._settings.tables_in_log:
            return ()
        lowered = self._offsets.cap_all(self._end_in_log)
        self._offsets.persist()
        return tuple((topic, count) for topic, count in lowered.items() if topic in self._topics)


def last_indexed_offset(key_index: KeyIndex | None) -> PhysicalOffset:
    """Physical offset of the record that was indexed last, NOTHING_INDEXED, or NO_INDEX."""
    if key_index is None:
        return state.NO_INDEX
    timestamp, physical_offset = key_index.last_update()
    return physical_offset if timestamp or physical_offset else state.NOTHING_INDEXED


def _move(projection: Projection, position: PhysicalOffset) -> None:
    """Moves the projection up to the saved position: the records between its last entry and that have
    none."""
    if position > projection.position:
        projection.apply(DispatchBatch(NO_RECORDS, position, position))


def log_runs(log: CommitLog) -> LogRuns:
    """Reads runs of the log without checking CRCs; damage is skipped."""

    def runs(begin: PhysicalOffset, end: PhysicalOffset, run_bytes_max: int) -> LogReader:
        begin = max(begin, log.min_offset)
        return LogReader(log, begin, end, limit=end, check_crc=False, run_bytes_max=run_bytes_max)

    return runs


def _settle(files: FileSystem, log: CommitLog, scanned_from: PhysicalOffset, end: PhysicalOffset) -> None:
    """Syncs everything that the scan found, before anyone relies on it: the last records of a killed broker
    may be in the page cache only."""
    if len(log.segments):
        files.sync_directory(DIRECTORY)
    for segment in log.segments.covering(scanned_from, end):
        fault_point("recovery.before_sync")
        segment.file.sync()
    log.open_at(end)
