"""Parts of a buffer as an Arrow array, without a Python object per part.

An Arrow array covers the buffer: its even elements are the parts, its odd ones the gaps between them, and one
`take` of the even ones copies all parts. Its offsets have 32 bits, so the distance between the first and the
last part is below 2 GiB.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def parts(
    data: memoryview | bytes, starts: Int64s, ends: Int64s, kind: pa.DataType | None = None
) -> pa.Array:
    """data[starts[i]:ends[i]] for each i, binary or as `kind` (whose bytes they must be).

    starts, ends: int64[n]; the parts are in ascending order and do not overlap.
    """
    kind = kind or pa.binary()
    count = len(starts)
    if not count:
        return pa.array([], kind)
    first = int(starts[0])
    cuts = np.empty(2 * count, np.int32)
    cuts[0::2] = starts - first
    cuts[1::2] = ends - first
    window = pa.py_buffer(memoryview(data)[first : int(ends[-1])])
    pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(cuts), window])
    return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def texts(data: memoryview | bytes, starts: Int64s, ends: Int64s, *, ascii_only: bool = False) -> pa.Array:
    """parts() as strings; invalid UTF-8 becomes U+FFFD. ascii_only: the caller knows that all bytes are
    ASCII."""
    if ascii_only:
        return parts(data, starts, ends, pa.string())
    raw = parts(data, starts, ends)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())


def fixed_texts(rows: NDArray[np.uint8]) -> pa.Array:
    """uint8[n, width] of ASCII characters as n strings."""
    count, width = rows.shape
    cuts = np.arange(count + 1, dtype=np.int32) * width
    characters = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(cuts), characters])
