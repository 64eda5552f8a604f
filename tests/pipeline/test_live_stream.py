"""Format `trovemq` as a stream against real brokers: every row once, over restarts; batches as asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.live_source import (
    Row,
    Sent,
    ask,
    make_topic,
    partitions_of,
    places,
    read_rows,
    reader_of,
    rows_of,
    send,
    stream_reader_of,
)
from trovemq.testing import BrokerProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_spark.sources.live_batch import TroveDataSource
from trovemq_spark.sources.live_report import OffsetReporter, report_offsets
from trovemq_spark.sources.live_stream import LiveStreamReader

pytestmark = pytest.mark.slow
NAME = "b1"
Offsets = dict[str, Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(name=NAME) as process:
        yield process


def options_of(broker: BrokerProcess, topics: str, **more: str) -> dict[str, str]:
    return {
        "nameServer": broker.address,
        "subscribePattern": topics,
        "startingOffsets": "earliest",
        "reconnectTimeoutMs": "5000",
    } | more


def at(*offsets: int, identity: int = 0) -> dict[str, dict[str, int]]:
    """The offsets of queues 0, 1, … of a topic in a checkpoint; 0: the topic was never deleted."""
    return {
        NAME: {str(queue_id): offset for queue_id, offset in enumerate(offsets)} | {"topicIdentity": identity}
    }


def remade(broker: BrokerProcess, topic: str, count: int) -> None:
    """Deletes a topic, and makes it again with this number of messages."""
    ask(broker.address, lambda client: client.admin.delete_topic(topic))
    filled(broker, topic, count)


def read_between(reader: LiveStreamReader, start: Offsets, end: Offsets) -> list[Row]:
    return [row for part in reader.partitions(start, end) for row in rows_of(reader.read(part))]


def batches_of(reader: LiveStreamReader, start: Offsets) -> Iterator[tuple[Offsets, list[Row]]]:
    """The batches of a query: one after another until nothing comes."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield end, read_between(reader, start, end)
        start = end


# --- with Spark ------------------------------------------------------------------------------------------


