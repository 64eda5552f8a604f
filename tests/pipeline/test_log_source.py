"""Format `trovemq-log`, batch: rows are the log's, however it is addressed, narrowed, cut or damaged.

Most of it runs the readers in this process, through pickle as Spark does; each kind once through Spark.
"""

from __future__ import annotations

import base64
import logging
import operator
import random
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tests.support.golden import GOLDEN_NAMES, load_manifest, unpack
from tests.support.log_files import LogFiles, Row, plan, read, rows_of
from tests.support.pipeline_size import PIPELINE_LONG
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_spark.table.schema import ALL_COLUMNS, arrow_schema, column_names, spark_schema
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.deletions import TopicDeletions

pytestmark = pytest.mark.slow
EPOCH = datetime.fromtimestamp(0, UTC)
ADDRESSES: dict[str, Callable[[Path], str]] = {
    "store": str,
    "segments": lambda store: str(store / "commitlog"),
    "uri": lambda store: f"file://{store}",
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One copy of each golden store, for tests that only read."""
    directory = tmp_path_factory.mktemp("golden")
    return {name: unpack(name, directory) for name in GOLDEN_NAMES}


def at_ms(timestamp: EpochMs) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp)


def manifest_rows(name: str, broker: str | None = None) -> list[Row]:
    """The rows of a golden store by RocketMQ's own answers."""
    return [
        {
            "topic": message["topic"],
            "brokerName": broker,
            "queueId": message["queueId"],
            "queueOffset": message["queueOffset"],
            "physicalOffset": message["commitLogOffset"],
            "size": message["storeSize"],
            "keys": message["properties"].get("KEYS"),
            "tags": message["properties"].get("TAGS"),
            "messageId": message["properties"].get("UNIQ_KEY"),
            "offsetMsgId": message["offsetMsgId"],
            "body": base64.b64decode(message["body"]),
            "properties": message["properties"],
            "bornTimestamp": at_ms(message["bornTimestamp"]),
            "storeTimestamp": at_ms(message["storeTimestamp"]),
            "bornHost": message["bornHost"],
            "storeHost": message["storeHost"],
            "flag": message["flag"],
            "sysFlag": message["sysFlag"],
            "bodyCRC": message["bodyCRC"],
            "reconsumeTimes": message["reconsumeTimes"],
            "preparedTransactionOffset": message["preparedTransactionOffset"],
        }
        for message in load_manifest(name)["messages"]
    ]


def offsets(rows: Iterable[Row]) -> list[int]:
    return [row["physicalOffset"] for row in rows]


# --- the rows are the log's -----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_rows_are_what_rocketmq_answers(name: str, address: str, stores: dict[str, Path]) -> None:
    options = {"path": ADDRESSES[address](stores[name]), "includeHeader": "true", "brokerName": "b"}
    assert read(options).rows == manifest_rows(name, "b")


def test_rows_through_spark_are_what_rocketmq_answers(spark: SparkSession, stores: dict[str, Path]) -> None:
    found = spark.read.format("trovemq-log").option("INCLUDEheader", "true").load(str(stores["rollover"]))
    assert found.columns == column_names(header=True)
    table = found.toArrow()
    rows = [row for batch in table.to_batches() for row in rows_of(batch)]
    assert sorted(rows, key=operator.itemgetter("physicalOffset")) == manifest_rows("rollover")


@pytest.mark.parametrize("min_partitions", [1, 2, 20, 33, 300])
def test_more_partitions_have_the_same_rows(min_partitions: int, stores: dict[str, Path]) -> None:
    whole = read({"path": str(stores["rollover"])})
    cut = read({"path": str(stores["rollover"]), "minPartitions": str(min_partitions)})
    assert cut.rows == whole.rows
    assert min(min_partitions, len(whole.rows) // 3) <= cut.part_count <= len(whole.rows)


@pytest.mark.parametrize("rows_max", [1, 7, 4096])
def test_batches_have_no_more_rows_than_asked(rows_max: int, stores: dict[str, Path]) -> None:
    reader, partitions, _ = plan({"path": str(stores["small"]), "batchRows": str(rows_max)})
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert max(batch.num_rows for batch in batches) == min(rows_max, 204)
    assert [row for batch in batches for row in rows_of(batch)] == read({"path": str(stores["small"])}).rows


def test_an_open_segment_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    for index in range(30):
        log.append("t", b"x" * (index + 1), properties={"ends": "with no zero"})
    last = log.rows[-1]
    path, place = log.path_of(last["physicalOffset"]), last["physicalOffset"] % log.segment_size
    whole = path.read_bytes()
    for kept in range(last["size"]):
        path.write_bytes(whole[: place + kept] + bytes(len(whole) - place - kept))
        assert offsets(read({"path": str(tmp_path)}).rows) == offsets(log.rows[:-1]), kept
    path.write_bytes(whole[: place + 40])  # a copy that was cut short
    assert offsets(read({"path": str(tmp_path)}).rows) == offsets(log.rows[:-1])


def test_records_of_deleted_topics_are_left_out(tmp_path: Path) -> None:
    store = unpack("rollover", tmp_path)
    rows = read({"path": str(store)}).rows
    below = rows[len(rows) // 2]["physicalOffset"]
    deletions = TopicDeletions.load(RealFileSystem(store))
    deletions.add(rows[0]["topic"], below)
    left = [row for row in rows if row["topic"] != rows[0]["topic"] or row["physicalOffset"] >= below]
    assert 0 < len(left) < len(rows)
    assert read({"path": str(store)}).rows == left


# --- narrowing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_narrowed_rows_have_the_columns_that_were_named(seed: int, stores: dict[str, Path]) -> None:
    source = random.Random(seed)
    names = source.sample(column_names(header=True), source.randint(1, 6))
    options = {"path": str(stores["small"])}
    expected = [{name: row[name] for name in names} for row in manifest_rows("small")]
    assert read(options | {"columns": ",".join(names)}).rows == expected
    assert read(options, schema=spark_schema(names)).rows == expected
    reader, partitions, _ = plan(options, schema=spark_schema(names))
    assert all(b.schema == arrow_schema(names) for p in partitions for b in reader.read(p))


def test_a_schema_through_spark_narrows(spark: SparkSession, stores: dict[str, Path]) -> None:
    found = spark.read.format("trovemq-log").schema("topic string, queueId int").load(str(stores["small"]))
    expected = sorted((row["topic"], row["queueId"]) for row in manifest_rows("small"))
    assert sorted(tuple(row) for row in found.collect()) == expected


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("topic string, queueID int", "did you mean queueId"),
        ("queueId bigint", "is int, not bigint"),
        ("body string", "is binary, not string"),
        ("damage string", "mode = permissive"),
    ],
)
def test_a_schema_that_is_not_the_tables_is_refused(schema: str, words: str, stores: dict[str, Path]) -> None:
    with pytest.raises(TroveError, match=words) as caught:
        plan({"path": str(stores["small"])}, schema=_struct(schema))
    assert caught.value.symbol == "OPTION_ILLEGAL"


def _struct(text: str) -> Any:
    kinds: dict[str, types.DataType] = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
    }
    pairs = [part.split() for part in text.split(", ")]
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in pairs])


