"""The trace's quantiles, attempts and dead letters against times that were chosen."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.golden import load_manifest, unpack
from tests.support.traced_store import HOUR_MS, TracedStore
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.trace import OUT_FILE, TraceArguments, trace
from trovemq_spark.tasks import OneProcess

Rows = list[dict[str, object]]


def traced(arguments: TraceArguments) -> Report:
    return trace(OneProcess(NoProgress()), arguments)


def rows_of(report: Report, name: str) -> Rows:
    rows = report.facts[name]
    assert isinstance(rows, list)
    return rows


def by_stage(rows: Rows) -> dict[tuple[object, ...], dict[str, object]]:
    return {(row["stage"], row["topic"], row["group"], row["hour"]): row for row in rows}


def expected_rows(store: TracedStore) -> dict[tuple[object, ...], dict[str, object]]:
    rows = []
    for row in store.times.rows():
        hour = datetime.fromtimestamp(int(str(row["hour"])) * HOUR_MS // 1000, UTC)
        rows.append({**row, "hour": hour.isoformat().replace("+00:00", "Z")})
    return by_stage(rows)


@pytest.mark.parametrize("seed", [1, 2])
def test_quantiles_by_topic_group_and_hour_are_those_of_the_chosen_times(seed: int, tmp_path: Path) -> None:
    store = TracedStore(seed)
    delays = [store.random.choice([0, 1, 5, 40, 3_000, 90_000]) for _ in range(150)]
    store.append([b"%d" % number for number in range(150)], delays, every_ms=40_000)
    store.deliver("workers", acknowledged=0.7)
    store.deliver("others", acknowledged=0.0)
    root = store.close(tmp_path / "store")
    report = traced(TraceArguments(str(root), out=str(tmp_path / "out")))
    latencies = rows_of(report, "latencies")
    assert by_stage(latencies) == expected_rows(store)
    assert len({row["hour"] for row in latencies}) >= 2, "the messages lie in several hours"
    assert pq.read_table(tmp_path / "out" / OUT_FILE).to_pylist() == latencies
    assert report.findings == []
    assert report.notes == []


def test_topics_and_groups_that_have_nothing_are_reported(tmp_path: Path) -> None:
    store = TracedStore(4)
    store.append([b"one"], [0], every_ms=1)
    store.deliver("workers", acknowledged=1.0)
    root = store.close(tmp_path / "store")
    report = traced(TraceArguments(str(root), topics=("nowhere",), groups=("workers", "wrokers")))
    assert report.notes[0] == "no message of topic nowhere is there"
    assert "no delivery, retry or dead letter of group wrokers is there" in report.notes
    report = traced(TraceArguments(str(root), groups=("workers", "wrokers")))
    assert report.notes == ["no delivery, retry or dead letter of group wrokers is there"]


def test_attempts_and_dead_letters_of_a_group_that_never_acknowledges(tmp_path: Path) -> None:
    store = TracedStore(3)
    store.append([b"%d" % number for number in range(20)], [7] * 20, every_ms=1_000)
    again, highest = store.exhaust(5)
    root = store.close(tmp_path / "store")
    report = traced(TraceArguments(str(root)))
    (row,) = rows_of(report, "deliveries")
    assert row["deadLettered"] == 5
    assert (row["redeliveries"], row["attemptsMax"]) == (again, highest)
    assert row["delivered"] == 20
    assert row["acknowledged"] == 15
    (dead,) = rows_of(report, "copies")
    assert (dead["kind"], dead["group"], dead["topic"], dead["count"]) == ("deadLetters", "slow", "orders", 5)
    assert by_stage(rows_of(report, "latencies")) == expected_rows(store)


def test_only_the_wanted_topics_and_groups(tmp_path: Path) -> None:
    store = TracedStore(4)
    store.append([b"a", b"b"], [1, 2], every_ms=1_000)
    store.deliver("workers", acknowledged=1.0)
    store.deliver("others", acknowledged=1.0)
    root = store.close(tmp_path / "store")
    one = rows_of(traced(TraceArguments(str(root), groups=("others",))), "latencies")
    assert {row["group"] for row in one} == {"", "others"}
    assert rows_of(traced(TraceArguments(str(root), topics=("nothing",))), "latencies") == []


def test_a_store_of_rocketmq_gives_what_its_records_say(tmp_path: Path) -> None:
    report = traced(TraceArguments(str(unpack("rollover", tmp_path))))
    manifest = load_manifest("rollover")
    latencies = rows_of(report, "latencies")
    for topic in ("RollAlpha", "RollBeta", "RollGamma"):
        expected = [
            message["storeTimestamp"] - message["bornTimestamp"]
            for message in manifest["messages"]
            if message["topic"] == topic
        ]
        rows = [row for row in latencies if row["topic"] == topic]
        assert sum(int(str(row["count"])) for row in rows) == len(expected)
        assert max(int(str(row["maxMs"])) for row in rows) == max(expected)
    assert {row["stage"] for row in latencies} == {"bornToStored"}
    assert any("no delivery events" in note for note in report.notes)
