"""Named moments between two effects of the engine, at which a test may stop it, fail it or hold it.

A fault point costs a call and a comparison. It is on the path of batches, never of single messages. In a
daemon it does nothing: no setting and no request arms it, only `armed()` in a test's own process.

A test may raise at a point only an error that can really happen there:
- where files are handled, a StorageError, as the call next to the point would raise;
- at `before_` points of topics, groups, offsets, deletions, events, timers, transactions and delivery, the
  TroveError of an append or a save that was refused;
- in backups and restores, which work on directories, an OSError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

Action = Callable[[str], None]

POINTS: Final[Mapping[str, str]] = {
    "log.before_write": "a record run or a blank has its place; nothing of it is written",
    "log.after_write": "it is written; the log's end does not cover it yet",
    "segments.before_make": "the next segment's file is not created yet",
    "segments.after_make": "it is whole and on disk under a temporary name",
    "segments.before_rename": "before it gets its place in commitlog/",
    "segments.after_rename": "it has its place and is not open yet",
    "segments.before_drop": "recovery: before a segment after the log's end is removed",
    "spare.before_make": "in the thread: the spare segment is about to be created",
    "spare.after_make": "in the thread: it is created, and the log does not know of it",
    "flush.before_names": "in the thread: before the names of new segments are synced",
    "flush.before_sync": "in the thread: before a segment is synced",
    "flush.after_sync": "in the thread: all is on disk, and nothing is acknowledged",
    "flush.before_finish": "the sync is over; flushed_offset has not moved",
    "flush.before_dispatch": "flushed_offset has moved; nothing is visible yet",
    "queues.before_write": "before units go into a file of a consume queue",
    "queues.after_write": "they are there; the queue's end does not cover them",
    "queues.after_create": "a new file of a queue is there, and empty",
    "queues.after_run": "one queue has the batch's units; the others of the batch have not",
    "queues.before_showing": "all queues have the batch's units; those of a transaction are not visible",
    "queues.before_sync": "in the thread: before the consume queues' files are synced",
    "queues.after_sync": "in the thread: they are on disk; synced_position has not moved",
    "queues.before_cut": "recovery: before the bytes after a queue's end are zeroed",
    "queues.after_cut": "recovery: it is zero",
    "queues.before_delete": "before a file of a deleted topic's queue is removed",
    "queues.after_delete": "a queue's files are gone, its directory is not",
    "projections.before_file": "in the thread: before one dirty file is synced",
    "projections.before_directory": "in the thread: before one directory is synced",
    "projections.after_queues": "the consume queues are on disk; index and marks are not",
    "index.before_put": "before a batch's entries go into an index file",
    "index.after_items": "items are written; no slot leads to them",
    "index.before_header": "slots lead to the new items; the header does not count them",
    "index.after_put": "the entries are in; the index's position has not moved",
    "index.before_rename": "a new index file is whole, under a temporary name",
    "index.after_rename": "it has its name; it is not open yet",
    "index.after_continuing": "its header continues from the file before; it is not listed yet",
    "index.before_slots_again": "an index file was cut; its slots still lead to removed items",
    "index.after_slots_again": "slots are rebuilt; the header still counts removed items",
    "index.before_sync": "in the thread: before the index files are synced",
    "index.after_sync": "in the thread: they are on disk; synced_position has not moved",
    "index.before_note": "before trovemq/key-index.json is replaced",
    "state.before_save": "everything is on disk; trovemq/state.json still names the positions before",
    "state.after_save": "state.json is new, the checkpoint is old",
    "checkpoint.after_save": "both are new; retention may not rely on them yet",
    "close.before_marks": "clean stop: all is on disk, and nothing says so",
    "close.before_abort_removed": "clean stop: the marks say so, and abort is still there",
    "close.after_abort_removed": "clean stop: abort is gone, its directory is not synced",
    "recovery.after_log": "the segments are open; no projection is",
    "recovery.after_projections": "projections are cut to the trusted position",
    "recovery.after_scan": "the log was read to its end; nothing after it is cut",
    "recovery.before_zero": "before bytes after the log's end are zeroed",
    "recovery.after_zero": "they are zero, and that is not on disk",
    "recovery.after_cut": "the bytes after the end are zeroed",
    "recovery.before_sync": "before the scanned records are synced",
    "recovery.after_settle": "it is on disk",
    "recovery.before_forgetting": "queues are not whole; they are still named in state.json",
    "recovery.before_rebuild": "state.json has forgotten the queues; their units are still there",
    "recovery.before_open_mark": "before abort is written",
    "recovery.after_open_mark": "abort is there",
    "open.before_names": "the store is recovered; its directory is not synced",
    "open.before_flush": "before the marks of the recovered store are saved",
    "trim.measured": "in the thread: the files to remove are chosen, and nothing has changed",
    "trim.detached": "in the thread: the records are detached; their files exist and are open",
    "trim.before_removal": "in the thread: before one file is removed",
    "trim.after_removal": "in the thread: it is gone, its directory is not synced",
    "json.before_backup": "before the second copy of a small file is replaced",
    "json.before_content": "the second copy is new, the first is old",
    "json.after_content": "both are new; the caller does not know yet",
    "topics.before_save": "a topic's change is decided; its file is old",
    "topics.after_save": "the file is new; the table is old",
    "groups.before_save": "a group's change is decided; its file is old",
    "groups.after_save": "the file is new; the table is old",
    "tables.before_append": "a change of topics or groups is decided; its records are not appended",
    "tables.after_append": "they are in the log; the table is old",
    "tables.before_import": "a start has read a table's file, and not its records",
    "tables.after_again": "entries are appended again; their older records are still there",
    "tables.before_note": "files of tables are captured; trovemq/tables.json does not name the new contents",
    "tables.before_files": "it names old and new contents; the files are old",
    "tables.after_files": "the files are new",
    "tables.after_note": "the notes name the new contents alone; the tables still count as changed",
    "offsets.before_save": "consumer offsets are captured and not written",
    "offsets.after_save": "they are written; they still count as changed",
    "deletions.before_save": "a deletion is decided; its file is old",
    "deletions.after_save": "the file is new; the topic is still in config/topics.json",
    "deletions.before_topic": "the records are dead; the topic is not gone",
    "deduplication.after_append": "a message is in the log; its id and its number are not remembered",
    "atomic.before_append": "a transaction is checked and whole in memory; nothing of it is appended",
    "atomic.after_append": "its run is in the log; no id and no acknowledgement of it is remembered",
    "atomic.after_commit": "all is remembered; the run is not synced, and not acknowledged",
    "trees.before_aside": "the start does not trust the trees; their file is still in its place",
    "trees.after_aside": "it is quarantined; there is no new one",
    "trees.before_window": "in the thread: the windows of producers continue; nothing is committed",
    "trees.before_commit": "in the thread: a step's entries are sorted; none of them is in the trees",
    "trees.after_commit": "in the thread: they are on disk with the step's end; finish() was not called",
    "trees.after_rows": "the step's rows and producers count; ids and numbers are still in memory too",
    "events.before_append": "events are pending; their record is not appended",
    "events.after_append": "they are in the log, and still pending",
    "snapshot.before_save": "the consumers' state is captured; the file is old",
    "snapshot.after_save": "the file is new; retention may not rely on it yet",
    "timers.before_wheel": "before a delayed message goes into the wheel's queue",
    "timers.before_append": "timers are due; their copies are not appended",
    "timers.after_append": "the copies of one queue are in the log; no timer has ended",
    "timers.after_step": "all copies of a step are there; no event says that the timers ended",
    "timers.before_files": "export: RocketMQ's timer files are old",
    "timers.after_check": "export: timercheck says that everything is to be read again",
    "timers.after_clearing": "export: wheel and log are empty",
    "timers.after_log": "export: the log is new, the wheel is missing",
    "timers.after_wheel": "export: both are new; timercheck is not",
    "transactions.before_half": "a half message is not appended",
    "transactions.after_half": "it is in the log; no transaction is open",
    "transactions.before_commit": "a transaction is to be committed; its message is not appended",
    "transactions.after_commit": "its message is in the log; the transaction is still open",
    "transactions.before_op": "a transaction has ended; no op record says so",
    "transactions.after_op": "the op record is in the log; it still counts as missing",
    "transactions.before_giving_up": "the last check went unanswered; the copy is not appended",
    "transactions.before_carry": "retention: before an open half message is appended again",
    "transactions.after_carry": "it is there twice; the old one counts",
    "delivery.before_dead_letter": "before a message is copied to its dead-letter topic",
    "delivery.after_dead_letter": "the copy is there; the message still counts as in flight",
    "delivery.before_retry": "export: before messages in flight are appended as retries",
    "delivery.after_retry": "export: they are appended, and in flight as well",
    "delivery.before_order_info": "export: before consumerOrderInfo.json is replaced",
    "delivery.after_order_info": "export: it is new",
    "own_offsets.before_offset": "conversion: a queue's messages in flight are copied; its offset is old",
    "own_offsets.after_offsets": "conversion: all offsets are new; no record has them",
    "own_offsets.after_save": "conversion: the log has them; the deliveries are not forgotten",
    "own_offsets.after_forgetting": "conversion: they are; the group's kind of client is the old one",
    "delivery.before_carry": "retention: before messages in flight are appended again",
    "export_to_rocketmq.after_deliveries": "nothing is in flight any more; its retries are not on disk",
    "export_to_rocketmq.after_timers": "RocketMQ's timer files are whole",
    "export_to_rocketmq.after_transactions": "the positions of the transaction topics are stored in memory",
    "export_to_rocketmq.before_snapshot": "all is exported; the snapshot does not say so",
    "replica.before_save": "a node's promise, epochs or cut are decided; trovemq/replica.json is old",
    "replica.after_save": "it is new and on disk; RocketMQ's file of the epochs is old",
    "replica.after_project": "both are new; the caller does not know yet",
    "truncation.before_keep": "the end of the log is to be cut; its bytes are not kept yet",
    "truncation.after_keep": "they are on disk in a file; replica.json does not name the cut",
    "truncation.before_state": "start: the cut is named; state.json still says that the log was longer",
    "truncation.after_drop": "start: the segments after the cut are removed; their directory is not synced",
    "truncation.after_zero": "start: the bytes after the cut are zero, on disk",
    "truncation.before_end": "start: all is cut; replica.json still names the cut",
    "repair.after_mark": "the store is marked as open; its state is old",
    "repair.before_removal": "its state says that nothing is indexed; all files are there",
    "repair.after_removal": "one file of a queue is gone",
    "repair.before_rebuild": "all projections are gone",
    "repair.before_run": "before a run of the log is applied to them",
    "repair.before_finish": "they are whole; the state does not say so",
    "repair.after_finish": "the state says so; the directory is not synced",
    "backup.begun": "the target's directory is there",
    "backup.after_capture": "the small files are copied, and the other files are chosen",
    "backup.after_segments": "the segments are copied",
    "backup.after_queues": "the queues are copied",
    "backup.before_manifest": "everything is copied and on disk; there is no manifest",
    "backup.before_rename": "the manifest is there under another name",
    "backup.after_rename": "it has its name; the directory is not synced",
    "restore.after_file": "one file is copied beside the store's place",
    "restore.before_check": "all files are copied; nothing is checked",
    "restore.before_rename": "everything is checked, and not yet in its place",
}
"""name -> its place: the effects before it, and those after it."""

_action: Action | None = None


def fault_point(name: str) -> None:
    """Does nothing unless a test armed the points."""
    if _action is not None:
        _action(name)


@contextmanager
def armed(action: Action) -> Iterator[None]:
    """For tests: calls `action` with the name of every point that is passed. One at a time."""
    global _action  # noqa: PLW0603
    assert _action is None, "the points are armed already"
    _action = action
    try:
        yield
        assert _action is action, "nothing else armed the points"
    finally:
        _action = None
