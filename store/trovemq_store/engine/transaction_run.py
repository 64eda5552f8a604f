"""The records of one atomic transaction, as they will lie in the log: one run in one segment.

Records are added while the transaction is open; each gets its properties (trovemq_proto.records.run_mark)
then, so that little is left to do at the commit. Nothing here is in the log before append_to().

Invariants
- Records keep the order in which they were added, over all topics and queues; their numbers are that order.
- An add() that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import BORN_HOST_AT, SYS_FLAG_BORN_HOST_IPV6
from trovemq_proto.records.patch import host_size
from trovemq_proto.records.run_mark import (
    check_transaction_id,
    mark_block,
    seal_marks,
    seal_of,
    with_mark,
)
from trovemq_store.engine.append_result import AppendResult, Seal

MESSAGES_MAX: Final = 4_096
"""The most messages of one transaction."""
RUN_SEGMENT_SHARE: Final = 4

QueueKey = tuple[str, QueueId]


def run_size_max(commit_log_file_size: int) -> int:
    """Bytes of the largest transaction in the log: a quarter of a segment."""
    return commit_log_file_size // RUN_SEGMENT_SHARE


class _Log(Protocol):
    def append(
        self, batch: RecordBatch, parts: Sequence[tuple[str, int, int]], now_ms: EpochMs, *, seal: Seal
    ) -> list[AppendResult]:
        """Appends the parts (topic, queue id, number of records) of a batch under the seal of its run.
        TroveError: nothing was appended."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The place of a transaction: [physical_offset, end); the log must be synced up to `end`."""

    physical_offset: PhysicalOffset
    end: PhysicalOffset
    store_timestamp: EpochMs
    store_host: bytes
    first_queue_offsets: Mapping[QueueKey, QueueOffset]


class TransactionRun:
    """The records and events of one transaction. A run is appended once."""

    def __init__(self, transaction_id: str, size_max: int) -> None:
        self.transaction_id: Final = check_transaction_id(transaction_id)
        self.data = bytearray()
        self._size_max = size_max
        self._sizes: list[int] = []
        self._parts: list[tuple[str, QueueId, int]] = []
        self._mark_ends: list[int] = []
        self._indexes: dict[QueueKey, list[int]] = {}
        self._born_hosts: dict[QueueKey, bytes | None] = {}
        self.message_count = 0

    def __len__(self) -> int:
        """The number of records, including the broker's own."""
        return len(self._sizes)

    @property
    def queues(self) -> list[QueueKey]:
        """(topic, queue id) of all records, in the order of first appearance."""
        return list(self._indexes)

    def add(self, batch: RecordBatch, topic: str, queue_id: QueueId, born_host: bytes | None = None) -> None:
        """Adds messages: a validated batch (validate_batch's result) of that topic and queue.

        TroveError TRANSACTION_SIZE_EXCEEDED, PROPERTIES_SIZE_EXCEEDED.
        """
        count = self.message_count + len(batch)
        if count > MESSAGES_MAX:
            text = f"the transaction would have {count} messages, the limit is {MESSAGES_MAX}"
            raise TroveError(errors.TRANSACTION_SIZE_EXCEEDED, text, message_count_max=MESSAGES_MAX)
        self._add(batch, topic, queue_id, born_host)
        self.message_count = count

    def add_own(self, record: bytes, topic: str, queue_id: QueueId) -> None:
        """Adds a record of the broker's own, which comes after the messages."""
        self._add(RecordBatch.split(record, topic=topic), topic, queue_id, None)

    def _add(self, batch: RecordBatch, topic: str, queue_id: QueueId, born_host: bytes | None) -> None:
        records: list[bytes] = []
        ends: list[int] = []
        born_host = self._born_hosts.get((topic, queue_id), born_host)
        at, number = len(self.data), len(self._sizes)
        view = batch.data
        for index in range(len(batch)):
            block = mark_block(self.transaction_id, number + index)
            row = batch.row(index)
            record, end = with_mark(view, row, block)
            if born_host is not None and len(born_host) == host_size(row.sys_flag, SYS_FLAG_BORN_HOST_IPV6):
                record = record[:BORN_HOST_AT] + born_host + record[BORN_HOST_AT + len(born_host) :]
            records.append(record)
            ends.append(at + end)
            at += len(record)
        if at > self._size_max:
            text = f"the transaction would have {at} bytes in the log, the limit is {self._size_max}"
            raise TroveError(errors.TRANSACTION_SIZE_EXCEEDED, text, size_max=self._size_max)
        self.data += b"".join(records)
        self._sizes += map(len, records)
        assert len(self.data) == at, "every record is in the run, with its mark"
        self._mark_ends += ends
        assert len(self._mark_ends) == len(self._sizes), "every record has one mark"
        self._indexes.setdefault((topic, queue_id), []).extend(range(number, number + len(batch)))
        self._born_hosts[topic, queue_id] = born_host
        self._parts.append((topic, queue_id, len(batch)))

    def part(self, queue: QueueKey) -> RecordBatch:
        """The records of one topic and queue, over the run's bytes."""
        positions, sizes = self._places()
        indexes = np.array(self._indexes[queue], np.int64)
        return RecordBatch(memoryview(self.data), positions[indexes], sizes[indexes], queue[0])

    def indexes(self, queue: QueueKey) -> list[int]:
        """The numbers of the records of one topic and queue."""
        return self._indexes[queue]

    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        sizes = np.array(self._sizes, np.int64)
        return np.cumsum(sizes) - sizes, sizes

    def append_to(self, store: _Log, now_ms: EpochMs) -> RunResult:
        """Appends the run, with its marks and seals, in one write of the log. TroveError
        BATCH_ILLEGAL, BATCH_SIZE_EXCEEDED, DISK_FULL, CREATE_MAPPED_FILE_FAILED, OS_PAGE_CACHE_BUSY,
        STORE_FAILED, UNKNOWN_ERROR; then nothing was written."""
        assert len(self) > 0, "a run has records"
        batch = RecordBatch(memoryview(self.data), *self._places())
        results = store.append(batch, self._parts, now_ms, seal=self._seal)
        firsts: dict[QueueKey, QueueOffset] = {}
        for (topic, queue_id, _), result in zip(self._parts, results, strict=True):
            firsts.setdefault((topic, queue_id), result.first_queue_offset)
        assert firsts.keys() == self._indexes.keys(), "each queue of the run has its first offset"
        first, last = results[0], results[-1]
        return RunResult(first.physical_offset, last.end, first.store_timestamp, first.store_host, firsts)

    def _seal(self, data: memoryview, physical_offset: PhysicalOffset) -> int:
        seal_marks(data, np.array(self._mark_ends, np.int64), len(self), physical_offset)
        return seal_of(physical_offset)
