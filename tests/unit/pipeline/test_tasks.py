"""The error of a task that fails, and a runner's progress."""

from __future__ import annotations

import pickle

import pytest

from tests.support.task_steps import Counting, digits, fails, total
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.tasks import Failure, OneProcess


def test_failures_keep_their_kind_and_the_others_their_results() -> None:
    progress = Counting()
    outcomes = OneProcess(progress).outcomes("squares", fails, range(12))
    failed = {number: one for number, one in enumerate(outcomes) if isinstance(one, Failure)}
    assert [one for one in outcomes if not isinstance(one, Failure)] == [0, 1, 4, 16, 36, 64, 81, 100]
    assert {number: one.spec for number, one in failed.items()} == {
        3: errors.RECORD_DAMAGED,
        5: errors.DISK_FULL,
        7: errors.STORE_FAILED,
        11: errors.STORE_FAILED,
    }
    assert failed[3].error().fields == {"offset": "3"}
    assert all(pickle.loads(pickle.dumps(one)) == one for one in failed.values())
    assert (progress.steps, progress.advanced) == ([("squares", 12)], [12])


def test_map_raises_the_first_failure() -> None:
    with pytest.raises(TroveError, match="DISK_FULL"):
        OneProcess(Counting()).map("squares", fails, [1, 5, 3])


def test_a_step_of_several_calls_is_begun_once() -> None:
    progress = Counting()
    runner = OneProcess(progress)
    runner.begin("squares", 5)
    assert runner.map("", fails, [1, 2]) + runner.map("", fails, [4, 6, 8]) == [1, 4, 16, 36, 64]
    assert (progress.steps, progress.advanced) == ([("squares", 5)], [5])


def test_a_failure_in_either_half_of_a_shuffle_is_raised() -> None:
    runner = OneProcess(Counting())
    assert sorted(runner.shuffle("digits", digits, [12, 21, 2], total)) == [("1", 33), ("2", 35)]
    with pytest.raises(TroveError, match=r"OFFSET_OUT_OF_RANGE.*thirteen"):
        runner.shuffle("digits", digits, [12, 13, 14], total)
    with pytest.raises(TroveError, match=r"DISK_FULL.*quota"):
        runner.shuffle("digits", digits, [12, 19], total)
