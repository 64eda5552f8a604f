"""Feeding projections without a log: batches of records at physical offsets of the test's choosing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.engine import record
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch, RecordState, patch_batch, scan_run
from trovemq_proto.records.columns import Buffer
from trovemq_store.files.files import FileSystem
from trovemq_store.log.projection import DispatchBatch

STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x91])


def stored(
    physical_offset: int, queue_offset: int, store_timestamp: EpochMs, body: bytes = b"x", **fields: Any
) -> bytes:
    """One record as it stands in the log."""
    data = bytearray(record(body, **fields))
    patch_batch(
        data,
        RecordBatch.split(data),
        first_queue_offset=QueueOffset(queue_offset),
        physical_offset=PhysicalOffset(physical_offset),
        store_timestamp=store_timestamp,
        store_host=STORE_HOST,
        born_host=None,
        append_property_crc=False,
    )
    return bytes(data)


def batch_of(data: Buffer, physical_offset: int, alive: list[bool] | None = None) -> DispatchBatch:
    """The records that fill `data`, the first at physical_offset."""
    mask = None if alive is None else np.array(alive)
    return DispatchBatch(
        RecordBatch.split(data),
        PhysicalOffset(physical_offset),
        PhysicalOffset(physical_offset + len(data)),
        mask,
    )


def golden_log(root: Path, end: int, batch_bytes: int) -> Iterator[DispatchBatch]:
    """The log of a golden store up to `end` in batches of about batch_bytes; 1: one record each."""
    for path in sorted((root / "commitlog").iterdir()):
        data, start, position = memoryview(path.read_bytes()), int(path.name), 0
        limit = min(len(data), end - start)
        state = RecordState.RECORD
        while state is RecordState.RECORD and position < limit:
            records, position, state = scan_run(
                data, position, limit, physical_offset_of_data=start, check_crc=True, bytes_max=batch_bytes
            )
            yield DispatchBatch(records, PhysicalOffset(start), PhysicalOffset(start + position))


def tree(files: FileSystem, directory: str) -> dict[str, bytes]:
    """Every file below a directory, by path."""
    found: dict[str, bytes] = {}
    for name in files.list(directory):
        path = f"{directory}/{name}"
        found |= tree(files, path) if files.is_directory(path) else {path: files.read_bytes(path)}
    return found
