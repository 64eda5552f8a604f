"""Runs a job's tasks: one after another in this process, or on Spark's workers (spark_tasks.py).

A task's function belongs to a module, so that workers can import it; its first arguments may be bound by
functools.partial. Function, item and result can be pickled. An error of the store or the disk is a result and
not an exception: Spark does not repeat the task, and the error keeps its type (an exception of a Spark task
arrives as one of the JVM).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_spark.job import Progress
from trovemq_store.files.files import DISK_FULL_NUMBERS, StorageError

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")
Result = TypeVar("Result")

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

    @abstractmethod
    def outcomes(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result | Failure]:
        """function(item) for each item, in order. weight: about how long an item takes (default: all the
        same)."""

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
        return results  # type: ignore[return-value]  # no failure is left

    @abstractmethod
    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        """Groups the pairs that function(item) returns by key (not None), in no order, and returns all
        results of reduce(key, values). Raises the TroveError of a failure."""


class OneProcess(Runner):
    """Runs everything in this process, one after the other."""

    core_count = 1

    def outcomes(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result | Failure]:
        if what:
            self.begin(what, len(items))
        results = []
        for item in items:
            results.append(outcome_of(function, item))
            self._progress.advance()
        return results

    def shuffle(
        self,
        what: str,
        function: Callable[[Item], Iterable[tuple[Key, Value]]],
        items: Sequence[Item],
        reduce: Callable[[Key, list[Value]], Iterable[Result]],
    ) -> list[Result]:
        groups: dict[Key | None, list[Value | Failure]] = {}
        if what:
            self.begin(what, len(items))
        for item in items:
            for key, value in Pairs(function)(item):
                groups.setdefault(key, []).append(value)
            self._progress.advance()
        results = [result for group in groups.items() for result in Reduce(reduce)(group)]
        raise_failure(results)
        return results  # type: ignore[return-value]  # no failure is left


def outcome_of(function: Callable[[Item], Result], item: Item) -> Result | Failure:
    try:
        return function(item)
    except _EXPECTED as error:
        return Failure.of(error)


@dataclass(frozen=True, slots=True)
class Pairs(Generic[Item, Key, Value]):
    """The first half of a shuffle. A failed item has the key None."""

    function: Callable[[Item], Iterable[tuple[Key, Value]]]

    def __call__(self, item: Item) -> Iterator[tuple[Key | None, Value | Failure]]:
        try:
            yield from self.function(item)
        except _EXPECTED as error:
            yield None, Failure.of(error)


@dataclass(frozen=True, slots=True)
class Reduce(Generic[Key, Value, Result]):
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