# --- push-down ------------------------------------------------------------------------------------------

COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
PUSHED = ("topic", "queueId", "storeTimestamp", "physicalOffset")


def holds(item: Filter, row: Row) -> bool:
    """The filter's meaning, row by row."""
    column = row[item.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(item, In):
        return column in item.value
    if isinstance(item, IsNotNull):
        return column is not None
    value = item.value  # type: ignore[attr-defined]
    if isinstance(value, str):  # Spark compares bytes
        return COMPARISONS[type(item)](column.encode(), value.encode())
    return COMPARISONS[type(item)](column, value)


def random_filter(source: random.Random, rows: list[Row]) -> Filter:
    column = source.choice(PUSHED)

    def value() -> Any:
        found = source.choice(rows)[column]
        if isinstance(found, int):
            return found + source.choice((0, 0, 1, -1, 1 << 62))
        if isinstance(found, datetime):
            return found + timedelta(microseconds=source.choice((0, 0, 1, -1)))
        return found + source.choice(("", "", "x", "\ufffd"))

    kind: Any = source.choice([*COMPARISONS, In, IsNotNull])
    if kind is In:
        return In((column,), tuple(value() for _ in range(source.randint(1, 4))))
    return IsNotNull((column,)) if kind is IsNotNull else kind((column,), value())


@pytest.mark.parametrize("seed", range(40))
def test_pushed_conditions_leave_the_rows_for_which_they_hold(seed: int, stores: dict[str, Path]) -> None:
    source = random.Random(seed)
    name = source.choice(GOLDEN_NAMES)
    rows = manifest_rows(name)
    filters = [random_filter(source, rows) for _ in range(source.randint(1, 3))]
    found = read({"path": str(stores[name]), "includeHeader": "true"}, filters)
    assert found.left == []
    assert found.rows == [row for row in rows if all(holds(item, row) for item in filters)]
    assert found.counts.decoded == len(found.rows), "nothing is decoded for rows that are filtered out"


def test_what_is_not_exact_is_left_to_spark(stores: dict[str, Path]) -> None:
    filters = [
        Not(EqualTo(("topic",), "x")),
        IsNull(("topic",)),
        StringStartsWith(("topic",), "x"),
        EqualTo(("keys",), "x"),
        EqualTo(("queueId",), 1.0),
        EqualTo(("queueId",), True),
        EqualTo(("storeTimestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001 (without a zone)
        In(("topic",), ("a", 7)),
        EqualTo(("properties", "topic"), "x"),
    ]
    found = read({"path": str(stores["small"])}, filters)
    assert found.left == filters
    assert len(found.rows) == 204


def test_segments_outside_of_the_physical_offsets_are_not_read(stores: dict[str, Path]) -> None:
    rows = manifest_rows("rollover")
    place = rows[len(rows) // 2]["physicalOffset"]
    found = read({"path": str(stores["rollover"])}, [EqualTo(("physicalOffset",), place)])
    assert offsets(found.rows) == [place]
    assert found.part_count == 1
    assert found.counts.scanned < 3, "reading begins at the record, and ends after it"
    nothing = read({"path": str(stores["rollover"])}, [GreaterThan(("physicalOffset",), 1 << 62)])
    assert (nothing.rows, nothing.part_count) == ([], 0)


CONDITIONS = (
    "topic = 'rollA' AND queueId IN (1, 2, NULL)",
    "queueId <=> 1 AND physicalOffset BETWEEN 100000 AND 400000",
    "NOT (queueId = 1) AND storeTimestamp >= {middle}",
    "queueId + 0 = 1 AND size > 300 AND queueId >= 1L",
    "physicalOffset IN (0, 5, 65536) OR keys IS NULL",
)


def test_pushed_through_spark_is_spark_s_own_filter(spark: SparkSession, stores: dict[str, Path]) -> None:
    rows = manifest_rows("rollover")
    topics = sorted({row["topic"] for row in rows})
    middle = f"timestamp '{rows[len(rows) // 2]['storeTimestamp']:%Y-%m-%d %H:%M:%S.%f}'"
    columns = "topic,queueId,physicalOffset,storeTimestamp,size,keys"

    def table(pushdown: str) -> DataFrame:
        reader = spark.read.format("trovemq-log").option("columns", columns).option("pushdown", pushdown)
        return reader.load(str(stores["rollover"]))

    conditions = [text.format(middle=middle).replace("rollA", topics[0]) for text in CONDITIONS]
    marks = [sf.coalesce(sf.expr(text), sf.lit(False)).alias(str(i)) for i, text in enumerate(conditions)]
    judged = table("false").select("physicalOffset", *marks).collect()
    pushed = [
        table("true").where(text).select(sf.lit(i).alias("condition"), "physicalOffset")
        for i, text in enumerate(conditions)
    ]
    found = {tuple(row) for row in reduce(DataFrame.union, pushed).collect()}
    expected = {(i, row.physicalOffset) for row in judged for i in range(len(conditions)) if row[str(i)]}
    assert found == expected
    assert len({i for i, _ in expected}) >= 3, "conditions that hold nowhere show nothing"
    planned = (
        table("true").where("queueId = 1 AND keys = 'k'")._jdf.queryExecution().executedPlan().toString()
    )
    filtered = next(line for line in planned.splitlines() if "Filter" in line)
    assert "keys" in filtered
    assert "queueId" not in filtered


def test_one_load_serves_several_queries(spark: SparkSession, stores: dict[str, Path]) -> None:
    """With push-down Spark would give the second the rows of the first."""
    found = spark.read.format("trovemq-log").schema("queueId int").load(str(stores["collide"]))
    queue_ids = [row["queueId"] for row in manifest_rows("collide")]
    assert found.where("queueId = 1").union(found.where("queueId = 0")).count() == queue_ids.count(
        0
    ) + queue_ids.count(1)
    assert found.count() == len(queue_ids)


def test_later_queries_of_a_load_read_no_segment_newer_than_its_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark 4.2 keeps the partitions of its first query with the result of .load(); described in
    log_batch."""

    def load() -> DataFrame:
        return spark.read.format("trovemq-log").schema("queueId int").load(str(tmp_path))

    log = LogFiles(tmp_path)
    log.append("t", b"one")
    found = load()
    assert found.count() == 1
    log.append("t", bytes(3000))
    log.append("t", bytes(3000))  # in a segment without others
    assert (found.count(), load().count()) == (2, 3)


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_ranges_of_the_options_are_kept(seed: int, stores: dict[str, Path]) -> None:
    source = random.Random(seed)
    rows = manifest_rows("rollover")
    one, other = sorted(source.sample(range(len(rows)), 2))
    places = offsets(rows)[one], offsets(rows)[other]
    options = {"path": str(stores["rollover"]), "includeHeader": "true"}
    shift = source.choice((-1, 0, 1))
    found = read(
        options
        | {
            "startingPhysicalOffset": str(max(places[0] + shift, 0)),
            "endingPhysicalOffset": str(places[1] + shift),
            "minPartitions": str(source.choice((1, 9))),
        }
    )
    assert offsets(found.rows) == [p for p in offsets(rows) if places[0] + shift <= p < places[1] + shift]
    times = [load_manifest("rollover")["messages"][index]["storeTimestamp"] for index in (one, other)]
    found = read(options | {"startingTimestamp": str(times[0]), "endingTimestamp": str(times[1])})
    begin, end = map(at_ms, times)
    assert found.rows == [row for row in rows if begin <= row["storeTimestamp"] < end]


def test_queue_offsets_and_topics_of_the_options_are_kept(stores: dict[str, Path]) -> None:
    rows = manifest_rows("rollover")
    topic = rows[5]["topic"]
    options = {"path": str(stores["rollover"]), "includeHeader": "true"}
    begin = f'{{"{topic}": {{"b": {{"0": 7, "1": -2}}}}}}'
    end = f'{{"{topic}": {{"b": {{"0": 20, "2": -1}}}}}}'
    found = read(options | {"startingOffsets": begin, "endingOffsets": end, "topic": topic})
    expected = [
        row for row in rows if row["topic"] == topic and (row["queueId"] != 0 or 7 <= row["queueOffset"] < 20)
    ]
    assert found.rows == expected
    assigned = read(options | {"assign": f'{{"{topic}": {{"b": [1, 2]}}}}'})
    assert assigned.rows == [row for row in rows if row["topic"] == topic and row["queueId"] in (1, 2)]
    matched = read(options | {"subscribePattern": f"{topic[:-1]}."})
    assert matched.rows == [
        row for row in rows if len(row["topic"]) == len(topic) and row["topic"].startswith(topic[:-1])
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"assign": '{"t": {"b": [1]}}', "brokerName": "c"},
        {"assign": '{"t": {"b": [1], "c": [1]}}'},
        {"startingTimestamp": "99999999999999"},
        {"startingPhysicalOffset": "99999999999999"},
    ],
)
def test_options_that_do_not_fit_the_log_are_refused(
    options: dict[str, str], stores: dict[str, Path]
) -> None:
    with pytest.raises(TroveError) as caught:
        plan({"path": str(stores["small"])} | options)
    assert caught.value.symbol == "OPTION_ILLEGAL"


def test_a_time_after_the_log_gives_nothing_by_request(stores: dict[str, Path]) -> None:
    options = {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    assert read({"path": str(stores["small"])} | options).rows == []


# --- damage ---------------------------------------------------------------------------------------------


def damage(store: Path, source: random.Random, count: int) -> set[int]:
    """Flips a bit in each of `count` records where a reader sees it; returns their physical offsets."""
    messages = load_manifest("rollover")["messages"]
    chosen = source.sample(range(len(messages) - 1), count)  # a torn record at the very end is the log's end
    for index in chosen:
        message = messages[index]
        start = message["commitLogOffset"] // 65536 * 65536
        places = [0, 4, 28]  # size, magic, physical offset
        body_size = len(base64.b64decode(message.get("storedBody", message["body"])))
        if body_size:
            places += [88 + source.randrange(body_size)] * 3
        place = message["commitLogOffset"] - start + source.choice(places)
        path = store / "commitlog" / f"{start:020d}"
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << source.randrange(8)
        path.write_bytes(data)
    return {messages[index]["commitLogOffset"] for index in chosen}


@pytest.mark.parametrize("seed", range(30 if PIPELINE_LONG else 4))
def test_damaged_records_by_mode(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = random.Random(seed)
    store = unpack("rollover", tmp_path)
    bad = damage(store, source, (1, 5, 60)[seed % 3])
    options = {"path": str(store), "includeHeader": "true"}
    good = [row for row in manifest_rows("rollover") if row["physicalOffset"] not in bad]

    permissive = read(options | {"mode": "permissive"})
    shown = [row for row in permissive.rows if row["damage"] is not None]
    assert [without_damage(row) for row in permissive.rows if row["damage"] is None] == good
    covered = {place for row in shown for place in bad if 0 <= place - row["physicalOffset"] < row["size"]}
    assert covered == bad
    assert {row["physicalOffset"] for row in shown} <= bad
    assert all(row["topic"] is None and row["body"] is None for row in shown)
    assert permissive.counts.damaged == len(shown)
    assert read(options | {"mode": "permissive", "minPartitions": "60"}).rows == permissive.rows

    first = min(bad)
    with pytest.raises(TroveError) as caught:
        read(options)
    assert caught.value.symbol == "RECORD_DAMAGED"
    assert caught.value.fields == {"file": f"{first // 65536 * 65536:020d}", "offset": str(first % 65536)}
    assert f"physical offset {first})" in caught.value.message

    with caplog.at_level(logging.WARNING, "trovemq_spark.sources"):
        dropped = read(options | {"mode": "dropmalformed"})
    assert dropped.rows == good
    assert dropped.counts.damaged == len(shown) == sum(record.args[0] for record in caplog.records)  # type: ignore[index,misc]


def without_damage(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "damage"}


@pytest.mark.parametrize("seed", range(60 if PIPELINE_LONG else 6))
def test_conditions_leave_the_same_damage_as_spark_would(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    store = unpack("rollover", tmp_path)
    bad = sorted(damage(store, source, 60))
    options = {"path": str(store), "includeHeader": "true", "mode": "permissive"}
    rows = read(options).rows
    place = source.choice(bad) + source.choice((-1, 0, 1))
    kinds: list[Filter] = [
        GreaterThanOrEqual(("physicalOffset",), place),
        LessThan(("physicalOffset",), place),
        In(("physicalOffset",), tuple(source.sample(bad, 9))),
        EqualTo(("queueId",), 1),
        IsNotNull(("topic",)),
        IsNotNull(("physicalOffset",)),
    ]
    filters = [kinds[seed % len(kinds)]]
    expected = [
        row
        for row in rows
        if all(row[item.attribute[0]] is not None and holds(item, row) for item in filters)  # type: ignore[attr-defined]
    ]
    assert read(options, filters).rows == expected


def test_neighbours_that_are_damaged_stay_in_one_partition(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    for index in range(40):
        log.append("t", bytes([index]) * 100, properties={"p": "q"})
    for index in (7, 8, 9, 10, 25, 26):
        row = log.rows[index]
        path, place = log.path_of(row["physicalOffset"]), row["physicalOffset"] % log.segment_size
        data = bytearray(path.read_bytes())
        data[place + 95] ^= 1
        path.write_bytes(data)
    options = {"path": str(tmp_path), "mode": "permissive"}
    whole = read(options).rows
    shown = [log.rows[index]["physicalOffset"] for index in (7, 25)]
    assert [row["physicalOffset"] for row in whole if row["damage"]] == shown
    for parts in (2, 3, 5, 8, 13, 21, 34, 59):
        assert read(options | {"minPartitions": str(parts)}).rows == whole, parts


def test_bodies_that_do_not_decompress_by_mode(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    log.append("t", b"plain")
    bad = log.append("t", b"no stream", sys_flag=SYS_FLAG_COMPRESSED)
    log.append("t", b"plain too")
    options = {"path": str(tmp_path)}
    rows = read(options | {"mode": "permissive"}).rows
    assert [row["body"] for row in rows] == [b"plain", None, b"plain too"]
    assert [row["topic"] for row in rows] == ["t"] * 3
    assert [row["damage"] is None for row in rows] == [True, False, True]
    assert [row["body"] for row in read(options | {"mode": "dropmalformed"}).rows] == [b"plain", b"plain too"]
    with pytest.raises(TroveError, match=f"at byte {bad} .*does not inflate"):
        read(options)
    assert len(read(options | {"columns": "topic"}).rows) == 3, "no body is asked for"


def test_damage_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack("rollover", tmp_path)
    bad = damage(store, random.Random(1), 3)
    reader = spark.read.format("trovemq-log").option("columns", "physicalOffset,damage")
    shown = reader.option("mode", "permissive").load(str(store)).where("damage IS NOT NULL")
    assert {row.physicalOffset for row in shown.collect()} <= bad
    with pytest.raises(Exception, match=f"RECORD_DAMAGED.*physical offset {min(bad)}"):
        spark.read.format("trovemq-log").option("columns", "topic").load(str(store)).collect()


# --- missing parts --------------------------------------------------------------------------------------


def test_missing_segments_are_reported_or_passed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = unpack("rollover", tmp_path)
    rows = read({"path": str(store)}).rows
    for start in (65536 * 3, 65536 * 4):
        (store / "commitlog" / f"{start:020d}").unlink()
    with pytest.raises(TroveError, match="bytes 196608 to 327680") as caught:
        read({"path": str(store)})
    assert caught.value.symbol == "DATA_LOST"
    left = read({"path": str(store), "failOnDataLoss": "false"})
    assert left.rows == [row for row in rows if not 196608 <= row["physicalOffset"] < 327680]
    assert "bytes 196608 to 327680" in caplog.text
    behind = read({"path": str(store)}, [GreaterThan(("physicalOffset",), 327680)])
    assert offsets(behind.rows) == [place for place in offsets(rows) if place > 327680]


def test_a_segment_removed_while_it_is_read_is_reported_or_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = unpack("rollover", tmp_path)
    rows = read({"path": str(store)}).rows
    careful, partitions, _ = plan({"path": str(store)})
    tolerant, _, _ = plan({"path": str(store), "failOnDataLoss": "false"})
    (store / "commitlog" / f"{65536:020d}").unlink()
    with pytest.raises(TroveError, match="00000000000000065536 was removed") as caught:
        list(careful.read(partitions[1]))
    assert caught.value.symbol == "DATA_LOST"
    assert list(tolerant.read(partitions[1])) == []
    assert "00000000000000065536 was removed" in caplog.text
    assert [r for b in careful.read(partitions[0]) for r in rows_of(b)] == [
        row for row in rows if row["physicalOffset"] < 65536
    ]


def test_a_path_that_is_not_a_store_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"STORE_FAILED.*there is no commit log in"):
        spark.read.format("trovemq-log").load(str(tmp_path)).count()
    with pytest.raises(Exception, match=r"OPTION_ILLEGAL.*did you mean columns"):
        spark.read.format("trovemq-log").option("colums", "topic").load(str(tmp_path))
    shutil.rmtree(tmp_path)
    with pytest.raises(TroveError, match="there is no commit log"):
        read({"path": str(tmp_path)})


def test_all_columns_of_the_table_can_be_asked_for(stores: dict[str, Path]) -> None:
    rows = read({"path": str(stores["ipv6"]), "columns": ",".join(ALL_COLUMNS), "mode": "permissive"}).rows
    assert rows == [row | {"damage": None} for row in manifest_rows("ipv6")]
