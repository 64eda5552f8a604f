"""The search in a live store: by place, by key index, or by reading its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch, RecordState, decode_offset_msg_id, scan_run
from trovemq_spark.log.scan import ScanBounds, unfinished_from
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.search.pieces import SegmentPiece, answers
from trovemq_spark.search.question import Question, damage_row
from trovemq_spark.search.store_index import Candidates, candidates
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.index.consume_queue import ROOT_DIRECTORY as QUEUES_DIRECTORY
from trovemq_store.log.segments import Segment

_ALL: Final = 1 << 63
_RECORDS_AT_ONCE: Final = 256


@dataclass
class StorePart:
    """A store, or a directory of segments. open() examines it. Then `direct` gives the rows that are found
    without much work, and `pieces` must be read to the end."""

    log: LogDirectory
    question: Question
    deleted_below: Mapping[str, int] = field(default_factory=dict)
    found: Candidates | None = None
    notes: list[str] = field(default_factory=list)
    has_topic: bool = True
    """False if it is known that the requested topic has no consume queues."""
    _segments: dict[int, Segment] = field(default_factory=dict)

    @classmethod
    def open(cls, store: str, question: Question, *, use_index: bool = True) -> StorePart:
        """Raises TroveError STORE_FAILED if there is no log."""
        log = LogDirectory.open(store)
        deletions = open_deletions(store)
        part = cls(log, question, {} if deletions is None else deletions.entries())
        if use_index and question.index_key and deletions is not None:
            part._ask_index(store)
        if question.topic and deletions is not None:
            topics = _topics(ReadOnlyFileSystem(store))
            part.has_topic = not topics or question.topic in topics
        for gap in log.gaps:
            part.notes.append(f"the log has no segments for [{gap.begin}, {gap.end})")
        return part

    @property
    def complete(self) -> bool:
        return not self.log.gaps

    def _ask_index(self, store: str) -> None:
        files = ReadOnlyFileSystem(store)
        topics = [self.question.topic] if self.question.topic else _topics(files)
        if topics:
            self.found = candidates(files, topics, self.question.index_key, self.log.begin)

    # --- without reading everything ---

    def direct(self) -> Iterator[pa.RecordBatch]:
        """The rows at the places that the conditions, or the index, name."""
        offsets = self._places()
        for begin in range(0, len(offsets), _RECORDS_AT_ONCE):
            yield from self._at(offsets[begin : begin + _RECORDS_AT_ONCE])

    def _places(self) -> list[int]:
        if self.question.offset_msg_id:
            try:
                return [decode_offset_msg_id(self.question.offset_msg_id)[1]]
            except TroveError:
                return []  # not an offsetMsgId: no row has it
        return [] if self.found is None else self.found.physical_offsets

    def _at(self, physical_offsets: list[int]) -> Iterator[pa.RecordBatch]:
        parts: list[memoryview] = []
        for physical_offset in physical_offsets:
            record, state = self._record(physical_offset)
            if record is not None:
                parts.append(record)
            elif state in {RecordState.DAMAGED, RecordState.UNREADABLE}:
                yield damage_row(physical_offset, f"the record is {state.value}")
        if parts:
            records = RecordBatch.split(b"".join(parts))
            yield from answers(records, self.question, deleted_below=self.deleted_below)

    def _record(self, physical_offset: int) -> tuple[memoryview | None, RecordState]:
        """The record there, or the state of the bytes (ZEROS if there is no segment)."""
        for file in self.log.covering(physical_offset, physical_offset + 1):
            if file.start not in self._segments:
                self._segments[file.start] = self.log.open_segment(file)
            segment = self._segments[file.start]
            records, _, state = scan_run(
                segment.file.view(),
                physical_offset - file.start,
                segment.file.size,
                physical_offset_of_data=file.start,
                check_crc=True,
                bytes_max=1,
            )
            is_last = file == self.log.segments[-1]
            bounds = ScanBounds(file.start, file.end, self.log.known_end, is_last=is_last)
            if unfinished_from(segment, bounds, records) is not None:
                return None, RecordState.ZEROS
            return (records.record(0) if len(records) else None), state
        return None, RecordState.ZEROS

    # --- reading ---

    def pieces(self) -> list[SegmentPiece]:
        """The pieces to read to the end."""
        if self.question.offset_msg_id:
            return []
        ranges = [(0, _ALL)]
        if self.found is not None:
            ranges = [(0, self.found.begin), (self.found.end, _ALL)]
        return [
            SegmentPiece(self.log, file, max(begin, file.start), min(end, file.end), self.deleted_below)
            for begin, end in ranges
            for file in self.log.covering(begin, end)
        ]


def _topics(files: ReadOnlyFileSystem) -> list[str]:
    """Every topic that has messages, which are those with consume queues. No topics at all means that nothing
    is known."""
    try:
        return files.list(QUEUES_DIRECTORY)
    except StorageError:
        return []
