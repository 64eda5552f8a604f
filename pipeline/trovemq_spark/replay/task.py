"""A Spark task of a replay: takes rows sorted by queue and offset, sends them, returns the counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trovemq import Client, connect
from trovemq_spark import live_loop
from trovemq_spark.replay.ledger import SourceQueue
from trovemq_spark.replay.pace import Pace
from trovemq_spark.replay.sender import QueueSender, ReplayTarget

RESULT: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queueId", pa.int32()),
        ("targetTopic", pa.string()),
        ("targetBroker", pa.string()),
        ("targetQueueId", pa.int32()),
        ("sourceOffset", pa.int64()),
        ("sent", pa.int64()),
        ("before", pa.int64()),
        ("settled", pa.int64()),
        ("repeated", pa.int64()),
        ("unsendable", pa.int64()),
    ]
)
"""One row per queue: the members of its ledger, and QueueCount's."""
CONNECT_WAIT_MS: Final = 30_000
"""How long a server may be unreachable when a task begins."""
RESULT_DDL: Final = (
    "topic string, broker string, queueId int, targetTopic string, targetBroker string, targetQueueId int, "
    "sourceOffset bigint, sent bigint, before bigint, settled bigint, repeated bigint, "
    "unsendable bigint"
)


@dataclass(slots=True)
class ReplayTask:
    """The function of the tasks. Picklable."""

    target: ReplayTarget

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For mapInArrow: columns of messages.COLUMNS in, rows of RESULT out. Raises the SDK's TroveError."""
        results = live_loop.run(self._replay(batches))
        yield pa.RecordBatch.from_pylist(results, schema=RESULT)

    async def _replay(self, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
        batch = await asyncio.to_thread(next, batches, None)
        if batch is None:
            return []
        async with connect(self.target.server, wait_ms=CONNECT_WAIT_MS) as client:
            going = _Going(client, self.target, Pace(self.target.rate))
            try:
                while batch is not None:
                    for queue, rows in by_queue(batch):
                        await going.send(queue, rows)
                    batch = await asyncio.to_thread(next, batches, None)
                await going.finish()
            finally:
                await going.locks.aclose()
            # The next task has a separate pace.
            await asyncio.sleep(going.pace.rest(asyncio.get_running_loop().time()))
        return going.results


@dataclass(slots=True)
class _Going:
    """The queue that is being sent, and the results of those before it."""

    client: Client
    target: ReplayTarget
    pace: Pace
    sender: QueueSender | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    locks: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def send(self, queue: SourceQueue, rows: pa.RecordBatch) -> None:
        if self.sender is None or self.sender.queue != queue:
            await self.finish()
            await self.locks.enter_async_context(self.target.ledger.holding(queue))
            self.sender = await QueueSender.open(self.client, self.target, queue, self.pace)
        await self.sender.send(rows)
        self.pace = self.sender.pace

    async def finish(self) -> None:
        if self.sender is None:
            return
        await self.sender.finish()
        await self.locks.aclose()
        queue, state = self.sender.queue, self.sender.state
        self.results.append(
            {
                "topic": queue.topic,
                "broker": queue.broker,
                "queueId": queue.queue_id,
                "targetTopic": state.target_topic,
                "targetBroker": state.target_broker,
                "targetQueueId": state.target_queue_id,
                "sourceOffset": state.source_offset,
                **asdict(self.sender.count),
            }
        )
        self.sender = None


def by_queue(batch: pa.RecordBatch) -> Iterator[tuple[SourceQueue, pa.RecordBatch]]:
    """The rows of a sorted batch, queue by queue."""
    if not batch.num_rows:
        return
    brokers = pc.fill_null(batch.column("brokerName"), "")
    columns = (batch.column("topic"), brokers, batch.column("queueId"))
    codes = np.stack([column.dictionary_encode().indices.to_numpy() for column in columns])
    starts = [0, *(np.flatnonzero((np.diff(codes) != 0).any(axis=0)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(starts):
        queue = SourceQueue(*(column[begin].as_py() for column in columns))
        yield queue, batch.slice(begin, end - begin)
