"""The part of a store that the index of unique ids needs: which topics are deduplicated, where their windows
begin, and where a record lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import HEADERS, RECORD_SIZE_MIN, host_bits
from trovemq_store.index.trees.unique_entries import Windows
from trovemq_store.index.trees.unique_ids import Known, MessagePosition
from trovemq_store.index.trees.unique_keys import WITHDRAWN, ids_of, is_withdrawal
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.time_windows import SinceOf
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.topics import TopicTable

_QUEUE_ID, _QUEUE_OFFSET, _STORE_MS = 3, 5, 10
"""Members of an unpacked header."""


class UniquePlaces:
    """begin_of_window: window in ms -> from which physical offset on records may be of it; since_of: the
    records of windows as of now."""

    def __init__(
        self,
        topics: TopicTable,
        deletions: TopicDeletions,
        log: CommitLog,
        begin_of_window: Callable[[int], PhysicalOffset],
        since_of: Callable[[], SinceOf],
    ) -> None:
        self._topics: Final = topics
        self._deletions: Final = deletions
        self._log: Final = log
        self._begin_of_window: Final = begin_of_window
        self.since_of: Final = since_of
        self._windows: Windows = {}
        self._version = -1

    def windows(self) -> Windows:
        """Deduplicated topics and their windows in ms."""
        if self._version != self._topics.data_version:
            self._version = self._topics.data_version
            found = {name: self._topics.options(name).deduplicate_ms for name in self._topics.names(True)}
            self._windows = {name: window_ms for name, window_ms in found.items() if window_ms}
        return self._windows

    def begin_of(self, topic: str, window_ms: int) -> PhysicalOffset:
        """From which physical offset on records of the topic may be of its window."""
        return max(self._begin_of_window(window_ms), self._deletions.deleted_below(topic))

    def known_at(self, physical_offset: PhysicalOffset) -> Known | None:
        """The place and the end of the record that lies there, synced or not; None if the log has none there
        (any more). StorageError if the disk does not return it."""
        record = self._record(physical_offset)
        fields = read_fields(record, 0, len(record)) if len(record) else None
        if fields is None:
            return None
        header = HEADERS[host_bits(fields.sys_flag)].unpack_from(record)
        queue_id = QueueId(WITHDRAWN if is_withdrawal(record, fields) else header[_QUEUE_ID])
        place = MessagePosition(physical_offset, queue_id, header[_QUEUE_OFFSET], header[_STORE_MS])
        return Known(place, PhysicalOffset(physical_offset + len(record)))

    def id_at(self, physical_offset: PhysicalOffset) -> bytes | None:
        """The unique key of the record that lies there, synced or not; empty if it has none. None if the log
        has no record there (any more). StorageError if the disk does not return it."""
        record = self._record(physical_offset)
        if not len(record) or read_fields(record, 0, len(record)) is None:
            return None
        return ids_of(RecordBatch.split(record))[0]

    def _record(self, physical_offset: PhysicalOffset) -> memoryview:
        size = int.from_bytes(self._log.read(physical_offset, 4), "big")
        return self._log.read(physical_offset, size) if size >= RECORD_SIZE_MIN else memoryview(b"")
