"""Format `trovemq-log`, streaming: each record once and in order, whatever grows, tears, goes or restarts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.support.golden import load_manifest, unpack
from tests.support.log_files import LogFiles, Row, rows_of, source_of
from tests.support.pipeline_size import PIPELINE_LONG
from trovemq_proto.errors import TroveError
from trovemq_spark.sources.log_stream import TroveLogStreamReader

pytestmark = pytest.mark.slow
EARLIEST = {"startingOffsets": "earliest", "columns": "topic,body,physicalOffset,size"}


def reader_of(path: Path, **options: str) -> TroveLogStreamReader:
    source = source_of({"path": str(path), **EARLIEST, **options})
    return source.streamReader(source.schema())


def rows_between(reader: TroveLogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    """The rows of a batch; offsets go through JSON as in a checkpoint."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in rows_of(batch)]


def drain(reader: TroveLogStreamReader, start: dict[str, Any] | None = None) -> list[list[Row]]:
    """The batches until the log's end."""
    start = reader.initialOffset() if start is None else start
    batches = []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        batches.append(rows_between(reader, start, end))
        start = end
    return batches


def append_some(log: LogFiles, source: random.Random, count: int) -> None:
    for _ in range(count):
        log.append(
            source.choice("ab"), source.randbytes(source.choice((0, 1, 50, 900))), properties={"p": "q"}
        )


@pytest.mark.parametrize("seed", range(200 if PIPELINE_LONG else 12))
def test_a_growing_log_is_read_once_with_limits_and_restarts(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    log = LogFiles(tmp_path)
    options = {}
    if source.random() < 0.7:
        options["maxOffsetsPerTrigger"] = str(source.randint(1, 9))
    if source.random() < 0.5:
        options["maxBytesPerTrigger"] = str(source.randint(1, 3000))
    if source.random() < 0.5:
        options["minPartitions"] = str(source.randint(1, 6))
    if source.random() < 0.3:
        options["topic"] = "a"
    append_some(log, source, 5)
    reader = reader_of(tmp_path, **options)
    start = reader.initialOffset()
    found: list[Row] = []
    for _ in range(60):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        batch = rows_between(reader, start, end)
        check_limits(batch, options)
        append_some(log, source, source.choice((0, 0, 1, 7)))
        if source.random() < 0.3:  # a restart: the batch is read once more, by another reader
            reader = reader_of(tmp_path, **options)
            assert rows_between(reader, start, end) == batch
        found += batch
        start = end
    found += [row for batch in drain(reader, start) for row in batch]
    assert found == [row for row in log.rows if row["topic"] == options.get("topic", row["topic"])]


def check_limits(batch: list[Row], options: dict[str, str]) -> None:
    assert len(batch) <= int(options.get("maxOffsetsPerTrigger", len(batch)))
    if len(batch) > 1:
        size = sum(row["size"] for row in batch)
        assert size <= int(options.get("maxBytesPerTrigger", size))


def test_the_default_limit_is_the_one_of_the_options(tmp_path: Path) -> None:
    LogFiles(tmp_path).append("t", b"b")
    assert reader_of(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    assert reader_of(tmp_path, maxOffsetsPerTrigger="3").getDefaultReadLimit() == ReadMaxRows(3)
    assert reader_of(tmp_path, maxBytesPerTrigger="3").getDefaultReadLimit() == ReadMaxBytes(3)


def test_what_is_being_appended_waits_until_it_is_whole(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    log.append("t", b"first")
    reader = reader_of(tmp_path)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    path, before = log.path_of(0), log.path_of(0).read_bytes()
    log.append("t", b"second", properties={"p": "q"})
    after = path.read_bytes()
    for kept in range(start["physicalOffset"], log.end):
        path.write_bytes(after[:kept] + before[kept:])
        assert reader.latestOffset(start, ReadAllAvailable()) == start, kept
    path.write_bytes(after)
    assert drain(reader, start) == [[log.rows[1]]]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "2k"}])
def test_available_now_ends_where_the_log_ended(limit: dict[str, str], tmp_path: Path) -> None:
    log, source = LogFiles(tmp_path), random.Random(3)
    append_some(log, source, 40)
    reader = reader_of(tmp_path, minOffsetsPerTrigger="1", **limit)
    reader.prepareForTriggerAvailableNow()
    expected = list(log.rows)
    append_some(log, source, 40)
    batches = drain(reader)
    assert [row for batch in batches for row in batch] == expected
    assert (len(batches) > 1) == bool(limit)
    assert reader.reportLatestOffset() == {"physicalOffset": log.end}


