"""The cursor of a query by key or a search, which continues there: an opaque text for the caller.

`1.<fingerprint of the query>.<physical offset>[.<index file>.<item>]`: newest first, the records below that
offset are still to be examined; oldest first, those at or above it. In a query by key the index file and item
are the next place of the index's chain (a short cut, which is checked).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

_PATTERN: Final = re.compile(r"1\.([0-9a-f]{16})\.([0-9]{1,19})(?:\.([0-9]{1,20})\.([0-9]{1,10}))?", re.ASCII)


class Query(Protocol):
    def fingerprint(self) -> str:
        """Identifies a query, so that a cursor is not used with another one."""
        ...


@dataclass(frozen=True, slots=True)
class Cursor:
    physical_offset: PhysicalOffset
    place: tuple[str, int] | None = None

    def encode(self, query: Query) -> str:
        text = f"1.{query.fingerprint()}.{self.physical_offset}"
        return text if self.place is None else f"{text}.{self.place[0]}.{self.place[1]}"

    @classmethod
    def decode(cls, text: str, query: Query) -> Cursor:
        """Raises TroveError CURSOR_ILLEGAL for a text that is damaged or belongs to another query."""
        match = _PATTERN.fullmatch(text)
        if match is None or match[1] != query.fingerprint():
            raise TroveError(errors.CURSOR_ILLEGAL)
        return cls(PhysicalOffset(int(match[2])), (match[3], int(match[4])) if match[3] else None)
