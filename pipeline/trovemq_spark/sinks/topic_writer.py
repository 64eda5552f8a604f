"""The writer of format `trovemq`: rows to topics, batch and streaming, at least once.

| exactlyOnce | message id of a row            | effect of a task that runs again, or a replayed batch     |
|-------------|--------------------------------|-----------------------------------------------------------|
| none        | column messageId, or a new one | stores its messages again                                 |
| dedup       | QUERY-BATCH-PARTITION-ROW      | the same message ids again: a broker that deduplicates    |
|             |                                | drops them; else readers recognise them by messageId      |

QUERY is the option queryId; else a stream's own id (it is kept in its checkpoint), and a new one for each
batch write. A repeated partition must have its rows in the same order, as with our own sources. Within a
partition, rows with a sharding key keep their order, and so do, per queue, those without one that have a
queueId. Messages are visible when they are acknowledged: commit has nothing to do, and abort cannot undo
anything. A task that Spark runs a second time beside the first (spark.speculation) sends its rows again, like
a task that is repeated after a failure.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from trovemq import Client, ClientOptions, connect
from trovemq_proto.errors import TroveError
from trovemq_spark import live_loop
from trovemq_spark.option_kinds import option_error
from trovemq_spark.sinks.options import DEDUP, SinkOptions, check_columns, parse_sink_options
from trovemq_spark.sinks.rows_out import OutgoingPlan, chunks_of
from trovemq_spark.sinks.send_client import ChunkSender, total

if TYPE_CHECKING:
    import pyarrow as pa

STREAM_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local properties of a task of a stream."""
NOT_DEDUPLICATED: Final = (
    "exactlyOnce = dedup: not every topic that was written to is deduplicated, by one broker (its option "
    "deduplicate). There a message that is written again (a task that failed, a batch that is replayed) "
    "is stored again, with the same messageId, by which readers can recognise it"
)


class NotDeduplicatedWarning(UserWarning):
    """exactlyOnce = dedup was requested for topics without deduplication."""


@dataclass
class Sent(WriterCommitMessage):
    """The result of a task: acknowledged messages; whether the brokers drop duplicates."""

    messages: int
    deduplicated: bool = False


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicBatchWriter:
    """The writer of `df.write.format("trovemq").mode("append")`. Raises TroveError OPTION_ILLEGAL."""
    if overwrite:
        raise option_error('a topic is written with .mode("append") only: messages are not replaced', "mode")
    checked = _checked(options, schema)
    return TopicBatchWriter(checked, checked.query_id or str(uuid.uuid4()))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TopicStreamWriter:
    """The writer of `df.writeStream.format("trovemq")`. Raises TroveError OPTION_ILLEGAL."""
    if overwrite:
        raise option_error(
            'a stream is written to a topic with .outputMode("append") only: messages are not replaced',
            "outputMode",
        )
    return TopicStreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    checked = parse_sink_options(options)
    check_columns(schema, checked)
    return checked


def warn_of_duplicates(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Warns if dedup was requested and a task wrote to a topic without deduplication."""
    sent = [message for message in messages if isinstance(message, Sent) and message.messages]
    if options.exactly_once == DEDUP and not all(message.deduplicated for message in sent):
        warnings.warn(NOT_DEDUPLICATED, NotDeduplicatedWarning, stacklevel=3)


class TopicBatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame. Picklable; `query_id` is made once, so that a repeated task has the same one."""

    def __init__(self, options: SinkOptions, query_id: str) -> None:
        self._options = options
        self._query_id = query_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return write_rows(iterator, self._options, self._query_id, "0")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing to the messages, which are visible already; warns if they may be stored twice when
        written again."""
        warn_of_duplicates(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Reports the messages that stay stored."""
        warnings.warn(aborted(messages), stacklevel=2)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one stream. Picklable."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        stream_id = context.getLocalProperty(STREAM_ID_PROPERTY) or ""
        batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) or ""
        assert stream_id, "Spark names the stream to its tasks"
        assert batch_id, "Spark names the batch to its tasks"
        return write_rows(iterator, self._options, self._options.query_id or stream_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Changes nothing, so it may be repeated: acknowledged messages are visible. Warns like the batch
        writer."""
        warn_of_duplicates(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Reports the messages that stay stored."""
        warnings.warn(f"batch {batchId}: {aborted(messages)}", stacklevel=2)


def aborted(messages: Sequence[WriterCommitMessage | None]) -> str:
    """The messages that an aborted write leaves, in words."""
    finished = [message for message in messages if isinstance(message, Sent)]
    failed = len(messages) - len(finished)
    return (
        f"the write was given up: {total(sent.messages for sent in finished)} of {len(finished)} finished "
        f"tasks stay in the topic; how many of the other {failed} tasks do is in their errors"
    )


def write_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, query_id: str, batch_id: str) -> Sent:
    """Sends a partition's rows and waits for all acknowledgements.

    Raises the SDK's TroveError with the row's number and the number of this task's stored messages.
    """
    prefix = None
    if options.exactly_once == DEDUP:
        context = TaskContext.get()
        prefix = f"{query_id}-{batch_id}-{context.partitionId() if context is not None else 0}"
    plan = OutgoingPlan(options.topic, prefix)
    return live_loop.run(_send_all(batches, options, plan))


async def _send_all(batches: Iterator[pa.RecordBatch], options: SinkOptions, plan: OutgoingPlan) -> Sent:
    row = 0
    client_options = options.of_client(ClientOptions(delivery_timeout_ms=options.delivery_timeout_ms))
    batch = await asyncio.to_thread(next, batches, None)
    if batch is None:
        return Sent(0)
    wait_ms = options.delivery_timeout_ms
    async with connect(options.name_server, wait_ms=wait_ms, options=client_options) as client:
        sender = ChunkSender(client, in_flight_bytes=options.in_flight_bytes)
        try:
            while batch is not None:
                for chunk in chunks_of(batch, plan, row):
                    await sender.submit(chunk)
                row += batch.num_rows
                # Meanwhile Spark makes the next rows; acknowledgements are read and time-outs are checked.
                batch = await asyncio.to_thread(next, batches, None)
            await sender.drain()
            deduplicated = options.exactly_once == DEDUP and await _deduplicated(client, sender.topics)
        except TroveError as error:
            await sender.finished()
            text = f"{error.message} ({total([sender.acknowledged])} of this task are stored)"
            raise TroveError(
                error.spec, text, **{**error.fields, "stored_count": sender.acknowledged}
            ) from error
        finally:
            await sender.stop()
    return Sent(sender.acknowledged, deduplicated)


async def _deduplicated(client: Client, topics: Iterable[str]) -> bool:
    """Whether a repeated row is stored once: each topic is deduplicated, and only one broker has it (with
    several the row may go to another one)."""
    for topic in topics:
        described = await client.admin.describe_topic(topic)
        if len(described) != 1 or "deduplicate" not in described[0].options:
            return False
    return True
