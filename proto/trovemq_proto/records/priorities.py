"""The priority of a message: 0 to 9, 9 is received first; RocketMQ's property `_SYS_MSG_PRIORITY_`.

| stored text               | counts as     |
|---------------------------|---------------|
| none                      | 4             |
| a number of 1 to 9 digits | it, at most 9 |
| anything else             | 4             |

A send with a priority that is not 0 to 9 is refused; the table is for records that others have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

if TYPE_CHECKING:
    from trovemq_proto.records.batch import RecordBatch

PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 4
PRIORITY_COUNT: Final = PRIORITY_MAX + 1

_NAME: Final = PROPERTY_PRIORITY.encode()
_DIGITS_MAX: Final = 9
_ZERO: Final = ord("0")


def check_priority(priority: object) -> str:
    """The text that is stored. Raises TroveError PROPERTY_ILLEGAL where it is not 0 to 9."""
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise _illegal(str(priority))
    return str(priority)


def check_priority_text(text: str) -> None:
    """Raises TroveError PROPERTY_ILLEGAL where it is not a result of check_priority()."""
    if len(text) != 1 or not "0" <= text <= str(PRIORITY_MAX):
        raise _illegal(text)


def stored_priority(properties: Mapping[str, str]) -> int | None:
    """The priority that a message states; None where it states none."""
    text = properties.get(PROPERTY_PRIORITY)
    return None if text is None else _read(text.encode())


def priority_of(properties: Mapping[str, str]) -> int:
    """By the table above."""
    found = stored_priority(properties)
    return PRIORITY_DEFAULT if found is None else found


def priorities_of(batch: RecordBatch) -> NDArray[np.uint8]:
    """uint8[n]: the priority of each record."""
    found = np.full(len(batch), PRIORITY_DEFAULT, np.uint8)
    for scan in batch.property_scans:
        values = scan.find(_NAME)
        if not len(values.starts):
            continue
        first = scan.flat[values.starts] - np.uint8(_ZERO)
        digits = (values.ends - values.starts == 1) & (first <= PRIORITY_MAX)
        found[values.records[digits]] = first[digits]
        for index in np.flatnonzero(~digits).tolist():
            text = scan.joined[values.starts[index] : values.ends[index]]
            found[values.records[index]] = _read(text)
    return found


def check_priorities(batch: RecordBatch) -> None:
    """Raises TroveError PROPERTY_ILLEGAL where a record of the batch has a priority that is not 0 to 9."""
    for scan in batch.property_scans:
        values = scan.find(_NAME)
        if not len(values.starts):
            continue
        legal = (values.ends - values.starts == 1) & (
            scan.flat[values.starts] - np.uint8(_ZERO) <= PRIORITY_MAX
        )
        if not legal.all():
            index = int(np.argmin(legal))
            text = scan.joined[values.starts[index] : values.ends[index]]
            raise _illegal(text[:40].decode("utf-8", "replace"))


def _read(text: bytes) -> int:
    if 1 <= len(text) <= _DIGITS_MAX and text.isdigit():
        return min(int(text), PRIORITY_MAX)
    return PRIORITY_DEFAULT


def _illegal(text: str) -> TroveError:
    return TroveError(
        errors.PROPERTY_ILLEGAL, f"the priority {text[:40]!r} is not 0 to {PRIORITY_MAX}", name="priority"
    )
