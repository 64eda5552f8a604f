"""Why a message is a dead letter, in properties of the letter.

| property            | says                                                                           |
|---------------------|--------------------------------------------------------------------------------|
| `DLQ_ORIGIN_REASON` | the kind: `exception`, `explicit`, `returned` or `expired`                     |
| `DLQ_ORIGIN_ERROR`  | the type of the exception                                                      |
| `DLQ_ORIGIN_TEXT`   | its text, or the reason that the program gave                                  |
| `DLQ_ORIGIN_TIMES`  | when the message was delivered, epoch ms, the latest last, separated by commas |

A letter has those for which its record has space, the text cut if need be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trovemq_proto.positions import EpochMs
from trovemq_proto.records.layout import (
    PROPERTY_DEAD_ERROR,
    PROPERTY_DEAD_REASON,
    PROPERTY_DEAD_TEXT,
    PROPERTY_DEAD_TIMES,
)

EXCEPTION: Final = "exception"
EXPLICIT: Final = "explicit"
RETURNED: Final = "returned"
EXPIRED: Final = "expired"
KINDS: Final = (EXCEPTION, EXPLICIT, RETURNED, EXPIRED)
PROPERTIES: Final = (PROPERTY_DEAD_REASON, PROPERTY_DEAD_ERROR, PROPERTY_DEAD_TIMES, PROPERTY_DEAD_TEXT)
"""In the order of their worth: the first ones have the first claim on the space."""

ERROR_SIZE_MAX: Final = 128
TEXT_SIZE_MAX: Final = 512
"""The longest error and text, in bytes of UTF-8."""
TIMES_MAX: Final = 16

_TIME_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Why a message is a dead letter.

    Attributes:
        kind: `exception`: the last attempt ended with one. `explicit`: the consumer moved the message.
            `returned`: the consumer returned it after the last attempt. `expired`: it was not acknowledged in
            time. Empty: not known, as of letters that another broker or an older version made.
        error: The type of the exception; empty if there was none.
        text: Its text, or the reason that the consumer gave; empty if there was none.
        times: When the message was delivered, epoch ms, the latest last. At most 16 of them; a broker knows
            only the last one of a message among thousands that were delivered again together.
    """

    kind: str = ""
    error: str = ""
    text: str = ""
    times: tuple[EpochMs, ...] = ()

    def __str__(self) -> str:
        """In words."""
        said = f"{self.error}: {self.text}" if self.error and self.text else self.error or self.text
        words = _WORDS.get(self.kind, self.kind)
        return f"{words}: {said}" if words and said else words or said

    def matches(self, reason: str) -> bool:
        """Whether that is its kind, the type of its exception (with or without modules), or its text."""
        return bool(reason) and reason in (self.kind, self.error, self.error.rpartition(".")[2], self.text)

    def bounded(self) -> DeadLetterReason:
        """The reason as properties may have it: printable, and of limited size."""
        error, text = cut(self.error, ERROR_SIZE_MAX), cut(self.text, TEXT_SIZE_MAX)
        return replace(self, error=error, text=text, times=self.times[-TIMES_MAX:])

    def properties(self) -> dict[str, str]:
        """The properties of a bounded reason; those that are empty are left out."""
        values = (self.kind, self.error, ",".join(map(str, self.times)), self.text)
        return {name: value for name, value in zip(PROPERTIES, values, strict=True) if value}


_WORDS: Final = {
    EXCEPTION: "the last attempt failed",
    EXPLICIT: "moved by the consumer",
    RETURNED: "returned after the last attempt",
    EXPIRED: "not acknowledged in time",
}


def reason_of(properties: Mapping[str, str]) -> DeadLetterReason:
    """The reason that a letter's properties say; other programs may have written them."""
    get = properties.get
    times = (part for part in get(PROPERTY_DEAD_TIMES, "").split(",", TIMES_MAX)[:TIMES_MAX])
    return DeadLetterReason(
        get(PROPERTY_DEAD_REASON, ""),
        get(PROPERTY_DEAD_ERROR, ""),
        get(PROPERTY_DEAD_TEXT, ""),
        tuple(EpochMs(int(part)) for part in times if _is_time(part)),
    )


def _is_time(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= _TIME_DIGITS_MAX


def cut(text: str, size_max: int) -> str:
    """The text's printable characters on one line, of at most `size_max` bytes; a longer one ends with an
    ellipsis."""
    line = " ".join(text[: 4 * size_max].split())
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    data = line.encode("utf-8", "replace")
    if len(data) <= size_max:
        return data.decode()
    kept = data[: max(size_max - len(_ELLIPSIS), 0)].decode("utf-8", "ignore")
    return kept + _ELLIPSIS.decode() if size_max >= len(_ELLIPSIS) else ""


_ELLIPSIS: Final = "…".encode()