@pytest.mark.parametrize("name", ["rollover", "crashed"])
def test_a_golden_store_is_streamed_whole(name: str, tmp_path: Path) -> None:
    batches = drain(reader_of(unpack(name, tmp_path), maxOffsetsPerTrigger="300"))
    found = [row["physicalOffset"] for batch in batches for row in batch]
    messages = load_manifest(name)["messages"]
    assert found == [message["commitLogOffset"] for message in messages]
    assert [len(batch) for batch in batches[:-1]] == [300] * (len(messages) // 300)


# --- where it begins ------------------------------------------------------------------------------------


def test_where_a_stream_begins(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    for index in range(60):
        log.append("t", bytes(100), store_timestamp=1000 + 10 * index)
    places = [row["physicalOffset"] for row in log.rows]
    assert reader_of(tmp_path).initialOffset() == {"physicalOffset": 0}
    assert reader_of(tmp_path, startingOffsets="latest").initialOffset() == {"physicalOffset": log.end}
    for index in range(60):
        for shift in (0, -9):
            time = str(1000 + 10 * index + shift)
            assert (
                reader_of(tmp_path, startingTimestamp=time).initialOffset()["physicalOffset"] == places[index]
            )
        if index:
            place = str(places[index - 1] + 1)
            found = reader_of(tmp_path, startingPhysicalOffset=place).initialOffset()
            assert found["physicalOffset"] == places[index]
    future = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert reader_of(tmp_path, **future).initialOffset() == {"physicalOffset": log.end}
    with pytest.raises(TroveError, match="all messages are older"):
        reader_of(tmp_path, startingTimestamp="5000").initialOffset()
    beyond = str(log.end + 1)
    assert reader_of(tmp_path, startingPhysicalOffset=beyond).initialOffset() == {"physicalOffset": log.end}


def test_few_rows_wait_for_more_or_for_their_time(tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    log.append("t", b"1")
    patient = reader_of(tmp_path, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    start = patient.initialOffset()
    assert patient.latestOffset(start, ReadAllAvailable()) == start
    hasty = reader_of(tmp_path, minOffsetsPerTrigger="3", maxTriggerDelay="0ms")
    assert hasty.latestOffset(start, ReadAllAvailable()) == {"physicalOffset": log.end}
    log.append("t", b"2")
    log.append("t", b"3")
    assert patient.latestOffset(start, ReadAllAvailable()) == {"physicalOffset": log.end}


# --- loss -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [(0,), (4096,), (0, 4096)])
def test_segments_removed_by_retention_are_reported_or_skipped(gone: tuple[int, ...], tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    append_some(log, random.Random(5), 60)
    start = reader_of(tmp_path).initialOffset()
    for place in gone:
        log.path_of(place).unlink()
    careful = reader_of(tmp_path)
    with pytest.raises(TroveError) as caught:
        drain(careful, start)
    assert caught.value.symbol == "DATA_LOST"
    left = [row for row in log.rows if row["physicalOffset"] // 4096 * 4096 not in gone]
    batches = drain(reader_of(tmp_path, failOnDataLoss="false", maxOffsetsPerTrigger="9"), start)
    assert [row for batch in batches for row in batch] == left


def test_an_offset_after_the_log_is_reported(tmp_path: Path) -> None:
    LogFiles(tmp_path).append("t", b"b")
    reader = reader_of(tmp_path)
    with pytest.raises(TroveError, match="another store"):
        reader.latestOffset({"physicalOffset": 1 << 40}, ReadAllAvailable())


@pytest.mark.parametrize("foreign", [{"t": {"b": {"0": 5}}}, {"physicalOffset": "7"}, {}])
def test_the_checkpoint_of_another_source_is_reported(foreign: dict[str, Any], tmp_path: Path) -> None:
    """It was a KeyError."""
    LogFiles(tmp_path).append("t", b"b")
    reader = reader_of(tmp_path)
    for ask in (
        lambda: reader.latestOffset(foreign, ReadAllAvailable()),
        lambda: reader.partitions({"physicalOffset": 0}, foreign),
    ):
        with pytest.raises(TroveError, match="another query's") as caught:
            ask()
        assert caught.value.symbol == "OPTION_ILLEGAL"


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "4"}])
def test_damage_is_passed_once(limit: dict[str, str], tmp_path: Path) -> None:
    log = LogFiles(tmp_path)
    for index in range(60):
        log.append("t", bytes([index]) * 100, properties={"p": "q"})
    for index in (0, 7, 8, 20, 41):
        row = log.rows[index]
        path, place = log.path_of(row["physicalOffset"]), row["physicalOffset"] % log.segment_size
        data = bytearray(path.read_bytes())
        data[place + 95] ^= 1
        path.write_bytes(data)
    columns = "topic,body,physicalOffset,size,damage"
    batches = drain(reader_of(tmp_path, mode="permissive", columns=columns, **limit))
    found = [row for batch in batches for row in batch]
    bad = [row["physicalOffset"] for row in found if row["damage"]]
    assert bad == [log.rows[index]["physicalOffset"] for index in (0, 7, 20, 41)]
    good = [row["body"][0] for row in found if not row["damage"]]
    assert good == [index for index in range(60) if index not in (0, 7, 8, 20, 41)]
    with pytest.raises(TroveError, match=r"at byte 0 \(physical offset 0\)"):
        drain(reader_of(tmp_path, **limit))


# --- through Spark --------------------------------------------------------------------------------------


def test_restarted_from_its_checkpoint_each_row_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    log, source = LogFiles(tmp_path / "log"), random.Random(11)
    append_some(log, source, 50)

    def start(*, available_now: bool) -> Any:
        table: DataFrame = (
            spark.readStream.format("trovemq-log")
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="30")
            .schema("physicalOffset bigint, body binary")
            .load(str(tmp_path / "log"))
        )
        writer = table.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer = writer.trigger(availableNow=True) if available_now else writer
        return writer.start(str(tmp_path / "table"))

    query = start(available_now=True)  # ends at the log's end, in batches of 30 and 20
    assert query.awaitTermination(90)
    assert query.exception() is None
    batches = [progress.numInputRows for progress in query.recentProgress]
    assert [count for count in batches if count] == [30, 20]

    append_some(log, source, 25)
    query = start(available_now=False)
    query.processAllAvailable()
    append_some(log, source, 25)
    query.stop()  # whatever it is about
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    # As if it were killed before the last batch was committed: that is done again.
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    query = start(available_now=True)
    assert query.awaitTermination(90)
    assert query.exception() is None
    written = spark.read.parquet(str(tmp_path / "table")).collect()
    found = sorted((row.physicalOffset, bytes(row.body)) for row in written)
    assert found == [(row["physicalOffset"], row["body"]) for row in log.rows]
