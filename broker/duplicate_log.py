"""Duplicates in the daemon's log: the first ones of each minute by their ids, the others as a number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trovemq_daemon.logging import get_logger

LINES_MAX: Final = 20
"""A minute."""
PERIOD_S: Final = 60.0


def log_duplicate(clock_s: Callable[[], float] = time.monotonic) -> Callable[[str, bytes], None]:
    """To be called with topic and id of each duplicate."""
    began, count = clock_s(), 0

    def log(topic: str, unique_id: bytes) -> None:
        nonlocal began, count
        if clock_s() - began >= PERIOD_S:
            if count > LINES_MAX:
                get_logger().info("produce.duplicates", more=count - LINES_MAX)
            began, count = clock_s(), 0
        count += 1
        if count <= LINES_MAX:
            get_logger().info(
                "produce.duplicate", topic=topic, unique_id=unique_id[:255].decode("utf-8", "replace")
            )

    return log
