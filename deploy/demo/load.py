"""Loads the flights that the store does not have yet.

A row's message id is its number in the file, so the store itself shows which rows it has: the load reads the
message ids of the topic and sends every other row, in the file's order. It may be ended at any moment and
continues at the next start without a duplicate or a gap, whatever part of the last batches had reached the
log. The client sends nothing again that may have been stored: a batch in doubt ends the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deploy.demo import flights
from deploy.demo.flights import FlightMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq import BatchReceipt, Client, Producer

BATCH_MESSAGES: Final = 1_000
BATCHES_IN_FLIGHT_MAX: Final = 8

Progress = Callable[[int], None]  # called with the number of messages that were just acknowledged


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows that a load found and those that it sent."""

    found: int
    sent: int


async def load_flights(
    client: Client, progress: Progress, rows: Iterable[FlightMessage] | None = None
) -> Loaded:
    """Sends every row that the topic does not have; returns when all are acknowledged.

    `progress` gets the number of rows found first, then that of acknowledged ones. Raises TroveError.
    """
    await make_topic(client)
    if await is_complete(client):
        progress(flights.FLIGHT_COUNT)
        return Loaded(found=flights.FLIGHT_COUNT, sent=0)
    stored = await stored_rows(client)
    found = sum(stored)
    progress(found)
    missing = (row for row in (rows or flights.flight_messages()) if not stored[row.row_number])
    async with client.producer(flights.TOPIC) as producer:
        sent = await send_all(producer, missing, progress)
    return Loaded(found=found, sent=sent)


async def make_topic(client: Client) -> None:
    """Creates the topic unless it is there."""
    try:
        await client.admin.create_topic(flights.TOPIC, queue_count=flights.QUEUE_COUNT)
    except TroveError as error:
        if error.spec is not errors.TOPIC_EXISTS:
            raise


async def is_complete(client: Client) -> bool:
    """Whether the topic has exactly the flights' number of messages on each queue, the last one a flight."""
    offsets = await client.queue_offsets(flights.TOPIC)
    lengths = tuple(queue.max_offset for queue in sorted(offsets, key=lambda queue: queue.queue_id))
    if lengths != flights.QUEUE_LENGTHS:
        return False
    for queue_id, length in enumerate(lengths):
        last = await client.get_at(flights.TOPIC, queue_id, length - 1)
        if flights.row_number_of(last.unique_key) is None:
            return False
    return True


async def stored_rows(client: Client) -> bytearray:
    """One byte a row of the file: 1 where the topic has it."""
    stored = bytearray(flights.FLIGHT_COUNT)
    for queue in await client.queue_offsets(flights.TOPIC):
        batches = client.pull_batches(flights.TOPIC, queue_id=queue.queue_id, offset=queue.min_offset)
        async for batch in batches:
            for key in batch.records.property_values("UNIQ_KEY") if len(batch) else ():
                row_number = flights.row_number_of(key)
                if row_number is not None:
                    stored[row_number] = 1
    return stored


async def send_all(producer: Producer, rows: Iterable[FlightMessage], progress: Progress) -> int:
    """Sends rows in batches, some at a time; returns how many when all are acknowledged."""
    in_flight: deque[asyncio.Task[BatchReceipt]] = deque()
    sent = 0
    try:
        for batch in batches_by_queue(rows):
            in_flight.append(asyncio.create_task(send_batch(producer, batch)))
            sent += len(batch)
            await asyncio.sleep(0)  # let the frame leave, and a signal in, while the next rows are read
            if len(in_flight) == BATCHES_IN_FLIGHT_MAX:
                progress(len(await in_flight.popleft()))
        while in_flight:
            progress(len(await in_flight.popleft()))
    except BaseException:
        await producer.abort()  # the next load sends the missing rows; closing would wait for a lost broker
        raise
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
    return sent


def batches_by_queue(rows: Iterable[FlightMessage]) -> Iterator[list[FlightMessage]]:
    """The rows in batches of one queue each, every queue's rows in order."""
    waiting: list[list[FlightMessage]] = [[] for _ in range(flights.QUEUE_COUNT)]
    for row in rows:
        batch = waiting[row.queue_id]
        batch.append(row)
        if len(batch) == BATCH_MESSAGES:
            waiting[row.queue_id] = []
            yield batch
    yield from (batch for batch in waiting if batch)


async def send_batch(producer: Producer, batch: list[FlightMessage]) -> BatchReceipt:
    """Sends one batch to its queue."""
    return await producer.send_batch(
        [row.body for row in batch],
        queue_id=batch[0].queue_id,
        message_ids=[row.message_id for row in batch],
        keys=[row.keys for row in batch],
        tags=[row.tag for row in batch],
        properties=[row.properties for row in batch],
    )
