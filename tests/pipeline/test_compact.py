"""The job `compact`: few files of many, the same rows, and never both or neither for a reader."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.archive_logs import (
    TOPICS,
    GrowingLog,
    Watcher,
    archive_rows,
    glob_rows,
    log_rows,
    rows_of,
)
from tests.support.fork_server import run
from tests.support.pipeline_size import PIPELINE_LONG
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.entry import Selection
from trovemq_spark.archive.manifest import FILES, Manifest
from trovemq_spark.archive.parquet_files import ParquetFile
from trovemq_spark.archive.readers import arrow_dataset
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs import archive, compact
from trovemq_spark.jobs.compact import CompactArguments

pytestmark = pytest.mark.slow

KILLS = 20 if PIPELINE_LONG else 4


def archive_log(log: GrowingLog, out: Path) -> None:
    archive.run_here(archive.ArchiveArguments(str(log.store), str(out)), NoProgress())


def compacted(out: Path, **changes: object) -> Report:
    return compact.run_here(CompactArguments(str(out), **changes), NoProgress())  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    log = GrowingLog(tmp_path / "store", 1)
    log.grow(250)
    return log


@pytest.fixture
def out(log: GrowingLog, tmp_path: Path) -> Path:
    archive_log(log, tmp_path / "archive")
    return tmp_path / "archive"


def test_few_files_with_the_same_rows_in_order(log: GrowingLog, out: Path) -> None:
    before = Manifest.open(out)
    report = compacted(out, row_group_rows=9)
    after = Manifest.open(out)
    partitions = {(entry.topic, entry.date) for entry in before.files()}
    assert len(after.files()) == len(partitions) < len(before.files())
    assert report.facts["filesBefore"] == len(before.files())
    assert report.facts["filesAfter"] == len(partitions)
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)
    assert after.read_to("") == before.read_to("")
    for entry in after.files():
        rows = pq.ParquetFile(out / entry.file).read().to_pylist()
        order = [(row["queueId"], row["queueOffset"]) for row in rows]
        assert order == sorted(order)
        assert {row["topic"] for row in rows} == {entry.topic}
        parts = [old for old in before.files() if (old.topic, old.date) == (entry.topic, entry.date)]
        assert entry.rows == sum(old.rows for old in parts)
        assert entry.physical == (
            min(old.physical[0] for old in parts), max(old.physical[1] for old in parts)
        )  # fmt: skip
        assert entry.segments == (
            min(old.segments[0] for old in parts), max(old.segments[1] for old in parts)
        )  # fmt: skip


def test_old_files_stay_for_one_generation(log: GrowingLog, out: Path) -> None:
    """A dataset that was opened before reads on; the next run removes its files, and changes nothing."""
    opened = arrow_dataset(out)
    compacted(out)
    assert rows_of(opened.to_table()) == log_rows(log.store)
    archive_log(log, out)
    assert rows_of(opened.to_table()) == log_rows(log.store), "another job removes none of them"
    files = Manifest.open(out).files()
    report = compacted(out)
    assert (report.facts["filesMerged"], report.facts["filesRetired"]) == (0, 0)
    assert int(str(report.facts["bytesFreed"])) > 0
    assert Manifest.open(out).files() == files
    assert {path.name for path in (out / FILES).iterdir()} == {Path(entry.file).name for entry in files}
    number = Manifest.open(out).number
    assert compacted(out).facts["bytesFreed"] == 0
    assert Manifest.open(out).number == number
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)


def test_large_files_are_not_merged(out: Path) -> None:
    files = Manifest.open(out).files()
    assert compacted(out, target_bytes=1000).facts["filesMerged"] == 0
    assert Manifest.open(out).files() == files
    two = 2 * max(entry.bytes for entry in files) + 2
    compacted(out, target_bytes=two)
    left = Manifest.open(out).files()
    assert len(left) < len(files)
    assert compacted(out, target_bytes=two).facts["filesMerged"] == 0


def test_an_archive_grows_on_after_it_was_compacted(log: GrowingLog, out: Path) -> None:
    for _ in range(3):
        compacted(out)
        log.grow(40)
        archive_log(log, out)
        assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)


def test_files_in_no_order_come_in_order(tmp_path: Path) -> None:
    """As a streaming sink writes them."""
    source = random.Random(3)
    offsets = list(range(60))
    source.shuffle(offsets)
    with Manifest.writing(tmp_path, "stream") as manifest:
        for part in (offsets[:25], offsets[25:]):
            with ParquetFile(manifest.place, "T", "2026-01-01") as file:
                file.write(
                    pa.table({"topic": ["T"] * len(part), "queueId": [0] * len(part), "queueOffset": part})
                )
                manifest.commit([file.close()])
    compacted(tmp_path, row_group_rows=7)
    (entry,) = Manifest.open(tmp_path).files()
    assert pq.ParquetFile(tmp_path / entry.file).read()["queueOffset"].to_pylist() == list(range(60))


def test_damage_is_kept(log: GrowingLog, tmp_path: Path) -> None:
    for start in (1, 3):
        path = sorted(log.directory.iterdir())[start]
        data = bytearray(path.read_bytes())
        data[0:4] = b"\xff" * 4
        path.write_bytes(data)
    out = tmp_path / "archive"
    archive_log(log, out)
    everything = Selection(damage=True)
    before = arrow_dataset(out, everything).to_table()
    assert before["damage"].null_count == len(before) - 2
    compacted(out)
    after = arrow_dataset(out, everything).to_table()
    assert after.sort_by("physicalOffset").equals(before.sort_by("physicalOffset"))
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)


def test_a_directory_without_an_archive_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(TroveError, match="is not an archive"):
        compacted(tmp_path)
    assert list(tmp_path.iterdir()) == []


def kill_at(out: Path, event: int | None) -> int:
    command = [sys.executable, "-m", "tests.pipeline.archive_kill", "compact", "-", str(out)]
    done = run(command if event is None else [*command, str(event)])
    assert done.returncode == (0 if event is None else -signal.SIGKILL), done.stderr
    return int(done.stdout or 0)


def test_at_every_moment_a_reader_sees_all_rows_once(tmp_path: Path) -> None:
    """Looked at before each of the job's changes to the file system: the rows by the entries, and now and
    then the rows themselves; the rows of a glob, too."""
    log, out = GrowingLog(tmp_path / "store", 6, TOPICS[:2]), tmp_path / "archive"
    log.grow(100)
    archive_log(log, out)
    expected = log_rows(log.store)

    def check(moment: int) -> None:
        files = Manifest.open(out).files()
        assert sum(entry.rows for entry in files) == len(expected)
        assert all((out / entry.file).stat().st_size == entry.bytes for entry in files)
        if moment % 4 == 0:
            assert archive_rows(out) == sorted(glob_rows(out)) == expected

    watcher = Watcher(out, check)
    with watcher.watching():
        compacted(out)
        compacted(out)
    assert watcher.count > 30


def test_killed_anywhere_a_reader_sees_each_row_once(tmp_path: Path) -> None:
    """The manifest and a glob have all rows once at every moment; the next run ends the work."""
    source = random.Random(11)
    log = GrowingLog(tmp_path / "store", 5, TOPICS[:3])
    out, whole = tmp_path / "archive", tmp_path / "whole"
    log.grow(120)
    archive_log(log, whole)
    events = kill_at(whole, None)
    assert events > 30
    for kill in range(KILLS):
        log.grow(20 if kill else 120)
        archive_log(log, out)
        expected = log_rows(log.store)
        kill_at(out, ((kill * events + source.randrange(events)) // KILLS) // 2)
        assert archive_rows(out) == sorted(glob_rows(out)) == expected
    compacted(out)
    assert archive_rows(out) == sorted(glob_rows(out)) == expected
    compacted(out)
    assert len(list((out / FILES).iterdir())) == len(Manifest.open(out).files())


def test_on_spark(spark: SparkSession, log: GrowingLog, out: Path) -> None:
    partitions = {(entry.topic, entry.date) for entry in Manifest.open(out).files()}
    report = compact.run(spark, CompactArguments(str(out)), NoProgress())
    assert report.facts["filesAfter"] == len(partitions)
    assert archive_rows(out) == sorted(glob_rows(out)) == log_rows(log.store)
