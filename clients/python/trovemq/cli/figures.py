"""Counts and rates as people read them. Sizes are in render.py."""

from __future__ import annotations

from typing import Final

from trovemq.cli.render import humane_size

UNKNOWN: Final = "-"
_MILLION: Final = 1_000_000
_NAMED: Final = ((10**12, "trillion"), (10**9, "billion"), (_MILLION, "million"))


def humane_count(count: int) -> str:
    """`999,999`, `1.25 million`, `3.40 billion`."""
    for size, name in _NAMED:
        if abs(count) >= size:
            return f"{count / size:,.2f} {name}"
    return f"{count:,}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count and its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def rate_text(rate: float | None) -> str:
    """A number a second: `0`, `0.5`, `12.3`, `372,000`, `1.25 million`."""
    if rate is None:
        return UNKNOWN
    if rate < 100:
        return f"{rate:.1f}" if rate else "0"
    return humane_count(round(rate))


def bytes_rate_text(rate: float | None) -> str:
    """Bytes a second: `0 B`, `1.5 KiB`."""
    return UNKNOWN if rate is None else humane_size(round(rate))


def growth(before: int | None, now: int | None, seconds: float) -> float | None:
    """The growth of a counter a second; None if it is not known, or if the counter began again."""
    if before is None or now is None or seconds <= 0 or now < before:
        return None
    return (now - before) / seconds
