"""A log that ends within an atomic transaction: no reader sees a part of it, and jobs say so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.log_files import LogFiles, read, rows_of, source_of
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_offset_msg_id, encode_record
from trovemq_proto.records.run_mark import seal_of
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.archive import ArchiveArguments, run_here
from trovemq_spark.jobs.audit import AuditArguments, audit
from trovemq_spark.jobs.search import SearchArguments
from trovemq_spark.jobs.search import run as search
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.sources.log_stream import TroveLogStreamReader
from trovemq_spark.tasks import OneProcess
from trovemq_store.log.projection import DispatchBatch

SEGMENT_SIZE = 1 << 16


class TransactionLog(LogFiles):
    """A log in one segment, written plainly and in transactions."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, segment_size=SEGMENT_SIZE)

    def plain(self, count: int = 1) -> None:
        for _ in range(count):
            self.append("plain", b"body", properties={"p": "q"})

    def transaction(self, number: int, count: int, written: int) -> int:
        """Its first `written` records; returns where it begins."""
        begin = self.end
        for index in range(written):
            mark = {
                "TROVEMQ_TX_ID": f"tx-{number}",
                "TROVEMQ_TX_NUMBER": f"{index:04d}",
                "TROVEMQ_TX_COUNT": f"{count:04d}",
                "TROVEMQ_TX_BEGIN": f"{begin:020d}",
            }
            seal = seal_of(PhysicalOffset(begin))
            self.append(f"t{index % 2}", b"x" * 40, properties=mark, prepared_transaction_offset=seal)
        return begin

    def places(self, end: int) -> list[int]:
        return [row["physicalOffset"] for row in self.rows if row["physicalOffset"] < end]


def random_log(source: random.Random, directory: Path) -> tuple[TransactionLog, int]:
    """(a log, where its readable end is)"""
    log = TransactionLog(directory)
    for number in range(source.randrange(6)):
        log.plain(source.randrange(4))
        count = source.randint(1, 6)
        log.transaction(number, count, count if source.random() < 0.7 else source.randint(1, count))
        log.plain(source.randint(1, 2))  # after an unfinished one too: it is not an end
    end = log.end
    if source.random() < 0.8:
        count = source.randint(2, 6)
        log.transaction(99, count, source.randint(1, count - 1))
        if source.random() < 0.5:  # and half a record
            torn = encode_record("t", b"y" * 50, physical_offset=log.end)[:60]
            place = log.end
            log._write(torn)
            assert log.end == place
    return log, end


@pytest.mark.parametrize("seed", range(40))
def test_a_scan_ends_before_it_wherever_it_begins_and_however_it_is_cut(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    log, end = random_log(source, tmp_path)
    opened = LogDirectory.open(str(tmp_path)) if log.rows else None
    if opened is None:
        return
    (file,) = opened.segments
    segment = opened.open_segment(file)
    for begin in [row["physicalOffset"] for row in log.rows]:
        for stop in (SEGMENT_SIZE, source.randint(begin + 1, log.end)):
            bounds = ScanBounds(begin, stop, is_last=True)
            steps = list(scan_segment(segment, bounds, run_bytes_max=source.choice((1, 300, 1 << 20))))
            runs = [step for step in steps if isinstance(step, DispatchBatch)]
            assert runs == steps, "nothing is damaged"
            found = [int(place) for run in runs for place in run.records.positions]
            assert found == [place for place in log.places(end) if begin <= place < stop]
            assert max((run.end for run in runs), default=begin) <= max(end, begin)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_in_any_number_of_parts_has_none_of_it(seed: int, tmp_path: Path) -> None:
    source = random.Random(100 + seed)
    log, _ = random_log(source, tmp_path)
    log.plain()
    end = log.end
    log.transaction(7, 5, source.randint(1, 4))
    for parts in ("1", "3", "20"):
        found = read({"path": str(tmp_path), "minPartitions": parts})
        assert [row["physicalOffset"] for row in found.rows] == log.places(end)


def test_records_below_the_known_end_are_read(tmp_path: Path) -> None:
    """Below the known end nothing is cut: there is damage after these records."""
    log = TransactionLog(tmp_path)
    log.plain()
    begin = log.transaction(1, 3, 2)
    opened = LogDirectory.open(str(tmp_path))
    segment = opened.open_segment(opened.segments[0])
    for known_end, count in ((begin, 1), (log.end, 3)):
        bounds = ScanBounds(0, SEGMENT_SIZE, known_end, is_last=True)
        steps = scan_segment(segment, bounds)
        assert sum(len(step.records) for step in steps if isinstance(step, DispatchBatch)) == count


def test_a_stream_reads_it_when_it_is_whole(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path)
    log.plain(2)
    source = source_of({"path": str(tmp_path), "startingOffsets": "earliest"})
    stream: TroveLogStreamReader = source.streamReader(source.schema())
    seen: list[int] = []
    place = stream.initialOffset()
    for written, expected in ((0, 2), (1, 2), (3, 2), (4, 6)):
        whole = TransactionLog(tmp_path)
        whole.end, whole.rows = log.end, []
        whole.transaction(1, 4, written)
        to = stream.latestOffset(place, ReadAllAvailable())
        assert stream.reportLatestOffset() == to
        for part in stream.partitions(place, to):
            seen += [row["physicalOffset"] for batch in stream.read(part) for row in rows_of(batch)]
        place = to
        assert len(seen) == len(set(seen)) == expected


def test_jobs_leave_it_out_and_say_so(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path / "store" / "commitlog")
    log.plain(3)
    begin = log.transaction(1, 3, 2)
    said = f"transaction tx-1 of 3 records begins at {begin} and is not whole"
    arguments = ArchiveArguments(str(tmp_path / "store"), str(tmp_path / "archive"))
    report = run_here(arguments, NoProgress())
    assert report.facts["rows"] == 3
    assert any(note.startswith(said) for note in report.notes)
    store = str(tmp_path / "store")
    ids = [encode_offset_msg_id(bytes(8), row["physicalOffset"]) for row in log.rows]
    found = [search(None, SearchArguments(store=store, offset_msg_id=one), NoProgress()) for one in ids]
    assert [one.facts["rowCount"] for one in found] == [1, 1, 1, 0, 0]
    checked = audit(OneProcess(NoProgress()), AuditArguments(str(tmp_path / "store" / "commitlog")))
    assert (checked.facts["records"], checked.facts["commitLogMaxOffset"]) == (3, begin)
    (tmp_path / "store" / "abort").touch()
    checked = audit(OneProcess(NoProgress()), AuditArguments(str(tmp_path / "store"), checks=("log",)))
    assert any(note.startswith(said) for note in checked.notes)
    assert checked.findings == []
    log.transaction(2, 1, 1)  # the broker continued after it: now it stays
    report = run_here(arguments, NoProgress())
    assert report.facts["rows"] == 3
    assert not any("transaction" in note for note in report.notes)
