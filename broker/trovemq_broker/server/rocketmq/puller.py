"""PullMessage, UpdateOffset, GetOffset and QueryOffset: reading a queue by its offsets.

A pull changes nothing: its messages are not in flight and have no receipt handles. The stream has one status,
the messages, and the offset at which to continue. Its elements are serialised here, so the handler's
response_serializer is None.

Messages are read in parts, and each is serialised when the client has read the one before it, so that a
client that does not read takes no memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from typing import Final, NamedTuple

import numpy as np

from trovemq_broker.fetch.pull import TAGS_MAX, PullRequest, PullResult
from trovemq_broker.filters.filter import Filter
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import POLLING_MAX_S, check_consumer, check_readable
from trovemq_broker.server.rocketmq.receive_calls import ANSWER_BEFORE_S
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.pulls import (
    PULL_NOTHING,
    PULL_OK,
    OffsetQuery,
    OffsetUpdate,
    QueueEnd,
    end_reply,
    offset_query,
    offset_reply,
    offset_update,
    pull,
    pulled,
    pulled_to,
    queue_end,
    update_reply,
)
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.records import RecordBatch, parse_properties
from trovemq_store.engine.queues import queue_range

PART_COUNT_MAX: Final = 32
BYTES_MAX: Final = 1 << 20
"""The most bytes of records in all parts together; at least one record is read."""
FILTERED_BYTES_MAX: Final = 1 << 18
"""The most bytes of records that one attempt reads, if their properties decide which of them match."""
LOOKS_MAX: Final = 256  # batches that a pull may read after its time to find a message for its filter
TAG_SEPARATOR: Final = "||"


class _Part(NamedTuple):
    """Messages that were read in one step."""

    messages: list[tuple[memoryview, QueueOffset]]
    """The messages that match the filter: record (a view of the log) and queue offset."""
    result: PullResult

    @property
    def at_end(self) -> bool:
        """Whether the queue has no more messages yet."""
        return self.result.next_offset >= self.result.max_offset


class Puller:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    async def pull(self, request: object, context: Context) -> AsyncGenerator[bytes, None]:
        """PullMessage. Raises TroveError before the first element only."""
        asked = pull(request)
        topic, filter_, left = asked.topic, asked.filter, asked.count_max
        self._check_topic(topic)
        self._check_group(asked.group)
        space = BYTES_MAX if filter_.takes_all else FILTERED_BYTES_MAX
        wanted = PullRequest(
            topic,
            asked.queue_id,
            asked.offset,
            min(left, PART_COUNT_MAX),
            space,
            tags=_tags(filter_),
            topic_identity=self._core.puller.topic_identity(topic),
        )
        until = asyncio.get_running_loop().time() + _polling_s(asked.polling_ms, context)
        part = await self._first_part(wanted, filter_, until)
        yield PULL_OK if part.messages else PULL_NOTHING
        count = byte_count = 0
        while part.messages:
            for record, queue_offset in part.messages:
                element = pulled(record, topic, wanted.queue_id, queue_offset)
                count, byte_count = count + 1, byte_count + len(element)
                yield element
            left -= part.result.message_count
            space -= part.result.byte_count
            if left <= 0 or space <= 0 or part.at_end:
                break
            offset = part.result.next_offset
            wanted = wanted._replace(offset=offset, messages_max=min(left, PART_COUNT_MAX), bytes_max=space)
            try:
                part = self._read(wanted, filter_)
            except TroveError:
                break  # the topic or these messages were removed: the client's next pull reports it
        yield pulled_to(part.result.next_offset)
        self._core.traffic.fetched(topic, count, byte_count)

    def _read(self, wanted: PullRequest, filter_: Filter) -> _Part:
        result = self._core.puller.pull(wanted)
        return _Part(list(_taken(result, filter_)), result)

    async def _first_part(self, wanted: PullRequest, filter_: Filter, until: float) -> _Part:
        """The first part with messages for the filter; an empty one when the time has passed."""
        loop = asyncio.get_running_loop()
        for looks in itertools.count(1):
            part = self._read(wanted, filter_)
            remaining = until - loop.time()
            over = remaining <= 0 and (part.at_end or looks >= LOOKS_MAX)
            if part.messages or over or self._core.long_polls.closed:
                break
            wanted = wanted._replace(offset=part.result.next_offset)
            if part.at_end:
                await self._growth(wanted, remaining)
            else:
                await asyncio.sleep(0)  # all messages were filtered out: other work runs first
        return part

    async def _growth(self, wanted: PullRequest, wait_s: float) -> None:
        grown = asyncio.Event()
        wait_ms = max(1, round(wait_s * 1000))
        waiter = self._core.long_polls.wait(
            wanted.topic, wanted.queue_id, wait_ms, lambda _grown: grown.set()
        )
        try:
            await grown.wait()
        finally:
            waiter.cancel()

    # --- offsets ------------------------------------------------------------------------------------
    @converted(offset_update, update_reply)
    async def update_offset(self, update: OffsetUpdate, _context: Context) -> None:
        """UpdateOffset: on disk before the reply."""
        self._check_topic(update.topic)
        self._check_group(update.group)
        await self._core.offsets.commit(*update)

    @converted(offset_query, offset_reply)
    async def get_offset(self, query: OffsetQuery, _context: Context) -> QueueOffset:
        """GetOffset. Raises OFFSET_NOT_FOUND if the group has none for the queue."""
        self._check_topic(query.topic)
        offset = self._core.offsets.get(*query)
        if offset is None:
            raise TroveError(errors.OFFSET_NOT_FOUND)
        return offset

    @converted(queue_end, end_reply)
    async def query_offset(self, end: QueueEnd, _context: Context) -> QueueOffset:
        """QueryOffset: the offset of the queue's first message, the one after its last, or that of the first
        message at or after a time."""
        self._check_topic(end.topic)
        low, high = queue_range(self._core.store, end.topic, end.queue_id)
        if end.since_ms is None:
            return high if end.latest else low
        return self._core.search(end.topic, end.queue_id, end.since_ms) if high > low else low

    # --- checks -------------------------------------------------------------------------------------
    def _check_topic(self, topic: str) -> None:
        check_readable(self._core.store, topic)

    def _check_group(self, name: str) -> None:
        """The group is created if settings allow that."""
        core = self._core
        group = core.groups.for_use(
            name,
            auto_create=core.settings.auto_create_group,
            now_ms=core.clock_ms(),
            creator=present_creator(),
        )
        check_consumer(group)


def _polling_s(wanted_ms: int, context: Context) -> float:
    wanted = min(max(wanted_ms / 1000, 0.0), POLLING_MAX_S)
    remaining = context.time_remaining()
    return wanted if remaining is None else min(wanted, max(0.0, remaining - ANSWER_BEFORE_S))


def _tags(filter_: Filter) -> tuple[str, ...]:
    """The tags by which the queue can be searched; () if only the filter can decide."""
    if filter_.kind != "tag" or filter_.takes_all:
        return ()
    tags = tuple(tag.strip() for tag in filter_.expression.split(TAG_SEPARATOR))
    return tags if len(tags) <= TAGS_MAX else ()


def _taken(result: PullResult, filter_: Filter) -> Iterator[tuple[memoryview, QueueOffset]]:
    """The messages that match the filter."""
    offsets = np.frombuffer(result.queue_offsets, "<i8").tolist()
    index = 0
    for run in result.slices:
        batch = RecordBatch.split(run)
        for row, record in enumerate(batch.rows if len(batch) else ()):
            queue_offset = QueueOffset(offsets[index] if offsets else int(batch.queue_offsets[row]))
            index += 1
            if not filter_.takes_all:
                block = bytes(
                    batch.data[record.property_position : record.property_position + record.property_size]
                )
                if not filter_.matches(parse_properties(block)):
                    continue
            yield batch.record(row), queue_offset