def run_available(spark: SparkSession, options: dict[str, str], directory: Path) -> StreamingQuery:
    """One run of a query up to its end: rows in directory/rows, offsets in directory/checkpoint."""
    query = (
        spark.readStream.format("trovemq")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_query_that_is_started_again_has_every_row_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    spark.dataSource.register(TroveDataSource)
    make_topic(broker.address, "again-1", 2)
    sent = send(broker.address, "again-1", QueueId(0), 50, NAME) + send(
        broker.address, "again-1", QueueId(1), 10, NAME
    )
    options = options_of(broker, "again-.*", maxOffsetsPerTrigger="40", consumerGroup="readers")
    first = run_available(spark, options, tmp_path)
    counts = [progress.numInputRows for progress in first.recentProgress if progress.numInputRows]
    assert sum(counts) == 60
    assert len(counts) == 2
    assert max(counts) <= 40
    assert group_offsets(broker, "readers", "again-1", 2) != [50, 10], (
        "reported by Spark, so a batch too late"
    )
    assert report_offsets(first, broker.address, "readers") == []
    assert group_offsets(broker, "readers", "again-1", 2) == [50, 10]

    make_topic(broker.address, "again-2", 1)
    sent += send(broker.address, "again-2", QueueId(0), 7, NAME) + send(
        broker.address, "again-1", QueueId(1), 5, NAME
    )
    # As a crash before the commit leaves it: the last batch runs again.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    reporter = OffsetReporter(broker.address, "watchers")
    spark.streams.addListener(reporter)
    run_available(spark, options, tmp_path)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    spark.streams.removeListener(reporter)
    assert group_offsets(broker, "watchers", "again-1", 2) == [50, 15]
    assert group_offsets(broker, "watchers", "again-2", 1) == [7]
    rows = spark.read.parquet(str(tmp_path / "rows")).select("topic", "brokerName", "queueId", "queueOffset")
    assert sorted(places([row.asDict() for row in rows.collect()])) == sorted(m.place for m in sent)


def group_offsets(broker: BrokerProcess, group: str, topic: str, count: int) -> list[int | None]:
    async def asked(client: Any) -> list[int | None]:
        return [await client.admin.get_offset(group, topic, queue_id) for queue_id in range(count)]

    return ask(broker.address, asked)


# --- planning, asked directly ---------------------------------------------------------------------------


def filled(broker: BrokerProcess, topic: str, *counts: int, size: int = 20) -> list[Sent]:
    """A new topic with these numbers of messages in its queues."""
    make_topic(broker.address, topic, len(counts))
    return [
        message
        for queue_id, count in enumerate(counts)
        if count
        for message in send(broker.address, topic, QueueId(queue_id), count, NAME, size=size)
    ]


def test_a_stream_begins_at_the_latest_place_by_default(broker: BrokerProcess) -> None:
    filled(broker, "begin", 3, 0)
    options = options_of(broker, "begin")
    earliest = stream_reader_of(options)
    latest = stream_reader_of({name: value for name, value in options.items() if name != "startingOffsets"})
    assert earliest.initialOffset() == {"begin": at(0, 0)}
    start = latest.initialOffset()
    assert start == {"begin": at(3, 0)}
    assert latest.latestOffset(start, ReadAllAvailable()) == start
    send(broker.address, "begin", QueueId(1), 2, NAME)
    ((end, rows),) = batches_of(latest, start)
    assert end == {"begin": at(3, 2)}
    assert places(rows) == [("begin", NAME, 1, 0), ("begin", NAME, 1, 1)]


def test_a_checkpoint_of_another_source_and_a_lost_topic_are_named(broker: BrokerProcess) -> None:
    filled(broker, "stays", 1)
    reader = stream_reader_of(options_of(broker, "stays"))
    with pytest.raises(TroveError, match="another query's") as caught:
        reader.latestOffset({"physicalOffset": 5}, ReadAllAvailable())
    assert caught.value.spec is errors.OPTION_ILLEGAL
    start = {"stays": {NAME: {"0": 0}}, "left": {NAME: {"0": 3}}}
    with pytest.raises(TroveError, match=r"topic left, .* up to offset 3, .* no longer subscribed") as caught:
        reader.latestOffset(start, ReadAllAvailable())
    assert caught.value.spec is errors.DATA_LOST
    tolerant = stream_reader_of(options_of(broker, "stays", failOnDataLoss="false"))
    assert tolerant.latestOffset(start, ReadAllAvailable()) == start | {"stays": at(1)}


def test_batches_are_as_large_as_asked_and_leave_no_queue_out(broker: BrokerProcess) -> None:
    sent = filled(broker, "large", 90, 9, 1)
    options = options_of(broker, "large", maxOffsetsPerTrigger="20", minPartitions="4")
    reader = stream_reader_of(options)
    start = reader.initialOffset()
    found = list(batches_of(reader, start))
    assert all(0 < len(rows) <= 20 for _, rows in found)
    assert {row["queueId"] for row in found[0][1]} == {0, 1, 2}
    assert sorted(places([row for _, rows in found for row in rows])) == sorted(m.place for m in sent)
    everything = reader.latestOffset(start, ReadAllAvailable())
    assert len(read_between(reader, start, everything)) == 100, "Spark may ask for all there is"
    # Another process with the same offsets reads the same rows.
    send(broker.address, "large", QueueId(1), 5, NAME)
    (end, rows), other = found[0], stream_reader_of(options)
    assert read_between(other, start, end) == rows


def test_bytes_of_a_batch_are_kept_nearly(broker: BrokerProcess) -> None:
    sent = filled(broker, "heavy", 40, 20, size=1000)
    reader = stream_reader_of(options_of(broker, "heavy", maxBytesPerTrigger="20k"))
    found = list(batches_of(reader, reader.initialOffset()))
    sizes = [sum(row["size"] for row in rows) for _, rows in found]
    assert max(sizes) <= 20 << 10
    assert min(sizes[:-1]) > 15 << 10
    assert sum(len(rows) for _, rows in found) == len(sent)


def test_a_batch_waits_for_rows_but_not_for_ever(broker: BrokerProcess) -> None:
    filled(broker, "slow", 1)
    now = 0.0
    options = options_of(broker, "slow", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    reader = stream_reader_of(options)
    reader._delay.clock = lambda: now
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)
    assert end == {"slow": at(1)}, "the first batch does not wait"
    send(broker.address, "slow", QueueId(0), 3, NAME)
    now = 9.9
    assert reader.latestOffset(end, limit) == end
    now = 10.0
    end = reader.latestOffset(end, limit)
    assert end == {"slow": at(4)}
    send(broker.address, "slow", QueueId(0), 5, NAME)
    assert reader.latestOffset(end, limit) == {"slow": at(9)}
    ending = stream_reader_of(options)
    ending.prepareForTriggerAvailableNow()
    ending._delay.holds(0)
    assert ending.latestOffset({"slow": at(7)}, limit) == {"slow": at(9)}


def test_available_now_ends_where_the_topic_ended_when_it_began(broker: BrokerProcess) -> None:
    filled(broker, "now-1", 10)
    reader = stream_reader_of(options_of(broker, "now-.*", maxOffsetsPerTrigger="4"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(broker.address, "now-1", QueueId(0), 10, NAME)
    filled(broker, "now-2", 3)
    assert [len(rows) for _, rows in batches_of(reader, start)] == [4, 4, 2]


def test_new_queues_are_taken_in_where_they_begin_before_they_are_read(broker: BrokerProcess) -> None:
    filled(broker, "new-1", 2)
    reader = stream_reader_of(options_of(broker, "new-.*"))
    start = reader.initialOffset()
    filled(broker, "new-2", 3)
    ask(broker.address, lambda client: client.admin.alter_topic("new-1", queue_count=2))
    send(broker.address, "new-1", QueueId(1), 1, NAME)
    (taken, nothing), (_, rows) = batches_of(reader, start)
    assert taken == {"new-1": at(0, 0), "new-2": at(0)}
    assert nothing == []
    assert len(rows) == 6


@pytest.mark.parametrize("wanted", [{"0": 9}, {"0": 1, "7": 0}], ids=["beyond the end", "no such queue"])
def test_what_the_checkpoint_names_and_is_gone_is_data_loss(
    broker: BrokerProcess, wanted: dict[str, int], request: pytest.FixtureRequest
) -> None:
    topic = f"gone-{len(wanted)}"
    filled(broker, topic, 3)
    start = {topic: {NAME: wanted}}
    with pytest.raises(TroveError) as lost:
        stream_reader_of(options_of(broker, topic)).latestOffset(start, ReadAllAvailable())
    assert lost.value.spec is errors.DATA_LOST
    assert {"topic": topic, "broker": NAME}.items() <= lost.value.fields.items()
    tolerant = stream_reader_of(options_of(broker, topic, failOnDataLoss="false"))
    found = [row["queueOffset"] for _, rows in batches_of(tolerant, start) for row in rows]
    assert found == list(range(wanted["0"], 3))
    ends = [end[topic][NAME] for end, _ in batches_of(tolerant, start)]
    assert ends[-1] == wanted | at(3)[NAME], "a queue that is away keeps its place"


def test_a_query_went_on_in_the_namesake_of_its_topic(broker: BrokerProcess) -> None:
    filled(broker, "again", 5)
    reader = stream_reader_of(options_of(broker, "again"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"again": at(5)}
    parts = reader.partitions(start, end)
    remade(broker, "again", 20)
    for program in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: [rows_of(reader.read(part)) for part in parts],
    ):
        with pytest.raises(TroveError, match=r"again, .* deleted and recreated .TOPIC_RECREATED.") as lost:
            program()
        assert lost.value.spec is errors.DATA_LOST
    tolerant = stream_reader_of(options_of(broker, "again", failOnDataLoss="false"))
    assert [rows_of(tolerant.read(part)) for part in parts] == [[]]
    (taken, nothing), (_, rows) = batches_of(tolerant, end)
    assert taken["again"][NAME]["0"] == 0 < taken["again"][NAME]["topicIdentity"]
    assert (nothing, [row["queueOffset"] for row in rows]) == ([], list(range(20)))
    remade(broker, "again", 9)
    (taken, nothing), (_, rows) = batches_of(tolerant, taken)
    assert (nothing, len(rows)) == ([], 9), "also where nothing of the topic was read"


def test_a_checkpoint_without_identities_is_taken_once(broker: BrokerProcess) -> None:
    filled(broker, "old", 5)
    remade(broker, "old", 7)
    reader = stream_reader_of(options_of(broker, "old"))
    ((end, rows),) = batches_of(reader, {"old": {NAME: {"0": 4}}})
    assert [row["queueOffset"] for row in rows] == [4, 5, 6]
    identity = end["old"][NAME]["topicIdentity"]
    assert end == {"old": at(7, identity=identity)}
    remade(broker, "old", 9)
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        reader.latestOffset(end, ReadAllAvailable())


def test_offsets_of_a_checkpoint_as_an_option_are_of_its_topic(broker: BrokerProcess) -> None:
    filled(broker, "option", 5)
    old, bare = json.dumps({"option": at(3)}), json.dumps({"option": {NAME: {"0": 3}}})
    assert len(read_rows(options_of(broker, "option", startingOffsets=old))) == 2
    parts = partitions_of(options_of(broker, "option"))
    remade(broker, "option", 9)
    assert len(read_rows(options_of(broker, "option", startingOffsets=bare))) == 6
    with pytest.raises(TroveError, match="TOPIC_RECREATED") as lost:
        read_rows(options_of(broker, "option", startingOffsets=old))
    assert lost.value.spec is errors.DATA_LOST
    tolerant = options_of(broker, "option", failOnDataLoss="false")
    assert len(read_rows(tolerant | {"startingOffsets": old})) == 9
    assert len(read_rows(tolerant | {"endingOffsets": old})) == 0
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        [rows_of(reader_of(options_of(broker, "option")).read(part)) for part in parts]


def test_a_restarting_broker_is_waited_for_one_that_stays_away_is_an_error() -> None:
    with BrokerProcess(name=NAME) as broker:
        filled(broker, "away", 2)
        reader = stream_reader_of(options_of(broker, "away", reconnectTimeoutMs="20000"))
        start = reader.initialOffset()
        broker.kill()
        broker.start(wait=False)
        assert [len(rows) for _, rows in batches_of(reader, start)] == [2]
        broker.kill()
        hasty = stream_reader_of(options_of(broker, "away", reconnectTimeoutMs="200"))
        with pytest.raises(TroveError) as away:
            hasty.latestOffset(start, ReadAllAvailable())
        assert away.value.retriable


def test_limits_are_passed_to_spark(broker: BrokerProcess) -> None:
    cases: list[tuple[dict[str, str], ReadLimit]] = [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "2"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(1 << 20)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ]
    for more, limit in cases:
        assert stream_reader_of(options_of(broker, "x", **more)).getDefaultReadLimit() == limit
