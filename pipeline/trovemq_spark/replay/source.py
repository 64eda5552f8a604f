"""The messages that a replay sends, as a DataFrame, and their counts by topic and queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.replay.ledger import SourceQueue
from trovemq_spark.replay.messages import COLUMNS
from trovemq_store.topics.names import SYSTEM_PREFIX, SYSTEM_TOPICS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NARROW: Final = ("topic", "brokerName", "queueId", "queueOffset", "keys", "storeTimestamp")
"""The columns of a preview."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages. Times: epoch ms, 0 for no limit."""

    store: str
    archive: str
    server: str
    topics: tuple[str, ...]
    begin_timestamp: int
    end_timestamp: int
    keys: tuple[str, ...]

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL unless exactly one of store, archive and server is given."""
        given = [name for name in ("store", "archive", "server") if getattr(self, name)]
        if len(given) != 1:
            text = "give one source: store, archive or source_server" + (
                f", not {', '.join(given)}" if given else ""
            )
            raise TroveError(errors.OPTION_ILLEGAL, text, field="store")


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The source's messages of one queue; first and last store time in epoch ms."""

    queue: SourceQueue
    count: int
    first_offset: int
    last_offset: int
    first_timestamp: int
    last_timestamp: int

    def to_json(self) -> dict[str, object]:
        return {
            "queueId": self.queue.queue_id,
            "broker": self.queue.broker,
            "messages": self.count,
            "firstOffset": self.first_offset,
            "lastOffset": self.last_offset,
            "firstStoreTimestamp": self.first_timestamp,
            "lastStoreTimestamp": self.last_timestamp,
        }


def messages(session: SparkSession, wanted: Wanted, columns: Sequence[str] = COLUMNS) -> DataFrame:
    """The selected messages with these columns. Raises TroveError OPTION_ILLEGAL, STORE_FAILED,
    ARCHIVE_ILLEGAL, …"""
    frame = _read(session, wanted, columns)
    for condition in _conditions(wanted):
        frame = frame.where(condition)
    return frame


def _read(session: SparkSession, wanted: Wanted, columns: Sequence[str]) -> DataFrame:
    wanted.check()
    if wanted.archive:
        from trovemq_spark.archive.readers import read_archive

        return read_archive(session, wanted.archive, columns=columns)
    if wanted.server:
        reader = session.read.format("trovemq").option("nameServer", wanted.server)
        reader = reader.option("columns", ",".join(columns))
        if wanted.topics:
            return reader.option("subscribe", ",".join(wanted.topics)).load()
        return reader.option("subscribePattern", ".*").load()
    return session.read.format("trovemq-log").option("columns", ",".join(columns)).load(wanted.store)


def _conditions(wanted: Wanted) -> list[Column]:
    from pyspark.sql import functions as sf

    topic = sf.col("topic")
    conditions = [topic.isNotNull(), sf.col("queueOffset").isNotNull()]
    if wanted.topics:
        conditions.append(topic.isin(*wanted.topics))
    else:
        conditions += [~topic.isin(*sorted(SYSTEM_TOPICS)), ~topic.startswith(SYSTEM_PREFIX)]
        conditions += [~topic.startswith("%")]
    stored = sf.col("storeTimestamp")
    if wanted.begin_timestamp:
        conditions.append(stored >= _time(wanted.begin_timestamp))
    if wanted.end_timestamp:
        conditions.append(stored < _time(wanted.end_timestamp))
    if wanted.keys:
        own = sf.split(sf.col("keys"), " ")
        conditions.append(sf.arrays_overlap(own, sf.array(*map(sf.lit, wanted.keys))))
    return conditions


def _time(milliseconds: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.timestamp_millis(sf.lit(milliseconds).cast("bigint"))


def plan(session: SparkSession, wanted: Wanted) -> list[QueuePlan]:
    """The messages to send, by queue."""
    from pyspark.sql import functions as sf

    stored = sf.unix_millis("storeTimestamp")
    broker = sf.coalesce("brokerName", sf.lit("")).alias("broker")
    found = (
        messages(session, wanted, NARROW)
        .groupBy("topic", broker, "queueId")
        .agg(
            sf.count_distinct("queueOffset").alias("count"),
            sf.min("queueOffset").alias("first"),
            sf.max("queueOffset").alias("last"),
            sf.min(stored).alias("begin"),
            sf.max(stored).alias("end"),
        )
        .orderBy("topic", "broker", "queueId")
        .collect()
    )
    return [
        QueuePlan(
            SourceQueue(row["topic"], row["broker"], row["queueId"]),
            row["count"],
            row["first"],
            row["last"],
            row["begin"],
            row["end"],
        )
        for row in found
    ]


def preview(plans: Sequence[QueuePlan]) -> dict[str, Any]:
    """The counts by topic and queue, and the time range, as JSON."""
    topics: dict[str, Any] = {}
    for entry in plans:
        topic = topics.setdefault(entry.queue.topic, {"messages": 0, "queues": []})
        topic["messages"] += entry.count
        topic["queues"].append(entry.to_json())
    for topic in topics.values():
        topic["firstStoreTimestamp"] = min(queue["firstStoreTimestamp"] for queue in topic["queues"])
        topic["lastStoreTimestamp"] = max(queue["lastStoreTimestamp"] for queue in topic["queues"])
    return topics


def by_task(
    session: SparkSession, frame: DataFrame, plans: Sequence[QueuePlan], partitions: int
) -> DataFrame:
    """The messages in this many partitions, each queue in one of them, sorted by queue and offset."""
    from pyspark.sql import functions as sf

    numbers = [
        (entry.queue.topic, entry.queue.broker, entry.queue.queue_id, number)
        for number, entry in enumerate(plans)
    ]
    known = session.createDataFrame(numbers, "t string, b string, q int, number int")
    same = (
        (frame["topic"] == known["t"])
        & (sf.coalesce(frame["brokerName"], sf.lit("")) == known["b"])
        & (frame["queueId"] == known["q"])
    )
    joined = frame.join(sf.broadcast(known), same).drop("t", "b", "q")
    parted = joined.repartitionById(partitions, "number").drop("number")
    return parted.sortWithinPartitions("topic", "brokerName", "queueId", "queueOffset")
