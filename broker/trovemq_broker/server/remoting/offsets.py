"""Offsets of queues and of groups. Consumers own their positions: they store the next offset to consume.

An offset for which no client waits is kept for a moment, so that of many offsets of one queue the last one
is written.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Final

from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Members
from trovemq_daemon.logging import get_logger
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_store.engine.queues import find_queue, queue_range

PENDING_MAX: Final = 65_536
STORED_AT_ONCE: Final = 256
"""Offsets without a waiting client that are one record of the log, if they can be set at once."""
NO_TIME: Final = -1
_Key = tuple[str, str, QueueId]


class Offsets:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, members: Members) -> None:
        self._core = core
        self._members = members
        core.kinds.store_offsets = self._store_all
        self._pending: dict[_Key, QueueOffset] = {}
        self._storing: asyncio.Task[None] | None = None

    # --- of groups --------------------------------------------------------------------------------------
    def query(self, request: Request) -> None:
        """QUERY_CONSUMER_OFFSET. A group without an offset begins at 0 where the queue still has its first
        message, as in RocketMQ; else the answer says that it has none, and it decides itself."""
        fields = request.fields
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = QueueId(fields.int32("queueId"))
        found = self._pending.get((group, topic, queue_id))
        if found is None:
            found = self._core.offsets.get(group, topic, queue_id)
        if found is None and fields.boolean("setZeroIfNotFound", default=True):
            low, _ = queue_range(self._core.store, topic, queue_id)
            found = low if low == 0 else None
        if found is None:
            request.answer(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        else:
            request.answer(fields={"offset": str(found)})

    def update(self, request: Request) -> None:
        """UPDATE_CONSUMER_OFFSET."""
        fields = request.fields
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id, offset = QueueId(fields.int32("queueId")), QueueOffset(fields.int64("commitOffset"))
        self._core.groups.for_use(
            group,
            auto_create=self._core.settings.auto_create_group,
            now_ms=self._core.clock_ms(),
            creator=present_creator(),
        )
        if self._members.is_refused(request.connection, group):
            request.run(self._update_later(request, (group, topic, queue_id), offset))
            return
        self._members.check_kind(request.connection, group)
        if request.header.is_one_way:
            self.store_soon(group, topic, queue_id, offset)
            request.answer()
        else:
            request.run(self._store(request, (group, topic, queue_id), offset))

    async def _update_later(self, request: Request, key: _Key, offset: QueueOffset) -> None:
        await self._members.admit(request.connection, key[0])
        await self._store(request, key, offset)

    def _store_all(self, group: str) -> None:
        """The group is to have leases from its offsets on. One that lies outside of its queue is left out."""
        offsets = self._core.store.offsets
        for key in [key for key in self._pending if key[0] == group]:
            offset = self._pending.pop(key)
            with suppress(TroveError):
                low, high = queue_range(self._core.store, key[1], key[2])
                if low <= offset <= high:
                    offsets.commit(*key, offset)
                    offsets.record_next(group, key[1])

    async def _store(self, request: Request, key: _Key, offset: QueueOffset) -> None:
        self._pending.pop(key, None)
        await self._core.offsets.commit(*key, offset)
        request.answer()

    def store_soon(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        """No client waits for it, and none gets an error."""
        key = (group, topic, queue_id)
        if len(self._pending) < PENDING_MAX or key in self._pending:
            self._pending[key] = offset
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store_pending())

    async def _store_pending(self) -> None:
        try:
            while self._pending:
                some = list(islice(self._pending.items(), STORED_AT_ONCE))
                await asyncio.gather(*(self._commit(key, offset) for key, offset in some))
        finally:
            self._storing = None

    async def _commit(self, key: _Key, offset: QueueOffset) -> None:
        """It stays pending until it is stored: a member that takes the queue over has to find it."""
        if self._pending.get(key) != offset:
            return  # a client that waits has stored one meanwhile, or a later one follows
        try:
            await self._core.offsets.commit(*key, offset)
        except TroveError as error:
            group, topic, queue_id = key
            get_logger().debug(
                "remoting.offset_refused",
                group=group,
                topic=topic,
                queue_id=queue_id,
                offset=offset,
                error=error.symbol,
            )
        finally:
            if self._pending.get(key) == offset:
                del self._pending[key]

    # --- of queues --------------------------------------------------------------------------------------
    def maximum(self, request: Request) -> None:
        """GET_MAX_OFFSET: one past the last message that can be read."""
        request.answer(fields={"offset": str(self._range(request)[1])})

    def minimum(self, request: Request) -> None:
        request.answer(fields={"offset": str(self._range(request)[0])})

    def search(self, request: Request) -> None:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first message at or after the time, or the last at or before it."""
        fields = request.fields
        topic, queue_id = fields.text("topic"), QueueId(fields.int32("queueId"))
        upper = fields.text("boundaryType", "lower").lower() == "upper"
        time_ms = EpochMs(fields.int64("timestamp"))
        found = search_offset(self._core.store, topic, queue_id, time_ms, upper=upper)
        request.answer(fields={"offset": str(found)})

    def earliest(self, request: Request) -> None:
        """GET_EARLIEST_MSG_STORETIME: -1 for a queue without messages."""
        fields, store = request.fields, self._core.store
        topic, queue_id = fields.text("topic"), QueueId(fields.int32("queueId"))
        queue = find_queue(store, topic, queue_id)
        time_ms: int = NO_TIME
        if queue is not None and queue.max_offset > queue.min_offset:
            ((place, _, _),) = queue.unit_rows(queue.min_offset, 1)
            time_ms = store.store_timestamp_at(place) or NO_TIME
        request.answer(fields={"timestamp": str(time_ms)})

    def _range(self, request: Request) -> tuple[QueueOffset, QueueOffset]:
        fields = request.fields
        topic, queue_id = fields.text("topic"), QueueId(fields.int32("queueId"))
        if queue_id < 0:
            raise TroveError(errors.QUEUE_NOT_FOUND, f"topic {topic} has no queue {queue_id}")
        return queue_range(self._core.store, topic, queue_id)
