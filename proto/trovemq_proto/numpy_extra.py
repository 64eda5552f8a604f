"""NumPy is an extra of the client. With it many records are handled at once, without it one by one."""

from __future__ import annotations

from functools import cache
from typing import Final

COLUMNS_SIZE_MIN: Final = 32_768
"""In fewer bytes the records are read one by one, in more by columns: whichever is faster."""
PLAIN_ENCODED_MAX: Final = 4
"""So many records are encoded one by one, more by columns."""
NUMPY_MISSING: Final = "needs NumPy: pip install 'trovemq[numpy]'"


@cache
def has_numpy() -> bool:
    """Whether NumPy is installed. Imports it."""
    try:
        import numpy  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
