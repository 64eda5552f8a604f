"""Columns for callers who use NumPy. The client itself works without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trovemq_proto.numpy_extra import NUMPY_MISSING, has_numpy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def int64s(values: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]. Raises ImportError without NumPy."""
    _require()
    import numpy as np

    return np.asarray(values, np.int64)


def bools(values: Sequence[bool]) -> NDArray[np.bool_]:
    """bool[n]. Raises ImportError without NumPy."""
    _require()
    import numpy as np

    return np.asarray(values, np.bool_)


def _require() -> None:
    if not has_numpy():
        raise ImportError(f"a column {NUMPY_MISSING}")
