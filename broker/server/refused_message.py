"""A message of a stream that its sender may not send: the stream answers it, and continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """In place of the message."""

    message: Any
    error: TroveError
