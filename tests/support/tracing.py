"""Which tests coverage traces: the plain tests of the engine.

Tracing makes Python code take two to four times as long, and only the engine's branches are counted
(engine_coverage.py). So it is off in the folders that test something else, in trials, and in a test that is
marked `untraced`: one that takes the same branches many times, as others do. The share that is shown is
so a lower bound.
"""

from __future__ import annotations

from typing import Final

import pytest
from coverage import Coverage

_OTHERS: Final = ("durability", "golden_stores", "integration", "interop", "pipeline", "world")
_UNIT: Final = (
    "bench",
    "cli",
    "console",
    "daemon",
    "nameserver",
    "pipeline",
    "project",
    "rpc",
    "sdk",
    "settings",
)
_WALKS: Final = tuple(
    f"replication/test_{walks}_walks.py::test_a_walk_keeps_every_acknowledged_record[{part}]"
    for walks in ("election", "replication")
    for part in (1, 2, 3)
)
"""Three parts of four of these walks: the first one takes their branches."""
UNTRACED: Final = (
    *(f"tests/{folder}/" for folder in _OTHERS),
    *(f"tests/unit/{folder}/" for folder in _UNIT),
    *(f"tests/unit/{walk}" for walk in _WALKS),
)


def is_traced(item: pytest.Item) -> bool:
    return not item.nodeid.startswith(UNTRACED) and item.get_closest_marker("untraced") is None


class Tracing:
    """Stops the coverage that pytest-cov has started, and starts it again.

    In a worker pytest-cov starts two, and saves the later one alone. While that one was stopped the earlier
    one traced everything: it is stopped for good.
    """

    def __init__(self) -> None:
        self._stopped: Coverage | None = None

    def switch(self, *, on: bool) -> None:
        """Nothing to do where no coverage is asked for."""
        if on and self._stopped is not None:
            self._stopped.start()
            self._stopped = None
        elif not on and (running := Coverage.current()) is not None:
            running.stop()
            self._stopped = self._stopped or running
            while (earlier := Coverage.current()) is not None:
                earlier.stop()
