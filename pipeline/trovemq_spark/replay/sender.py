"""Sends one source queue to its target queue, part by part, and writes its ledger after each part.

Invariants
- The queue's lock is held, so that no task of a killed run sends meanwhile.
- One part is in flight at a time. A part is one frame, which a broker stores in its order or not at all.
- A message is sent only when its source offset is above the ledger's, which never falls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from trovemq import Client, Producer
from trovemq.models.cluster import QueueOffsets
from trovemq.receipts import SendReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.replay.ledger import Ledger, QueueState, SourceQueue
from trovemq_spark.replay.messages import offsets_of, record_sizes, replayed
from trovemq_spark.replay.pace import Pace
from trovemq_spark.sinks.rows_out import CHUNK_BYTES_MAX, Chunk, cut
from trovemq_spark.sinks.send_client import illegal_messages, send_columns
from trovemq_spark.table.columns import arrow_batch

SETTLE_SECONDS: Final = 1.0
"""Within this time the messages that a killed task had passed to its connection are stored, or lost with
it."""
PART_ROWS_MAX: Final = 1000
_REFUSALS: Final = (
    errors.KEY_ILLEGAL,
    errors.TAG_ILLEGAL,
    errors.UNIQUE_KEY_ILLEGAL,
    errors.PROPERTY_ILLEGAL,
    errors.PROPERTIES_SIZE_EXCEEDED,
    errors.MESSAGE_SIZE_EXCEEDED,
)
"""Errors that a broker returns for a message before it stores anything of the frame."""
_TAIL_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """The target. Picklable. topic, broker: "" for the source's topic, for any broker that has it."""

    server: str
    topic: str
    broker: str
    ledger: Ledger
    run: str
    rate: float
    """Messages per second of one task; 0: no limit."""
    skip_unsendable: bool = False


@dataclass(slots=True)
class QueueCount:
    """The results of a queue's messages in this run."""

    sent: int = 0
    before: int = 0
    """Messages of the source that earlier runs sent."""
    settled: int = 0
    """Messages found in the target, sent by a run that was killed before it recorded them."""
    repeated: int = 0
    """Messages of the source with an offset that occurred before: left out."""
    unsendable: int = 0
    """Messages of the source that no broker would accept: left out."""


