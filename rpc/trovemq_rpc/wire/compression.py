"""Compression of messages (gRPC's doc/compression.md): identity, gzip (RFC 1952) and deflate (RFC 1950). What
a received message inflates to is limited.
"""

from __future__ import annotations

import zlib
from typing import Final

from trovemq_rpc.wire.status import NamedLikeGrpc

LEVEL: Final = 6  # zlib's default, and grpc-core's

_WBITS: Final = {b"gzip": 31, b"deflate": 15}
_NAMES: Final = (b"identity", b"deflate", b"gzip")
ACCEPTED: Final = b", ".join(_NAMES)


class Compression(NamedLikeGrpc):
    """grpcio's choices."""

    NoCompression = 0
    Deflate = 1
    Gzip = 2


ENCODINGS: Final = {"NoCompression": b"identity", "Deflate": b"deflate", "Gzip": b"gzip"}


class DecompressionError(ValueError):
    """The bytes do not fit grpc-encoding, or (`too_large`) they inflate to more than the limit."""

    def __init__(self, reason: str, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


def encoding_of(compression: object) -> bytes:
    """The name on the wire for a member of our Compression or of grpcio's; identity for None."""
    return ENCODINGS.get(getattr(compression, "name", ""), b"identity")


def accepted_by(bits: int) -> bytes:
    """The value of grpc-accept-encoding for a set of gRPC's algorithms: bit 1 is deflate, bit 2 is gzip."""
    return b", ".join(name for bit, name in enumerate(_NAMES) if not bit or bits >> bit & 1)


def is_known(encoding: bytes) -> bool:
    return encoding in _NAMES


def is_accepted(encoding: bytes, accepted: bytes) -> bool:
    return encoding in accepted.split(b", ")


def compress(encoding: bytes, data: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, _WBITS[encoding])
    return packer.compress(data) + packer.flush()


def decompress(encoding: bytes, data: bytes | bytearray | memoryview, size_max: int) -> bytes:
    """Makes at most `size_max` bytes: a few bytes may stand for gigabytes."""
    if encoding not in _WBITS:
        raise DecompressionError("a compressed message without grpc-encoding")
    unpacker = zlib.decompressobj(_WBITS[encoding])
    try:
        plain = unpacker.decompress(data, size_max + 1)
    except zlib.error:
        raise DecompressionError("a compressed message is damaged") from None
    if len(plain) > size_max:
        raise DecompressionError(f"a message of more than {size_max} bytes", too_large=True)
    if not unpacker.eof or unpacker.unused_data:
        raise DecompressionError("a compressed message is damaged")
    return plain
