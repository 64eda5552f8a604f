"""Runs a job's tasks: one after another in this process, or on Spark's workers.

A task's function belongs to a module, so that workers can import it; its first arguments may be bound by
functools.partial. Function, item and result can be pickled. An error of the store or the disk is a result and
not an exception: Spark does not repeat the task, and the error keeps its type (an exception of a Spark task
arrives as one of the JVM).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_spark.job import Progress
from trovemq_store.files.files import DISK_FULL_NUMBERS, StorageError

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

TASKS_PER_CORE: Final = 4
"""More items than this per core share Spark tasks, so that the work is evenly distributed."""

_EXPECTED: Final = (TroveError, StorageError, OSError)


@dataclass(frozen=True, slots=True)
class Failure:
    """A task's TroveError, in a form that can be pickled."""

    spec: ErrorSpec
    message: str
    fields: dict[str, str]

    @classmethod
    def of(cls, error: TroveError | StorageError | OSError) -> Failure:
        """DISK_FULL or STORE_FAILED, by the system's error."""
        if isinstance(error, TroveError):
            return cls(error.spec, error.message, error.fields)
        spec = errors.DISK_FULL if error.errno in DISK_FULL_NUMBERS else errors.STORE_FAILED
        return cls(spec, str(error), {})

    def error(self) -> TroveError:
        return TroveError(self.spec, self.message, **self.fields)


def raise_failure(outcomes: Iterable[object]) -> None:
    """Raises the TroveError of the first failure."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            raise outcome.error()


class Runner(ABC):
    """Reports the progress of each step: `what` names it; "" continues the step before."""

    core_count: int
    """Tasks that run at the same time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, what: str, total: int) -> None:
        """A step of `total` items that several calls share."""
        self._progress.begin(what, total)

    def outcomes(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result | Failure]:
        """function(item) for each item, in order. weight: an item's estimated duration, relative to the
        others' (default: equal)."""
        if what:
            self.begin(what, len(items))
        weights = [1 if weight is None else weight(item) for item in items]
        return self._outcomes(function, items, weights) if items else []

    def map(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result]:
        """The same results; raises the TroveError of the first failed item when all have ended."""
        results = self.outcomes(what, function, items, weight)
        raise_failure(results)
        return results  # type: ignore[return-value]  # none is a failure

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        """Groups the pairs that function(item) returns by key (not None), in no order, and returns all
        results of reduce(key, values). Raises the TroveError of a failure."""
        if what:
            self.begin(what, len(items))
        results = self._shuffle(_Pairs(function), items, _Reduce(reduce)) if items else []
        raise_failure(results)
        return results  # type: ignore[return-value]  # none is a failure

    @abstractmethod
    def _outcomes(
        self, function: Callable[[Item], Result], items: Sequence[Item], weights: Sequence[int]
    ) -> list[Result | Failure]:
        """The outcome of each item, in order; items is not empty."""

    @abstractmethod
    def _shuffle(
        self, pairs: _Pairs[Item, Key, Value], items: Sequence[Item], reduce: _Reduce[Key, Value, Result]
    ) -> list[Result | Failure]:
        """All results of `reduce`, in no order; items is not empty."""


class OneProcess(Runner):
    """Runs everything in this process, one after the other."""

    core_count = 1

    def _outcomes(
        self, function: Callable[[Item], Result], items: Sequence[Item], weights: Sequence[int]
    ) -> list[Result | Failure]:
        results = []
        for item in items:
            results.append(_outcome(function, item))
            self._progress.advance()
        return results

    def _shuffle(
        self, pairs: _Pairs[Item, Key, Value], items: Sequence[Item], reduce: _Reduce[Key, Value, Result]
    ) -> list[Result | Failure]:
        groups: dict[Key | None, list[Value | Failure]] = {}
        for item in items:
            for key, value in pairs(item):
                groups.setdefault(key, []).append(value)
            self._progress.advance()
        return [result for group in groups.items() for result in reduce(group)]


