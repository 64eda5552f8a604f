"""Reads a queue from a queue offset on: whole runs of records, directly from the mapped log.

The consume queue names the records (offset, size, tag hash). Records that are adjacent in the log become one
slice, so a queue that was written in batches is read in a few slices, without Python code per message.
Damaged records are left out (gathered_records.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_broker.fetch.gathered_records import GatheredRecords
from trovemq_broker.replication.read_lag import ReaderLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import (
    java_hash,
)
from trovemq_proto.records.fields import ROWS_MAX, read_fields
from trovemq_proto.records.layout import QUEUE_OFFSET_AT, SCHEDULE_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE
from trovemq_store.engine.queues import find_queue
from trovemq_store.files.files import StorageError, UnreadableError
from trovemq_store.index.consume_queue import ConsumeQueue, Unit
from trovemq_store.topics.config_marks import reason_text

UNITS_MAX: Final = 8_192  # units that one pull examines; bounds the work of a tag filter
TAGS_MAX: Final = 64
_OFFSETS: Final = Struct(">qq")  # QUEUEOFFSET and, after it, PHYSICALOFFSET

Indexes = NDArray[np.int64]
Run = tuple[list[PhysicalOffset], int]
"""The physical offsets of records that are adjacent in the log, and the sum of their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """Bytes of one reply: if the request names none, and at most."""

    bytes_default: int = 1 << 20
    bytes_max: int = 4 << 20


class PullRequest(NamedTuple):
    topic: str
    queue_id: QueueId
    offset: QueueOffset
    messages_max: int = 0  # 0 = as many as fit
    bytes_max: int = 0  # 0 = the default
    tags: tuple[str, ...] = ()
    topic_identity: PhysicalOffset | None = None  # of the topic that has the offset; None: not checked
    max_lag_ms: int = 0  # of a replica; 0 = any


class PullResult(NamedTuple):
    """`slices` are runs of records in queue order (views of the log: use them at
    once)."""

    slices: list[memoryview]
    message_count: int
    byte_count: int
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    queue_offsets: bytes = b""  # i64 little-endian, one per record; empty if those of the records hold
    damaged_offsets: tuple[QueueOffset, ...] = ()
    replica: ReaderLag | None = None  # of a replica alone

    @property
    def at_end(self) -> bool:
        """Whether nothing was found and the queue has no more messages yet."""
        return not self.slices and not self.damaged_offsets and self.next_offset >= self.max_offset


