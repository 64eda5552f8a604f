"""Records that cannot be copied: kept by their position, counted, and logged once each.

The broker copies records that it must keep or move (retention, retries, dead letters, delayed messages,
transactions). A record that cannot be copied must not hold up the others: it stays in place, and the caller
continues as if the record could not be read.

Invariants
- A temporary error (a full disk, a stopping broker) is never counted as a failure of the record.
- Memory is bounded: the latest KNOWN_MAX places, and at most KNOWN_MAX failures that are not logged yet.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_SIZE_MIN

KNOWN_MAX: Final = 4_096
"""The most places, and the most failures that are not logged yet, in memory."""
OF_THE_RECORD: Final = (
    errors.RECORD_DAMAGED,
    errors.BATCH_ILLEGAL,
    errors.BATCH_SIZE_EXCEEDED,
    errors.MESSAGE_SIZE_EXCEEDED,
    errors.PROPERTIES_SIZE_EXCEEDED,
    errors.PROPERTY_ILLEGAL,
    errors.REQUEST_ILLEGAL,
    errors.TOPIC_ILLEGAL,
)
"""Errors whose cause is the record: the same copy would fail at every further attempt."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """A record that could not be copied; topic and queue are those that the record names."""

    purpose: str
    physical_offset: PhysicalOffset
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    reason: str


class CopyFailures:
    """The failures of all copies in one store."""

    def __init__(self) -> None:
        self.count = 0
        """Records that could not be copied, each counted once."""
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unreported: deque[CopyFailure] = deque(maxlen=KNOWN_MAX)

    def copied(self, purpose: str, record: bytes | memoryview, make: Callable[[], Made]) -> Made | None:
        """The result of make(). None if the record cannot be copied, which is noted. Raises TroveError if the
        cause may be temporary."""
        try:
            return make()
        except TroveError as error:
            if error.spec not in OF_THE_RECORD:
                raise
            self.note(purpose, record, str(error))
        except (ValueError, OverflowError, struct.error) as error:
            self.note(purpose, record, f"{type(error).__name__}: {error}")
        return None

    def note(self, purpose: str, record: bytes | memoryview, reason: str) -> None:
        """Notes that the record cannot be copied."""
        failure = _failure(purpose, bytes(record), reason)
        key = (purpose, failure.physical_offset)
        if key in self._known:
            self._known.move_to_end(key)
            return
        self._known[key] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self.count += 1
        self._unreported.append(failure)

    def take(self) -> list[CopyFailure]:
        """The failures since the last call, for the log."""
        found = list(self._unreported)
        self._unreported.clear()
        return found


def _failure(purpose: str, record: bytes, reason: str) -> CopyFailure:
    if len(record) < RECORD_SIZE_MIN:
        return CopyFailure(purpose, PhysicalOffset(-1), "", QueueId(-1), QueueOffset(-1), reason)
    fields = read_fields(record, 0, len(record))
    topic = (
        b"" if fields is None else record[fields.topic_position : fields.topic_position + fields.topic_size]
    )
    return CopyFailure(
        purpose,
        PhysicalOffset(_integer(record, PHYSICAL_OFFSET_AT, 8)),
        topic.decode("utf-8", "replace"),
        QueueId(_integer(record, QUEUE_ID_AT, 4)),
        QueueOffset(_integer(record, QUEUE_OFFSET_AT, 8)),
        reason,
    )


def _integer(record: bytes, at: int, size: int) -> int:
    return int.from_bytes(record[at : at + size], signed=True)
