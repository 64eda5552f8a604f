"""A broker whose machine's clock a test steps: `python tests/support/stepped_broker.py ARGUMENT…`.

The file CLOCK_FILE has how many nanoseconds the clock is ahead, as 8 bytes."""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import time
from pathlib import Path

_FORM = struct.Struct("<q")
_time_ns = time.time_ns


def step_clock(path: Path, ahead_s: float) -> None:
    """The clock of the broker with that file is `ahead_s` ahead from now on."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_FORM.pack(int(ahead_s * 1e9)))


def _step() -> None:
    with Path(os.environ["CLOCK_FILE"]).open("rb") as file:
        ahead = mmap.mmap(file.fileno(), _FORM.size, access=mmap.ACCESS_READ)

    def stepped_ns() -> int:
        return _time_ns() + int(_FORM.unpack_from(ahead)[0])

    time.time_ns = stepped_ns
    time.time = lambda: stepped_ns() / 1e9


if __name__ == "__main__":
    _step()
    runpy.run_module("trovemq_broker", run_name="__main__", alter_sys=True)
