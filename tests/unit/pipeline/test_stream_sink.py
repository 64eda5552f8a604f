"""The sink of the job `stream` without Spark: its steps, with a crash before each of them."""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.archive_logs import GrowingLog, Row, Watcher, archive_rows, glob_rows, log_rows
from tests.support.pipeline_size import PIPELINE_LONG
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.manifest import FILES, Manifest
from trovemq_spark.archive.parquet_files import FileLayout
from trovemq_spark.sinks.checkpoint import committed_offsets, sync_offsets
from trovemq_spark.sinks.table_sink import (
    PartitionWriter,
    SinkStoppedError,
    TableSink,
    check_query,
    write_files,
)
from trovemq_spark.sources.log_batch import TroveLogDataSource
from trovemq_spark.storage import StoragePath

QUERY = "0d8d7c1e-query"
LAYOUT = FileLayout(row_group_rows=7)


def read_log(store: Path, **options: str) -> list[pa.RecordBatch]:
    source = TroveLogDataSource({"path": str(store), "includeHeader": "true"} | options)
    reader = source.reader(source.schema())
    return [batch for part in reader.partitions() for batch in reader.read(part)]


class Batches:
    """A query by its checkpoint: numbered batches that are the same whenever they run, each in parts as tasks
    have them."""

    def __init__(self, store: Path, seed: int, count: int = 3) -> None:
        self._source = random.Random(seed)
        rows = pa.Table.from_batches(read_log(store)).sort_by("physicalOffset")
        cuts = sorted(self._source.sample(range(1, rows.num_rows), count - 1))
        self.rows = [
            rows.slice(begin, end - begin)
            for begin, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True)
        ]
        self.offsets = [set(part["physicalOffset"].to_pylist()) for part in self.rows]

    def parts(self, number: int) -> Iterator[list[pa.RecordBatch]]:
        rows = self.rows[number]
        half = rows.num_rows // 2
        for part in (rows.slice(0, half), rows.slice(half)):
            yield part.to_batches(max_chunksize=5)


class Rows:
    """A batch as foreachBatch gives it, of which the sink uses this much; its tasks run here and now."""

    def __init__(self, parts: Iterator[list[pa.RecordBatch]]) -> None:
        self._parts = parts
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def coalesce(self, count: int) -> Rows:
        return self

    def mapInArrow(self, function: PartitionWriter, schema: str) -> Rows:
        self._function = pickle.loads(pickle.dumps(function))
        return self

    def collect(self) -> list[dict[str, Any]]:
        tables = [table for part in self._parts for table in self._function(iter(part))]
        return [row for table in tables for row in table.to_pylist()]


def sink_of(manifest: Manifest) -> TableSink:
    sink = TableSink(manifest, manifest.place.child("_checkpoint"), LAYOUT, lambda rows: None)
    sink.query_id.set_result(QUERY)
    return sink


def run_query(table: Path, batches: Batches, first: int, done: Callable[[int], None]) -> TableSink:
    """The batches from `first` on, as the driver runs them; done(): the checkpoint has the batch."""
    with Manifest.writing(table, "stream") as manifest:
        sink = sink_of(manifest)
        for number in range(first, len(batches.rows)):
            sink(Rows(batches.parts(number)), number)  # type: ignore[arg-type]
            done(number)
    return sink


def visible_batches(rows: list[Row], batches: Batches) -> int:
    """How many batches are there, whole and once."""
    found = [row[0] for row in rows]
    assert len(found) == len(set(found)), "a row is there twice"
    for count in range(len(batches.offsets) + 1):
        if set(found) == set().union(*batches.offsets[:count]):
            return count
    raise AssertionError("a batch is there in part")


@pytest.fixture(params=range(8 if PIPELINE_LONG else 1))
def batches(request: pytest.FixtureRequest, tmp_path: Path) -> Batches:
    log = GrowingLog(tmp_path / "store", request.param, topics=("orders", "a|b"))
    log.grow(50)
    return Batches(log.store, request.param)


