"""Runs a job's tasks on Spark's workers (tasks.py has the rules)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

from trovemq_spark.job import Progress
from trovemq_spark.tasks import (
    Failure,
    Item,
    Key,
    Pairs,
    Reduce,
    Result,
    Runner,
    Value,
    outcome_of,
    raise_failure,
)

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

TASKS_A_CORE: Final = 4
"""Many items become this many Spark tasks per core, so that the work is evenly distributed."""


class SparkTasks(Runner):
    """One Spark task per item; if there are many items, one for several of about the same total weight."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        super().__init__(progress)
        self._context = session.sparkContext
        self._ended = _Ended(progress)
        self._counter = self._context.accumulator(0, self._ended)  # type: ignore[arg-type]  # as Spark calls it
        self.core_count = int(self._context.defaultParallelism)

    def outcomes(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result | Failure]:
        if what:
            self.begin(what, len(items))
        if not items:
            return []
        weights = [1 if weight is None else weight(item) for item in items]
        bins = deal(weights, TASKS_A_CORE * self.core_count)
        elements = [[(index, items[index]) for index in indexes] for indexes in bins]
        results: list[Any] = [None] * len(items)
        with self._ended.counting(len(items)):
            run = _Bin(function, self._counter)
            for answers in self._context.parallelize(elements, len(elements)).map(run).collect():
                for index, result in answers:
                    results[index] = result
        return results

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        if what:
            self.begin(what, len(items))
        if not items:
            return []
        task_count = min(len(items), TASKS_A_CORE * self.core_count)
        with self._ended.counting(len(items)):
            run = _CountedPairs(Pairs(function), self._counter)
            pairs = self._context.parallelize(items, task_count).flatMap(run)
            groups = pairs.groupByKey(self.core_count)
            results: list[Any] = groups.flatMap(Reduce(reduce)).collect()
        raise_failure(results)
        return results


def deal(weights: Sequence[int], bin_count: int) -> list[list[int]]:
    """The indexes of the weights in at most bin_count bins: the heaviest first, each into the lightest
    bin."""
    bins: list[list[int]] = [[] for _ in range(min(bin_count, len(weights)))]
    loads = [(0, number) for number in range(len(bins))]
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        load, number = heapq.heappop(loads)
        bins[number].append(index)
        heapq.heappush(loads, (load + weights[index] + 1, number))
    return bins


@dataclass(frozen=True, slots=True)
class _Bin(Generic[Item, Result]):
    """Runs the items of one Spark task."""

    function: Callable[[Item], Result]
    ended: Accumulator[int]

    def __call__(self, items: list[tuple[int, Item]]) -> list[tuple[int, Result | Failure]]:
        results = [(index, outcome_of(self.function, item)) for index, item in items]
        self.ended.add(len(items))
        return results


@dataclass(frozen=True, slots=True)
class _CountedPairs(Generic[Item, Key, Value]):
    pairs: Pairs[Item, Key, Value]
    ended: Accumulator[int]

    def __call__(self, item: Item) -> Iterator[tuple[Key | None, Value | Failure]]:
        yield from self.pairs(item)
        self.ended.add(1)


class _Ended:
    """The parameter of an accumulator: how many items have ended. The progress gets it when Spark learns that
    a task has ended. A task that runs twice is counted once: a step never has more than its items."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._left = 0

    def __reduce__(self) -> tuple[type[_Ended], tuple[()]]:
        return _Ended, ()  # in a worker it only adds

    def zero(self, value: int) -> int:
        return 0

    def addInPlace(self, total: int, more: int) -> int:  # noqa: N802  (Spark's name)
        if self._progress is not None:
            self._advance(more)
        return total + more

    def _advance(self, count: int) -> None:
        count = min(count, self._left)
        self._left -= count
        if count and self._progress is not None:
            self._progress.advance(count)

    @contextmanager
    def counting(self, item_count: int) -> Iterator[None]:
        """A step with this many items; at its end all of them are reported."""
        self._left = item_count
        yield
        self._advance(self._left)
