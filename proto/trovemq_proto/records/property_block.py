"""A property block edited as bytes: properties that an edit does not name stay as they are, whatever their
bytes are.

A block is read as pieces, each of which begins with 0x02 (one is put before the first), so that no piece is
found within another one. Of two pieces with one name the last counts, as in parse_properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from trovemq_proto.records.layout import VALUE_END

_VALUE_END: Final = bytes([VALUE_END])


def value_of(block: bytes, name: str) -> bytes | None:
    """The property's value; None if there is none."""
    pieces, piece = _VALUE_END + block, _piece(name)
    at = pieces.rfind(piece)
    if at < 0:
        return None
    end = pieces.find(_VALUE_END, at + 1)
    return pieces[at + len(piece) : end if end >= 0 else len(pieces)]


def without(block: bytes, names: Iterable[str]) -> bytes:
    """The block without the properties of these names."""
    pieces = _VALUE_END + block
    for name in names:
        piece = _piece(name)
        while (at := pieces.rfind(piece)) >= 0:
            end = pieces.find(_VALUE_END, at + 1)
            pieces = pieces[:at] + (pieces[end:] if end >= 0 else b"")
    return pieces[1:]


def edited(block: bytes, changes: Mapping[str, str | None]) -> bytes:
    """The block with these properties set (after the others), or removed if the value is None."""
    added = "".join([f"{name}\x01{value}\x02" for name, value in changes.items() if value is not None])
    kept = without(block, changes)
    return (terminated(kept) + added.encode()) if added else kept


def terminated(block: bytes) -> bytes:
    """The block with the 0x02 after its last value, which old clients left out."""
    return block + _VALUE_END if block and block[-1] != VALUE_END else block


def _piece(name: str) -> bytes:
    return b"\x02%s\x01" % name.encode()
