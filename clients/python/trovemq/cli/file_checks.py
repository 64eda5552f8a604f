"""Checks for the entries of a file for apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def illegal(message: str) -> TroveError:
    """The error for a wrong file."""
    return TroveError(errors.REQUEST_ILLEGAL, message)


def check_members(where: str, value: dict[str, Any], known: Sequence[str]) -> None:
    """Raises TroveError REQUEST_ILLEGAL for an unknown member."""
    unknown = sorted(map(str, set(value) - set(known)))
    if unknown:
        raise illegal(f"{where} has the unknown member {unknown[0][:100]!r}; known: {', '.join(known)}")


def is_integer(value: object, low: int, high: int) -> bool:
    """Whether it is an integer within the bounds; true and false are not integers."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
