"""Decompresses bodies part by part: a few megabytes of a log can become gigabytes of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.layout import BODY_SIZE_MAX_DEFAULT, SYS_FLAG_COMPRESSED

INFLATED_BYTES_MAX: Final = 4 << 20
"""The most bytes of decompressed bodies in a batch (or one body), and of records as they are stored."""


@dataclass(slots=True)
class InflatedPart:
    """Consecutive records, with the bodies of those that are compressed, in order."""

    records: RecordBatch
    bodies: list[bytes | None] = field(default_factory=list)
    """None: it cannot be decompressed, and `errors` has the reason."""
    errors: dict[int, TroveError] = field(default_factory=dict)
    """By the index of the record in this part."""


def inflated_parts(
    batch: RecordBatch, bytes_max: int, body_size_max: int = BODY_SIZE_MAX_DEFAULT
) -> Iterator[InflatedPart]:
    """The records in parts of at most bytes_max bytes of decompressed bodies, or one such body. Their places
    in the buffer may be in any order; the parts keep this order."""
    compressed = np.flatnonzero(batch.sys_flags & SYS_FLAG_COMPRESSED).tolist()
    part, begin, size = InflatedPart(batch), 0, 0
    for index in compressed:
        place, flags = int(batch.body_positions[index]), int(batch.sys_flags[index])
        stored = bytes(batch.data[place : place + int(batch.body_sizes[index])])
        body, failure = _inflated(stored, flags, body_size_max)
        body_size = 0 if body is None else len(body)
        if part.bodies and size + body_size > bytes_max:
            part.records = _between(batch, begin, index)
            yield part
            part, begin, size = InflatedPart(batch), index, 0
        if failure is not None:
            part.errors[index - begin] = failure
        part.bodies.append(body)
        size += body_size
    if begin:
        part.records = _between(batch, begin, len(batch))
    yield part


def _inflated(stored: bytes, flags: int, body_size_max: int) -> tuple[bytes | None, TroveError | None]:
    try:
        return inflate_body(stored, flags, body_size_max), None
    except TroveError as error:
        return None, error


def _between(batch: RecordBatch, begin: int, end: int) -> RecordBatch:
    return RecordBatch(batch.data, batch.positions[begin:end], batch.sizes[begin:end])
