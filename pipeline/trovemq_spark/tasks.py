"""Where a job's tasks run: one after another in this process, or on Spark's workers (spark_tasks.py).

A task's function is one of a module (so that workers can import it), perhaps with its first arguments bound
by functools.partial; it, its item and its result pickle. An error that belongs to the store or the disk is an
outcome, not a crash: Spark does not try it again, and it keeps its kind (an exception of a Spark task arrives
as the JVM's, with its kind lost).
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
    """A task's TroveError, such that it pickles."""

    spec: ErrorSpec
    message: str
    fields: dict[str, str]

    @classmethod
    def of(cls, error: TroveError | StorageError | OSError) -> Failure:
        """DISK_FULL or STORE_FAILED by the system's error."""
        if isinstance(error, TroveError):
            return cls(error.spec, error.message, error.fields)
        spec = errors.DISK_FULL if error.errno in DISK_FULL_NUMBERS else errors.STORE_FAILED
        return cls(spec, str(error), {})

    def error(self) -> TroveError:
        return TroveError(self.spec, self.message, **self.fields)


def raise_failure(outcomes: Iterable[object]) -> None:
    """Raises the TroveError of the first that failed."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            raise outcome.error()


class Runner(ABC):
    """Reports the progress of each step: `what` names it; "" continues with the step before."""

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
        """function(item) of each, in order. weight: about how long an item takes (all alike)."""

    def map(
        self,
        what: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        weight: Callable[[Item], int] | None = None,
    ) -> list[Result]:
        """The same; TroveError of the first item that failed, when all have ended."""
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
        """The pairs that function(item) gives brought together by key (not None), in no order; all that
        reduce(key, values) gives. TroveError of one that failed."""


class OneProcess(Runner):
    """Runs everything here and now."""

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
    """A shuffle's first half. A failed item has the key None."""

    function: Callable[[Item], Iterable[tuple[Key, Value]]]

    def __call__(self, item: Item) -> Iterator[tuple[Key | None, Value | Failure]]:
        try:
            yield from self.function(item)
        except _EXPECTED as error:
            yield None, Failure.of(error)


@dataclass(frozen=True, slots=True)
class Reduce(Generic[Key, Value, Result]):
    """A shuffle's second half, called with one (key, values)."""

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
