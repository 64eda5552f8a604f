"""Records that the broker writes itself: half and delayed messages, retries, dead letters, events.

They are appended like a client's messages, and lie in the log as RocketMQ would have written them. Nothing
here waits for a sync: a reply that promises durability waits for `AppendResult.end`.

Invariants
- Records of one call with the same topic and queue lie together, in the order given.
- A copy has the body (compressed, perhaps, with the system flag that says so), the born host and the
  properties as they lie in the log. Nothing of it is decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import (
    Message,
    RecordBatch,
    encode_properties,
    encode_record,
    pack_host,
)
from trovemq_proto.records.layout import (
    BLANK_SIZE,
    CRC_PROPERTY_SIZE,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_STORE_HOST_IPV6,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_proto.records.property_block import edited, terminated, without
from trovemq_store.engine.copy_failures import CopyFailures
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.log.sectors import check_properties

_NO_HOST: Final = bytes(8)
_HOST_FLAGS: Final = SYS_FLAG_BORN_HOST_IPV6 | SYS_FLAG_STORE_HOST_IPV6


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One message to be appended. `properties` are written as given, unchecked; `born_host` is packed (8 or
    20 bytes); `sys_flag` may say compressed or commit, the host bits are set by the writer. `block`: of a
    copy, the property block that is written; `properties` are its decoded form."""

    topic: str
    queue_id: QueueId
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    born_timestamp: EpochMs = EpochMs(0)
    born_host: bytes = _NO_HOST
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    block: bytes | None = None

    @classmethod
    def copy_of(cls, message: Message, topic: str, queue_id: QueueId) -> NewRecord:
        """The message under another topic and queue, everything else as it is stored; no transaction type."""
        properties = {name: value for name, value in message.properties.items() if name != PROPERTY_CRC}
        return cls(
            topic,
            queue_id,
            message.stored_body,
            properties,
            message.born_timestamp,
            message.packed_born_host,
            message.flag,
            message.sys_flag & ~(_HOST_FLAGS | SYS_FLAG_TRANSACTION_MASK),
            message.reconsume_times,
            block=without(message.property_block, (PROPERTY_CRC,)),
        )

    def with_properties(self, changes: Mapping[str, str | None]) -> NewRecord:
        """The record with these properties set; a value of None removes the property."""
        merged = {**self.properties, **changes}
        properties = {name: value for name, value in merged.items() if value is not None}
        block = None if self.block is None else edited(self.block, changes)
        return replace(self, properties=properties, block=block)

    def property_block(self) -> bytes:
        """As it is written, without the CRC. TroveError PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL."""
        return encode_properties(self.properties) if self.block is None else self.block


class RecordWriter:
    """Appends to one store. `appended` is called after every append, because the log needs a sync."""

    def __init__(self, store: MessageStore, appended: Callable[[], object]) -> None:
        self._store = store
        self._appended = appended
        self.copy_failures: Final = CopyFailures()
        self.store_host: Final = bytes(len(pack_host(store.settings.store_host)))
        """Zeros in the form of the store's host, which the append fills in."""

    def has_space(self, record: NewRecord) -> bool:
        """Whether the record has space for its properties, and for the CRC property if the store appends
        one."""
        size_max = PROPERTIES_SIZE_MAX - (
            CRC_PROPERTY_SIZE if self._store.settings.append_property_crc else 0
        )
        if record.block is not None:
            return len(terminated(record.block)) <= size_max
        return sum(len((name + value).encode()) + 2 for name, value in record.properties.items()) <= size_max

    def informed(self, record: NewRecord, changes: Mapping[str, str]) -> NewRecord:
        """The record with these properties if it has space for them, else the record itself: they are not
        needed."""
        longer = record.with_properties(changes)
        return longer if self.has_space(longer) else record

    def checked(self, record: NewRecord) -> NewRecord:
        """Returns the record if an append can take it, given space on the disk. TroveError: no append ever
        can."""
        encoded = self.encode(record)
        check_properties(RecordBatch.split(encoded, topic=record.topic))
        if len(encoded) > self._store.settings.commit_log_file_size - BLANK_SIZE:
            text = f"the copy of {len(encoded)} bytes does not fit into a segment"
            raise TroveError(errors.BATCH_SIZE_EXCEEDED, text)
        return record

    def append(
        self, records: Sequence[NewRecord], now_ms: EpochMs, *, internal: bool = True
    ) -> list[AppendResult]:
        """Appends the records; one result per record, in order. Consecutive records of one topic and queue
        are appended together. internal: False for a user's message, which is refused while the disk is full.

        TroveError BATCH_ILLEGAL, BATCH_SIZE_EXCEEDED, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
        OS_PAGE_CACHE_BUSY, STORE_FAILED, UNKNOWN_ERROR; the runs before the refused one are then in the log.
        """
        results: list[AppendResult] = []
        begin = 0
        while begin < len(records):
            first = records[begin]
            end = begin + 1
            while end < len(records) and (records[end].topic, records[end].queue_id) == (
                first.topic,
                first.queue_id,
            ):
                end += 1
            results += self._append_run(first.topic, first.queue_id, records[begin:end], now_ms, internal)
            begin = end
        return results

    def _append_run(
        self, topic: str, queue_id: QueueId, records: Sequence[NewRecord], now_ms: EpochMs, internal: bool
    ) -> list[AppendResult]:
        results: list[AppendResult] = []
        part = bytearray()
        count = 0
        size_max = min(self._store.settings.batch_size_max, self._store.settings.commit_log_file_size // 2)
        for record in records:
            encoded = self.encode(record)
            if part and len(part) + len(encoded) > size_max:
                results += self._append_part(topic, queue_id, part, count, now_ms, internal)
                part, count = bytearray(), 0
            part += encoded
            count += 1
        return results + self._append_part(topic, queue_id, part, count, now_ms, internal)

    def _append_part(
        self, topic: str, queue_id: QueueId, data: bytearray, count: int, now_ms: EpochMs, internal: bool
    ) -> list[AppendResult]:
        batch = RecordBatch.split(data, topic=topic)
        assert len(batch) == count, "each encoded record is one record"
        results = self._store.append(batch, [(topic, queue_id, 1)] * count, now_ms, internal=internal)
        assert len(results) == count, "each record is in the log: one result per record"
        self._appended()
        return results

    def append_batch(
        self, topic: str, queue_id: QueueId, batch: RecordBatch, now_ms: EpochMs
    ) -> AppendResult:
        """Appends encoded records of that topic and queue, which fill their buffer, in one write of the log.

        TroveError BATCH_ILLEGAL, BATCH_SIZE_EXCEEDED, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
        OS_PAGE_CACHE_BUSY, STORE_FAILED, UNKNOWN_ERROR; then nothing was written.
        """
        (result,) = self._store.append(batch, ((topic, queue_id, len(batch)),), now_ms, internal=True)
        self._appended()
        return result

    def encode(self, record: NewRecord) -> bytes:
        """The record's bytes; offsets, store time and CRC property are filled in by the append.

        The copy of a record that was stored without the CRC property, and has no space for it, is written
        without it.
        """
        block = record.property_block()
        has_space = len(terminated(block)) <= PROPERTIES_SIZE_MAX - CRC_PROPERTY_SIZE
        block = terminated(block) if has_space else block
        return encode_record(
            record.topic,
            record.body,
            queue_id=record.queue_id,
            properties=block,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_host=self.store_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
            append_property_crc=self._store.settings.append_property_crc and has_space,
        )
