"""The work of a task: reads its part of a queue by the broker's Fetch stream and makes rows of it.

While a task works on one batch, a bounded number of further ones is requested. A failed task has changed
nothing, so it can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from trovemq import Client, FetchedBatch, connect
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_spark import live_loop
from trovemq_spark.sources.live_client import Cluster, Span, describe, span_of, wait_for_brokers
from trovemq_spark.sources.live_ranges import QueueRange, lose, lose_topic
from trovemq_spark.sources.option_table import DROPMALFORMED, FAILFAST, PERMISSIVE
from trovemq_spark.sources.rows import LOGGER
from trovemq_spark.table.bodies import INFLATED_BYTES_MAX, InflatedPart, inflated_parts
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import DAMAGE_COLUMN, arrow_schema

_UNREADABLE: Final = "the broker cannot read the record at queue offset {}"


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How tasks read. Picklable.

    names: the columns; tags: only messages with one of them (none: all); messages_max: of one fetch; mode:
        the treatment of damaged records; the others are options.
    """

    cluster: Cluster
    names: tuple[str, ...]
    tags: tuple[str, ...]
    batch_rows: int
    messages_max: int
    pull_timeout_ms: int
    fail_on_data_loss: bool
    mode: str


def read_range(part: QueueRange, settings: FetchSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a range in queue order.

    Raises TroveError BROKER_UNREACHABLE, BROKER_NOT_FOUND or REQUEST_TIMEOUT if the broker stays unreachable,
    RECORD_DAMAGED (failfast), DATA_LOST; all name the queue and the offset.
    """
    rows = RowMaker(part, settings)
    with closing(live_loop.iterate(_fetched(part, settings))) as batches:
        for batch in batches:
            yield from rows.of(batch)
    rows.finish()


async def _fetched(part: QueueRange, settings: FetchSettings) -> AsyncGenerator[FetchedBatch, None]:
    """The records of the range; if the queue's minimum rises beyond them meanwhile, that is data loss."""
    cluster, position = settings.cluster, part.start
    options, patience_ms = cluster.client_options(), cluster.reconnect_timeout_ms
    try:
        async with connect(cluster.server, wait_ms=patience_ms, options=options) as client:
            await wait_for_brokers(client, [part.queue.broker], patience_ms)
            while position < part.end:
                try:
                    async with aclosing(_pulled(client, part, position, settings)) as batches:
                        async for batch in batches:
                            yield batch
                            position = batch.next_offset
                    await _check_end(client, part, position, settings)
                    return
                except TroveError as error:
                    position = _behind_what_is_gone(error, part, position, settings)
    except TroveError as error:
        if error.spec is errors.DATA_LOST:
            raise
        text = f"{describe(part.queue)}: reading {part.start} to {part.end} broke off at offset {position}"
        raise TroveError(error.spec, f"{text}: {error.message}", **error.fields) from error


async def _pulled(
    client: Client, part: QueueRange, position: int, settings: FetchSettings
) -> AsyncGenerator[FetchedBatch, None]:
    """The batches that Client.pull_batches returns. Raises its errors, and REQUEST_TIMEOUT if a reachable
    broker does not answer."""
    patience_ms = settings.cluster.reconnect_timeout_ms + settings.pull_timeout_ms
    pulling = client.pull_batches(
        part.queue.topic,
        queue_id=part.queue.queue_id,
        broker=part.queue.broker,
        offset=position,
        end=part.end,
        messages_max=settings.messages_max,
        tags=settings.tags,
        topic_identity=part.identity,
    )
    async with aclosing(pulling):
        while True:
            try:
                async with asyncio.timeout(patience_ms / 1000):
                    batch = await anext(pulling, None)
            except TimeoutError:
                raise TroveError(errors.REQUEST_TIMEOUT, f"no answer for {patience_ms} ms") from None
            if batch is None:
                return
            yield batch


def _behind_what_is_gone(error: TroveError, part: QueueRange, position: int, settings: FetchSettings) -> int:
    """Where to continue after OFFSET_OUT_OF_RANGE and TOPIC_RECREATED; raises any other error again."""
    if error.spec is errors.TOPIC_RECREATED:
        _lose_topic(part, position, settings)
        return part.end
    if error.spec is not errors.OFFSET_OUT_OF_RANGE:
        raise error
    span = Span(int(error.fields["min_offset"]), int(error.fields["max_offset"]))
    following = min(span.minimum, part.end) if position < span.minimum else part.end
    lose(
        part.queue, position, span, fail=settings.fail_on_data_loss, then=f"reading continues at {following}"
    )
    return following


def _lose_topic(part: QueueRange, position: int, settings: FetchSettings) -> None:
    lose_topic(part.queue, position, fail=settings.fail_on_data_loss, then="the rest of it is left out")


async def _check_end(client: Client, part: QueueRange, position: int, settings: FetchSettings) -> None:
    """Raises if the queue ends before the range: it has lost messages, or is another queue of the same
    name."""
    if position >= part.end:
        return
    # With a tag filter, or blank offsets at the end, no batch shows how far reading has advanced.
    queue = part.queue
    (found,) = await client.queue_offsets(queue.topic, queue_ids=[queue.queue_id], broker=queue.broker)
    if part.identity is not None and found.topic_identity != part.identity:
        _lose_topic(part, position, settings)
    elif found.max_offset < part.end:
        span = span_of(found)
        lose(
            queue,
            part.end,
            span,
            fail=settings.fail_on_data_loss,
            then=f"reading ended at {found.max_offset}",
        )


class RowMaker:
    """Makes the rows of one fetched range; treats damaged records by the mode."""

    def __init__(self, part: QueueRange, settings: FetchSettings) -> None:
        self._queue = part.queue
        self._settings = settings
        self._names = settings.names
        self._dropped = 0

    def of(self, batch: FetchedBatch) -> Iterator[pa.RecordBatch]:
        """Batches of at most batch_rows rows. Raises TroveError RECORD_DAMAGED (failfast)."""
        if batch.damaged_offsets:
            yield from self._damaged(batch.damaged_offsets)
        rows = self._settings.batch_rows
        for first in range(0, len(batch), rows):
            yield from self._good(batch, first, first + rows)

    def finish(self) -> None:
        """Reports the records that were left out."""
        if self._dropped:
            LOGGER.warning("%s: %d damaged records are left out", describe(self._queue), self._dropped)

    def _good(self, batch: FetchedBatch, first: int, end: int) -> Iterator[pa.RecordBatch]:
        whole = batch.records
        records = whole
        if len(whole) > end - first:
            records = RecordBatch(whole.data, whole.positions[first:end], whole.sizes[first:end])
        one = iter((InflatedPart(records),))
        for part in inflated_parts(records, INFLATED_BYTES_MAX) if "body" in self._names else one:
            end = first + len(part.records)
            queue_offsets = None if batch.queue_offsets is None else batch.offsets[first:end]
            unreadable = {
                index: self._unreadable(int(batch.offsets[first + index]), error)
                for index, error in part.errors.items()
            }
            table = arrow_batch(
                part.records,
                self._names,
                broker_name=self._queue.broker,
                queue_offsets=queue_offsets,
                inflated=part.bodies,
            )
            table = self._marked(table, unreadable) if unreadable else table
            if table.num_rows:
                yield table
            first = end

    def _unreadable(self, offset: int, error: TroveError) -> str:
        """The reason for a missing body. Raises it in failfast."""
        if self._settings.mode == FAILFAST:
            raise TroveError(error.spec, f"{describe(self._queue)}, offset {offset}: {error.message}")
        return f"{error.symbol}: {error.message}"

    def _marked(self, table: pa.RecordBatch, unreadable: dict[int, str]) -> pa.RecordBatch:
        """The rows whose body cannot be decompressed get a reason in the column damage, or are left out."""
        if self._settings.mode == DROPMALFORMED:
            self._dropped += len(unreadable)
            good = np.ones(table.num_rows, np.bool_)
            good[list(unreadable)] = False
            return table.filter(pa.array(good))
        if DAMAGE_COLUMN not in self._names:
            return table
        damage = pa.array([unreadable.get(i) for i in range(table.num_rows)], pa.string())
        return table.set_column(self._names.index(DAMAGE_COLUMN), DAMAGE_COLUMN, damage)

    def _damaged(self, offsets: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
        """Rows in place of records that the broker cannot read."""
        queue, mode = self._queue, self._settings.mode
        if mode == FAILFAST:
            text = f"{describe(queue)}: {_UNREADABLE.format(offsets[0])}"
            advice = f"set mode={PERMISSIVE} for a row that says so, or {DROPMALFORMED} to continue without"
            raise TroveError(errors.RECORD_DAMAGED, f"{text}; {advice}", queue_offset=offsets[0])
        if mode == DROPMALFORMED:
            self._dropped += len(offsets)
            return
        known = {"topic": queue.topic, "brokerName": queue.broker, "queueId": queue.queue_id}
        rows = [
            known | {"queueOffset": offset, DAMAGE_COLUMN: _UNREADABLE.format(offset)} for offset in offsets
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(self._names))
