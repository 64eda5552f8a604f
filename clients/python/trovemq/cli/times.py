"""Times on the command line: epoch milliseconds or ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import typer

TIME_MAX: Final = 9_223_372_036_854_775_807
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str | int) -> int:
    """Epoch milliseconds of `1735689600000`, `2025-01-01T00:00:00Z`, `2025-01-01 01:00+01:00`, `2025-01-01`.

    A time without a zone is UTC. Raises typer.BadParameter (usage) on anything else and outside 0 … 2^63-1.
    """
    milliseconds = _milliseconds(str(text).strip())
    if not 0 <= milliseconds <= TIME_MAX:
        raise typer.BadParameter(f"{text} is outside 0 … {TIME_MAX}")
    return milliseconds


def _milliseconds(text: str) -> int:
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither epoch milliseconds nor ISO 8601") from None
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
