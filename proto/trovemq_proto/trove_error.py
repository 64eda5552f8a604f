"""The errors that every process and client raises. Their table is errors.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table.

    `grpc_status` is the name of a grpc.StatusCode; `retriable` says whether the same call may succeed later
    without a change by the caller; `what_to_do` is the remedy.
    """

    symbol: str
    code: int
    grpc_status: str
    retriable: bool
    meaning: str
    what_to_do: str

    @property
    def number(self) -> str:
        """The code as people see it: `E200`. The E distinguishes it from a status of HTTP."""
        return f"E{self.code}"


UNREAD: Final = "unread"
"""A field of the error that ends a stream: no request without a reply was read, so nothing was done for
it."""


class TroveError(Exception):
    """An operating error with a row in the table. Raised by the engine, the servers and the SDK alike."""

    def __init__(self, spec: ErrorSpec, message: str = "", **fields: object) -> None:
        self.spec: Final = spec
        self.message: Final = message or spec.meaning
        self.fields: Final[dict[str, str]] = {name: str(value) for name, value in fields.items()}
        super().__init__(f"{spec.symbol} ({spec.number}): {self.message}")

    @property
    def symbol(self) -> str:
        return self.spec.symbol

    @property
    def retriable(self) -> bool:
        return self.spec.retriable

    @property
    def in_doubt(self) -> bool:
        """Whether the call may have taken effect: its answer did not come."""
        return self.fields.get("in_doubt") == "true"


class DamagedError(TroveError):
    """A stored record (RECORD_DAMAGED), or a file of the store (STORE_FAILED), is not as it was written. A
    read that failed only because a descriptor, a map or memory was lacking raises another error."""
