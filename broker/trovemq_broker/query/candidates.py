"""Reads the records that an index or a scan has found, and takes those that answer the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from trovemq_broker.query.located import fields_of, queue_offset_of
from trovemq_broker.query.pages import Work
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.check import RecordState, crc_matches
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import UnreadableError

NOTES_MAX: Final = 8
WORK_OF_CANDIDATE: Final = 30
"""Units of work (about a microsecond each) of a record that is read. No benchmark has a case for it."""
_PROPERTY_BYTES_OF_WORK: Final = 12
_BODY_BYTES_OF_WORK: Final = 2_048
"""Bytes of properties and of a body whose test is one unit of work."""


class TimedQuery(Protocol):
    @property
    def has_times(self) -> bool:
        """Whether the query has a limit of time."""
        ...

    def in_time(self, timestamp: EpochMs) -> bool: ...


@dataclass(slots=True)
class ResultPage:
    """The records of a page, in the order of the answer. `notes` lists omitted records, with the reason.

    Work is counted by candidates and by their bytes that are read, so that messages with many properties or
    large bodies make smaller pages, not longer ones.
    """

    store: MessageStore
    query: TimedQuery
    answers: Callable[[memoryview, RecordFields], bool]
    """Whether a record answers the query."""
    messages_max: int
    work: Work = field(default_factory=Work)
    records: list[memoryview] = field(default_factory=list)
    queue_offsets: list[QueueOffset] = field(default_factory=list)
    physical_offsets: list[PhysicalOffset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    byte_count: int = 0

    def examine(self, physical_offset: PhysicalOffset) -> bool:
        """Takes the record if it answers the query. False if it answers and the page is full."""
        self.work.charge(WORK_OF_CANDIDATE)
        try:
            found = self._answer_at(physical_offset)
        except (UnreadableError, DamagedError):  # it cannot be read
            self._note_damage(physical_offset)
            return True
        if found is None:
            return True
        record, fields = found
        if self.records and self._is_full(len(record)):
            return False
        queues = self.store.consume_queues
        self.records.append(record)
        self.queue_offsets.append(QueueOffset(queue_offset_of(queues, record, fields, physical_offset)))
        self.physical_offsets.append(physical_offset)
        self.byte_count += len(record)
        return True

    def note(self, text: str) -> None:
        if len(self.notes) < NOTES_MAX and text not in self.notes:
            self.notes.append(text)

    def _is_full(self, size: int) -> bool:
        return (
            len(self.records) >= self.messages_max
            or self.byte_count + size > self.store.settings.query_page_bytes_max
        )

    def _answer_at(self, physical_offset: PhysicalOffset) -> tuple[memoryview, RecordFields] | None:
        store = self.store
        if self.query.has_times:
            timestamp = store.store_timestamp_at(physical_offset)
            if timestamp is not None and not self.query.in_time(timestamp):
                return None
        record = store.record_at(physical_offset, check=False)
        if record is None:
            if physical_offset >= store.min_offset and not self._is_well_formed(physical_offset):
                self._note_damage(physical_offset)
            return None  # it is well formed: its topic was deleted
        fields = fields_of(record)
        # The properties come first: if they do not match, the body need not be checked.
        self.work.charge(fields.property_size // _PROPERTY_BYTES_OF_WORK)
        if not self.answers(record, fields):
            return None
        self.work.charge(len(record) // _BODY_BYTES_OF_WORK)
        if not crc_matches(record, fields):
            store.damage.met(physical_offset, len(record), RecordState.DAMAGED.value)
            self._note_damage(physical_offset)
            return None
        return record, fields

    def _is_well_formed(self, physical_offset: PhysicalOffset) -> bool:
        size = int.from_bytes(self.store.read(physical_offset, 4), signed=True)
        record = self.store.read(physical_offset, max(0, size))
        return read_fields(record, 0, len(record)) is not None

    def _note_damage(self, physical_offset: PhysicalOffset) -> None:
        self.note(f"skipped at {physical_offset}: the record is damaged")
