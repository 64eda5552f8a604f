"""Delayed messages of producers: each is stored once, and has a recall handle."""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.produce.unique_appends import append_once
from trovemq_broker.timers.recall_handle import RecallHandle, decode_recall_handle, encode_recall_handle
from trovemq_broker.timers.timers import Timers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import PROPERTY_UNIQ_KEY
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.failures import storage_errors


class Scheduled(NamedTuple):
    """A stored message. `recall_handle`: "" if it is not delayed."""

    result: AppendResult
    recall_handle: str


class Scheduling:
    """Schedules and recalls messages. `broker`: the name in recall handles."""

    def __init__(self, timers: Timers, deduplication: Deduplication, broker: str) -> None:
        self._timers = timers
        self._deduplication = deduplication
        self._broker = broker

    def schedule(self, record: NewRecord, deliver_ms: EpochMs, now_ms: EpochMs) -> Scheduled:
        """Stores the record, which has a unique key, to be delivered at deliver_ms (epoch ms); in its queue
        if that time has come. TroveError DELIVERY_TIME_ILLEGAL, LIMIT_EXCEEDED, and the errors of
        append_once."""
        result = append_once(
            self._deduplication,
            record,
            now_ms,
            lambda: self._timers.schedule(record, deliver_ms, now_ms),
        )
        due_ms = deliver_ms if deliver_ms > now_ms else None
        if due_ms is not None and result.duplicates:
            due_ms = self._due_ms_of_original(result)
        if due_ms is None:
            return Scheduled(result, "")
        unique_key = record.properties[PROPERTY_UNIQ_KEY]
        return Scheduled(result, encode_recall_handle(record.topic, self._broker, due_ms, unique_key))

    def _due_ms_of_original(self, result: AppendResult) -> EpochMs | None:
        """The delivery time of the original of a duplicate, because only the original can be recalled. None
        if it was not delayed."""
        with storage_errors("the original cannot be read", errors.UNKNOWN_ERROR):
            return self._timers.due_ms_at(result.physical_offset)

    def read_handle(self, topic: str, recall_handle: str) -> RecallHandle:
        """The handle of a message of this topic. Raises TroveError RECALL_HANDLE_ILLEGAL."""
        handle = decode_recall_handle(recall_handle)
        if handle.topic != topic:
            raise TroveError(errors.RECALL_HANDLE_ILLEGAL, "the recall handle is of another topic")
        if handle.broker != self._broker:
            raise TroveError(
                errors.RECALL_HANDLE_ILLEGAL,
                f"the recall handle is of broker {handle.broker}, and this is {self._broker}: recall the"
                " message there",
                broker=handle.broker,
            )
        return handle

    def recall(self, handle: RecallHandle, now_ms: EpochMs) -> AppendResult | None:
        """Ends the message without a delivery. None if it was recalled before, else the result for the delete
        marker. TroveError RECALL_HANDLE_ILLEGAL, LIMIT_EXCEEDED; UNKNOWN_ERROR if the disk refused the
        append."""
        with storage_errors("the append failed", errors.UNKNOWN_ERROR):
            return self._timers.recall(handle.topic, handle.deliver_ms, handle.message_id, now_ms)
