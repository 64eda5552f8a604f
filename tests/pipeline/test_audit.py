"""The job `audit` on Spark: its findings on a store with many faults, and on stores without any."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.own_store import own_store
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.store_faults import FAULTS, DamagedStore
from trovemq_proto.errors import TroveError
from trovemq_spark.job import NoProgress, Report
from trovemq_spark.jobs.audit import AuditArguments, audit, run
from trovemq_spark.tasks import OneProcess

pytestmark = pytest.mark.slow

TOGETHER = (
    "unit_too_many",
    "bit_flipped_in_a_body",
    "record_torn",
    "record_stands_twice",
    "hole_in_the_offsets_of_a_queue",
    "unique_key_of_another_message",
    "units_swapped",
    "unit_with_a_wrong_size",
    "unit_with_a_wrong_tag_hash",
    "whole_queue_missing",
    "item_with_a_wrong_hash",
    "item_with_wrong_seconds",
    "chain_cut",
    "index_begin_time_wrong",
    "committed_offsets_unreadable",
    "checkpoint_later_than_the_log",
)


def named(report: Report) -> set[tuple[str, str, int]]:
    return {(finding.kind, finding.file, finding.offset) for finding in report.findings}


def comparable(report: Report) -> dict[str, object]:
    """A report without the order in which tasks ended."""
    return {**report.to_json(), "notes": sorted(report.notes)}


def test_many_faults_of_one_store_are_all_named(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    root = golden("rollover")
    expected = [FAULTS[name](DamagedStore(root)) for name in TOGETHER]
    report = run(spark, AuditArguments(str(root)), NoProgress())
    assert set(expected) <= named(report)
    assert comparable(report) == comparable(audit(OneProcess(NoProgress()), AuditArguments(str(root))))


def test_a_store_without_faults_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    report = run(spark, AuditArguments(str(own_store(tmp_path / "own"))), NoProgress())
    assert report.findings == []
    dead, records = report.facts["recordsOfDeletedTopics"], report.facts["records"]
    assert isinstance(dead, int)
    assert isinstance(records, int)
    assert dead > 0
    assert report.facts["unitsCompared"] == records - dead


@pytest.mark.skipif(not PIPELINE_LONG, reason="without Spark in tests/unit/pipeline: PIPELINE_LONG=1")
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_alone_is_named(
    name: str, spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(golden("rollover"), root, ignore=shutil.ignore_patterns("timerwheel"))
    expected = FAULTS[name](DamagedStore(root))
    assert expected in named(run(spark, AuditArguments(str(root)), NoProgress()))


def test_an_unknown_check_and_a_path_that_is_not_a_store_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TroveError, match="did you mean 'queues'"):
        run(spark, AuditArguments(str(tmp_path), checks=("queue",)), NoProgress())
    with pytest.raises(TroveError, match="no commit log"):
        run(spark, AuditArguments(str(tmp_path)), NoProgress())
