"""The header grpc-timeout: one to eight digits and a unit (gRPC over HTTP/2, "Timeout")."""

from __future__ import annotations

import math
from typing import Final

_SECONDS: Final = {0x48: 3600.0, 0x4D: 60.0, 0x53: 1.0, 0x6D: 1e-3, 0x75: 1e-6, 0x6E: 1e-9}  # H M S m u n
_UNITS: Final = ((1e-6, b"u"), (1e-3, b"m"), (1.0, b"S"), (60.0, b"M"), (3600.0, b"H"))
VALUE_LIMIT: Final = 100_000_000


def encode_timeout(seconds: float) -> bytes:
    """The finest unit that eight digits hold; rounded up, so that the server never ends before the client."""
    for unit, letter in _UNITS:
        value = math.ceil(seconds / unit)
        if value < VALUE_LIMIT:
            return b"%d%b" % (max(value, 0), letter)
    return b"99999999H"


def decode_timeout(value: bytes) -> float:
    """Seconds; ValueError where it is malformed."""
    digits = value[:-1]
    if not digits.isdigit() or len(digits) > 8 or value[-1] not in _SECONDS:
        raise ValueError("grpc-timeout is malformed")
    return int(digits) * _SECONDS[value[-1]]