class SparkTasks(Runner):
    """One Spark task per item; above TASKS_PER_CORE, items of about the same total weight share a task."""

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        super().__init__(progress)
        self._context = session.sparkContext
        self._ended = _Ended(progress)
        self._counter = self._context.accumulator(0, self._ended)  # type: ignore[arg-type]  # as Spark calls it
        self.core_count = int(self._context.defaultParallelism)

    def _outcomes(
        self, function: Callable[[Item], Result], items: Sequence[Item], weights: Sequence[int]
    ) -> list[Result | Failure]:
        bins = deal(weights, TASKS_PER_CORE * self.core_count)
        elements = [[(index, items[index]) for index in indexes] for indexes in bins]
        results: list[Any] = [None] * len(items)
        with self._ended.counting(len(items)):
            run = _Bin(function, self._counter)
            for answers in self._context.parallelize(elements, len(elements)).map(run).collect():
                for index, result in answers:
                    results[index] = result
        return results

    def _shuffle(
        self, pairs: _Pairs[Item, Key, Value], items: Sequence[Item], reduce: _Reduce[Key, Value, Result]
    ) -> list[Result | Failure]:
        task_count = min(len(items), TASKS_PER_CORE * self.core_count)
        with self._ended.counting(len(items)):
            run = _CountedPairs(pairs, self._counter)
            groups = self._context.parallelize(items, task_count).flatMap(run).groupByKey(self.core_count)
            results: list[Result | Failure] = groups.flatMap(reduce).collect()
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


# --- the work of a task -------------------------------------------------------------------------------


def _outcome(function: Callable[[Item], Result], item: Item) -> Result | Failure:
    try:
        return function(item)
    except _EXPECTED as error:
        return Failure.of(error)


@dataclass(frozen=True, slots=True)
class _Bin(Generic[Item, Result]):
    """Runs the items of one Spark task."""

    function: Callable[[Item], Result]
    ended: Accumulator[int]

    def __call__(self, items: list[tuple[int, Item]]) -> list[tuple[int, Result | Failure]]:
        results = [(index, _outcome(self.function, item)) for index, item in items]
        self.ended.add(len(items))
        return results


@dataclass(frozen=True, slots=True)
class _Pairs(Generic[Item, Key, Value]):
    """The first half of a shuffle. A failed item has the key None."""

    function: Callable[[Item], Iterable[tuple[Key, Value]]]

    def __call__(self, item: Item) -> Iterator[tuple[Key | None, Value | Failure]]:
        try:
            yield from self.function(item)
        except _EXPECTED as error:
            yield None, Failure.of(error)


@dataclass(frozen=True, slots=True)
class _CountedPairs(Generic[Item, Key, Value]):
    """The first half of a shuffle on Spark: counts each item that has ended."""

    pairs: _Pairs[Item, Key, Value]
    ended: Accumulator[int]

    def __call__(self, item: Item) -> Iterator[tuple[Key | None, Value | Failure]]:
        yield from self.pairs(item)
        self.ended.add(1)


@dataclass(frozen=True, slots=True)
class _Reduce(Generic[Key, Value, Result]):
    """The second half of a shuffle, called with one (key, values)."""

    reduce: Callable[[Key, list[Value]], Iterable[Result]]

    def __call__(self, group: tuple[Any, Iterable[Any]]) -> Iterator[Result | Failure]:
        key, values = group
        if key is None:
            yield from values
            return
        try:
            yield from self.reduce(key, list(values))
        except _EXPECTED as error:
            yield Failure.of(error)


class _Ended:
    """The parameter of an accumulator: how many items have ended. The progress gets it when Spark learns that
    a task has ended. A task that runs twice is counted once: a step never has more than its items."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._remaining = 0

    def __reduce__(self) -> tuple[type[_Ended], tuple[()]]:
        return _Ended, ()  # in a worker it only adds

    def zero(self, value: int) -> int:
        return 0

    def addInPlace(self, total: int, more: int) -> int:  # noqa: N802  (Spark's name)
        if self._progress is not None:
            self._advance(more)
        return total + more

    def _advance(self, count: int) -> None:
        count = min(count, self._remaining)
        self._remaining -= count
        if count and self._progress is not None:
            self._progress.advance(count)

    @contextmanager
    def counting(self, item_count: int) -> Iterator[None]:
        """A step with this many items; at its end all of them are reported."""
        self._remaining = item_count
        yield
        self._advance(self._remaining)
