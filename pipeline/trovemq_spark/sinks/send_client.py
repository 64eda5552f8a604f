"""Sends chunks with the SDK in a Spark task: with a limit in flight, counted, and errors with the row.

Invariants
- Chunks with a given queue id are sent one after the other for each queue, in their order; others overlap.
- `acknowledged` counts messages that a broker has acknowledged; they stay stored, whatever happens
  afterwards.
- After the first failure of any kind nothing more is sent, and the failure is raised.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from trovemq import Client, Producer
from trovemq.receipts import PartialBatchError
from trovemq_proto.errors import TroveError
from trovemq_proto.records.properties import encode_properties, message_properties
from trovemq_spark.sinks.rows_out import CHUNK_BYTES_MAX, Chunk

CHUNKS_MAX: Final = 8
"""The most chunks of a task in flight."""


class ChunkSender:
    """Sends the chunks of one task; used on the client's event loop."""

    def __init__(self, client: Client, *, in_flight_bytes: int) -> None:
        self._client = client
        self._in_flight_bytes = in_flight_bytes
        self._producers: dict[str, Producer] = {}
        self._order: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pending: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        self.acknowledged = 0

    @property
    def topics(self) -> list[str]:
        """The topics that something was sent to."""
        return list(self._producers)

    async def submit(self, chunk: Chunk) -> None:
        """Begins to send a chunk; waits while CHUNKS_MAX are in flight. Raises the error of an earlier
        one."""
        while len(self._pending) >= CHUNKS_MAX:
            await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()
        task = asyncio.get_running_loop().create_task(self._send_in_order(chunk))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def drain(self) -> None:
        """Waits for all acknowledgements. Raises the first failure when all sends have ended."""
        await self.finished()
        self._raise_failure()

    async def finished(self) -> None:
        """Waits until all have ended, with or without success.

        By `wait`, which lets the loop run: from Python 3.12 on `gather` of ended tasks does not, and they
        would stay pending for ever.
        """
        while self._pending:
            await asyncio.wait(self._pending)

    async def stop(self) -> None:
        """Cancels the sends in flight."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _send_in_order(self, chunk: Chunk) -> None:
        if chunk.queue_id is None:
            await self._send(chunk)
            return
        async with self._order[chunk.topic, chunk.queue_id]:
            await self._send(chunk)

    async def _send(self, chunk: Chunk) -> None:
        if self._failure is not None:
            return
        try:
            producer = self._producers.get(chunk.topic)
            if producer is None:
                producer = self._producers[chunk.topic] = self._client.producer(
                    chunk.topic,
                    batch_bytes_max=CHUNK_BYTES_MAX,
                    in_flight_bytes_max=self._in_flight_bytes,
                    retry_in_doubt=True,
                )
            if chunk.sent_singly:
                await self._send_singly(producer, chunk)
            else:
                await send_columns(producer, chunk)
                self.acknowledged += len(chunk)
        except Exception as error:  # if the task ended with it, the error would be lost with its rows
            if isinstance(error, PartialBatchError):
                self.acknowledged += len(error.receipts)
            if self._failure is None:
                self._failure = with_row(error, chunk) if isinstance(error, TroveError) else error

    async def _send_singly(self, producer: Producer, chunk: Chunk) -> None:
        """Sends messages that no batch of columns can carry; the producer puts them into frames."""
        delays = chunk.delays_seconds
        calls = [
            producer.send(
                chunk.bodies[i],
                keys=chunk.keys[i] if chunk.keys else None,
                tag=chunk.tags[i] if chunk.tags else None,
                properties=chunk.properties[i] if chunk.properties else None,
                message_id=chunk.message_ids[i] if chunk.message_ids else None,
                queue_id=chunk.queue_id,
                message_group=chunk.groups[i] if chunk.groups else None,
                deliver_after=delays[i] if delays and delays[i] else None,
            )
            for i in range(len(chunk))
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        self.acknowledged += len(outcomes) - len(failures)
        if failures:
            raise failures[0]


async def send_columns(producer: Producer, chunk: Chunk, broker: str | None = None) -> int:
    """Sends a chunk to one queue. Returns the queue offset after its last message. Raises TroveError, and
    PartialBatchError if only some frames are stored."""
    receipt = await producer.send_batch(
        chunk.bodies,
        keys=chunk.keys,
        tags=chunk.tags,
        properties=chunk.properties,
        message_ids=chunk.message_ids,
        queue_id=chunk.queue_id,
        broker=broker,
    )
    return int(receipt.queue_offsets[-1]) + 1


def with_row(error: TroveError, chunk: Chunk) -> TroveError:
    """The error with the number of the row that caused it, or of those that were sent together."""
    size_max = int(error.fields.get("size_max", 0))
    illegal = illegal_messages(chunk, size_max)
    if illegal:
        row = int(chunk.rows[illegal[0]])
        text = f"row {row} of its partition: {error.message}"
        return TroveError(error.spec, text, **{**error.fields, "row": row})
    first, last = int(chunk.rows.min()), int(chunk.rows.max())
    text = f"rows {first} to {last} of their partition, topic {chunk.topic}: {error.message}"
    return TroveError(error.spec, text, **{**error.fields, "row": first})


def illegal_messages(chunk: Chunk, size_max: int) -> list[int]:
    """The indexes in the chunk of messages that no broker accepts. size_max: of a body; 0: unknown."""
    illegal = []
    for i in range(len(chunk)):
        try:
            block = message_properties(
                chunk.message_ids[i] if chunk.message_ids else None,
                chunk.keys[i] if chunk.keys else None,
                chunk.tags[i] if chunk.tags else None,
                chunk.properties[i] if chunk.properties else None,
            )
            encode_properties(block)
        except TroveError:
            illegal.append(i)
            continue
        if size_max and len(chunk.bodies[i]) > size_max:
            illegal.append(i)
    return illegal


def total(counts: Iterable[int]) -> str:
    """The number of messages, in words."""
    found = sum(counts)
    return f"{found} message" if found == 1 else f"{found} messages"
