"""Tasks on Spark end as they do in one process."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.task_steps import Counting, digits, fails, total
from trovemq_proto.errors import TroveError
from trovemq_spark.tasks import OneProcess, SparkTasks

pytestmark = pytest.mark.slow


def test_results_failures_and_progress_are_those_of_one_process(spark: SparkSession) -> None:
    here, there = Counting(), Counting()
    one, tasks = OneProcess(here), SparkTasks(spark, there)
    assert tasks.core_count == 2
    numbers = list(range(30))
    expected = one.outcomes("squares", fails, numbers, abs)
    assert tasks.outcomes("squares", fails, numbers, abs) == expected
    assert tasks.outcomes("none", fails, []) == one.outcomes("none", fails, []) == []
    few = [12, 21, 2]
    assert sorted(tasks.shuffle("digits", digits, few, total)) == sorted(
        one.shuffle("digits", digits, few, total)
    )
    assert (there.steps, there.advanced) == (here.steps, here.advanced)
    for wrong, kind in (([12, 13, 14], "OFFSET_OUT_OF_RANGE"), ([12, 19], "DISK_FULL")):
        with pytest.raises(TroveError, match=kind):
            tasks.shuffle("digits", digits, wrong, total)


class _Moments(Counting):
    """How many items had ended at each report."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[int] = []

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        self.reported.append(self.advanced[-1])


def test_progress_is_reported_while_tasks_end(spark: SparkSession) -> None:
    progress = _Moments()
    SparkTasks(spark, progress).map("squares", abs, list(range(40)))
    assert progress.reported[-1] == 40
    assert len(progress.reported) == 8, "as each task ends"
