"""Where a search goes on: an opaque text for the caller.

`1.<fingerprint of the search>.<physical offset>`: newest first, the records below that offset are still to be
answered; oldest first, those at or above it.
"""

from __future__ import annotations

import re
from typing import Final

from broker.query.search.conditions import SearchQuery
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_PATTERN: Final = re.compile(r"1\.([0-9a-f]{16})\.([0-9]{1,18})", re.ASCII)


def encode_cursor(query: SearchQuery, physical_offset: int) -> str:
    return f"1.{query.fingerprint()}.{physical_offset}"


def decode_cursor(text: str, query: SearchQuery) -> int:
    """Raises TroveError CURSOR_ILLEGAL for one that is damaged or another search's."""
    match = _PATTERN.fullmatch(text)
    if match is None or match[1] != query.fingerprint():
        raise TroveError(errors.CURSOR_ILLEGAL)
    return int(match[2])
