"""A broker whose machine's clock is off by AHEAD_MS: `python tests/support/clock_ahead.py ARGUMENT…`."""

from __future__ import annotations

import os
import runpy
import time

AHEAD_NS = int(os.environ["AHEAD_MS"]) * 1_000_000
_time_ns = time.time_ns


def _ahead_ns() -> int:
    return _time_ns() + AHEAD_NS


if __name__ == "__main__":
    time.time_ns = _ahead_ns
    time.time = lambda: _ahead_ns() / 1e9
    runpy.run_module("trovemq_broker", run_name="__main__", alter_sys=True)
