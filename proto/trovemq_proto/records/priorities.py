"""The priority of a message: 0 to 9, 9 is received first; RocketMQ's property `_SYS_MSG_PRIORITY_`.

| stored text               | counts as     |
|---------------------------|---------------|
| none                      | 4             |
| a number of 1 to 9 digits | it; 9 if more |
| anything else             | 4             |

A send with a priority that is not 0 to 9 is refused; the table is for records that others have written.
priority_columns.py does the same for many records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 4
PRIORITY_COUNT: Final = PRIORITY_MAX + 1

_DIGITS_MAX: Final = 9


def check_priority(priority: object) -> str:
    """The text that is stored. Raises TroveError PROPERTY_ILLEGAL if it is not 0 to 9."""
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise illegal_priority(str(priority))
    return str(priority)


def check_priority_text(text: str) -> None:
    """Raises TroveError PROPERTY_ILLEGAL if it is not a result of check_priority()."""
    if len(text) != 1 or not "0" <= text <= str(PRIORITY_MAX):
        raise illegal_priority(text)


def stored_priority(properties: Mapping[str, str]) -> int | None:
    """The priority that a message states; None if it states none."""
    text = properties.get(PROPERTY_PRIORITY)
    return None if text is None else read_priority(text.encode())


def priority_of(properties: Mapping[str, str]) -> int:
    """The priority by the table above."""
    found = stored_priority(properties)
    return PRIORITY_DEFAULT if found is None else found


def read_priority(text: bytes) -> int:
    """The priority that a stored text stands for."""
    if 1 <= len(text) <= _DIGITS_MAX and text.isdigit():
        return min(int(text), PRIORITY_MAX)
    return PRIORITY_DEFAULT


def illegal_priority(text: str) -> TroveError:
    """The error for a text that is not 0 to 9."""
    return TroveError(
        errors.PROPERTY_ILLEGAL, f"the priority {text[:40]!r} is not 0 to {PRIORITY_MAX}", name="priority"
    )
