"""Warns in the log before a table of topics or groups is full: then each new one is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from trovemq_daemon.logging import get_logger

CHECK_INTERVAL_S: Final = 60.0
"""Seconds between two checks of the tables."""


async def watch_limits(warnings: Mapping[str, Callable[[], str]]) -> None:
    """Logs each warning when it begins. The text of a warning is empty while there is none."""
    shown: set[str] = set()
    while True:
        for name, warning in warnings.items():
            text = warning()
            if text and name not in shown:
                get_logger().warning("limit.near", table=name, detail=text)
            shown = shown | {name} if text else shown - {name}
        await asyncio.sleep(CHECK_INTERVAL_S)
