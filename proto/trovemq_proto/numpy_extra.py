"""NumPy is optional for the client: with it many records are processed at once, without it one by one."""

from __future__ import annotations

from functools import cache
from typing import Final

PLAIN_ENCODED_MAX: Final = 4
"""Records that cost less encoded one by one than by columns: bench/codec.py, "one record: encode"."""
NUMPY_MISSING: Final = "needs NumPy: pip install 'trovemq[numpy]'"


@cache
def has_numpy() -> bool:
    """Whether NumPy is installed. Imports it."""
    try:
        import numpy  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
