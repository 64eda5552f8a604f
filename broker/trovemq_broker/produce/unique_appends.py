"""Stores a record that the broker writes itself, once for each unique key of its topic."""

from __future__ import annotations

from collections.abc import Callable

from trovemq_proto import errors
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import PROPERTY_UNIQ_KEY
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.failures import storage_errors


def append_once(
    deduplication: Deduplication, record: NewRecord, now_ms: EpochMs, write: Callable[[], AppendResult]
) -> AppendResult:
    """Calls write(), which stores the record, unless its topic has a message with its unique key.

    Returns:
        The result of write(), or the original of a duplicate.

    Raises:
        TroveError: UNKNOWN_ERROR if the disk refused the append; the errors of write().
    """
    unique_key = record.properties.get(PROPERTY_UNIQ_KEY, "")
    with storage_errors("the append failed", errors.UNKNOWN_ERROR):
        return deduplication.append_if_absent(record.topic, unique_key.encode(), now_ms, write)
