"""The job `archive`: its rows are the log's, whatever happened to the runs before."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.archive_logs import (
    SEGMENT_SIZE,
    GrowingLog,
    Row,
    Watcher,
    archive_rows,
    glob_rows,
    log_rows,
    make_object_store,
    messages_of,
    rows_of,
)
from tests.support.fork_server import run as run_forked
from tests.support.golden import GOLDEN_NAMES, load_manifest
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.small_disks import mounted_disk
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_record
from trovemq_spark.archive.bloom import FileFilters
from trovemq_spark.archive.entry import Selection
from trovemq_spark.archive.manifest import FILES, Manifest
from trovemq_spark.archive.parquet_files import BLOOM_COLUMNS
from trovemq_spark.archive.readers import archive_files, arrow_dataset, read_archive
from trovemq_spark.archive.segment_task import SegmentResult, SegmentTask, archive_segment
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs import archive as archive_job
from trovemq_spark.jobs import compact
from trovemq_spark.jobs.archive import ArchiveArguments, run, run_here
from trovemq_spark.storage import StoragePath
from trovemq_spark.table.schema import column_names
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.deletions import TopicDeletions

pytestmark = pytest.mark.slow

KILLS = 20 if PIPELINE_LONG else 4


def archive(store: Path, out: Path, **changes: object) -> Report:
    return run_here(ArchiveArguments(str(store), str(out), **changes), NoProgress())  # type: ignore[arg-type]


def check_equal(store: Path, out: Path) -> None:
    """Log, manifest and glob have the same rows, each once."""
    expected = log_rows(store)
    assert archive_rows(out) == expected
    assert sorted(glob_rows(out)) == expected


def check_nothing_wrong(rows: list[Row], expected: set[Row]) -> None:
    """Each row at most once, and as the log has it."""
    assert len(set(rows)) == len(rows)
    assert set(rows) <= expected


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path / "store", 1)


# --- rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden_stores_row_by_row(name: str, golden: Callable[[str], Path], tmp_path: Path) -> None:
    store, out = golden(name), tmp_path / "archive"
    report = archive(store, out)
    assert report.facts["rows"] == len(load_manifest(name)["messages"]) == len(archive_rows(out))
    assert report.finding_count == 0
    check_equal(store, out)


def test_on_spark_and_read_by_spark(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Tasks of Spark, with the same facts as in one process; the reader's rows and its pruning."""
    store, out = golden("rollover"), tmp_path / "archive [1]"
    arguments = ArchiveArguments(str(store), str(out))
    report = run(spark, arguments, NoProgress())
    assert (report.facts["rows"], report.facts["segmentsRead"]) == (2000, 14)
    check_equal(store, out)
    columns = column_names(header=True)
    assert rows_of(read_archive(spark, out, columns=columns).toArrow()) == log_rows(store)
    topic = load_manifest("rollover")["messages"][0]["topic"]
    chosen = Selection(topics=frozenset([topic]))
    assert read_archive(spark, out, chosen, ["topic"]).distinct().collect() == [(topic,)]
    assert 0 < len(archive_files(out, chosen)) < len(archive_files(out))
    assert read_archive(spark, out, Selection(topics=frozenset()), ["topic"]).columns == ["topic"]


