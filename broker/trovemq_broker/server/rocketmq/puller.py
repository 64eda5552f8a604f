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
from trovemq_broker.server.rocketmq.receive_calls import ANSWER_BEFORE_S, read_filter
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration_ms, message_of, timestamp_ms
from trovemq_broker.server.wire.statuses import OK_STATUS, Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import RecordBatch, parse_properties
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.queues import queue_range

PULL_COUNT_DEFAULT: Final = 32
PULL_COUNT_MAX: Final = 1_024
PART_COUNT_MAX: Final = 32
BYTES_MAX: Final = 1 << 20
"""The most bytes of records in all parts together; at least one record is read."""
FILTERED_BYTES_MAX: Final = 1 << 18
"""The most bytes of records that one attempt reads, if their properties decide which of them match."""
LOOKS_MAX: Final = 256  # batches that a pull may read after its time to find a message for its filter
TAG_SEPARATOR: Final = "||"

_OK: Final = service_pb2.PullMessageResponse(status=OK_STATUS).SerializeToString()
_NOTHING: Final = service_pb2.PullMessageResponse(
    status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no message came within the polling time")
).SerializeToString()


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
    def __init__(self, parts: BrokerCore) -> None:
        self._parts = parts

    async def pull(
        self, request: service_pb2.PullMessageRequest, context: Context
    ) -> AsyncGenerator[bytes, None]:
        """PullMessage. Raises TroveError before the first element only."""
        topic = self._topic(request.message_queue)
        self._check_group(request.group)
        filter_ = read_filter(request.filter_expression)
        left = min(max(request.batch_size, 0) or PULL_COUNT_DEFAULT, PULL_COUNT_MAX)
        space = BYTES_MAX if filter_.takes_all else FILTERED_BYTES_MAX
        wanted = PullRequest(
            topic,
            QueueId(request.message_queue.id),
            QueueOffset(request.offset),
            min(left, PART_COUNT_MAX),
            space,
            tags=_tags(filter_),
            topic_identity=self._parts.puller.topic_identity(topic),
        )
        until = asyncio.get_running_loop().time() + _polling_s(request, context)
        part = await self._first_part(wanted, filter_, until)
        yield _OK if part.messages else _NOTHING
        count = byte_count = 0
        while part.messages:
            for record, queue_offset in part.messages:
                message = message_of(record, topic, wanted.queue_id, queue_offset)
                element = service_pb2.PullMessageResponse(message=message).SerializeToString()
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
        yield service_pb2.PullMessageResponse(next_offset=part.result.next_offset).SerializeToString()
        self._parts.traffic.fetched(topic, count, byte_count)

    def _read(self, wanted: PullRequest, filter_: Filter) -> _Part:
        result = self._parts.puller.pull(wanted)
        return _Part(list(_taken(result, filter_)), result)

    async def _first_part(self, wanted: PullRequest, filter_: Filter, until: float) -> _Part:
        """The first part with messages for the filter; an empty one when the time has passed."""
        loop = asyncio.get_running_loop()
        for looks in itertools.count(1):
            part = self._read(wanted, filter_)
            remaining = until - loop.time()
            over = remaining <= 0 and (part.at_end or looks >= LOOKS_MAX)
            if part.messages or over or self._parts.long_polls.closed:
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
        waiter = self._parts.long_polls.wait(
            wanted.topic, wanted.queue_id, wait_ms, lambda _grown: grown.set()
        )
        try:
            await grown.wait()
        finally:
            waiter.cancel()

    # --- offsets ------------------------------------------------------------------------------------
    async def update_offset(
        self, request: service_pb2.UpdateOffsetRequest, _context: Context
    ) -> service_pb2.UpdateOffsetResponse:
        """UpdateOffset: on disk before the reply."""
        topic, group = self._topic(request.message_queue), self._check_group(request.group)
        queue_id = QueueId(request.message_queue.id)
        await self._parts.offsets.commit(group, topic, queue_id, QueueOffset(request.offset))
        return service_pb2.UpdateOffsetResponse(status=OK_STATUS)

    async def get_offset(
        self, request: service_pb2.GetOffsetRequest, _context: Context
    ) -> service_pb2.GetOffsetResponse:
        """GetOffset. Raises OFFSET_NOT_FOUND if the group has none for the queue."""
        topic, group = self._topic(request.message_queue), group_name(request.group)
        offset = self._parts.offsets.get(group, topic, QueueId(request.message_queue.id))
        if offset is None:
            raise TroveError(errors.OFFSET_NOT_FOUND)
        return service_pb2.GetOffsetResponse(status=OK_STATUS, offset=offset)

    async def query_offset(
        self, request: service_pb2.QueryOffsetRequest, _context: Context
    ) -> service_pb2.QueryOffsetResponse:
        """QueryOffset: the offset of the queue's first message, the one after its last, or that of the first
        message at or after a time."""
        topic, queue_id = self._topic(request.message_queue), QueueId(request.message_queue.id)
        low, high = queue_range(self._parts.store, topic, queue_id)
        policy = request.query_offset_policy
        if policy == v2.BEGINNING:
            offset = low
        elif policy == v2.END:
            offset = high
        elif policy != v2.TIMESTAMP:
            raise TroveError(errors.REQUEST_ILLEGAL, f"policy {policy} is unknown")
        elif not request.HasField("timestamp"):
            raise TroveError(errors.REQUEST_ILLEGAL, "the policy TIMESTAMP needs a timestamp")
        else:
            offset = QueueOffset(
                self._parts.search(topic, queue_id, timestamp_ms(request.timestamp)) if high > low else low
            )
        return service_pb2.QueryOffsetResponse(status=OK_STATUS, offset=offset)

    # --- checks -------------------------------------------------------------------------------------
    def _topic(self, queue: v2.MessageQueue) -> str:
        topic = topic_to_read(queue.topic)
        check_readable(self._parts.store, topic)
        return topic

    def _check_group(self, resource: v2.Resource) -> str:
        """The group's name; the group is created if settings allow that."""
        parts = self._parts
        name = group_name(resource)
        group = parts.groups.for_use(
            name,
            auto_create=parts.settings.auto_create_group,
            now_ms=parts.clock_ms(),
            creator=present_creator(),
        )
        check_consumer(group)
        return name


def _polling_s(request: service_pb2.PullMessageRequest, context: Context) -> float:
    wanted = min(max(duration_ms(request.long_polling_timeout) / 1000, 0.0), POLLING_MAX_S)
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