@pytest.mark.slow
def test_a_crash_before_any_step_loses_nothing_and_doubles_nothing(batches: Batches, tmp_path: Path) -> None:
    wanted = log_rows(tmp_path / "store")
    table = tmp_path / "table"
    checkpoint: list[int] = []
    crashes: dict[int, int] = {}

    def crash(at: int) -> None:
        """The disk at this moment is the one that a kill leaves."""
        if PIPELINE_LONG or at % 2 == 0:
            shutil.copytree(table, tmp_path / f"crash-{at}")
            crashes[at] = len(checkpoint)

    table.mkdir()
    watcher = Watcher(table, crash)
    with watcher.watching():
        run_query(table, batches, 0, checkpoint.append)
    crash(watcher.count)
    assert watcher.count > 40
    assert set(crashes.values()) >= {0, 1, 2}
    replayed = 0
    for at, committed in crashes.items():
        left = tmp_path / f"crash-{at}"
        seen = visible_batches(archive_rows(left), batches) if any(left.glob("_manifest/0*")) else 0
        assert committed <= seen <= committed + 1
        wanted_rows = sum(len(part) for part in batches.offsets[seen:])
        # Links follow the commit one by one: they may miss rows until the next run, and never have one twice.
        by_links = [row[0] for row in glob_rows(left)]
        assert len(by_links) == len(set(by_links))
        assert set(by_links) <= set().union(*batches.offsets[:seen])
        sink = run_query(left, batches, committed, lambda number: None)
        assert (sink.rows, sink.replayed) == (wanted_rows, seen - committed)
        replayed += sink.replayed
        assert archive_rows(left) == wanted
        assert sorted(glob_rows(left)) == wanted
        assert len(list((left / FILES).iterdir())) == len(Manifest.open(left).files()), "a file stays"
        shutil.rmtree(left)
    assert replayed, "no crash fell between the commit and the checkpoint"


def test_a_batch_that_is_there_is_not_committed_again(batches: Batches, tmp_path: Path) -> None:
    table = tmp_path / "table"
    run_query(table, batches, 0, lambda number: None)
    with Manifest.writing(table, "stream") as manifest:
        before = manifest.number
        sink = sink_of(manifest)
        for number in range(3):
            entries = write_files(manifest.place, list(batches.parts(number))[1], LAYOUT)
            assert sink.commit(entries, number, QUERY) is None
        assert manifest.number == before
        assert sink.commit([], 3, QUERY) == 0, "a batch without rows is not a commit"
        assert manifest.number == before
        assert len(list((table / FILES).iterdir())) == len(manifest.files())
    assert archive_rows(table) == log_rows(tmp_path / "store")


