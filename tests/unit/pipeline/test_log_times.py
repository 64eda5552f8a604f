"""Readings of a log by time, where store times step back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.support.engine import NOW_MS, SMALL
from tests.support.log_files import LogFiles, read, source_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_spark.jobs.archive import _left_out_count
from trovemq_spark.log.parts import first_stored_at, is_stored_at
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log import state
from trovemq_store.log.segments import Segment
from trovemq_store.log.state import StoreState
from trovemq_store.log.time_runs import TimeRuns

SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600_000


def stepping(root: Path, seed: int, state_of: float | None) -> tuple[LogDirectory, list[tuple[int, int]]]:
    """A log whose store times step, and (store time, physical offset) of its records. state_of: a state.json
    knows this part of it (1: all); None: there is none."""
    source = random.Random(seed)
    files, runs, log = LogFiles(root / "commitlog"), TimeRuns(), list[tuple[int, int]]()
    runs.open_at(LOG_ORIGIN, LOG_ORIGIN, LOG_ORIGIN)
    known = 0 if state_of is None else round(120 * state_of)
    now_ms, saved = NOW_MS, None
    for number in range(120):
        if number == known and state_of is not None:
            saved = files.end, runs.saved(PhysicalOffset(files.end))
        now_ms += source.choice((0, 10, SECOND_MS, *((-HOUR_MS, HOUR_MS) if source.random() < 0.1 else ())))
        log.append((now_ms, files.append("t", bytes(source.randrange(300)), store_timestamp=now_ms)))
        runs.appended(PhysicalOffset(log[-1][1]), EpochMs(now_ms))
    if state_of is not None:
        end, time_runs = saved or (files.end, runs.saved(PhysicalOffset(files.end)))
        document = StoreState.of(SMALL, log_end=PhysicalOffset(end))
        state.save(RealFileSystem(root), msgspec.structs.replace(document, time_runs=time_runs))
    return LogDirectory.open(str(root)), log


@pytest.mark.parametrize("state_of", [None, 0, 0.5, 1])
@pytest.mark.parametrize("seed", range(2))
def test_a_reading_by_time_missed_messages_of_a_clock_that_was_ahead(
    seed: int, state_of: float | None, tmp_path: Path
) -> None:
    """It began at the last segment whose first message was older, also after a step."""
    log, records = stepping(tmp_path, seed, state_of)
    assert len(log.segments) > 5
    for asked in sorted({time + by for time, _ in records[::6] for by in (0, 1)}):
        expected = next((offset for time, offset in records if time >= asked), None)
        assert first_stored_at(log, asked) == expected
        assert is_stored_at(log, asked) == (expected is not None)
        older = [file for file in log.segments if expected is None or file.end <= expected]
        assert _left_out_count(log, asked) == min(len(older), len(log.segments) - 1)


def test_a_stream_and_a_table_from_a_time_have_all_messages_of_it(tmp_path: Path) -> None:
    _, records = stepping(tmp_path, 1, 1)
    for asked in (min(records)[0], max(records)[0] - 1, max(records)[0], NOW_MS):
        wanted = [offset for time, offset in records if time >= asked]
        options = {"path": str(tmp_path), "startingTimestamp": str(asked)}
        stream = source_of(options).streamReader(source_of(options).schema())
        assert stream.initialOffset() == {"physicalOffset": wanted[0]}
        assert [row["physicalOffset"] for row in read(options).rows] == wanted
    late = {"path": str(tmp_path), "startingTimestamp": str(max(records)[0] + 1)}
    with pytest.raises(TroveError, match="all messages are older"):
        read(late)


def test_a_log_with_known_times_is_not_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, records = stepping(tmp_path, 1, 1)
    opened: list[int] = []
    open_segment = LogDirectory.open_segment

    def noted(self: LogDirectory, file: SegmentFile) -> Segment:
        opened.append(file.start)
        return open_segment(self, file)

    monkeypatch.setattr(LogDirectory, "open_segment", noted)
    assert first_stored_at(log, max(records)[0] + 1) is None
    assert len(log.segments) > 5
    assert len(opened) <= 1