def test_files_have_one_topic_and_day_in_order(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(300)
    out = tmp_path / "archive"
    archive(log.store, out, row_group_rows=7)
    for entry in Manifest.open(out).files():
        file = pq.ParquetFile(out / entry.file)
        rows = file.read().to_pylist()
        assert file.metadata.num_row_groups == -(-len(rows) // 7)
        assert {row["topic"] for row in rows} == {entry.topic}
        assert {row["storeTimestamp"].date().isoformat() for row in rows} == {entry.date}
        order = [(row["queueId"], row["queueOffset"]) for row in rows]
        assert order == sorted(order)
        offsets: dict[int, list[int]] = {}
        for queue, offset in order:
            offsets.setdefault(queue, []).append(offset)
        assert entry.queues == {queue: (found[0], found[-1]) for queue, found in offsets.items()}
        begins = [row["physicalOffset"] for row in rows]
        assert entry.physical == (min(begins), max(row["physicalOffset"] + row["size"] for row in rows))
        stored = [round(row["storeTimestamp"].timestamp() * 1000) for row in rows]
        assert (entry.rows, *entry.stored) == (len(rows), min(stored), max(stored))


def test_bloom_filters_find_every_key_and_little_else(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(200)
    out = tmp_path / "archive"
    archive(log.store, out, row_group_rows=10)
    place, wrong, asked = StoragePath(str(out)), 0, 0
    for entry in Manifest.open(out).files():
        file = pq.ParquetFile(out / entry.file)
        for column in BLOOM_COLUMNS:
            groups = [
                file.read_row_group(i, [column])[column].to_pylist() for i in range(file.num_row_groups)
            ]
            for group, values in enumerate(groups):
                value = values[0] if isinstance(values[0], str) else values[0][0]
                with FileFilters(place, entry) as filters:
                    found = filters.groups_with(column, ["nowhere", value])
                assert group in found
                wrong, asked = wrong + len(found) - 1, asked + len(groups)
    assert wrong <= asked * 0.03


# --- repeated runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_growing_log_is_added_to_and_nothing_twice(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    log, out = GrowingLog(tmp_path / "store", seed), tmp_path / "archive"
    for _ in range(5):
        log.grow(source.choice((1, 3, 30, 120)))
        before = len(archive_rows(out)) if out.exists() else 0
        report = archive(log.store, out)
        assert report.facts["rows"] == len(log_rows(log.store)) - before
        number = Manifest.open(out).number
        again = archive(log.store, out)
        assert (again.facts["rows"], Manifest.open(out).number) == (0, number)
        assert again.facts["segmentsRead"] == 1, "the open one only"
    check_equal(log.store, out)


def test_segments_that_are_gone_stay_archived(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(200)
    archive(log.store, out)
    expected = log_rows(log.store)
    first, second, *_ = sorted(log.directory.iterdir())
    first.unlink()
    second.unlink()
    log.grow(50)
    assert archive(log.store, out).finding_count == 0
    expected += [row for row in log_rows(log.store) if row not in expected]
    assert archive_rows(out) == expected


def test_a_gap_before_the_first_archive_run_is_reported_once(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(50)
    archive(log.store, out)
    (read_to,) = [facts["end"] for facts in Manifest.open(out).read_to("").values() if not facts["closed"]]
    log.grow(200)
    gone = [path for path in log.directory.iterdir() if int(path.name) < 6 * SEGMENT_SIZE]
    for path in gone:
        path.unlink()
    (finding,) = archive(log.store, out).findings
    assert finding.kind == "segmentsMissing"
    assert f"[{read_to}, {6 * SEGMENT_SIZE})" in finding.what
    assert archive(log.store, out).finding_count == 0


def test_a_segment_that_retention_removed_is_reported_until_it_is_known(
    log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned, then gone: neither this run nor the next counts it as archived."""
    out = tmp_path / "archive"
    log.grow(200)
    gone = log.directory / f"{2 * SEGMENT_SIZE:020d}"

    def without_it(task: SegmentTask) -> SegmentResult:
        gone.unlink(missing_ok=True)
        return archive_segment(task)

    monkeypatch.setattr(archive_job, "archive_segment", without_it)
    with pytest.raises(TroveError, match="retention took it"):
        archive(log.store, out, segments_per_commit=100)
    (finding,) = archive(log.store, out).findings
    assert finding.kind == "segmentsMissing"
    assert f"[{2 * SEGMENT_SIZE}, {3 * SEGMENT_SIZE})" in finding.what
    assert Manifest.open(out).holes("") == [(2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE)]
    check_equal(log.store, out)


def test_a_closed_segment_of_another_log_is_not_taken_for_archived(log: GrowingLog, tmp_path: Path) -> None:
    """A log that a recovery cut back by more than its last segment, and that then grew with other records."""
    out = tmp_path / "archive"
    log.grow(100)
    archive(log.store, out)
    other = GrowingLog(tmp_path / "other", 2)
    other.grow(300)
    names = sorted(path.name for path in log.directory.iterdir())
    shutil.copy(other.directory / names[-2], log.directory / names[-2])
    (log.directory / names[-1]).unlink()
    with pytest.raises(TroveError, match=f"{names[-2]} of .* no longer holds the record"):
        archive(log.store, out)


def test_on_an_object_store(log: GrowingLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = make_object_store(tmp_path / "bucket", monkeypatch)
    for _ in range(2):
        log.grow(100)
        assert run_here(ArchiveArguments(str(log.store), uri), NoProgress()).notes
        assert archive_rows(uri) == log_rows(log.store)
        compact.run_here(compact.CompactArguments(uri), NoProgress())
        assert archive_rows(uri) == log_rows(log.store)
    names = {entry.name.partition("/")[0] for entry in StoragePath(uri).entries()}
    assert names == {"_files", "_manifest"}


def test_another_log_is_not_added(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(100)
    archive(log.store, out)
    other = GrowingLog(tmp_path / "other", 2)
    other.grow(110)
    with pytest.raises(TroveError, match="no longer holds the record"):
        archive(other.store, out)
    archive(other.store, out, broker_name="b")
    assert len(archive_rows(out)) == 210


def test_another_choice_of_topics_is_refused(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(100)
    archive(log.store, out, topics=("orders", "a|b"))
    assert archive_rows(out) == [row for row in log_rows(log.store) if row[1] in ("orders", "a|b")]
    with pytest.raises(TroveError, match=r"with topics=\['a\|b', 'orders'\]"):
        archive(log.store, out)


def test_since_leaves_out_whole_segments(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(200)
    messages = list(messages_of(log.store))
    since = messages[100].store_timestamp
    begin = messages[100].physical_offset // SEGMENT_SIZE * SEGMENT_SIZE
    archive(log.store, tmp_path / "archive", since_timestamp=since)
    expected = [row for row in log_rows(log.store) if row[0] >= begin]
    assert archive_rows(tmp_path / "archive") == expected


# --- damage, deletions ------------------------------------------------------------------------------------


def flip_bodies(log: GrowingLog, count: int) -> list[int]:
    """Flips a bit of this many messages' bodies; their physical offsets."""
    messages = [message for message in messages_of(log.store) if len(message.body) > 100]
    chosen = random.Random(0).sample(messages, count)
    for message in chosen:
        path = log.directory / f"{message.physical_offset // SEGMENT_SIZE * SEGMENT_SIZE:020d}"
        data = bytearray(path.read_bytes())
        data[data.index(message.body) + 50] ^= 4
        path.write_bytes(data)
    return sorted(message.physical_offset for message in chosen)


def test_damaged_records_by_mode(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(200)
    offsets = flip_bodies(log, 5)
    with pytest.raises(TroveError, match=r"RECORD_DAMAGED.*" + str(offsets[0])):
        archive(log.store, tmp_path / "failfast", mode="failfast")
    for mode in ("permissive", "dropmalformed"):
        out = tmp_path / mode
        report = archive(log.store, out, mode=mode)
        reported = [int(finding.file) + finding.offset for finding in report.findings]
        assert reported == offsets
        check_equal(log.store, out)
        damage = arrow_dataset(out, Selection(damage=True)).to_table().sort_by("physicalOffset")
        damage = damage.filter(damage["damage"].is_valid()).select(["physicalOffset", "topic", "damage"])
        expected = [{"physicalOffset": offset, "topic": None, "damage": "damaged"} for offset in offsets]
        assert damage.to_pylist() == (expected if mode == "permissive" else [])
        assert archive(log.store, out, mode=mode).finding_count == 0, "reported once"


def test_a_body_that_does_not_inflate_by_mode(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    good = encode_record("T", b"good")
    bad = encode_record("T", b"no zlib", sys_flag=1, physical_offset=len(good), queue_offset=1)
    (store / "commitlog" / ("0" * 20)).write_bytes(good + bad + bytes(100))
    with pytest.raises(TroveError, match="does not inflate"):
        archive(store, tmp_path / "failfast", mode="failfast")
    for mode, expected in (("permissive", [b"good", None]), ("dropmalformed", [b"good"])):
        report = archive(store, tmp_path / mode, mode=mode)
        assert [finding.offset for finding in report.findings] == [len(good)]
        assert arrow_dataset(tmp_path / mode).to_table()["body"].to_pylist() == expected


def test_deleted_topics_are_left_out(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(100)
    below = log.end
    TopicDeletions.load(RealFileSystem(log.store)).add("orders", PhysicalOffset(below))
    log.grow(100)
    report = archive(log.store, tmp_path / "archive")
    rows = log_rows(log.store)
    expected = [row for row in rows if row[1] != "orders" or row[0] >= below]
    assert archive_rows(tmp_path / "archive") == expected
    assert report.facts["rowsOfDeletedTopics"] == len(rows) - len(expected) > 0


def test_wrong_arguments_are_reported(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(1)
    for wrong in ({"mode": "x"}, {"compression": "x"}, {"row_group_rows": 0}, {"segments_per_commit": -1}):
        with pytest.raises(TroveError, match="OPTION_ILLEGAL"):
            archive(log.store, tmp_path / "archive", **wrong)
    assert not (tmp_path / "archive").exists()


# --- kills, full disks, two at once ------------------------------------------------------------------------


def kill_at(job: str, store: Path, out: Path, event: int | None) -> int:
    """Runs a job in another process, killed before that event on the file system; else how many there are."""
    command = [sys.executable, "-m", "tests.pipeline.archive_kill", job, str(store), str(out)]
    done = run_forked(command if event is None else [*command, str(event)])
    if event is None:
        assert done.returncode == 0, done.stderr
        return int(done.stdout)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return event


def test_killed_anywhere_and_run_again_the_rows_are_the_logs(log: GrowingLog, tmp_path: Path) -> None:
    """One archive is killed again and again while its log grows; every state in between is looked at."""
    log.grow(60)
    events = kill_at("archive", log.store, tmp_path / "whole", None)
    assert events > 20
    out = tmp_path / "archive"
    source = random.Random(7)
    for kill in range(KILLS):
        # Spread over the run: each stretch of it is hit once.
        event = (kill * events + source.randrange(events)) // KILLS
        kill_at("archive", log.store, out, event % events)
        expected = set(log_rows(log.store))
        seen = archive_rows(out) if (out / "_manifest").exists() else []
        check_nothing_wrong(seen, expected)
        check_nothing_wrong(glob_rows(out), set(seen))
        if kill % 2:
            archive(log.store, out, segments_per_commit=2)
            check_equal(log.store, out)
            assert {entry.name for entry in StoragePath(str(out)).entries(FILES)} == {
                entry.file for entry in Manifest.open(out).files()
            }
        log.grow(60)
    archive(log.store, out)
    check_equal(log.store, out)


def test_at_every_moment_readers_see_each_row_at_most_once(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(30)
    archive(log.store, out)
    first = log_rows(log.store)
    log.grow(60)
    expected = log_rows(log.store)

    def check(moment: int) -> None:
        if moment % 8 == 0:
            seen = archive_rows(out)
            assert seen[: len(first)] == first
            check_nothing_wrong(seen, set(expected))
            check_nothing_wrong(glob_rows(out), set(seen))

    watcher = Watcher(out, check)
    with watcher.watching():
        archive(log.store, out, segments_per_commit=1)
    assert watcher.count > 50
    check_equal(log.store, out)


@pytest.mark.skipif(not PIPELINE_LONG, reason="a separate driver: PIPELINE_LONG=1")
def test_the_driver_on_spark_is_killed(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(150)
    out = tmp_path / "archive"
    events = kill_at("archive", log.store, tmp_path / "whole", None)
    kill_at("spark", log.store, out, events // 4)
    seen = archive_rows(out)
    check_nothing_wrong(seen, set(log_rows(log.store)))
    check_nothing_wrong(glob_rows(out), set(seen))
    archive(log.store, out)
    check_equal(log.store, out)


@contextmanager
def file_size_max(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_and_leaves_nothing(log: GrowingLog, tmp_path: Path) -> None:
    out = tmp_path / "archive"
    log.grow(30)
    archive(log.store, out)
    before = archive_rows(out)
    log.grow(60)
    for size in (100, 3000, 9000):
        with file_size_max(size), pytest.raises(TroveError, match="DISK_FULL"):
            archive(log.store, out)
        rows = archive_rows(out)
        assert rows[: len(before)] == before
        check_nothing_wrong(rows, set(log_rows(log.store)))
        there = {entry.name for entry in StoragePath(str(out)).entries(FILES)}
        assert there == {entry.file for entry in Manifest.open(out).files()}, "the space is returned"
    archive(log.store, out)
    check_equal(log.store, out)


def test_a_disk_that_runs_full_between_commits(log: GrowingLog, tmp_path: Path) -> None:
    """With no space at all, and with more and more."""
    log.grow(150)
    expected = log_rows(log.store)
    with mounted_disk("tmpfs", tmp_path / "small", 600 << 10) as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        out, others = disk / "archive", disk / "others"
        for size in (600, 560, 480, 400):
            others.write_bytes(bytes(min(size << 10, shutil.disk_usage(disk).free)))
            with pytest.raises(TroveError, match="DISK_FULL"):
                archive(log.store, out, segments_per_commit=1)
            seen = archive_rows(out) if (out / "_manifest").exists() else []
            check_nothing_wrong(seen, set(expected))
            check_nothing_wrong(glob_rows(out), set(seen))
            others.unlink()
        archive(log.store, out, segments_per_commit=1)
        check_equal(log.store, out)


def test_two_runs_at_once(log: GrowingLog, tmp_path: Path) -> None:
    log.grow(10)
    with (
        Manifest.writing(tmp_path / "archive", "compact"),
        pytest.raises(TroveError, match=r"JOB_RUNNING.*job compact") as caught,
    ):
        archive(log.store, tmp_path / "archive")
    assert caught.value.spec is errors.JOB_RUNNING
    archive(log.store, tmp_path / "archive")
    check_equal(log.store, tmp_path / "archive")
