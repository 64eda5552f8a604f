"""Header compression: HPACK (RFC 7541), the encoder. `hpack` has the decoder, and the bytes of a field."""

from collections.abc import Iterable
from typing import Final

from trovemq_rpc.http2.hpack import Header
from trovemq_rpc.http2.hpack_tables import STATIC_TABLE

__all__ = ["Encoder"]

# The encoded fields that an encoder caches, and the largest of them.
ENCODED_FIELDS_MAX: Final = 256
ENCODED_FIELD_SIZE_MAX: Final = 256  # larger ones are rarely repeated

_NEVER_INDEXED: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"set-cookie"})


def _encoded_integer(value: int, mask: int, pattern: int) -> bytes:
    if value < mask:
        return bytes((pattern | value,))
    out = bytearray((pattern | mask,))
    value -= mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_STATIC_FIELDS: Final = {field: index for index, field in reversed([*enumerate(STATIC_TABLE)]) if index}
_STATIC_NAMES: Final = {name: index for (name, _), index in _STATIC_FIELDS.items()}


def _encoded_field(field: Header) -> bytes:
    name, value = field
    index = _STATIC_FIELDS.get(field)
    if index is not None:
        return _encoded_integer(index, 0x7F, 0x80)
    pattern = 0x10 if name in _NEVER_INDEXED else 0x00
    index = _STATIC_NAMES.get(name, 0)
    head = _encoded_integer(index, 0x0F, pattern)
    if not index:
        head += _encoded_integer(len(name), 0x7F, 0) + name
    return head + _encoded_integer(len(value), 0x7F, 0) + value


class Encoder:
    """Writes header blocks that leave the peer's dynamic table empty.

    The first block sets the table's size to 0. That is within any limit that the peer may set later, so its
    SETTINGS_HEADER_TABLE_SIZE needs no answer (section 4.2). And no block depends on another: equal fields
    give equal blocks, which the peer's decoder can cache.
    """

    __slots__ = ("_encoded", "_opening")

    def __init__(self) -> None:
        self._opening = b"\x20"
        self._encoded: dict[Header, bytes] = {}

    def encode(self, headers: Iterable[Header]) -> bytes:
        """Encode the fields, in their order. Names must be lower case (RFC 9113, section 8.2.1)."""
        parts = [self._opening]
        self._opening = b""
        encoded = self._encoded
        for field in headers:
            part = encoded.get(field)
            parts.append(self._cache(field) if part is None else part)
        return b"".join(parts)

    def _cache(self, field: Header) -> bytes:
        part = _encoded_field(field)
        if len(part) <= ENCODED_FIELD_SIZE_MAX:
            if len(self._encoded) >= ENCODED_FIELDS_MAX:
                self._encoded.clear()
            self._encoded[field] = part
        return part
