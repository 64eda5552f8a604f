"""A time as every command prints it."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(milliseconds: int) -> str:
    """`2025-01-01 00:00:00.000Z`; a dash for none; the number itself if it is out of the calendar's range."""
    if milliseconds <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}Z"