class Puller:
    """Pulls from one store. Synchronous: a pull is bounded by its bytes and by UNITS_MAX."""

    def __init__(self, store: MessageStore, settings: PullSettings) -> None:
        self._store = store
        self._settings = settings
        self._checked_from = store.end_offset

    def pull(self, request: PullRequest) -> PullResult:
        """Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, TOPIC_RECREATED, OFFSET_OUT_OF_RANGE,
        REQUEST_ILLEGAL; PERMISSION_MISSING for a topic without any permission."""
        topic, queue_id, offset, messages_max, bytes_max, tags, identity, _ = request
        config = self._store.topics.get(topic)
        if config is not None and not config.perm:
            what = f"topic {topic} may not be read{reason_text(config.attributes)}"
            raise TroveError(errors.PERMISSION_MISSING, what, topic=topic)
        if identity is not None and identity != self._store.topic_identity(topic):
            find_queue(self._store, topic, queue_id)
            raise recreated(topic, queue_id, offset)
        queue = self._store.consume_queues.get(topic, queue_id)
        plain = not tags and messages_max >= 0 and bytes_max >= 0
        if plain and queue is not None and queue.max_offset - offset == 1:
            last = self._last(queue, offset)
            if last is not None:
                return last
        _check(request)
        queue = find_queue(self._store, topic, queue_id)
        low = queue.min_offset if queue is not None else QUEUE_ORIGIN
        high = queue.max_offset if queue is not None else QUEUE_ORIGIN
        if not low <= request.offset <= high:
            if high < request.offset <= self._store.next_queue_offset(topic, queue_id):
                return PullResult([], 0, 0, request.offset, low, high)  # in the log, and not visible yet
            raise out_of_range(request.topic, request.queue_id, request.offset, low, high)
        if queue is None or request.offset == high:
            return PullResult([], 0, 0, request.offset, low, high)
        return self._read(request, queue, low, high)

    def topic_identity(self, topic: str) -> PhysicalOffset:
        """The physical offset below which the topic's records belong to a deleted one of its name."""
        return self._store.topic_identity(topic)

    def _read(
        self, request: PullRequest, queue: ConsumeQueue, low: QueueOffset, high: QueueOffset
    ) -> PullResult:
        count = min(high - request.offset, UNITS_MAX)
        wanted_count = min(count, request.messages_max or count)
        if wanted_count <= ROWS_MAX and not request.tags:
            result = self._read_rows(request, queue, wanted_count, low, high)
            if result is not None:
                return result
        return self._read_columns(request, queue, count, low, high)

    def _read_columns(
        self, request: PullRequest, queue: ConsumeQueue, count: int, low: QueueOffset, high: QueueOffset
    ) -> PullResult:
        """`count`: units that are examined."""
        try:
            units = _readable_units(queue, request.offset, count)
        except (
            UnreadableError
        ):  # not even the first unit can be read: the message exists, and cannot be found
            following = QueueOffset(request.offset + 1)
            return PullResult([], 0, 0, following, low, high, damaged_offsets=(request.offset,))
        sizes = units["size"].astype(np.int64)
        physical_offsets = units["physical_offset"].astype(np.int64)
        wanted = (sizes != BLANK_UNIT_SIZE) & (physical_offsets >= self._store.min_offset)
        if request.tags and request.topic != SCHEDULE_TOPIC:
            wanted &= np.isin(units["tags_code"].astype(np.int64), [java_hash(tag) for tag in request.tags])
        found = np.flatnonzero(wanted)
        taken = self._limit(request, sizes[found])
        scanned = int(found[taken - 1]) + 1 if taken < len(found) else len(units)
        found = found[:taken]
        gathered = GatheredRecords(self._store, self._checked_from)
        gathered.add(found + request.offset, physical_offsets[found], sizes[found])
        if request.tags:
            gathered.keep_tags(frozenset(request.tags))
        slices, following = gathered.slices(), QueueOffset(request.offset + scanned)
        size = sum(map(len, slices))
        offsets = gathered.queue_offsets()
        return PullResult(slices, gathered.count, size, following, low, high, offsets, gathered.damaged)

    def _last(self, queue: ConsumeQueue, offset: QueueOffset) -> PullResult | None:
        """The queue's last message, for which consumers have waited: bench/pulls.py, "1 adjacent". None if
        it is not as expected or its CRC must be checked."""
        store, low = self._store, queue.min_offset
        if offset < low:
            return None
        try:
            ((place, size, _),) = queue.unit_rows(offset, 1)
            if place < self._checked_from or place < store.min_offset or place + size > store.visible_offset:
                return None
            data = store.read(PhysicalOffset(place), size)
        except StorageError:
            return None
        fields = read_fields(data, 0, len(data))
        if (
            fields is None
            or fields.size != size
            or _OFFSETS.unpack_from(data, QUEUE_OFFSET_AT) != (offset, place)
        ):
            return None
        high = QueueOffset(offset + 1)
        return PullResult([data], 1, size, high, low, high)

    def _read_rows(
        self, request: PullRequest, queue: ConsumeQueue, count: int, low: QueueOffset, high: QueueOffset
    ) -> PullResult | None:
        """Messages as at the end of the queue. None if they are not as expected or their CRC must be checked:
        then the caller reads columns."""
        try:
            units = queue.unit_rows(request.offset, count)
            runs = self._runs(request, units) if len(units) == count else None
            if runs is None:
                return None
            slices = [self._store.read(PhysicalOffset(places[0]), size) for places, size in runs]
        except StorageError:
            return None
        offset = request.offset
        for (places, _), data in zip(runs, slices, strict=True):
            if not _follow(data, offset, places, units[offset - request.offset :]):
                return None
            offset = QueueOffset(offset + len(places))
        taken = offset - request.offset
        return PullResult(slices, taken, sum(size for _, size in runs), offset, low, high)

    def _runs(self, request: PullRequest, units: Sequence[Unit]) -> list[Run] | None:
        """The records that fit; adjacent ones are joined into runs. None if one of them is not in the part of
        the log that may be read without checks."""
        left = self.bytes_max(request)
        begin, end = max(self._store.min_offset, self._checked_from), self._store.visible_offset
        runs: list[Run] = []
        after = -1
        for place, size, _ in units[: request.messages_max or len(units)]:
            if place < begin or place + size > end:
                return None
            if size > left and runs:
                break
            left -= size
            if place == after:
                places, total = runs[-1]
                places.append(place)
                runs[-1] = places, total + size
            else:
                runs.append(([place], size))
            after = place + size
        return runs

    def bytes_max(self, request: PullRequest) -> int:
        """The most bytes of its records, unless one record has more."""
        return min(request.bytes_max or self._settings.bytes_default, self._settings.bytes_max)

    def _limit(self, request: PullRequest, sizes: Indexes) -> int:
        """How many of these records fit; at least one if there is any."""
        fit = int(np.searchsorted(np.cumsum(sizes), self.bytes_max(request), side="right"))
        count = max(fit, 1)
        if request.messages_max:
            count = min(count, request.messages_max)
        return min(count, len(sizes))


def _follow(data: memoryview, offset: int, places: Sequence[int], units: Sequence[Unit]) -> bool:
    """Whether `data` has exactly the records of these units, each with its own offsets."""
    position = 0
    for place, (_, size, _) in zip(places, units, strict=False):
        fields = read_fields(data, position, len(data))
        if fields is None or fields.size != size:
            return False
        if _OFFSETS.unpack_from(data, position + QUEUE_OFFSET_AT) != (offset, place):
            return False
        position += size
        offset += 1
    return position == len(data)


def _readable_units(queue: ConsumeQueue, offset: QueueOffset, count: int) -> NDArray[np.void]:
    """queue.units(), or fewer if the disk does not return all. StorageError if it returns none."""
    while True:
        try:
            return queue.units(offset, count)
        except UnreadableError:
            if count == 1:
                raise
            count //= 2


def out_of_range(
    topic: str, queue_id: QueueId, offset: QueueOffset, low: QueueOffset, high: QueueOffset
) -> TroveError:
    return TroveError(
        errors.OFFSET_OUT_OF_RANGE,
        f"offset {offset} of queue {queue_id} of {topic} is not in {low} to {high}",
        min_offset=low,
        max_offset=high,
        offset=offset,
    )


def recreated(topic: str, queue_id: QueueId, offset: QueueOffset) -> TroveError:
    return TroveError(
        errors.TOPIC_RECREATED,
        f"topic {topic} was deleted and recreated: offset {offset} of queue {queue_id} is the deleted one's,"
        " whose messages are gone; the new one begins at offset 0",
        topic=topic,
        queue_id=queue_id,
        offset=offset,
    )


def _check(request: PullRequest) -> None:
    if request.messages_max < 0 or request.bytes_max < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "messages_max and bytes_max may not be negative")
    if len(request.tags) > TAGS_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{len(request.tags)} tags, the limit is {TAGS_MAX}")
