"""Messages in a real cluster, and the format `trovemq` asked without Spark: its readers are plain objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from trovemq import Client, connect
from trovemq_proto.positions import QueueId
from trovemq_spark import live_loop
from trovemq_spark.sources.live_batch import TroveDataSource
from trovemq_spark.sources.live_stream import LiveStreamReader

TAGS = ("red", "green", "blue", None)
Row = dict[str, Any]

_Answer = TypeVar("_Answer")


def ask(server: str, question: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
    """One question to a cluster, with the SDK."""

    async def asked() -> _Answer:
        async with connect(server) as client:
            return await question(client)

    return live_loop.run(asked())


@dataclass(frozen=True)
class Sent:
    """A message as it was sent, and where its receipt says that it is."""

    topic: str
    broker: str
    queue_id: QueueId
    queue_offset: int
    body: bytes
    key: str
    tag: str | None
    number: str

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.topic, self.broker, self.queue_id, self.queue_offset


def make_topic(server: str, name: str, queue_count: int) -> str:
    ask(server, lambda client: client.admin.create_topic(name, queue_count))
    return name


def send(
    server: str, topic: str, queue_id: QueueId, count: int, broker: str, *, size: int = 20
) -> list[Sent]:
    """`count` messages of different tags to one queue, in one batch."""

    async def sent(client: Client) -> list[Sent]:
        bodies = [f"{topic} {queue_id} {i} ".encode().ljust(size, b"x") for i in range(count)]
        keys = [f"k{i} shared" for i in range(count)]
        tags = [TAGS[i % len(TAGS)] for i in range(count)]
        receipt = await _producer_send(client, topic, bodies, keys, tags, queue_id, broker)
        return [
            Sent(topic, broker, queue_id, receipt + i, bodies[i], keys[i], tags[i], str(i))
            for i in range(count)
        ]

    return ask(server, sent)


async def _producer_send(
    client: Client,
    topic: str,
    bodies: list[bytes],
    keys: list[str],
    tags: list[str | None],
    queue_id: QueueId,
    broker: str,
) -> int:
    """The first queue offset."""
    async with client.producer(topic) as producer:
        receipt = await producer.send_batch(
            bodies,
            keys=[key.split() for key in keys],
            tags=tags,
            properties=[{"number": str(i)} for i in range(len(bodies))],
            queue_id=queue_id,
            broker=broker,
        )
    return next(iter(receipt)).queue_offset


def row_of_sent(message: Sent) -> Row:
    return {
        "topic": message.topic,
        "brokerName": message.broker,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "keys": message.key,
        "tags": message.tag,
        "body": message.body,
        "number": message.number,
    }


def reader_of(options: dict[str, str], *filters: Filter) -> DataSourceReader:
    """The batch reader as Spark makes it, with the filters."""
    source = TroveDataSource(options | ({"pushdown": "true"} if filters else {}))
    reader = source.reader(source.schema())
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark evaluates all of them again"
    return reader


def partitions_of(options: dict[str, str], *filters: Filter) -> list[InputPartition]:
    return list(reader_of(options, *filters).partitions())


def read_rows(options: dict[str, str], *filters: Filter) -> list[Row]:
    """All rows, in the order of partitions."""
    reader = reader_of(options, *filters)
    return [row for part in reader.partitions() for row in rows_of(reader.read(part))]


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if row.get("properties") is not None:
            row["number"] = dict(row["properties"]).get("number")
    return rows


def stream_reader_of(options: dict[str, str]) -> LiveStreamReader:
    source = TroveDataSource(options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LiveStreamReader)
    return reader


def places(rows: list[Row]) -> list[tuple[str, str, int, int]]:
    return [(row["topic"], row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows]
