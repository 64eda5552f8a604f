"""A message of a stream that its sender may not send: the stream answers with the refusal, and continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """Replaces a message that was refused."""

    message: Any
    error: TroveError
