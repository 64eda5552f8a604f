"""Receives all messages: each queue is pulled by offset, and the positions are known only to this process.

Queues that appear later are read from their beginning. A position is one of a topic, not of a name: where
the topic was deleted and recreated, the new one is read from its beginning, so that none of its messages is
skipped.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from datetime import datetime
from typing import Final, NamedTuple

from trovemq._common.pulled import pulled_message
from trovemq._consume.inbox import Inbox
from trovemq._consume.puller import Puller, PullRequest
from trovemq._lookup.queries import Queries
from trovemq._net.connections import ConnectionPool
from trovemq._net.new_topics import learn_topic
from trovemq._net.outages import Outages
from trovemq._net.routes import Slot
from trovemq.models.cluster import QueueOffsets
from trovemq.starts import Start, timestamp_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

FETCH_BYTES_MAX: Final = 256 << 10
FETCH_WAIT_MS: Final = 15_000
QUEUES_MAX: Final = 4_096


class Position(NamedTuple):
    """The next offset of a queue, and which topic of that name has the queue (None: not known yet)."""

    offset: int = 0
    topic_identity: int | None = None


class BroadcastConsumer:
    """Pulls every queue of a topic into an inbox.

    Args:
        pool: The client's connections.
        topic: The topic.
        group: A name for the log.
        tags: Only messages with one of these tags; () for all.
        start: Where reading begins in the present queues.
        inbox: Holds messages for the program.
    """

    def __init__(
        self, pool: ConnectionPool, topic: str, group: str, tags: tuple[str, ...], start: Start, inbox: Inbox
    ) -> None:
        self._pool = pool
        self._outages = Outages(topic, group)
        self._topic = topic
        self._tags = tags
        self._start = start
        self._inbox = inbox
        self._positions: dict[Slot, Position] = {}
        self._pulls: dict[Slot, asyncio.Task[None]] = {}
        self._having: set[str] = set()
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Determines where to begin: no message that is stored from now on is missed. Raises TroveError;
        after an error it may be called again."""
        if not self._pool.routes.slots(self._topic):
            await learn_topic(self._pool, self._topic)
        for queue in await Queries(self._pool).queue_offsets(self._topic, None, None):
            start = Position(await self._start_offset(queue), queue.topic_identity)
            self._positions[Slot(queue.broker, queue.queue_id)] = start
        self._pool.routes.listen(self._changed.set)
        self._note_return()
        self._begin()
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def _start_offset(self, queue: QueueOffsets) -> int:
        if not isinstance(self._start, datetime):
            return queue.max_offset if self._start == "latest" else queue.min_offset
        if queue.min_offset == queue.max_offset:
            return queue.max_offset
        time_ms = timestamp_of(self._start)
        return await Queries(self._pool).search_offset(
            self._topic, queue.queue_id, time_ms, False, queue.broker
        )

    def topic_was_awaited(self) -> None:
        """The topic did not exist when the subscription began: all its messages are later ones."""
        if self._start == "latest":
            self._start = "earliest"

    async def close(self) -> None:
        """Ends all pulls, and drops waiting messages."""
        self._pool.routes.unlisten(self._changed.set)
        tasks = [*self._pulls.values(), *([self._follower] if self._follower is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._inbox.drain()

    is_answered: Final = True  # nothing is settled

    async def answered(self, *, until: float) -> None:
        """Nothing to wait for."""

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._note_return()
            self._begin()

    def _note_return(self) -> None:
        """A broker that has the topic again has ended the outage."""
        routes = self._pool.routes
        names = (route.broker.name for route in routes.state.brokers)
        having = {name for name in names if routes.has_topic(self._topic, name)}
        self._outages.end(*(having - self._having))
        self._having = having

    def _begin(self) -> None:
        """Starts one pull for each queue that is known, or new in the routes."""
        known = {*self._positions, *self._pool.routes.slots(self._topic)}
        for slot in sorted(known - self._pulls.keys())[: QUEUES_MAX - len(self._pulls)]:
            self._pulls[slot] = asyncio.get_running_loop().create_task(self._pull(slot))

    async def _pull(self, slot: Slot) -> None:
        failures = 0
        while True:
            asked_after = self._outages.ended(slot.broker)
            try:
                await self._pull_once(slot)
            except TroveError as error:
                if error.spec is errors.OFFSET_OUT_OF_RANGE and "min_offset" in error.fields:
                    position = self._positions.get(slot, Position())
                    self._positions[slot] = position._replace(offset=int(error.fields["min_offset"]))
                elif error.spec is errors.TOPIC_RECREATED:
                    self._positions[slot] = Position()
                    _log.warning("broker %s: %s; it is read from there", slot.broker, error.message)
                elif error.spec is errors.TOPIC_NOT_FOUND:
                    self._outages.begin(slot.broker, error, asked_after)
                elif not error.retriable and error.spec is not errors.QUEUE_NOT_FOUND:
                    self._inbox.fail(error)
                    return
                failures += 1
                _log.debug(
                    "pulling queue %d of %s from %s: %s", slot.queue_id, self._topic, slot.broker, error
                )
                await asyncio.sleep(self._pool.options.backoff.seconds(failures))
            else:
                failures = 0

    async def _pull_once(self, slot: Slot) -> None:
        offset, identity = self._positions.get(slot, Position())
        request = PullRequest(
            self._topic,
            slot.queue_id,
            offset,
            FETCH_BYTES_MAX,
            self._tags,
            1,  # the inbox limits the waiting messages, not the fetches
            True,
            FETCH_WAIT_MS,
            slot.broker,
            topic_identity=identity,
        )
        async with aclosing(Puller(self._pool, request).batches()) as batches:
            async for batch in batches:
                self._outages.end(slot.broker)
                for message in batch.messages():
                    await self._inbox.wait_for_capacity()
                    received = pulled_message(message, slot.broker)
                    if self._pool.options.tracing is not None:
                        self._pool.options.tracing.take(received, "")
                    self._inbox.put(received)
                    self._positions[slot] = Position(message.queue_offset + 1, batch.topic_identity)
                self._positions[slot] = Position(batch.next_offset, batch.topic_identity)
