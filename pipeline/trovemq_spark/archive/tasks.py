"""Where a job's tasks run: one after another in this process, or as Spark's.

A task's function is one of a module, so that workers can import it; its argument and result pickle. A
TroveError or a full disk is an outcome, not a crash: the same on all runners, and Spark does not try again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from trovemq_proto.errors import ErrorSpec, TroveError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Failure:
    """A TroveError that pickles."""

    spec: ErrorSpec
    message: str
    fields: dict[str, str]

    def error(self) -> TroveError:
        return TroveError(self.spec, self.message, **self.fields)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The task's function, with its TroveErrors as outcomes."""

    function: Callable[..., object]

    def __call__(self, item: object) -> object:
        try:
            return self.function(item)
        except TroveError as error:
            return Failure(error.spec, error.message, error.fields)


class Runner(Protocol):
    @property
    def core_count(self) -> int:
        """Tasks that run at the same time."""
        ...

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Failure]:
        """function(item) of each, in order."""
        ...


class OneProcess:
    """Runs everything here and now."""

    core_count = 1

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Failure]:
        guarded = _Guarded(function)
        return [guarded(item) for item in items]  # type: ignore[misc]


class SparkTasks:
    """Runs a task an item."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext

    @property
    def core_count(self) -> int:
        return int(self._context.defaultParallelism)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Failure]:
        if not items:
            return []
        return list(self._context.parallelize(items, len(items)).map(_Guarded(function)).collect())  # type: ignore[arg-type]
