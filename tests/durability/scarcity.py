"""Descriptors, maps and memory that are gone for a while: one read of the seam fails, a hundred, or all until
the release."""

from __future__ import annotations

from typing import Final

from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import READS

LASTS: Final = (1, 100, 0)
"""How many reads fail in a row; 0: all of them until release()."""


class Scarcity:
    """From the `nth` read after begin() on, from 1, reads of `files` fail with `error_number`: `lasts` of
    them."""

    def __init__(self, files: FaultyFileSystem, nth: int, lasts: int, error_number: int) -> None:
        self._first, self._lasts, self._error_number = nth, lasts, error_number
        self._begun = False
        self.read_count = 0
        self.failed_count = 0
        files.decide = self._decide

    def begin(self) -> None:
        self._begun = True

    def release(self) -> None:
        self._begun = False

    def _decide(self, operation: str, _path: str) -> int | None:
        if not self._begun or operation not in READS:
            return None
        self.read_count += 1
        past = self.read_count - self._first
        if past < 0 or (self._lasts and past >= self._lasts):
            return None
        self.failed_count += 1
        return self._error_number
