"""Where a job's parts run: one after another in this process, or as Spark's tasks.

A part is a function of a module (so that workers can import it), perhaps with its first arguments bound by
functools.partial, and of an item that pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from trovemq_spark.jobs.job import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")


class Runner(Protocol):
    def map(self, what: str, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """function(item) of each, in order; `what` names the step for the progress bar."""
        ...

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        """The pairs that function(item) gives brought together by key, in no order; all that reduce(key,
        values) gives."""
        ...


class OneProcess:
    """Runs everything here and now."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def map(self, what: str, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        self._progress.begin(what, len(items))
        results = []
        for item in items:
            results.append(function(item))
            self._progress.advance()
        return results

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        groups: dict[Key, list[Value]] = {}
        self._progress.begin(what, len(items))
        for item in items:
            for key, value in function(item):
                groups.setdefault(key, []).append(value)
            self._progress.advance()
        return [result for key, values in groups.items() for result in reduce(key, values)]


class SparkTasks:
    """Runs a task an item; where items are many, so many tasks as keep every core busy several times."""

    TASKS_A_CORE = 4

    def __init__(self, session: SparkSession, progress: Progress) -> None:
        self._context = session.sparkContext
        self._progress = progress

    def _task_count(self, items: Sequence[Item]) -> int:
        return max(1, min(len(items), self.TASKS_A_CORE * self._context.defaultParallelism))

    def map(self, what: str, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if not items:
            return []
        self._progress.begin(what, len(items))
        results = self._context.parallelize(items, self._task_count(items)).map(function).collect()
        self._progress.advance(len(items))
        return list(results)

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        if not items:
            return []
        self._progress.begin(what, len(items))
        pairs = self._context.parallelize(items, self._task_count(items)).flatMap(function)
        groups = pairs.groupByKey(self._context.defaultParallelism)
        results: list[Result] = groups.flatMap(_Reduce(reduce)).collect()
        self._progress.advance(len(items))
        return results


class _Reduce(Generic[Key, Value, Result]):
    """A reduce function as Spark calls it: with one (key, values)."""

    def __init__(self, reduce: Callable[[Key, list[Value]], Iterable[Result]]) -> None:
        self._reduce = reduce

    def __call__(self, group: tuple[Key, Iterable[Value]]) -> Iterable[Result]:
        return self._reduce(group[0], list(group[1]))
