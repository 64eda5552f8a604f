"""The cursor of a query over several brokers: one text that holds each broker's place.

Form: URL-safe base64 without padding of `version byte 1 | CRC-32 of the rest, u32 | UTF-8 JSON`, the JSON
being `{"query": digest, "brokers": {name: [cursor, last, page_size, done, lacking]}}`; `lacking` is left out
if it is false. A broker's place is the cursor with which its current call begins, and the physical offset of
the last message that was returned from that call. The messages of one broker come by falling physical offset.
So a page that is fetched again after newer messages were stored continues at the right one.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_VERSION = b"\x01"
CURSOR_SIZE_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """The progress of the query on one broker.

    Attributes:
        cursor: The broker's cursor with which the current call begins; empty at the start.
        last: Physical offset of the last message returned from that call; None if none was.
        page_size: The messages that the call requests: the same number again, so that the page ends at the
            same message.
        done: The broker has no more messages.
        lacking: Its messages may be incomplete, because some were removed before their time.
    """

    cursor: str = ""
    last: int | None = None
    page_size: int = 0
    done: bool = False
    lacking: bool = False


def query_digest(*parts: object) -> int:
    """A number that distinguishes one query's cursors from another's."""
    return zlib.crc32(json.dumps(parts).encode())


def encode_cursor(digest: int, places: Mapping[str, BrokerProgress]) -> str:
    """The text for the user."""
    brokers = {
        name: [p.cursor, p.last, p.page_size, p.done, *([True] if p.lacking else [])]
        for name, p in sorted(places.items())
    }
    body = json.dumps({"query": digest, "brokers": brokers}, separators=(",", ":")).encode()
    raw = _VERSION + zlib.crc32(body).to_bytes(4, "big") + body
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode_cursor(text: str, digest: int) -> dict[str, BrokerProgress]:
    """The places of a cursor.

    Raises:
        TroveError: CURSOR_ILLEGAL if it is damaged or of another query.
    """
    if len(text) > CURSOR_SIZE_MAX:
        raise TroveError(errors.CURSOR_ILLEGAL, f"a cursor of {len(text)} characters")
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError) as error:
        raise TroveError(errors.CURSOR_ILLEGAL, "the cursor is not a base64 text") from error
    body = raw[5:]
    if raw[:1] != _VERSION or raw[1:5] != zlib.crc32(body).to_bytes(4, "big"):
        raise TroveError(errors.CURSOR_ILLEGAL, "the cursor is damaged, or of another version")
    try:
        found = json.loads(body)
        query, places = found["query"], {name: _place(*place) for name, place in found["brokers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TroveError(errors.CURSOR_ILLEGAL, "the cursor is none of a query") from error
    if query != digest:
        raise TroveError(errors.CURSOR_ILLEGAL, "the cursor belongs to another query")
    return places


def _place(
    cursor: str, last: int | None, page_size: int, done: bool, lacking: bool = False
) -> BrokerProgress:
    """Raises TypeError for a wrong type: a cursor with a right CRC may be forged."""
    last_is_right = last is None or type(last) is int
    flags_are_right = all(type(flag) is bool for flag in (done, lacking))
    if not (type(cursor) is str and last_is_right and type(page_size) is int and flags_are_right):
        raise TypeError("no place of a query")
    return BrokerProgress(cursor, last, page_size, done, lacking)
