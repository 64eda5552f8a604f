"""The header grpc-timeout (gRPC over HTTP/2, "Timeout"): one to eight digits, then the letter of a unit.

| letter | H | M | S | m | u | n |
| --- | --- | --- | --- | --- | --- | --- |
| unit | hours | minutes | seconds | milliseconds | microseconds | nanoseconds |
"""

from __future__ import annotations

import math
from typing import Final

_SECONDS: Final = {
    ord("H"): 3600.0,
    ord("M"): 60.0,
    ord("S"): 1.0,
    ord("m"): 1e-3,
    ord("u"): 1e-6,
    ord("n"): 1e-9,
}
_UNITS: Final = ((1e-6, b"u"), (1e-3, b"m"), (1.0, b"S"), (60.0, b"M"), (3600.0, b"H"))
VALUE_LIMIT: Final = 100_000_000  # eight digits are below it


def encode_timeout(seconds: float) -> bytes:
    """In the finest unit whose value has eight digits at most. Rounded up: a server never ends a call before
    its client does.
    """
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
