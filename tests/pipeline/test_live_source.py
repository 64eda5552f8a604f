"""Format `trovemq`, batch, against real brokers: every row that was sent, once; and missing topics."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tests.support.broker_process import running_broker
from tests.support.golden import load_manifest, unpack
from tests.support.live_source import (
    Row,
    Sent,
    ask,
    make_topic,
    partitions_of,
    places,
    read_rows,
    reader_of,
    row_of_sent,
    rows_of,
    send,
)
from trovemq import Client
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import Message
from trovemq_spark.report import error_of
from trovemq_spark.sources.live_batch import TroveDataSource
from trovemq_spark.sources.live_client import wait_for_brokers
from trovemq_spark.sources.live_ranges import QueueRange
from trovemq_spark.sources.offsets import Queue
from trovemq_spark.table.schema import HEADER_COLUMNS

pytestmark = pytest.mark.slow
NAME = "b1"
QUEUES = {"orders": 3, "lines": 2}


@dataclass
class Filled:
    """A broker with its messages."""

    process: BrokerProcess
    sent: list[Sent]

    @property
    def address(self) -> str:
        return self.process.address

    def options(self, **more: str) -> dict[str, str]:
        return {"nameServer": self.address, "subscribe": "orders,lines", "reconnectTimeoutMs": "5000"} | more


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    with BrokerProcess(name=NAME) as process:
        sent: list[Sent] = []
        for topic, count in QUEUES.items():
            make_topic(process.address, topic, count)
        for turn in range(3):
            for topic, count in QUEUES.items():
                for queue_id in range(count):
                    sent += send(process.address, topic, QueueId(queue_id), 10 + 7 * queue_id + turn, NAME)
        yield Filled(process, sent)


def references(filled: Filled) -> dict[tuple[str, int, int], Message]:
    """The same messages as the SDK's one-by-one decoder has them."""

    async def pulled(client: Any) -> dict[tuple[str, int, int], Message]:
        return {
            (topic, queue_id, message.queue_offset): message
            for topic, count in QUEUES.items()
            for queue_id in range(count)
            async for message in client.pull(topic, queue_id=queue_id)
        }

    return ask(filled.address, pulled)


def as_sent(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in row_of_sent(SOME)} for row in rows]


SOME = Sent("", "", QueueId(0), 0, b"", "", None, "")


def in_order(sent: list[Sent]) -> list[Row]:
    return [row_of_sent(message) for message in sorted(sent, key=lambda message: message.place)]


# --- rows ------------------------------------------------------------------------------------------------


def test_spark_reads_every_message_once_with_all_its_columns(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(TroveDataSource)
    table = spark.read.format("trovemq").options(**filled.options(includeHeader="true")).load()
    found = {
        (row["topic"], row["queueId"], row["queueOffset"]): row
        for row in (row.asDict() for row in table.collect())
    }
    expected = references(filled)
    assert found.keys() == expected.keys()
    assert len(found) == len(filled.sent) == table.count()
    assert len(table.limit(3).collect()) == 3, "tasks that are not read to their end"
    for place, message in expected.items():
        row = found[place]
        assert bytes(row["body"]) == message.body
        assert row["properties"] == {n: v for n, v in message.properties.items() if n != "__CRC32#"}
        assert (row["physicalOffset"], row["size"]) == (message.physical_offset, message.store_size)
        assert (row["offsetMsgId"], row["messageId"]) == (message.offset_msg_id, message.message_id)
        assert row["storeTimestamp"].timestamp() * 1000 == message.store_timestamp
        assert row["brokerName"] == NAME
        assert (row["bornHost"], row["bodyCRC"]) == (message.born_host, message.body_crc)
        assert set(HEADER_COLUMNS) <= set(row)


def test_spark_pushes_conditions_if_the_option_says_so(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(TroveDataSource)
    options = filled.options(columns="queueId,tags,keys,topic", pushdown="true")
    table = spark.read.format("trovemq").options(**options).load()
    chosen = table.where("topic = 'orders' and queueId in (1, 2) and tags = 'red' and keys like 'k8 %'")
    expected = [m for m in filled.sent if m.topic == "orders" and m.queue_id in (1, 2)]
    expected = [m for m in expected if m.tag == "red" and m.key.startswith("k8 ")]
    assert chosen.count() == len(expected) > 0
    assert chosen.rdd.getNumPartitions() == 2


def test_conditions_of_one_query_do_not_reach_another_on_the_same_table(
    spark: SparkSession, filled: Filled
) -> None:
    spark.dataSource.register(TroveDataSource)
    table = spark.read.format("trovemq").options(**filled.options(columns="topic,queueId")).load()
    orders, lines = table.where("topic = 'orders'"), table.where("topic = 'lines'")
    assert orders.union(lines).count() == len(filled.sent)
    assert orders.count() == sum(message.topic == "orders" for message in filled.sent)
    assert table.count() == len(filled.sent)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"minPartitions": "13"},
        {"minPartitions": "60", "batchRows": "3"},
        {"pullBatchSize": "1", "batchRows": "1"},
        {"pullBatchSize": "7", "batchRows": "4"},
        {"subscribePattern": "orders|l.*", "subscribe": ""},
    ],
)
def test_how_it_is_cut_makes_no_difference(filled: Filled, more: dict[str, str]) -> None:
    options = {name: value for name, value in (filled.options() | more).items() if value}
    assert as_sent(read_rows(options)) == in_order(filled.sent)
    wanted = min(int(more.get("minPartitions", "5")), len(filled.sent))
    assert wanted <= len(partitions_of(options)) <= wanted + 5
    reader = reader_of(options)
    for part in reader.partitions():
        for batch in reader.read(part):
            assert isinstance(batch, pa.RecordBatch)
            assert 0 < batch.num_rows <= int(more.get("batchRows", "4096"))


