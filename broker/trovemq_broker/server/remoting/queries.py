"""Look-ups of messages, for RocketMQ's tools: by key, by their place in the log; and the units of a queue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, aclosing
from typing import Final

from trovemq_broker.query.get_message import message_steps
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.wire.tool_calls import get_message_at, query_by_key
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_proto.records.layout import QUEUE_OFFSET_AT
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.json_text import json_text
from trovemq_store.engine.queues import find_queue

UNIQUE_QUERY: Final = "_UNIQUE_KEY_QUERY"
UNIQUE_MAX: Final = 32
BYTES_MAX: Final = 8 << 20
"""Of the records in one answer; the newest are first."""
UNITS_MAX: Final = 1_000
_TYPES: Final = {"U": KeyType.UNIQUE, "T": KeyType.TAG}
OneMore = Callable[[], AbstractContextManager[None]]


class Queries:
    """`one_more`: a block around a query, whose number is limited."""

    def __init__(self, core: BrokerCore, calls: NativeCalls, one_more: OneMore) -> None:
        self._core = core
        self._calls = calls
        self._one_more = one_more

    def by_key(self, request: Request) -> None:
        """QUERY_MESSAGE."""
        fields = request.fields
        unique = fields.boolean(UNIQUE_QUERY)
        kind = _TYPES.get(fields.text("indexType", ""), KeyType.UNIQUE if unique else KeyType.KEY)
        begin, end = fields.int64("beginTimestamp", 0), fields.int64("endTimestamp", TIME_MAX)
        query = KeyQuery(
            fields.text("topic"), fields.text("key"), kind, EpochMs(max(begin, 0)), EpochMs(max(end, 0))
        )
        most = UNIQUE_MAX if kind is KeyType.UNIQUE else fields.int32("maxNum", UNIQUE_MAX)
        most = min(max(most, 1), self._core.store.settings.query_messages_max)
        request.run(self._by_key(request, query, most))

    async def _by_key(self, request: Request, query: KeyQuery, most: int) -> None:
        records: list[bytes] = []
        size, time_ms, place = 0, 0, 0
        async with self._calls.admitted(request, query_by_key(query)):
            with self._one_more():
                pages = query_pages(self._core.store, query, messages_max=most)
                async with aclosing(self._core.turns.each(pages)) as made:
                    async for page in made:
                        time_ms = page.index_last_update_timestamp
                        place = page.index_last_update_physical_offset
                        for record, at in zip(page.records, page.queue_offsets, strict=True):
                            size += len(record)
                            if size <= BYTES_MAX or not records:
                                records.append(_at(record, at))
                        if size > BYTES_MAX:
                            break
        header = {"indexLastUpdatePhyoffset": str(place), "indexLastUpdateTimestamp": str(time_ms)}
        if records:
            request.answer(fields=header, body=b"".join(records))
        else:
            text = "can not find message, maybe time range not correct"
            request.answer(ResponseCode.QUERY_NOT_FOUND, text, header)

    def by_place(self, request: Request) -> None:
        """VIEW_MESSAGE_BY_ID: the id's host is that of this broker, and its rest the place in the log."""
        request.run(self._by_place(request, request.fields.int64("offset")))

    async def _by_place(self, request: Request, offset: int) -> None:
        record = self._core.store.record_at(PhysicalOffset(offset)) if offset >= 0 else None
        if record is None:
            raise _not_found(offset)
        message = decode_stored(record)
        call = get_message_at(message.topic, message.queue_id, message.queue_offset)
        async with self._calls.admitted(request, call):
            request.answer(body=bytes(record))

    async def message(self, identifier: str, topic: str) -> tuple[Message, bytes]:
        """The newest message with this id or unique key, and its record. TroveError MESSAGE_NOT_FOUND, …"""
        found = await self._core.turns.run(message_steps(self._core.store, identifier, topic))
        record = _at(found.records[0], found.queue_offsets[0])
        return decode_stored(memoryview(record)), record

    def units(self, request: Request) -> None:
        """QUERY_CONSUME_QUEUE."""
        fields = request.fields
        topic, queue_id = fields.text("topic"), QueueId(fields.int32("queueId"))
        first, count = fields.int64("index"), min(max(fields.int32("count"), 0), UNITS_MAX)
        queue = find_queue(self._core.store, topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        rows: list[dict[str, object]] = []
        if queue is not None and low <= first < high and count:
            found = queue.unit_rows(QueueOffset(first), min(count, high - first))
            rows = [
                {"eval": False, "physicOffset": place, "physicSize": size, "tagsCode": tags}
                for place, size, tags in found
            ]
        body = {"maxQueueIndex": high, "minQueueIndex": low, "queueData": rows}
        request.answer(body=json_text(body))


def _at(record: memoryview, queue_offset: QueueOffset) -> bytes:
    """The record with the queue offset at which it lies."""
    made = bytearray(record)
    made[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = queue_offset.to_bytes(8)
    return bytes(made)


def _not_found(offset: int) -> TroveError:
    return TroveError(errors.MESSAGE_NOT_FOUND, f"can not find message by the offset, {offset}")
