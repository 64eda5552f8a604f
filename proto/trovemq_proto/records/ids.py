"""offsetMsgId: where a message lies, as upper-case hex.

| offset | width   | field                 |
|--------|---------|-----------------------|
| 0      | 4 or 16 | store host, address   |
| 4, 16  | i32     | store host, port      |
| 8, 20  | i64     | PHYSICALOFFSET        |

Source: RocketMQ 5.4.0, MessageDecoder.createMessageId.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.layout import HOST_SIZE_IPV4, HOST_SIZE_IPV6

_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_OFFSET_MSG_ID_SIZES: Final = (2 * (HOST_SIZE_IPV4 + 8), 2 * (HOST_SIZE_IPV6 + 8))


def encode_offset_msg_id(store_host: bytes, physical_offset: PhysicalOffset) -> str:
    """32 (IPv4) or 56 (IPv6) upper-case hex digits. store_host: 8 or 20 bytes."""
    assert len(store_host) in (HOST_SIZE_IPV4, HOST_SIZE_IPV6), f"host of {len(store_host)} bytes"
    return (store_host + physical_offset.to_bytes(8, signed=True)).hex().upper()


def decode_offset_msg_id(text: str) -> tuple[bytes, PhysicalOffset]:
    """(store host, physical offset). Raises TroveError MESSAGE_ID_ILLEGAL."""
    if not looks_like_offset_msg_id(text):
        raise TroveError(
            errors.MESSAGE_ID_ILLEGAL,
            f"{text[:80]!r} is not an offsetMsgId: expected 32 or 56 hex digits",
            id=text[:80],
        )
    raw = bytes.fromhex(text)
    return raw[:-8], PhysicalOffset(int.from_bytes(raw[-8:], signed=True))


def looks_like_offset_msg_id(text: str) -> bool:
    """True for 32 or 56 hex digits. Unique keys of 4.x clients look the same: only the record shows the
    difference."""
    return len(text) in _OFFSET_MSG_ID_SIZES and _HEX_DIGITS.issuperset(text)
