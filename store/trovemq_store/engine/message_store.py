"""The engine: one store directory, its log, its projections and its topics, as synchronous calls.

Everything here is plain Python that takes bytes and a time. It is used from one thread (the daemon's event
loop); only `run()` of FlushWork, SpareWork and `flush_projections()` may run in another one.

Invariants
- visible_offset <= flushed_offset in sync mode: every visible message is on disk.
- visible_offset <= commit_limit: with one, every visible message is committed, too.
- After mark_failed() nothing is appended (appending.py) or acknowledged any more.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.deletion_records import DeletionRecords
from trovemq_store.engine.early_removal import NOTHING, EarlyRemoval
from trovemq_store.engine.opening import (
    ABORT_PATH,
    LOCK_PATH,
    IndexFileNames,
    OpenedStore,
    log_runs,
    open_store,
)
from trovemq_store.engine.replica_appending import StoreReplica
from trovemq_store.engine.store_checkpoint import QueueEnds, StoreCheckpoint
from trovemq_store.engine.store_time import AHEAD_MAX_MS
from trovemq_store.engine.table_log import TableLog
from trovemq_store.engine.trim import StoreTrim
from trovemq_store.files.failures import storage_errors
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.guarded import GuardedFileSystem, reserve_chunk_size
from trovemq_store.index import dirty_files
from trovemq_store.index.dispatcher import UNLIMITED, CallSoon, OnVisible
from trovemq_store.index.index_file import IndexFileWork
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.index.trees.store_trees import StoreTrees
from trovemq_store.index.trees.tree_index import TreeStep
from trovemq_store.index.trees.unique_places import UniquePlaces
from trovemq_store.log.commit_log import AppendStatus, FlushWork
from trovemq_store.log.segments import DIRECTORY, Segment, SpareWork
from trovemq_store.log.state import QUEUE_ENDS_MAX
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.offsets import OFFSET_MAX
from trovemq_store.topics.security_entries import SecurityEntries
from trovemq_store.topics.table_records import SECURITY_KIND
from trovemq_store.topics.topic_deletion import TopicDeletion

__all__ = ["AppendResult", "AppendStatus", "FlushWork", "MessageStore", "SpareWork"]

INDEX_STEP_BYTES: Final = 16 << 20
TIMES_READ_AT_START_BYTES: Final = 64 << 20
"""Of a log whose store times are not known; the rest is read while the store is open."""
_QUEUE_ENDS_OPEN_FILES: Final = 2  # queues are read one after the other


class MessageStore(StoreReplica):
    """One open store."""

    def __init__(self, opened: OpenedStore, names: IndexFileNames, files: GuardedFileSystem) -> None:
        super().__init__(opened, names, files)
        self.topics = opened.topics
        self.offsets = opened.offsets
        self.key_index = opened.key_index
        self.recovery = opened.report
        self._checkpoint = StoreCheckpoint(
            files, opened.settings, opened.consume_queues, opened.key_index, opened.checkpoint, opened.saved
        )
        self._flushed_timestamp = opened.last_store_timestamp
        self._flushed_last_ms: EpochMs | None = opened.last_store_timestamp or None
        """The store time of the last record that is on disk; None if there is none."""
        self._whole_at_begin = self._whole_offset = self.visible_offset
        """visible_offset when the last flush began, and when the last one began that has ended: on disk, and
        not within an atomic run. A follower's flushed_offset may be."""
        self.removal_holds = 0
        self.trees: StoreTrees | None = None
        """The B+trees beside the log; None unless tree_index_enable is on."""
        self.tables: TableLog | None = None
        """The log of the tables' changes; None unless tables_in_log is on."""
        self.security: SecurityEntries | None = None
        """Users, rules and quotas, sealed; None unless tables_in_log is on."""
        self.early_removal = EarlyRemoval(files, NOTHING)
        """Messages that were removed before their time."""
        self.on_visible: OnVisible | None = None
        """Called with each run of new records, once it is visible."""
        self.offsets.limit = self._synced_queue_end
        self._deletion_records = DeletionRecords(self._deletions, self._forget_topic)

    @classmethod
    def open(
        cls,
        files: FileSystem,
        settings: StoreSettings,
        now_ms: EpochMs,
        *,
        process_id: int = 0,
        commit_limit: PhysicalOffset | None = None,
    ) -> MessageStore:
        """Locks, recovers and opens. `process_id` is written to `abort`. commit_limit: of a node that shares
        its log: the records above it stay in the log and are in no projection (limit_commits() raises it). It
        is not in the middle of an atomic run with which the log ends.

        TroveError STORE_LOCKED, STORE_SETTINGS_MISMATCH, STORE_NEWER, STORE_FAILED, DISK_FULL,
        CREATE_MAPPED_FILE_FAILED; then no file stays open.
        """
        names = IndexFileNames(now_ms)
        guarded = GuardedFileSystem(files, reserve_chunk_size(settings.commit_log_file_size))
        with storage_errors("the store cannot be opened", errors.STORE_FAILED):
            store = cls(open_store(guarded, settings, names, process_id, commit_limit), names, guarded)
            try:
                store.limit_commits(commit_limit)
                store._start()
            except BaseException:
                store._release(stopped=False)
                raise
        return store

    def _start(self) -> None:
        self.early_removal = EarlyRemoval.load(self.files)
        if self._log.segments.at(self._log.end) is None:
            self._log.segments.add(internal=True)
            self.files.sync_directory(DIRECTORY)
        self.read_times(TIMES_READ_AT_START_BYTES)
        fault_point("open.before_names")
        self.files.sync_directory("")
        if self.settings.message_index_safe:
            self._complete_index()
        if self.settings.tables_in_log:
            self._open_tables()
        if self.settings.tree_index_enable:
            self.trees = StoreTrees.open(
                self.files,
                self._log,
                self._deletions,
                log_runs(self._log),
                lambda topic: self.topics.options(topic).indexed_properties,
                UniquePlaces(self.topics, self._deletions, self._log, self._window_begin, self.time.since_of),
                self.topics.priority_topics,
                self.settings.producers_max,
            )
            self.trees.catch_up_current(min(self.flushed_offset, self.visible_offset))
        fault_point("open.before_flush")
        if self.consume_queues.unsynced_count <= dirty_files.MANY:
            self.flush_projections()  # else the next flush does it; until then the old marks are valid

    def _open_tables(self) -> None:
        self.tables = TableLog(self, self.offsets, lambda: self._names.now_ms, self.flush)
        self.tables.attach(self.topics)
        self.tables.attach(self.offsets)
        self.security = self._load_security(self.tables)
        self.tables.attach(self.security)
        if fault := self.security.fault:
            found = (*self.recovery.second_copies, fault)
            self.recovery = replace(self.recovery, second_copies=found)
        lowered = self.tables.lower_offsets(self.next_queue_offset)
        known = tuple((topic, count) for topic, count in lowered.items() if topic in self.topics)
        self.recovery = replace(self.recovery, lowered_offsets=known)

    def _load_security(self, tables: TableLog) -> SecurityEntries:
        """From the file; where neither of its copies can be read, the log has the users. TroveError
        STORE_FAILED: the log has not all of them, either."""
        try:
            return SecurityEntries.load(self.files)
        except DamagedError as error:
            if not tables.has_whole(SECURITY_KIND):
                raise
            return SecurityEntries.without_file(self.files, f"{error.message}; the log has its content")

    def _complete_index(self) -> None:
        """Reads the log until the index is complete, or cannot continue because a file cannot be created."""
        assert self.key_index is not None or not self.lagging, "only the key index may lag"
        while self.key_index is not None and self.lagging:
            before = self.key_index.position
            self.catch_up(INDEX_STEP_BYTES)
            assert self.key_index.position >= before, "an index only moves forward"
            if self.key_index.position == before:
                return

    # --- positions (physical offsets) ---------------------------------------------------------------
    @property
    def end_offset(self) -> PhysicalOffset:
        """One past the last appended record."""
        return self._log.end

    @property
    def flushed_offset(self) -> PhysicalOffset:
        """Everything below is on disk."""
        return self._log.flushed_offset

    @property
    def lasting_offset(self) -> PhysicalOffset:
        """Everything below is on disk, and committed where the log has copies: no later leader cuts it."""
        return min(self._log.flushed_offset, self.commit_limit)

    @property
    def undispatched_bytes(self) -> int:
        return self._dispatcher.pending_bytes

    @property
    def segment_count(self) -> int:
        return len(self._log.segments)

    @property
    def segment_create_failures(self) -> int:
        return self._log.segments.create_failures

    @property
    def projection_failures(self) -> int:
        """How often a projection could not take a batch (it was tried again)."""
        return self._dispatcher.failures

    @property
    def lagging(self) -> list[str]:
        """Names of the projections that have not reached visible_offset. Records that index_later() defers
        do not count."""
        return [projection.name for projection in self._dispatcher.lagging_long]

    def index_later(self, call_soon: CallSoon | None = None) -> None:
        """From now on the key index gets small batches later, several at once. The caller must call
        catch_up() regularly; until then look-ups read these records from the log. `call_soon`: calls back
        after the present dispatch and its acknowledgements; without it they wait when many are indexed."""
        self._dispatcher.index_later = True
        self._dispatcher.call_soon = call_soon

    # --- flush and dispatch -------------------------------------------------------------------------
    def begin_flush(self) -> FlushWork | None:
        """The sync that would cover everything appended so far; None if nothing is dirty."""
        self._whole_at_begin = self.visible_offset
        return self._log.begin_flush(self.last_store_timestamp)

    def finish_flush(self, work: FlushWork) -> list[tuple[str, QueueId]]:
        """Call on the engine's thread after run(): moves flushed_offset and dispatches the records that
        became visible.

        Returns the (topic, queue_id) pairs that grew.
        """
        fault_point("flush.before_finish")
        if self.files.sync_failure is not None:
            raise self.files.sync_failure  # of another file: nothing is acknowledged after it
        # Set before the offset rises: a save in another thread reads the offset first.
        self._flushed_last_ms = work.store_timestamp
        self._log.finish_flush(work)
        self._whole_offset = self._whole_at_begin
        fault_point("flush.before_dispatch")
        grown = self.dispatch()
        if self.files.sync_failure is not None:
            raise self.files.sync_failure
        if not self._dispatcher.has_before(work.end):  # else the consume queues lack some of these records
            stored_ms = work.store_timestamp
            # Records that are not on disk may be as early as the step.
            if work.end <= self._checkpoint.stepped_at:
                stored_ms = min(stored_ms, self._checkpoint.stepped_ms)
            self._flushed_timestamp = max(self._flushed_timestamp, stored_ms)
        return grown

    def flush(self) -> None:
        """Syncs and dispatches everything appended so far; blocks. No other flush may be under way.
        StorageError."""
        work = self.begin_flush()
        if work is not None:
            work.run()
            self.finish_flush(work)
        self.dispatch()

    def check_linked(self) -> None:
        """DeletedError: the log was deleted beneath the open store, which has failed."""
        self._log.check_linked()

    def limit_commits(self, commit_limit: PhysicalOffset | None) -> None:
        """From now on only records that end at or below commit_limit become visible, with the next
        dispatch(). A limit rises; None: all that are on disk become visible."""
        limit = UNLIMITED if commit_limit is None else commit_limit
        assert self.visible_offset <= limit, "visible records stay visible"
        assert self.commit_limit in (UNLIMITED, min(self.commit_limit, limit)), "committed is committed"
        self.commit_limit = limit
        by_record = limit != UNLIMITED and self.settings.tables_in_log
        self._dispatcher.before_apply = self._deletion_records.carry_out if by_record else None
        self._checkpoint.limited = commit_limit is not None

    def dispatch(self) -> list[tuple[str, QueueId]]:
        """Applies to the projections every record that may become visible (async mode: call after append).

        Returns the (topic, queue_id) pairs that grew. If a consume queue cannot be written (a full disk), or
        while dispatch_held(), no later record becomes visible; the next call tries again.
        """
        if self._dispatch_holds:
            return []
        sync = self.settings.flush_mode == "sync"
        appended = self._log.flushed_offset if sync else self._log.end
        visible_end = appended if appended <= self.commit_limit else self.commit_limit
        try:
            self._dispatcher.dispatch(visible_end, self.on_visible)
        except StorageError:
            pass  # counted by the dispatcher; the batch stays at the head
        assert not sync or self.visible_offset <= self._log.flushed_offset, (
            "readers see records that are on disk"
        )
        assert self.visible_offset <= visible_end, "readers see records that were appended, and committed"
        grown = self.consume_queues.take_grown()
        if self.tables is not None and self.tables.follows:
            self.tables.became_visible(grown)
        return grown

    def catch_up(self, bytes_max: int) -> bool:
        """Lets lagging projections (a key index that is rebuilt, or gets records later) read the next part of
        the log. True if there is more to read."""
        return self._dispatcher.catch_up(bytes_max)

    def index_deferred(self) -> None:
        """Applies to the key index the records that index_later() deferred."""
        self._dispatcher.index_deferred()

    def index_files_by_work(self) -> None:
        """From now on the key index creates no files itself, because that waits for the disk: it lags until
        index_file_work() has created the next one."""
        if self.key_index is not None:
            self.key_index.files_by_work = True

    def index_file_work(self) -> IndexFileWork | None:
        """Work that creates the file for which the key index waits: run() it in another thread, then call
        finish_index_file()."""
        if self.key_index is None or not self._dispatcher.lagging():
            return None
        return self.key_index.file_work()

    def finish_index_file(self, work: IndexFileWork) -> None:
        """Call this after run(), also if it failed."""
        if self.key_index is not None:
            self.key_index.finish_file(work)

    def begin_trees(self, bytes_max: int) -> TreeStep | None:
        """The next part of the log for the trees: run() in another thread, while removals are held, then
        finish_trees(). None if they have everything that is on disk and visible."""
        if self.trees is None:
            return None
        step = self.trees.begin(min(self.flushed_offset, self.visible_offset), bytes_max)
        if step is not None:
            self.removal_holds += 1
        return step

    def finish_trees(self, step: TreeStep) -> None:
        """Call after run(), also if it failed."""
        assert self.trees is not None, "begin_trees() gave the step"
        assert self.removal_holds > 0, "begin_trees() holds removals"
        self.removal_holds -= 1
        self.trees.finish(step)

    def catch_up_trees(self) -> None:
        """Brings the trees up to date; blocks. StorageError."""
        if self.trees is not None:
            self.trees.catch_up(min(self.flushed_offset, self.visible_offset))

    def spare_work(self) -> SpareWork | None:
        """The work of creating the next segment's file before it is needed; run() it in another thread."""
        return self._log.spare_work()

    def finish_spare(self, work: SpareWork) -> None:
        self._log.segments.finish_spare(work)

    @property
    def descriptors_needed(self) -> int:
        """How many descriptors the store has open, or may open without being asked: two for each mapped file
        (see map_file), and its share for the files of consume queues."""
        mapped = len(self._log.segments) + 2  # the next segment, and one that is copied or removed
        if self.key_index is not None:
            mapped += len(self.key_index.file_names) + 1
        return 2 * mapped + self.files.open_files_max()

    def flush_projections(self, *, index: bool = False, queues: bool = True) -> None:
        """Syncs the consume queues (unless `queues` is off), and now and then (or if `index`) the index, and
        saves how far they and the log are on disk. May block."""
        # Read before the log's end: all of them rise.
        visible, whole = self.visible_offset, max(self._whole_offset, self._checkpoint.position)
        log_end, timestamp = self._log.flushed_offset, self._flushed_timestamp
        whole = visible if visible <= log_end else whole
        few = self.consume_queues.queue_count <= QUEUE_ENDS_MAX
        ends = self._queue_ends(whole) if few else {}
        runs = self.time_runs_below(log_end)
        self._checkpoint.flush(log_end, whole, timestamp, ends, runs, index=index, queues=queues)

    def time_runs_below(self, log_end: PhysicalOffset) -> list[list[int]] | None:
        """The runs of store times (TimeRuns.saved) of the log below log_end, which is flushed_offset or was.
        In any thread; flushed_offset is read first."""
        return self.time_runs.saved(log_end, self._flushed_last_ms)

    @property
    def marked_offset(self) -> PhysicalOffset:
        """A restart scans the log from here, or from a later offset."""
        return self._checkpoint.position

    # --- store times --------------------------------------------------------------------------------
    def tick(self, now_ms: EpochMs, boot_ms: int) -> bool:
        """Reports the clock and the boot time, to be called ten times a second. True: store times are to step
        back to the clock. Then, while no other flush_projections() runs: begin_time_step(),
        flush_projections() in any thread, finish_time_step()."""
        self.time.tick(now_ms, boot_ms, self._log.end)
        return self.time.wants_step

    def begin_time_step(self, now_ms: EpochMs) -> None:
        """From now on no time is saved in the checkpoint that later records may be earlier than."""
        self._checkpoint.time_max = EpochMs(now_ms - 1)

    def finish_time_step(self, now_ms: EpochMs) -> bool:
        """Call after the flush. Whether store times have stepped back: the clock may have moved again, or the
        flush may have failed. Then the step is wanted again in a minute."""
        saved_max, self._checkpoint.time_max = self._checkpoint.saved_time_max, None
        ahead_ms = self.last_store_timestamp - now_ms
        if saved_max is None or saved_max >= now_ms or ahead_ms <= AHEAD_MAX_MS:
            self.time.postpone_step()
            return False
        self._checkpoint.stepped_at, self._checkpoint.stepped_ms = self._log.end, saved_max
        self._flushed_timestamp = min(self._flushed_timestamp, saved_max)
        self.time.step(now_ms)
        return True

    def _window_begin(self, window_ms: int) -> PhysicalOffset:
        since = self.time.since_of()(window_ms)
        if since.all_from == since.begin:
            return since.begin
        return max(since.begin, min(since.all_from, self.lowest_offset_at(EpochMs(since.since_ms))))

    # --- topics -------------------------------------------------------------------------------------
    def delete_topic(self, topic: str, now_ms: EpochMs) -> PhysicalOffset:
        """Forgets the topic's records up to now; durable before it returns.

        Returns the physical offset of the deletion. TroveError TOPIC_NOT_FOUND, TOPIC_ILLEGAL, DISK_FULL.
        """
        work = self.begin_delete_topic(topic, now_ms)
        try:
            work.run()
            if work.change.logged:
                self.flush()
        finally:
            self.finish_delete_topic(work)
        if self.tables is None:
            self.offsets.persist()
        elif self.tables.record_offsets() is not None:
            self.flush()
        return work.physical_offset

    def deleted_below(self, topic: str) -> PhysicalOffset:
        """The physical offset of the topic's last deletion; 0 if there was none."""
        return self._deletions.deleted_below(topic)

    def begin_delete_topic(self, topic: str, now_ms: EpochMs) -> TopicDeletion:
        """delete_topic() for callers that may not block: run() in another thread, then
        finish_delete_topic() here.

        From now on nothing is appended to the topic. TroveError TOPIC_NOT_FOUND, TOPIC_ILLEGAL,
        SERVICE_NOT_AVAILABLE.
        """
        end, by_record = self._log.end, self._dispatcher.before_apply is not None
        change = self.topics.begin_delete(topic, now_ms=now_ms, deleted_below=end)
        return TopicDeletion(self._deletions, change, end, by_record=by_record)

    def finish_delete_topic(self, work: TopicDeletion) -> None:
        """Call on the engine's thread after run(), also if it failed. The caller persists the offsets.

        TroveError STORE_FAILED: the topic is deleted, but the store cannot continue.
        """
        self.topics.finish(work.change)
        if not work.change.saved:
            return
        topic = work.change.name
        assert work.physical_offset <= self._log.end, "records that are appended later are alive"
        assert self.topics.get(topic) is None, "the topic is not in the table any more"
        if work.by_record:
            self._deletions.follow(topic, work.physical_offset)
        self._deletions.set(topic, work.physical_offset)
        self._forget_topic(topic)

    def _forget_topic(self, topic: str) -> None:
        """Of a topic whose records are dead: removes its offsets and queues. TroveError STORE_FAILED."""
        self.offsets.delete_topic(topic)
        self._unoffered_ends = None
        for key in [key for key in self._next_offsets if key[0] == topic]:
            del self._next_offsets[key]
        try:
            self.consume_queues.delete_topic(topic)
        except StorageError as error:
            self.mark_failed()  # a file that stays would be in the way of a new topic of that name
            raise TroveError(errors.STORE_FAILED, f"files of {topic} cannot be removed: {error}") from error

    def _synced_queue_end(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """The highest consumer offset of a queue that may be stored: a power cut loses no message below
        it."""
        queue = self.consume_queues.get(topic, queue_id)
        if queue is None:
            return OFFSET_MAX
        if self.visible_offset <= self._log.flushed_offset:
            return queue.max_offset
        return queue.lower_bound(self._log.flushed_offset)

    # --- retention ----------------------------------------------------------------------------------
    def removals_held(self) -> bool:
        """Whether files of the store are being copied or read: none is then removed for its age or to free
        the disk."""
        return self.removal_holds > 0

    def closed_segments(self) -> list[Segment]:
        """Segments that may be removed, oldest first: nothing is written to them any more, their records are
        on disk in the log and the consume queues, and a restart reads nothing of them. Never the last one."""
        end = min(self.marked_offset, self.flushed_offset, self.visible_offset)
        return [segment for segment in list(self._log.segments)[:-1] if segment.end <= end]

    def trim(self, physical_offset: PhysicalOffset) -> StoreTrim:
        """The removal of everything before physical_offset, the end of one of closed_segments(). Nothing is
        removed before the steps of StoreTrim are called."""
        assert physical_offset > self.min_offset, "the log begins later afterwards"
        assert any(segment.end == physical_offset for segment in self.closed_segments()), (
            "a restart reads nothing of the segments"
        )
        return StoreTrim(self.files, self._log, self.consume_queues, self.key_index, physical_offset)

    # --- stop ---------------------------------------------------------------------------------------
    def close(self, now_ms: EpochMs) -> None:
        """Clean shutdown: everything flushed, marks written, `abort` removed, lock released.

        After a failure nothing is marked clean: the next start recovers.
        """
        try:
            if not self.failed:
                self._names.now_ms = max(now_ms, self.last_store_timestamp)
                self._flush_all()
        finally:
            self._release(stopped=True)

    def _flush_all(self) -> None:
        self.flush()
        if self.key_index is not None:
            self.key_index.files_by_work = False
        self._dispatcher.index_at_stop()
        self.flush_projections(index=True)
        if self.tables is None:
            if self.offsets.log_needed <= self.lasting_offset:  # else a later leader may cut a record
                self.offsets.persist()
            self.topics.write_file()
        else:
            self.tables.write_now()
        if self._dispatcher.has_before(self._log.end):
            # A consume queue lacks records, or they are not committed: the store stays marked as crashed, and
            # the next start adds them.
            return
        fault_point("close.before_marks")
        end = self._log.end
        assert end == self.flushed_offset, "a clean stop has everything on disk"
        assert self.consume_queues.position <= end, "no queue is ahead of the log"
        runs = self.time_runs.saved(end)
        self._checkpoint.save(
            end,
            end,
            self._flushed_timestamp,
            self._queue_ends(end),
            runs,
            stopped=True,
            rest_is_zero=self._log.rest_is_zero,
        )
        fault_point("close.before_abort_removed")
        self.files.remove(ABORT_PATH)
        fault_point("close.after_abort_removed")
        self.files.sync_directory("")

    def _queue_ends(self, log_end: PhysicalOffset) -> QueueEnds:
        """The max offset of each queue, of its records below log_end, or of records that are on disk, too.
        May run beside appends in another thread."""
        queues = self.consume_queues
        ends = {
            topic: {queue.queue_id: queue.max_offset for queue in queues.queues(topic)}
            for topic in queues.topics()
        }
        # The log's end is read after the queues': messages may have come meanwhile.
        if self.settings.flush_mode == "sync" or self._log.end <= log_end:
            return ends
        with closing(OpenFiles(self.files, _QUEUE_ENDS_OPEN_FILES)) as open_files:
            return {
                topic: {
                    queue.queue_id: queue.end_below(log_end, open_files) for queue in queues.queues(topic)
                }
                for topic in queues.topics()
            }

    def _release(self, *, stopped: bool) -> None:
        with ExitStack() as always:
            always.callback(self.files.unlock, LOCK_PATH)
            always.callback(self._log.close)
            always.callback(self.consume_queues.close)
            if self.trees is not None:
                always.callback(self.trees.close)
            if self.key_index is not None:
                always.callback(self.key_index.close if stopped else self.key_index.close_files)
