"""Where reading begins: at the earliest message, after the latest, or at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Start = Literal["earliest", "latest"] | datetime
"""`earliest`: the first message that exists; `latest`: messages stored from now on; a time: the first message
stored at or after it. A time without a zone is local time."""


def check_start(start: Start) -> None:
    """Raises TroveError REQUEST_ILLEGAL for anything else."""
    if not isinstance(start, datetime) and start not in ("earliest", "latest"):
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"start={start!r} is neither earliest, latest nor a datetime"
        )


def timestamp_of(start: datetime) -> int:
    """Epoch ms; times before 1970 become 0."""
    return max(0, round(start.timestamp() * 1000))
