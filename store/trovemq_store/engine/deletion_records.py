"""The deletions of topics that the log's records have: the member `deletedBelow` (topics/table_records.py).

A node that follows carries them out as their records become visible, and every start those that
`trovemq/deletions.json` lacks.

Invariants
- A deletion has effect before a batch with its record, or with a later one, is applied to a projection: a
  new topic of that name begins at queue offset 0, perhaps in the same batch.
- The file has a deletion before the queues are removed, if it can be written: then the next start does not
  take the queues for lost.
- Records above the commit limit delete nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueOffset
from trovemq_proto.records import decode_stored
from trovemq_proto.records.check import RecordState, check_record
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP, UNREADABLE_UNIT_SIZE, readable_units
from trovemq_store.files.files import FileSystem, UnreadableError
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.table_notes import NO_DELETIONS, TableNotes
from trovemq_store.topics.table_records import DELETED_BELOW, META_QUEUE_ID, META_TOPIC, decode_table_record
from trovemq_store.topics.topics import TopicTable


@dataclass(frozen=True, slots=True)
class Deletion:
    """The topic's records below that physical offset are dead. is_earlier: the record is of a topic that was
    recreated since."""

    topic: str
    below: PhysicalOffset
    is_earlier: bool


_MEMBER: Final = f'"{DELETED_BELOW}"'.encode()


class DeletionRecords:
    """Carries deletions out. forget_topic: removes the topic's queues and offsets."""

    def __init__(self, deletions: TopicDeletions, forget_topic: Callable[[str], None]) -> None:
        self._deletions = deletions
        self._forget_topic = forget_topic

    def carry_out(self, run: DispatchBatch) -> None:
        """Makes the deletions of the run, which is applied next. TroveError STORE_NEWER; the errors of
        forget_topic."""
        for one in deletions_in(run):
            if one.below > self._deletions.deleted_below(one.topic):
                self._deletions.follow(one.topic, one.below)
                if not one.is_earlier:  # else the dead records are removed from the log, like the deletion's
                    self._forget_topic(one.topic)


def deletions_in(run: DispatchBatch) -> Iterator[Deletion]:
    """The deletions of the run's records. TroveError STORE_NEWER."""
    if run.records.only_topic not in (None, META_TOPIC):
        return
    for topic, indexes in run.records.topic_groups():
        if topic == META_TOPIC:
            for index in indexes.tolist():
                yield from _deletion_of(run.records.record(index), run.offset_of(index))


def read_deletions(
    files: FileSystem, log: CommitLog, queues: ConsumeQueues, deletions: TopicDeletions
) -> bool:
    """Makes the deletions of the records that have a unit, as far as their file may lack them. Whether queues
    have units of records that are dead by that. TroveError STORE_NEWER, STORE_FAILED."""
    queue = queues.get(META_TOPIC, META_QUEUE_ID)
    if queue is None or not queue.has_units:
        return False
    note = TableNotes.load(files).get(NO_DELETIONS if deletions.is_missing else TopicTable.NOUN)
    offset, has_dead = queue.lower_bound(LOG_ORIGIN if note is None else note.base_end), False
    while offset < queue.max_offset:
        units = readable_units(queue, offset, UNITS_STEP)
        offset = QueueOffset(offset + len(units))
        for place, size in zip(units["physical_offset"].tolist(), units["size"].tolist(), strict=True):
            if size in (BLANK_UNIT_SIZE, UNREADABLE_UNIT_SIZE):
                continue
            for found in _deletion_at(log, PhysicalOffset(place), size):
                if found.below > deletions.deleted_below(found.topic):
                    deletions.follow_unsaved(found.topic, found.below)
                    has_dead |= any(
                        one.has_units and one.physical_before(one.min_offset) < found.below
                        for one in queues.queues(found.topic)
                    )
    return has_dead


def _deletion_at(log: CommitLog, place: PhysicalOffset, size: int) -> Iterator[Deletion]:
    try:
        record = log.read(place, size)
    except UnreadableError:
        return
    if check_record(record, 0, len(record), physical_offset=place)[0] is RecordState.RECORD:
        yield from _deletion_of(record, place)


def _deletion_of(record: memoryview, place: PhysicalOffset) -> Iterator[Deletion]:
    if _MEMBER not in bytes(record):
        return
    try:
        change = decode_table_record(decode_stored(record).body)
    except (ValueError, DamagedError):
        return  # of no form that a broker writes
    if change.kind == TopicTable.NOUN and change.deleted_below is not None:
        yield Deletion(change.name, min(change.deleted_below, place), change.value is not None)
