"""Parses the text of an option: one parser for each kind of value, shared by sources and sinks.

A parser returns the value, or raises ValueError with the expected form ("a number above 0").
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_BYTES_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
_BYTES_UNITS_LARGE: Final = {"g": 1 << 30, "gb": 1 << 30}
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its name for readers, and its parser."""

    name: str
    parse: Callable[[str], Any]


def option_error(message: str, name: str) -> TroveError:
    """OPTION_ILLEGAL about the option (or column) `name`."""
    return TroveError(errors.OPTION_ILLEGAL, message, field=name)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` with the most similar known name, else a full stop."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[found[0]]}?" if found else "."


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("something, not nothing")
    return text.strip()


def _boolean(text: str) -> bool:
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        raise ValueError("true or false")
    return lower == "true"


def whole_number(low: int, high: int = _LONG_MAX) -> Kind:
    """Whole numbers of [low, high]."""
    what = f"a whole number from {low} on" if high == _LONG_MAX else f"a whole number from {low} to {high}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*-?[0-9]{1,19}\s*", text) or not low <= int(text) <= high:
            raise ValueError(what)
        return int(text)

    return Kind("number", parse)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", text.lower())
    unit = (_BYTES_UNITS | _BYTES_UNITS_LARGE).get(match[2]) if match else None
    if match is None or unit is None or not int(match[1]):
        raise ValueError("a number of bytes above 0, such as 1000000, 64k, 16m or 1g")
    return int(match[1]) * unit


def _duration(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]+)\s*", text.lower())
    unit = _DURATION_MS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError("a time such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * unit


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError("names with commas between them")
    if len(set(names)) < len(names):
        raise ValueError("each name once")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return _text(text)


def choice(*values: str) -> Kind:
    """One of these words, in any case."""

    def parse(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(" or ".join(values))
        return text.strip().lower()

    return Kind(" | ".join(values), parse)


TEXT: Final = Kind("text", _text)
BOOLEAN: Final = Kind("true | false", _boolean)
COUNT: Final = whole_number(1)
BYTES: Final = Kind("bytes", _bytes)
DURATION: Final = Kind("time", _duration)
TIMESTAMP_MS: Final = whole_number(0)
NAMES: Final = Kind("names", _names)
PATTERN: Final = Kind("regular expression", _pattern)
