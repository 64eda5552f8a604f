"""Reads Spark's checkpoint of a streaming query with one of our sources.

CHECKPOINT/offsets/N    `v1`, JSON about the batch, the end offsets of each source as JSON; one line each
CHECKPOINT/commits/N    batch N is done
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from trovemq_spark.storage import StoragePath


def committed_offsets(checkpoint: StoragePath) -> dict[str, Any] | None:
    """The offsets document of the source after the last completed batch; None if there is none.

    Raises ValueError if the files are not Spark's; OSError.
    """
    done = _numbers(checkpoint, "commits")
    known = _numbers(checkpoint, "offsets")
    last = max(done & known, default=None)
    if last is None:
        return None
    version, *lines = checkpoint.read(f"offsets/{last}").decode().split("\n")
    if not version.startswith("v") or len(lines) < 2:
        raise ValueError(f"{checkpoint}/offsets/{last} is not a list of offsets of one source")
    document = json.loads(lines[1])
    if not isinstance(document, dict):
        raise ValueError(f"{checkpoint}/offsets/{last} has no offsets")
    return document


def sync_offsets(checkpoint: StoragePath, batch_id: int) -> None:
    """Syncs the batch's offsets, which Spark does not do, before the table has the batch. So after a power
    failure the repeated batch has the same rows, and can be skipped.

    Raises OSError. Does nothing on object stores, whose puts are durable.
    """
    if checkpoint.local is None:
        return
    directory = checkpoint.local / "offsets"
    for path in (directory / str(batch_id), directory / f".{batch_id}.crc", directory):
        with suppress(FileNotFoundError):  # Hadoop may be configured to write no checksums
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _numbers(checkpoint: StoragePath, directory: str) -> set[int]:
    names = (entry.name.rpartition("/")[2] for entry in checkpoint.entries(directory))
    return {int(name) for name in names if name.isdecimal()}
