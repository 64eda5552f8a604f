"""The counters of retention, and its log lines for pending messages that are removed to free the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.state.held_log import (
    NOTHING_HELD,
    HeldLog,
)
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import decode_stored, encode_offset_msg_id
from trovemq_proto.records.layout import PROPERTY_REAL_TOPIC, PROPERTY_UNIQ_KEY
from trovemq_store.engine.message_store import MessageStore

DROPPED_LINES_MAX: Final = 100
"""The most log lines of one run for dropped messages; the others are only counted."""


@dataclass(slots=True)
class RetentionCounters:
    """Counters since the start; from disk_used_percent on, present values. Dropped: pending messages that
    were removed to free the disk."""

    removed_segments: int = 0
    removed_bytes: int = 0
    forced_segments: int = 0
    carried_messages: int = 0
    dropped_messages: int = 0
    dropped_unacknowledged: int = 0
    """Unacknowledged messages of topics that keep them, which were removed to free the disk."""
    failures: int = 0
    disk_used_percent: float = 0.0
    disk_full: bool = False
    disk_filling: bool = False
    held: HeldLog = NOTHING_HELD
    """The queues and groups that hold the log, as the last run found them."""
    held_bytes: int = 0
    """Bytes from the first held message to the end of the log."""


def report_unacknowledged(
    store: MessageStore, counters: RetentionCounters, held: HeldLog, end: PhysicalOffset
) -> None:
    """Logs the messages that the full disk forces out of topics that are kept until they are
    acknowledged."""
    for one, count in held.count_before(store, end).items():
        counters.dropped_unacknowledged += count
        get_logger().warning(
            "retention.dropped_unacknowledged",
            topic=one.topic,
            queue_id=one.queue_id,
            group=one.group,
            messages=count,
        )


def report_dropped(
    store: MessageStore,
    counters: RetentionCounters,
    outstanding: Sequence[PhysicalOffset],
    end: PhysicalOffset,
) -> None:
    """Counts and logs the pending messages at these offsets, which are removed to free the disk; the log
    begins at `end` from now on."""
    counters.dropped_messages += len(outstanding)
    for physical_offset in outstanding[:DROPPED_LINES_MAX]:
        topic, message_id, unique_key = _identify(store, physical_offset)
        get_logger().warning(
            "retention.dropped", topic=topic, offset_msg_id=message_id, unique_key=unique_key
        )
    if outstanding:
        get_logger().warning("retention.dropped_in_all", messages=len(outstanding), log_begins=end)


def _identify(store: MessageStore, physical_offset: PhysicalOffset) -> tuple[str, str, str]:
    """(topic, offsetMsgId, unique key) of the record at that offset, as far as they can be read."""
    try:
        record = store.record_at(physical_offset, check=False)
        message = decode_stored(record or b"")
    except TroveError:
        return "", f"at {physical_offset}", ""
    return (
        message.properties.get(PROPERTY_REAL_TOPIC, message.topic),
        encode_offset_msg_id(message.packed_store_host, physical_offset),
        message.properties.get(PROPERTY_UNIQ_KEY, ""),
    )