def test_a_file_has_one_topic_broker_and_day_in_order(batches: Batches, tmp_path: Path) -> None:
    place = StoragePath(tmp_path / "table")
    rows = read_log(tmp_path / "store", brokerName="b1") + read_log(tmp_path / "store", brokerName="b2")
    random.Random(1).shuffle(rows)
    with Manifest.writing(place, "stream") as manifest:
        entries = write_files(place, rows, LAYOUT)
        manifest.commit(entries)
    whole = log_rows(tmp_path / "store")
    assert archive_rows(place.text) == sorted(whole * 2)
    found = [(entry.topic, entry.source, entry.date) for entry in entries]
    assert len(found) == len(set(found))
    days = {(row[1], row[10].date().isoformat()) for row in whole}
    assert set(found) == {(topic, broker, day) for topic, day in days for broker in ("b1", "b2")}
    for entry in entries:
        table = pq.read_table(f"{place}/{entry.file}")
        assert set(table["brokerName"].to_pylist()) == {entry.source}
        places = list(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
        assert places == sorted(places)


def test_damage_is_in_a_file_of_no_topic(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "store", 5)
    log.grow(20)
    segment = log.directory / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    second = log_rows(log.store)[1]
    data[second[0] + 4] ^= 0xFF  # its magic
    segment.write_bytes(data)
    place = StoragePath(tmp_path / "table")
    entries = write_files(place, read_log(log.store, mode="permissive"), LAYOUT)
    damaged = [entry for entry in entries if entry.is_damage]
    assert [(entry.rows, entry.date) for entry in damaged] == [(1, None)]
    assert damaged[0].physical[0] == second[0]
    assert sum(entry.rows for entry in entries) == 20


def test_no_file_stays_where_a_task_fails(
    batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at each write of a task, one after another."""
    rows = [batch for number in range(3) for part in batches.parts(number) for batch in part]
    calls = fails_at = 0

    def full(rows: object) -> object:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(28, "No space left on device")
        return aligned(rows)

    from trovemq_spark.archive import parquet_files

    aligned = parquet_files.aligned
    monkeypatch.setattr(parquet_files, "aligned", full)
    write_files(StoragePath(tmp_path / "whole"), rows, LAYOUT)
    writes = calls
    assert writes > len(list((tmp_path / "whole" / FILES).iterdir())) > 1, "several files of several writes"
    for fails_at in range(1, writes + 1):
        calls = 0
        place = StoragePath(tmp_path / f"table-{fails_at}")
        with pytest.raises(TroveError, match=errors.DISK_FULL.symbol):
            write_files(place, rows, LAYOUT)
        assert calls == fails_at, "nothing is written after the failure"
        assert not list(place.entries(FILES))


def test_a_table_takes_one_query_and_no_archive(batches: Batches, tmp_path: Path) -> None:
    run_query(tmp_path / "table", batches, 0, lambda number: None)
    with pytest.raises(TroveError, match=f"{errors.ARCHIVE_ILLEGAL.symbol}.*another checkpoint"):
        check_query(Manifest.open(tmp_path / "table"), "other")
    with Manifest.writing(tmp_path / "archive", "archive") as manifest:
        manifest.commit([], selection={"topics": []})
        with pytest.raises(TroveError, match=f"{errors.ARCHIVE_ILLEGAL.symbol}.*`archive`"):
            sink_of(manifest)


def test_no_batch_begins_after_stop(batches: Batches, tmp_path: Path) -> None:
    with Manifest.writing(tmp_path / "table", "stream") as manifest:
        sink = sink_of(manifest)
        sink(Rows(batches.parts(0)), 0)  # type: ignore[arg-type]
        sink.stop()
        with pytest.raises(SinkStoppedError):
            sink(Rows(batches.parts(1)), 1)  # type: ignore[arg-type]
        assert (sink.batches, manifest.last_batch(QUERY)) == (1, 0)


# --- the checkpoint ------------------------------------------------------------------------------------


def test_only_batches_that_are_done_count(tmp_path: Path) -> None:
    place = StoragePath(tmp_path)
    assert committed_offsets(place) is None
    for number in range(12):
        end = f'{{"T": {{"b": {{"0": {number}}}}}}}'
        place.write(f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0}}\n{end}'.encode())
        place.write(f"offsets/.{number}.crc", b"crc")
    assert committed_offsets(place) is None
    for number in range(11):
        place.write(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
    assert committed_offsets(place) == {"T": {"b": {"0": 10}}}
    place.write("offsets/10", b"v1\n{}")
    with pytest.raises(ValueError, match="offsets/10"):
        committed_offsets(place)


def test_the_offsets_are_on_disk_before_the_table_has_the_batch(
    batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    offsets = StoragePath(table / "_checkpoint")
    offsets.write("offsets/0", b"v1")
    offsets.write("offsets/.0.crc", b"crc")
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Manifest.writing(table, "stream") as manifest:
        sink_of(manifest)(Rows(batches.parts(0)), 0)  # type: ignore[arg-type]
    names = [name.removeprefix(f"{table}/") for name in synced]
    commit = next(index for index, name in enumerate(names) if name.startswith("_manifest/"))
    assert {f"_checkpoint/offsets{name}" for name in ("/0", "/.0.crc", "")} <= set(names[:commit])
    sync_offsets(StoragePath("mock://nowhere"), 0)
