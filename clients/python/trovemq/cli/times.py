"""Times on the command line: epoch milliseconds or ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import typer

TIME_MAX: Final = 9_223_372_036_854_775_807
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


def format_time(milliseconds: int) -> str:
    """`2025-01-01 00:00:00.000Z`; a dash for none; the number itself where no calendar reaches it."""
    if milliseconds <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}Z"
