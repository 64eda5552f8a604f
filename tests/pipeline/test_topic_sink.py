"""Rows written to topics of a real broker, batch and streaming: stored, kept and refused ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.stored_messages import ask, stored
from trovemq_proto.errors import TroveError
from trovemq_spark.report import error_of
from trovemq_spark.sinks.options import parse_sink_options
from trovemq_spark.sinks.topic_writer import write_rows

pytestmark = pytest.mark.slow
TIMEOUT = "20s"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("store"), "maxMessageSize=65536") as running:
        yield running


def make_topic(
    broker: BrokerProcess, name: str, queues: int = 4, kind: str = "NORMAL", **options: str
) -> str:
    ask(broker, lambda client: client.admin.create_topic(name, queues, kind, options=options))
    return name


def write(rows: DataFrame, broker: BrokerProcess, **options: str) -> None:
    writer = rows.write.format("trovemq").mode("append").option("nameServer", broker.address)
    writer.options(deliveryTimeout=TIMEOUT, **options).save()


def test_what_is_written_arrives_as_it_was_in_the_topic_of_its_row(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    make_topic(broker, "one")
    make_topic(broker, "two")
    count = 6000
    rows = spark.range(0, count, 1, 3).select(
        sf.concat(sf.lit("body-"), sf.col("id")).alias("body"),
        sf.when(sf.col("id") % 2 == 0, "one").otherwise("two").alias("topic"),
        sf.when(sf.col("id") % 3 == 0, sf.lit("tag")).alias("tags"),
        sf.concat(sf.lit("a"), sf.col("id"), sf.lit(" b"), sf.col("id")).alias("keys"),
        sf.create_map(sf.lit("id"), sf.col("id").cast("string")).alias("properties"),
        sf.when(sf.col("id") % 5 == 0, sf.lit(1)).alias("queueId"),
        sf.when(sf.col("id") % 7 == 0, sf.concat(sf.lit("unique"), sf.col("id"))).alias("messageId"),
    )
    write(rows, broker)
    found = {name: stored(broker, name) for name in ("one", "two")}
    seen = {int(m.properties["id"]): (name, m) for name, all_of in found.items() for m in all_of}
    assert len(seen) == count == sum(map(len, found.values()))
    for i, (name, message) in seen.items():
        assert name == ("one" if i % 2 == 0 else "two")
        assert message.body == f"body-{i}".encode()
        assert message.properties.get("TAGS") == ("tag" if i % 3 == 0 else None)
        assert message.properties["KEYS"] == f"a{i} b{i}"
        assert i % 5 or message.queue_id == 1
        assert i % 7 or message.message_id == f"unique{i}"
    with_queue = [m for m in found["one"] if m.queue_id == 1 and int(m.properties["id"]) % 5 == 0]
    for third in range(3):
        own = [i for m in with_queue if (i := int(m.properties["id"])) * 3 // count == third]
        assert own == sorted(own), "rows of a partition with a queue keep their order"


def test_the_option_topic_wins_and_sharding_keys_and_delays_are_kept(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    make_topic(broker, "mixed", kind="MIXED")
    columns = "body binary, topic string, shardingKey string, delayLevel int"
    rows: list[tuple[Any, ...]] = [(b"%d" % i, "nowhere", f"group-{i % 3}", 0) for i in range(60)]
    rows += [(b"late", "nowhere", None, 1)]
    write(spark.createDataFrame(rows, columns).coalesce(1), broker, topic="mixed")
    messages = [message for message in stored(broker, "mixed") if message.body != b"late"]
    for group in range(3):
        own = [m for m in messages if m.properties["__SHARDINGKEY"] == f"group-{group}"]
        assert [int(m.body) for m in own] == list(range(group, 60, 3))
        assert len({m.queue_id for m in own}) == 1


@pytest.mark.parametrize("broken", ["large", "key"])
def test_a_row_the_broker_refuses_is_named_and_acknowledged_rows_stay(
    broker: BrokerProcess, broken: str
) -> None:
    """As a task sees it, without Spark."""
    topic = make_topic(broker, f"partly-{broken}")
    bodies, keys = ["fine"] * 6000, ["a b"] * 6000
    if broken == "large":
        bodies[5000] = "x" * 70_000
    else:
        keys[5000] = "a  b"
    rows = pa.RecordBatch.from_pydict({"body": bodies, "keys": keys})
    options = parse_sink_options({"nameServer": broker.address, "topic": topic, "deliveryTimeout": TIMEOUT})
    with pytest.raises(TroveError, match="row 5000 of its partition") as caught:
        write_rows(iter([rows.slice(0, 4096), rows.slice(4096)]), options, "query", "0")
    assert caught.value.symbol == ("MESSAGE_SIZE_EXCEEDED" if broken == "large" else "KEY_ILLEGAL")
    count = len(stored(broker, topic))
    assert f"({count} messages of this task are stored)" in caught.value.message
    assert count >= 4096, "the first Arrow batch was sent before the row came"


def test_other_modes_unknown_topics_and_lost_brokers_are_refused(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.range(3).select(sf.lit("b").alias("body"))
    writer = rows.write.format("trovemq").options(nameServer=broker.address, topic="x", deliveryTimeout="2s")
    with pytest.raises(Exception, match="append"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="TOPIC_NOT_FOUND") as caught:
        writer.mode("append").save()
    assert error_of(caught.value).symbol == "TOPIC_NOT_FOUND"
    with pytest.raises(Exception, match=r"BROKER_UNREACHABLE|REQUEST_TIMEOUT"):
        writer.option("nameServer", "127.0.0.1:9").mode("append").save()


def test_dedup_gives_unique_keys_of_query_batch_partition_and_row(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = make_topic(broker, "keyed")
    rows = spark.range(0, 10, 1, 2).select(sf.lit("b").alias("body"))
    for _ in range(2):
        write(rows, broker, topic=topic, exactlyOnce="dedup", queryId="nightly")
    expected = {f"nightly-0-{partition}-{row:012d}" for partition in range(2) for row in range(5)}
    found = Counter(message.message_id for message in stored(broker, topic))
    assert found == dict.fromkeys(expected, 2), "written twice: the same message ids again"


def test_rows_written_twice_to_a_deduplicated_topic_are_stored_once(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    topic = make_topic(broker, "once", deduplicate="1h")
    rows = spark.range(0, 10, 1, 2).select(sf.lit("b").alias("body"))
    for _ in range(2):
        write(rows, broker, topic=topic, exactlyOnce="dedup", queryId="nightly")
    expected = {f"nightly-0-{partition}-{row:012d}" for partition in range(2) for row in range(5)}
    assert Counter(message.message_id for message in stored(broker, topic)) == dict.fromkeys(expected, 1)


def test_a_replayed_batch_of_a_stream_writes_the_same_unique_keys(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker, "streamed")
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        lines = spark.readStream.text(str(source))
        stream = (
            lines.select(sf.col("value").alias("body"))
            .writeStream.format("trovemq")
            .options(nameServer=broker.address, topic=topic, exactlyOnce="dedup")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()

    (source / "1").write_text("".join(f"a{i}\n" for i in range(20)))
    run()
    (source / "2").write_text("".join(f"b{i}\n" for i in range(20)))
    run()
    once = {message.message_id: message.body for message in stored(broker, topic)}
    assert len(once) == 40, "nothing twice where nothing failed"
    # As a crash between the tasks' end and the commit leaves it.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run()
    again = [(message.message_id, message.body) for message in stored(broker, topic)]
    assert len(again) == 60, "at least once"
    assert set(again) == set(once.items()), "distinguished by their message ids"


def test_a_broker_lost_in_mid_write_is_an_error_that_says_what_is_stored(tmp_path: Path) -> None:
    """As a task sees it, without Spark."""
    with running_broker(tmp_path) as leaving:
        topic = make_topic(leaving, "leaving")
        given = {"nameServer": leaving.address, "topic": topic, "deliveryTimeout": "500ms"}
        options = parse_sink_options(given)
        rows = pa.RecordBatch.from_pydict({"body": ["fine"] * 100})

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows
            while len(stored(leaving, topic)) < 100:
                pass
            leaving.kill()
            yield rows

        with pytest.raises(
            TroveError, match=r"rows 100 to 199 of their partition.*100 messages of this"
        ) as caught:
            write_rows(batches(), options, "query", "0")
        assert caught.value.symbol in {"BROKER_UNREACHABLE", "REQUEST_TIMEOUT", "BROKER_NOT_FOUND"}
        assert caught.value.fields["stored_count"] == "100"
