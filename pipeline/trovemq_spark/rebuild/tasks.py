"""Carrying tasks out somewhere else: in bins of about one weight, with failures as values.

A task that failed for the store's or the disk's sake is not run again: the caller gets the error that it
would have got here. (Exceptions of a Spark task arrive as the JVM's, with their kind lost.)
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from broker.storage.files import StorageError
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Failure:
    symbol: str
    message: str


class Spread(Protocol):
    """Calls the function for each element, anywhere and in any order; results in the elements' order."""

    @property
    def parallelism(self) -> int: ...

    def map(self, function: Callable[[T], R], elements: list[T]) -> list[R]: ...


class InThisProcess:
    """One after the other, here."""

    parallelism = 1

    def map(self, function: Callable[[T], R], elements: list[T]) -> list[R]:
        return [function(element) for element in elements]


@dataclass(frozen=True, slots=True)
class _BinRunner:
    """Runs a bin's tasks. A class, so that it can be sent to where it runs."""

    function: Callable[[object], object]

    def __call__(self, tasks: list[object]) -> list[object]:
        return [self._run(task) for task in tasks]

    def _run(self, task: object) -> object:
        try:
            return self.function(task)
        except TroveError as error:
            return Failure(error.symbol, error.message)
        except (StorageError, OSError) as error:
            spec = errors.DISK_FULL if error.errno == errno.ENOSPC else errors.STORE_FAILED
            return Failure(spec.symbol, str(error))


def run_tasks(
    spread: Spread,
    function: Callable[[T], R],
    tasks: Sequence[T],
    weight: Callable[[T], int],
    bins_each: int,
) -> list[R]:
    """function(task) of every task, in the tasks' order, in `bins_each` bins for each that work at once.

    Raises the TroveError of the first task that failed; STORE_FAILED, DISK_FULL for an OSError.
    """
    bins = deal([weight(task) for task in tasks], bins_each * spread.parallelism)
    runner: Callable[[list[T]], list[object]] = _BinRunner(function)  # type: ignore[assignment, arg-type]
    answers = spread.map(runner, [[tasks[index] for index in indexes] for indexes in bins])
    results: list[object] = [None] * len(tasks)
    for indexes, answer in zip(bins, answers, strict=True):
        for index, result in zip(indexes, answer, strict=True):
            results[index] = result
    for result in results:
        if isinstance(result, Failure):
            raise TroveError(errors.by_symbol(result.symbol), result.message)
    return results  # type: ignore[return-value]  # Failures are out


def deal(weights: Sequence[int], bin_count: int) -> list[list[int]]:
    """The indexes of the weights in at most bin_count bins: the heaviest first, each into the lightest."""
    bins: list[list[int]] = [[] for _ in range(min(bin_count, len(weights)))]
    loads = [(0, number) for number in range(len(bins))]
    for index in sorted(range(len(weights)), key=lambda index: (-weights[index], index)):
        load, number = heapq.heappop(loads)
        bins[number].append(index)
        heapq.heappush(loads, (load + weights[index] + 1, number))
    return bins
