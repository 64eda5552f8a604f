"""One writer at a time: the file `_manifest/lock`, locked by flock on a local path. It has the holder's name.

The system releases it when its holder ends in any way. An object store has no such lock; there only the
numbers of the manifest separate two runs (chain.create).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.storage import StoragePath

_SIZE_MAX: Final = 4096


@contextmanager
def locked(place: StoragePath, name: str, job: str) -> Iterator[None]:
    """Holds the lock file `name` of a place. Raises TroveError JOB_RUNNING, which names the holder;
    OSError."""
    if place.local is None:
        yield
        return
    path = place.local / name
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(place, os.pread(descriptor, _SIZE_MAX, 0)) from None
        holder = {"job": job, "pid": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _held(place: StoragePath, data: bytes) -> TroveError:
    try:
        holder = json.loads(data)
        who = f"job {holder['job']} (process {holder['pid']} on {holder['host']})"
    except (ValueError, KeyError, TypeError):
        who = "another job"
    what = f"{who} writes into {place}; wait for its end, or stop it"
    return TroveError(errors.JOB_RUNNING, what, place=place)
