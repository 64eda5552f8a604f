"""A job's steps that succeed and fail by every means, for the runners' tests."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.job import NoProgress
from trovemq_store.files.files import StorageError


class Counting(NoProgress):
    """Adds up the reports: [what, total, advanced] of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.advanced: list[int] = []

    def begin(self, what: str, total: int) -> None:
        self.steps.append((what, total))
        self.advanced.append(0)

    def advance(self, count: int = 1) -> None:
        assert count > 0
        self.advanced[-1] += count


def fails(number: int) -> int:
    """The square; 3, 5, 7 and 11 fail."""
    if number == 3:
        raise TroveError(errors.RECORD_DAMAGED, "three", offset=3)
    if number == 5:
        raise OSError(errno.ENOSPC, "No space left on device")
    if number == 7:
        raise StorageError("read", "commitlog/7", errno.EIO)
    if number == 11:
        raise FileNotFoundError(errno.ENOENT, "gone", "file")
    return number * number


def digits(number: int) -> Iterator[tuple[str, int]]:
    """(digit, number); 13 fails in the middle."""
    for digit in str(number):
        yield digit, number
        if number == 13:
            raise TroveError(errors.OFFSET_OUT_OF_RANGE, "thirteen")


def total(digit: str, numbers: list[int]) -> Iterable[tuple[str, int]]:
    """The sum of all; it fails for a 9."""
    if digit == "9":
        raise OSError(errno.EDQUOT, "quota")
    return [(digit, sum(numbers))]