# --- which rows ------------------------------------------------------------------------------------------


def test_conditions_never_leave_too_little_and_spare_queues_and_offsets(filled: Filled) -> None:
    times = sorted({m.store_timestamp for m in references(filled).values()})
    assert len(times) > 2
    middle = datetime.fromtimestamp(times[len(times) // 2] / 1000, UTC)
    cases: list[tuple[Filter, Any, bool]] = [
        (EqualTo(("topic",), "lines"), lambda row: row["topic"] == "lines", True),
        (In(("queueId",), (0, 2)), lambda row: row["queueId"] in (0, 2), True),
        (EqualTo(("brokerName",), "b2"), lambda row: False, True),
        (EqualTo(("tags",), "green"), lambda row: row["tags"] == "green", True),
        (EqualTo(("tags",), "not|plain"), lambda row: False, False),
        (LessThanOrEqual(("queueOffset",), 4), lambda row: row["queueOffset"] <= 4, True),
        (GreaterThan(("queueOffset",), 4), lambda row: row["queueOffset"] > 4, False),
        (GreaterThanOrEqual(("storeTimestamp",), middle), lambda row: row["storeTimestamp"] >= middle, True),
        (LessThan(("storeTimestamp",), middle), lambda row: row["storeTimestamp"] < middle, False),
        (EqualTo(("keys",), "k1 shared"), lambda row: row["keys"] == "k1 shared", False),
    ]
    everything = read_rows(filled.options())
    for condition, holds, exactly in cases:
        expected = [row for row in everything if holds(row)]
        found = read_rows(filled.options(), condition)
        assert [row for row in found if holds(row)] == expected, condition
        assert not exactly or found == expected, condition
    later = read_rows(filled.options(), GreaterThan(("queueOffset",), 4))
    assert min(row["queueOffset"] for row in later) == 4, "a strict bound spares all offsets but one"
    both = EqualTo(("tags",), "red"), EqualTo(("tags",), "blue")
    assert partitions_of(filled.options(), *both) == [], "nothing can have both"


def test_tags_are_left_to_the_broker(filled: Filled) -> None:
    found = read_rows(filled.options(subExpression="red || blue"))
    assert as_sent(found) == in_order([m for m in filled.sent if m.tag in ("red", "blue")])
    narrower = read_rows(filled.options(subExpression="red || blue"), EqualTo(("tags",), "blue"))
    assert {row["tags"] for row in narrower} == {"blue"}
    assert read_rows(filled.options(subExpression="red"), EqualTo(("tags",), "blue")) == []


def test_offsets_by_queue_by_mark_and_by_time(filled: Filled) -> None:
    ends = {place[:3]: place[3] + 1 for place in sorted(m.place for m in filled.sent)}
    starting = {"orders": {NAME: {"0": 5, "1": ends["orders", NAME, 1], "2": -2}}}
    ending = {"orders": {NAME: {"0": 9, "1": -1, "2": 3}}, "lines": {NAME: {"0": 0, "1": 0}}}
    found = read_rows(filled.options(startingOffsets=json.dumps(starting), endingOffsets=json.dumps(ending)))
    assert places(found) == [("orders", NAME, 0, n) for n in range(5, 9)] + [
        ("orders", NAME, 2, n) for n in range(3)
    ]
    assigned = {"nameServer": filled.address, "assign": '{"lines": {"b1": [1]}}'}
    assert as_sent(read_rows(assigned)) == in_order(
        [m for m in filled.sent if (m.topic, m.queue_id) == ("lines", 1)]
    )
    messages = references(filled)
    times = sorted({m.store_timestamp for m in messages.values()})
    low, high = times[1], times[-1]
    found = read_rows(
        filled.options(
            startingTimestamp=str(low), endingTimestamp=str(high), startingOffsetsByTimestampStrategy="latest"
        )
    )
    assert len(found) == sum(low <= m.store_timestamp < high for m in messages.values())
    assert len(ends) == 5


def test_a_time_that_no_message_has_is_an_error_unless_it_may_be(filled: Filled) -> None:
    future = filled.options(startingTimestamp=str(1 << 45))
    with pytest.raises(TroveError, match="startingOffsetsByTimestampStrategy") as refused:
        partitions_of(future)
    assert refused.value.spec is errors.OPTION_ILLEGAL
    assert partitions_of(future | {"startingOffsetsByTimestampStrategy": "latest"}) == []


# --- errors ----------------------------------------------------------------------------------------------


def test_what_is_not_there_is_named(spark: SparkSession, filled: Filled) -> None:
    spark.dataSource.register(TroveDataSource)
    with pytest.raises(Exception, match="TOPIC_NOT_FOUND") as failed:
        spark.read.format("trovemq").options(nameServer=filled.address, topic="ordres").load().count()
    assert error_of(failed.value).spec is errors.TOPIC_NOT_FOUND
    for spec, option in (
        (errors.QUEUE_NOT_FOUND, {"assign": '{"lines": {"b1": [7]}}'}),
        (errors.QUEUE_NOT_FOUND, {"assign": '{"lines": {"b9": [0]}}'}),
        (errors.OPTION_ILLEGAL, {"subscribe": "lines", "subExpression": "a || "}),
        (errors.OPTION_ILLEGAL, {"subscribe": "lines", "startingOffsets": '{"orders": {"b1": {"0": 0}}}'}),
    ):
        with pytest.raises(TroveError) as refused:
            partitions_of({"nameServer": filled.address} | option)
        assert refused.value.spec is spec, option
    assert partitions_of({"nameServer": filled.address, "subscribePattern": "nothing"}) == []
    assert list(reader_of(filled.options()).read(None)) == []  # type: ignore[arg-type]  # as Spark passes it


def test_offsets_out_of_range_are_data_loss(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    end = sum((m.topic, m.queue_id) == ("lines", 0) for m in filled.sent)
    options = {"nameServer": filled.address, "subscribe": "lines"}
    beyond = options | {"startingOffsets": json.dumps({"lines": {NAME: {"0": end + 9}}})}
    with pytest.raises(TroveError) as lost:
        partitions_of(beyond)
    assert lost.value.spec is errors.DATA_LOST
    assert lost.value.fields | {"min_offset": "0"} == {
        "topic": "lines", "broker": NAME, "queue_id": "0", "wanted": str(end + 9), "min_offset": "0"
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        found = read_rows(beyond | {"failOnDataLoss": "false"})
    assert {row["queueId"] for row in found} == {1}
    assert f"offset {end + 9} is requested" in caplog.text


# --- a store that RocketMQ wrote, with a damaged record --------------------------------------------------

DAMAGED = ("AlfaPay", 0, 1)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The golden store `small` (compressed bodies, Unicode), a byte of one body changed."""
    store = unpack("small", tmp_path_factory.mktemp("golden"))
    (record,) = [m for m in GOLDEN if place_of(m) == DAMAGED]
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    body = data.find(base64.b64decode(record["body"]), record["commitLogOffset"])
    data[body] ^= 1
    log.write_bytes(data)
    config = load_manifest("small")["brokerConfig"]
    settings = {
        name: config[name]
        for name in (
            *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"),
        )
    }
    with BrokerProcess(name=config["brokerName"], store=store, **settings) as process:
        yield process


GOLDEN_TOPICS = ("AlfaOrders", "AlfaPay", "Alfa-events_log")
GOLDEN = [m for m in load_manifest("small")["messages"] if m["topic"] in GOLDEN_TOPICS]


def place_of(message: dict[str, Any]) -> tuple[str, int, int]:
    return message["topic"], message["queueId"], message["queueOffset"]


def test_damaged_and_compressed_records(damaged: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    assert any("storedBody" in message for message in GOLDEN), "some are compressed"
    options = {"nameServer": damaged.address, "subscribe": ",".join(GOLDEN_TOPICS)}
    with pytest.raises(TroveError, match=r"topic AlfaPay, broker broker-a, queue 0.* offset 1") as failed:
        read_rows(options)
    assert failed.value.spec is errors.RECORD_DAMAGED
    rows = read_rows(options | {"mode": "permissive"})
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    assert len(found) == len(rows) == len(GOLDEN)
    wrong = found[DAMAGED]
    assert wrong["damage"] == "the broker cannot read the record at queue offset 1"
    assert (wrong["brokerName"], wrong["body"], wrong["physicalOffset"]) == ("broker-a", None, None)
    good = [message for message in GOLDEN if place_of(message) != DAMAGED]
    for message in good:
        row = found[place_of(message)]
        assert row["body"] == base64.b64decode(message["body"])
        assert (row["damage"], row["offsetMsgId"]) == (None, message["offsetMsgId"])
    with caplog.at_level(logging.WARNING):
        left = read_rows(options | {"mode": "dropmalformed"})
    assert sorted(place[:1] + place[2:] for place in places(left)) == sorted(map(place_of, good))
    assert "1 damaged records are left out" in caplog.text


# --- changes during a reading ---------------------------------------------------------------------------


def test_what_retention_takes_meanwhile_is_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        *("reserved_time_ms=1000", f"deleteWhen={';'.join(map(str, range(24)))}"),
        *("cleanResourceInterval=100", "disk_warning_percent=100", "disk_forcible_percent=100"),
    )
    with running_broker(tmp_path, *settings, arguments=("--name", NAME)) as process:
        make_topic(process.address, "filler", 1)
        options = {"nameServer": process.address, "subscribe": "filler", "pullBatchSize": "2"}
        send(process.address, "filler", QueueId(0), 40, NAME, size=100_000)
        reader = reader_of(options | {"failOnDataLoss": "false"})
        failing = reader_of(options)
        (part,) = reader.partitions()
        assert isinstance(part, QueueRange)
        assert (part.start, part.end) == (0, 40)
        low = minimum_above(process.address, 0)
        with pytest.raises(TroveError) as lost:
            list(failing.read(part))
        assert lost.value.spec is errors.DATA_LOST
        assert {"topic": "filler", "broker": NAME, "queue_id": "0", "wanted": "0"}.items() <= (
            lost.value.fields.items()
        )
        assert int(lost.value.fields["min_offset"]) >= low
        with caplog.at_level(logging.WARNING):
            found = [row["queueOffset"] for row in rows_of(reader.read(part))]
        assert found == list(range(found[0], 40))
        assert found[0] >= low
        assert f"reading continues at {found[0]}" in caplog.text
        named = options | {"startingOffsets": json.dumps({"filler": {NAME: {"0": 0}}})}
        with pytest.raises(TroveError) as lost:
            partitions_of(named)
        assert lost.value.spec is errors.DATA_LOST


def minimum_above(server: str, offset: int) -> int:
    """The first offset of the topic's one queue, once it is above."""

    async def risen(client: Client) -> int:
        async with asyncio.timeout(240):
            while True:
                (queue,) = await client.queue_offsets("filler")
                if queue.min_offset > offset:
                    return queue.min_offset
                await asyncio.sleep(0.05)

    return ask(server, risen)


def test_two_brokers_by_their_nameserver_one_of_which_dies() -> None:
    with (
        NameserverProcess() as nameserver,
        BrokerProcess(name="b1", nameservers=[nameserver]),
        BrokerProcess(name="b2", nameservers=[nameserver]) as second,
    ):
        wait_for(nameserver.address, {"b1", "b2"})
        make_topic(nameserver.address, "both", 2)
        sent = [
            message
            for broker in ("b1", "b2")
            for queue_id in (0, 1)
            for message in send(
                nameserver.address, "both", QueueId(queue_id), 30 + queue_id, broker, size=3000
            )
        ]
        options = {"nameServer": nameserver.address, "topic": "both"}
        assert as_sent(read_rows(options)) == in_order(sent)
        some = {"both": {"b1": {"0": 30, "1": 31}, "b2": {"0": 28, "1": 31}}}
        found = read_rows(options | {"startingOffsets": json.dumps(some)})
        assert places(found) == [("both", "b2", 0, 28), ("both", "b2", 0, 29)]

        reader = reader_of(options | {"reconnectTimeoutMs": "300", "pullBatchSize": "1"})
        (part,) = [
            part
            for part in reader.partitions()
            if isinstance(part, QueueRange) and part.queue == Queue("both", "b2", 1)
        ]
        batches = reader.read(part)
        first = next(iter(batches))
        assert isinstance(first, pa.RecordBatch)
        assert first.num_rows == 1
        second.kill()
        with pytest.raises(TroveError, match="broker b2, queue 1: reading 0 to 31 broke off") as away:
            list(batches)
        assert away.value.spec in (errors.BROKER_UNREACHABLE, errors.BROKER_NOT_FOUND)
        second.start()
        patient = reader_of(options)
        again = as_sent(rows_of(patient.read(part)))  # the task runs again
        assert again == in_order([m for m in sent if (m.broker, m.queue_id) == ("b2", 1)])


def wait_for(server: str, names: set[str]) -> None:
    ask(server, lambda client: wait_for_brokers(client, names, 20_000))