class QueueSender:
    """Sends the messages of one queue; the caller holds its lock. Created by `open`."""

    def __init__(
        self, client: Client, target: ReplayTarget, queue: SourceQueue, state: QueueState, pace: Pace
    ) -> None:
        self.queue: Final = queue
        self.state: Final = state
        self.count: Final = QueueCount()
        self.pace = pace
        self._client = client
        self._target = target
        self._producer: Producer = client.producer(state.target_topic, batch_bytes_max=2 * CHUNK_BYTES_MAX)
        self._begin = state.source_offset
        self._seen = -1

    @classmethod
    async def open(cls, client: Client, target: ReplayTarget, queue: SourceQueue, pace: Pace) -> QueueSender:
        """Continues after the messages of earlier runs. Raises TroveError TOPIC_NOT_FOUND, BROKER_NOT_FOUND,
        DATA_LOST, …"""
        state = target.ledger.load(queue)
        if state is None:
            state = await _new_state(client, target, queue)
        sender = cls(client, target, queue, state, pace)
        if state.in_flight:
            await asyncio.sleep(SETTLE_SECONDS)
            await sender._settle()
        state.in_flight = True
        target.ledger.save(queue, state)
        return sender

    async def send(self, rows: pa.RecordBatch) -> None:
        """Sends the next rows of the queue, by offset. Raises the SDK's TroveError with the names of the
        messages."""
        offsets = rows.column("queueOffset").to_numpy()
        fresh = np.diff(offsets, prepend=self._seen) > 0
        self.count.repeated += int(len(offsets) - fresh.sum())
        self.count.before += int((fresh & (offsets <= self._begin)).sum())
        self._seen = max(self._seen, int(offsets[-1]))
        wanted = np.flatnonzero(fresh & (offsets > self.state.source_offset))
        if not len(wanted):
            return
        rows = rows.take(pa.array(wanted))
        most = self.pace.part_max(PART_ROWS_MAX)
        for part in cut(record_sizes(rows), np.arange(len(wanted)), CHUNK_BYTES_MAX, most):
            await self._send_part(rows.slice(int(part[0]), len(part)))

    async def finish(self) -> None:
        """Records that nothing is in flight."""
        self.state.in_flight = False
        self._target.ledger.save(self.queue, self.state)

    async def _send_part(self, rows: pa.RecordBatch) -> None:
        state = self.state
        chunk = replayed(rows, self.queue, self._target.run, (state.target_topic, state.target_queue_id))
        self.pace, wait = self.pace.take(len(chunk), asyncio.get_running_loop().time())
        await asyncio.sleep(wait)
        try:
            await self._send_chunk(chunk)
        except TroveError as error:
            illegal = self._illegal(chunk, error)
            if not (illegal and self._target.skip_unsendable):
                raise self._named(error, chunk, illegal) from error
            await self._send_without(rows, chunk, illegal)

    async def _send_without(self, rows: pa.RecordBatch, chunk: Chunk, illegal: list[int]) -> None:
        """Sends the part again, as far as it was not sent, without the illegal messages."""
        self.count.unsendable += len(illegal)
        kept = chunk.rows > self.state.source_offset
        kept[illegal] = False
        if kept.any():
            await self._send_part(rows.filter(pa.array(kept)))
        self.state.source_offset = max(self.state.source_offset, int(chunk.rows[-1]))
        self._target.ledger.save(self.queue, self.state)

    def _illegal(self, chunk: Chunk, error: TroveError) -> list[int]:
        """The indexes of messages that no broker would accept; none if it is in doubt whether they are
        stored."""
        if error.spec is errors.MESSAGE_GROUP_ILLEGAL:
            # Raised when it was submitted; earlier ones are sent and recorded.
            return [int(np.argmax(chunk.rows > self.state.source_offset))]
        if error.spec in _REFUSALS:
            return illegal_messages(chunk, int(error.fields.get("size_max", 0)))
        return []

    def _named(self, error: TroveError, chunk: Chunk, illegal: list[int]) -> TroveError:
        """The error with the message that caused it, or with those that were sent together."""
        if illegal:
            place = f"offset {chunk.rows[illegal[0]]}"
            advice = ". skip_unsendable = true leaves out such messages"
        else:
            place, advice = f"offsets {chunk.rows[0]} to {chunk.rows[-1]}", ""
        return TroveError(error.spec, f"{self.queue}, {place}: {error.message}{advice}", **error.fields)

    def _note(self, count: int, source_offset: int, target_offset: int) -> None:
        """Records that `count` more messages are acknowledged, up to these offsets (target: exclusive)."""
        state = self.state
        state.target_offset, state.source_offset = target_offset, source_offset
        state.sent += count
        self.count.sent += count
        self._target.ledger.save(self.queue, state)

    async def _send_chunk(self, chunk: Chunk) -> None:
        """Sends the part and records it, also the messages that were stored before an error. Raises
        TroveError."""
        if not chunk.sent_singly:
            end = await send_columns(self._producer, chunk, self.state.target_broker)
            self._note(len(chunk), int(chunk.rows[-1]), end)
            return
        assert chunk.groups is not None, "replayed messages have no delay"
        waiters: list[asyncio.Future[SendReceipt]] = []
        try:
            self._hand_over(chunk, chunk.groups, waiters)
        finally:
            if waiters:
                receipts = await asyncio.gather(*waiters)
                last = int(chunk.rows[len(waiters) - 1])
                self._note(len(waiters), last, int(receipts[-1].queue_offset) + 1)

    def _hand_over(
        self, chunk: Chunk, groups: Sequence[str | None], waiters: list[asyncio.Future[SendReceipt]]
    ) -> None:
        """Submits messages with a sharding key: without a pause between them they share one frame."""
        for i in range(len(chunk)):
            waiter = self._producer.send_nowait(
                chunk.bodies[i],
                keys=chunk.keys[i] if chunk.keys else None,
                tag=chunk.tags[i] if chunk.tags else None,
                properties=chunk.properties[i] if chunk.properties else None,
                message_id=chunk.message_ids[i] if chunk.message_ids else None,
                queue_id=self.state.target_queue_id,
                broker=self.state.target_broker,
                message_group=groups[i],
            )
            waiters.append(waiter)

    async def _settle(self) -> None:
        """Finds in the target the messages that a killed run has sent, and records them. Raises TroveError
        DATA_LOST."""
        state = self.state
        spans = await self._client.queue_offsets(
            state.target_topic, queue_ids=[state.target_queue_id], broker=state.target_broker
        )
        if spans[0].max_offset < state.target_offset:
            raise TroveError(
                errors.DATA_LOST,
                f"{self.queue}: the target, queue {state.target_queue_id} of {state.target_topic} on "
                f"{state.target_broker}, ends at {spans[0].max_offset}, before {state.target_offset} that "
                "the ledger has: it was deleted, or lost acknowledged messages. Name another ledger to "
                "start over",
            )
        found: list[int] = []
        batches = self._client.pull_batches(
            state.target_topic,
            queue_id=state.target_queue_id,
            offset=max(state.target_offset, spans[0].min_offset),
            bytes_max=_TAIL_BYTES,
            broker=state.target_broker,
        )
        async for batch in batches:
            if len(batch):
                properties = arrow_batch(batch.records, ["properties"]).column("properties")
                found += offsets_of(properties, self.queue, self._target.run)
        own = [offset for offset in found if offset > state.source_offset]
        state.target_offset = spans[0].max_offset
        state.source_offset = max(own, default=state.source_offset)
        state.sent += len(own)
        self.count.settled += len(own)


async def _new_state(client: Client, target: ReplayTarget, queue: SourceQueue) -> QueueState:
    """The target queue of a source queue, by round robin. All messages of a source queue go to one queue."""
    topic = target.topic or queue.topic
    found: list[QueueOffsets] = await client.queue_offsets(topic, broker=target.broker or None)
    slots = sorted(found, key=lambda slot: (slot.queue_id, slot.broker))
    if not slots:
        raise TroveError(errors.TOPIC_NOT_FOUND, f"{topic} has no queue to send to", topic=topic)
    slot = slots[queue.queue_id % len(slots)]
    return QueueState(topic, slot.broker, slot.queue_id, slot.max_offset)
