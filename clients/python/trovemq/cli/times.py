"""Times on the command line.

A relative time counts from `now` by the broker's clock: store times are by that one, and this machine's may
be wrong.

| written                                             | meaning                                     |
|-----------------------------------------------------|---------------------------------------------|
| `1735689600000`                                     | epoch milliseconds                          |
| `2025-01-01T00:00:00Z`, `2025-01-01 01:00+01:00`, `2025-01-01` | ISO 8601; UTC where it names no zone |
| `1h`, `1h30m`, `1h ago`, `2 hours ago`, `-1h`       | this long before now                        |
| `+1h`                                               | this long after now                         |
| `now`, `today`, `yesterday`, `tomorrow`             | days begin at 00:00 UTC                     |
| `yesterday 14:00`, `9:30`                           | a time of that day, or of today             |
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import typer

TIME_MAX: Final = 9_223_372_036_854_775_807
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORD: Final = r"(?:milliseconds?|seconds?|minutes?|hours?|days?|weeks?|mins?|secs?|ms|s|m|h|d|w)"
_PART: Final = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?) ?({_WORD})", re.ASCII)
_PARTS: Final = re.compile(rf"{_PART.pattern}(?: ?{_PART.pattern})*", re.ASCII)
_AGO: Final = re.compile(rf"(?P<sign>[+-]?)(?P<parts>{_PARTS.pattern})(?P<ago> ago)?", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,15}(?:\.\d{1,6})?", re.ASCII)
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d\S*", re.ASCII)
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time as it was written. `ahead`: a duration is after now, and not before."""

    text: str
    ahead: bool = False

    @property
    def relative(self) -> bool:
        """Whether it depends on now."""
        return self._relative(0) is not None

    def at(self, now_ms: int) -> int:
        """Epoch milliseconds. Raises typer.BadParameter (usage) for none of the forms above, and outside of
        0 … 2^63-1."""
        milliseconds = self._relative(now_ms)
        if milliseconds is None:
            milliseconds = _milliseconds(self.text, self.text)
        if not 0 <= milliseconds <= TIME_MAX:
            raise typer.BadParameter(f"{self.text} is outside 0 … {TIME_MAX}")
        return milliseconds

    def here(self) -> int:
        """The same by this machine's clock: a check before a broker is asked."""
        return self.at(time.time_ns() // 1_000_000)

    def _relative(self, now_ms: int) -> int | None:
        return _relative(self.text, now_ms, 1 if self.ahead else -1)

    def __str__(self) -> str:
        return self.text


EARLIEST: Final = Moment("0")
LATEST: Final = Moment(str(TIME_MAX))


def parse_moment(text: str | Moment, *, ahead: bool = False) -> Moment:
    """A moment in the forms above; `1h` is an hour ago, or in an hour. Raises typer.BadParameter (usage)."""
    moment = Moment(str(text).strip(), ahead)
    moment.here()
    return moment


def parse_moment_ahead(text: str | Moment) -> Moment:
    """A moment as parse_moment reads it, except that `1h` means in one hour."""
    return parse_moment(text, ahead=True)


def parse_time(text: str | int) -> int:
    """Epoch milliseconds by this machine's clock, for stores and archives, where no broker is asked. Raises
    typer.BadParameter (usage)."""
    return Moment(str(text).strip()).here()


def _relative(text: str, now_ms: int, sign: int) -> int | None:
    """`now`, `1h30m`, `+10m`, `yesterday 14:00`; None for anything else."""
    if text == "now":
        return now_ms
    if match := _AGO.fullmatch(text):
        if match["ago"] or match["sign"]:
            sign = -1 if match["ago"] or match["sign"] == "-" else 1
        return now_ms + sign * int(_sum_of(match["parts"]))
    day, _, clock = f"today {text}".partition(" ") if _CLOCK.fullmatch(text) else text.partition(" ")
    if day not in _DAYS:
        return None
    date = datetime.fromtimestamp(now_ms / 1000, UTC).date() + timedelta(days=_DAYS[day])
    clock = clock.strip()
    if clock[1:2] == ":":
        clock = f"0{clock}"
    return _milliseconds(f"{date.isoformat()} {clock}".strip(), text)


def _sum_of(parts: str) -> Decimal:
    """Milliseconds of `1h30m`, `2 hours 5 minutes`."""
    return sum((Decimal(count) * _unit_ms(unit) for count, unit in _PART.findall(parts)), Decimal())


def _unit_ms(word: str) -> int:
    """The unit of `h`, `hour`, `hours`: its first letter decides, except for milliseconds."""
    return 1 if word == "ms" or word.startswith("milli") else _UNITS_MS[word[0]]


def _milliseconds(text: str, given: str) -> int:
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        known = "ISO 8601, epoch milliseconds, 1h (an hour ago), 9:30 (today), yesterday 14:00, now"
        raise typer.BadParameter(f"{given!r} is not a time: {known}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - _EPOCH
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def parse_duration_ms(text: str | int) -> int:
    """Milliseconds of `500ms`, `10s`, `1.5m`, `1h30m`, `3d`, `1w`; a number without a unit is seconds.

    Raises typer.BadParameter (usage) for anything else.
    """
    words = str(text).strip()
    if _SECONDS.fullmatch(words):
        milliseconds = Decimal(words) * 1000
    elif _PARTS.fullmatch(words):
        milliseconds = _sum_of(words)
    else:
        raise typer.BadParameter(f"{text!r} is not a time: numbers with ms, s, m, h, d or w (10s, 1h30m)")
    if milliseconds != int(milliseconds) or milliseconds > TIME_MAX:
        raise typer.BadParameter(f"{text!r} is not a whole number of milliseconds, or too long")
    return int(milliseconds)


def check_period(begin: Moment, end: Moment) -> None:
    """Raises typer.BadParameter (usage) where it ends before it begins."""
    if begin.here() > end.here():
        raise typer.BadParameter(f"--begin {begin} is after --end {end}")


def duration_text(milliseconds: int) -> str:
    """For people, in the largest unit of which there are two."""
    for unit, size_ms in (("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= 2 * size_ms:
            return f"{milliseconds // size_ms} {unit}"
    return f"{milliseconds // 1_000} s"
