"""The job `rebuild` as Spark runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.demo import flights
from tests.support.generated_store import ROLLING, write_flights
from tests.support.golden import CLEAN_NAMES
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.rebuilt import files_of, index_contents
from trovemq_proto.errors import TroveError
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.rebuild import RebuildArguments, run

pytestmark = pytest.mark.slow

FLIGHTS = flights.FLIGHT_COUNT if PIPELINE_LONG else 12_000
SETTINGS = replace(
    ROLLING,
    commit_log_file_size=8 << 20 if PIPELINE_LONG else 2 << 20,
    index_slot_count=50_021,
    index_item_count=200_000 if PIPELINE_LONG else 15_000,
)


@pytest.mark.parametrize("name", CLEAN_NAMES if PIPELINE_LONG else ["rollover"])
def test_spark_rebuilds_what_rocketmq_wrote(
    name: str, spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store, out = golden(name), tmp_path / "out"
    report = run(spark, RebuildArguments(str(store), str(out)), NoProgress())
    assert report.findings == []
    assert files_of(out / "consumequeue") == files_of(store / "consumequeue")
    assert index_contents(out) == index_contents(store)


class _Counting:
    """Adds up the reported progress."""

    def __init__(self) -> None:
        self.steps: list[list[object]] = []

    def begin(self, what: str, total: int) -> None:
        self.steps.append([what, total, 0])

    def advance(self, count: int = 1) -> None:
        self.steps[-1][2] = int(str(self.steps[-1][2])) + count


def test_the_flights_files_are_those_that_the_broker_wrote(spark: SparkSession, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    write_flights(store, FLIGHTS, SETTINGS)
    progress = _Counting()
    report = run(spark, RebuildArguments(str(store), str(out)), progress)
    assert report.findings == []
    assert report.facts["records"] == report.facts["units"] == FLIGHTS
    assert report.facts["queues"] == flights.QUEUE_COUNT
    assert report.facts["segments"] == len(list((store / "commitlog").iterdir())) > 2
    assert files_of(out / "consumequeue") == files_of(store / "consumequeue")
    assert index_contents(out) == index_contents(store)
    assert len(index_contents(out)) > 2
    assert [step[0] for step in progress.steps] == ["segments", "files"]
    assert all(total == done for _, total, done in progress.steps)


class _Retention(NoProgress):
    """Removes a segment when the job has listed them all."""

    def __init__(self, segment: Path) -> None:
        self._segment = segment

    def begin(self, what: str, total: int) -> None:
        self._segment.unlink(missing_ok=True)


def test_a_segment_that_goes_meanwhile_is_named_and_nothing_is_made(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store, out = golden("rollover"), tmp_path / "out"
    segment = min((store / "commitlog").iterdir())
    with pytest.raises(TroveError, match=f"OFFSET_OUT_OF_RANGE.*{segment.name}"):
        run(spark, RebuildArguments(str(store), str(out)), _Retention(segment))
    assert list(out.iterdir()) == []
