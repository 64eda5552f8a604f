"""Times on the command line.

| written                                             | meaning                                     |
|-----------------------------------------------------|---------------------------------------------|
| `1735689600000`                                     | epoch milliseconds                          |
| `2025-01-01T00:00:00Z`, `2025-01-01 01:00+01:00`, `2025-01-01` | ISO 8601; UTC where it names no zone |
| `1h`, `1h30m`, `1h ago`, `-1h`                      | so long ago                                 |
| `+1h`                                               | so far ahead                                |
| `now`, `today`, `yesterday`, `tomorrow`             | days begin at 00:00 UTC                     |
| `yesterday 14:00`                                   | a time of such a day                        |
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import typer

TIME_MAX: Final = 9_223_372_036_854_775_807
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)?", re.ASCII)
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d|w)", re.ASCII)
_AGO: Final = re.compile(rf"(?P<sign>[+-]?)(?P<parts>(?:{_PART.pattern})+)(?P<ago> ago)?", re.ASCII)
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str | int) -> int:
    """Epoch milliseconds of a moment, see the table above; `1h` is an hour ago.

    Raises typer.BadParameter (usage) on anything else and outside 0 … 2^63-1.
    """
    return _moment(text, _now_ms(), relative_sign=-1)


def parse_time_ahead(text: str | int) -> int:
    """As parse_time, where `1h` is in an hour."""
    return _moment(text, _now_ms(), relative_sign=1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _moment(text: str | int, now_ms: int, *, relative_sign: int) -> int:
    words = str(text).strip()
    milliseconds = _relative(words, now_ms, relative_sign)
    if milliseconds is None:
        milliseconds = _milliseconds(words)
    if not 0 <= milliseconds <= TIME_MAX:
        raise typer.BadParameter(f"{text} is outside 0 … {TIME_MAX}")
    return milliseconds


def _relative(text: str, now_ms: int, sign: int) -> int | None:
    """`now`, `1h30m`, `+10m`, `yesterday 14:00`; None for anything else."""
    if text == "now":
        return now_ms
    if match := _AGO.fullmatch(text):
        if match["ago"] or match["sign"]:
            sign = -1 if match["ago"] or match["sign"] == "-" else 1
        parts = _PART.findall(match["parts"])
        return now_ms + sign * sum(int(Decimal(count) * _UNITS_MS[unit]) for count, unit in parts)
    day, _, clock = text.partition(" ")
    if day not in _DAYS:
        return None
    date = datetime.fromtimestamp(now_ms / 1000, UTC).date() + timedelta(days=_DAYS[day])
    return _milliseconds(f"{date.isoformat()} {clock.strip()}".strip())


def _milliseconds(text: str) -> int:
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: give epoch milliseconds, ISO 8601, or 1h (an hour ago), yesterday, now"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - _EPOCH
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def parse_duration_ms(text: str | int) -> int:
    """Milliseconds of `500ms`, `10s`, `1.5m`, `2h`, `3d`; a number without a unit is seconds.

    Raises typer.BadParameter (usage) on anything else.
    """
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a time: a number with ms, s, m, h or d (10s)")
    milliseconds = Decimal(match[1]) * _UNITS_MS[match[2] or "s"]
    if milliseconds != int(milliseconds) or milliseconds > TIME_MAX:
        raise typer.BadParameter(f"{text!r} is not a whole number of milliseconds, or too long")
    return int(milliseconds)


def format_time(milliseconds: int) -> str:
    """`2025-01-01 00:00:00.000Z`; a dash for none; the number itself where no calendar reaches it."""
    if milliseconds <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}Z"
