"""Logs duplicates, and gaps in the numbers of producers: the first ones of each minute, and the count of the
others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trovemq_daemon.logging import get_logger
from trovemq_store.index.trees.producers import Gap

LINES_MAX: Final = 20
"""A minute."""
PERIOD_S: Final = 60.0


class _Minute:
    """Counts the lines of this minute; logs how many were left out in the last one."""

    def __init__(self, event: str, clock_s: Callable[[], float]) -> None:
        self._event = event
        self._clock_s = clock_s
        self._began, self._count = clock_s(), 0

    def one_more(self) -> bool:
        """Counts a line. Returns whether it is to be written."""
        if self._clock_s() - self._began >= PERIOD_S:
            if self._count > LINES_MAX:
                get_logger().info(self._event, more=self._count - LINES_MAX)
            self._began, self._count = self._clock_s(), 0
        self._count += 1
        return self._count <= LINES_MAX


def log_duplicate(clock_s: Callable[[], float] = time.monotonic) -> Callable[[str, bytes], None]:
    """Returns a function that is to be called with topic and id of each duplicate."""
    minute = _Minute("produce.duplicates", clock_s)

    def log(topic: str, unique_id: bytes) -> None:
        if minute.one_more():
            get_logger().info(
                "produce.duplicate", topic=topic, unique_id=unique_id[:255].decode("utf-8", "replace")
            )

    return log


def log_gap(clock_s: Callable[[], float] = time.monotonic) -> Callable[[str, Gap], None]:
    """Returns a function that is to be called with the topic of each gap."""
    minute = _Minute("produce.gaps", clock_s)

    def log(topic: str, gap: Gap) -> None:
        if minute.one_more():
            get_logger().info(
                "produce.gap", topic=topic, producer=gap.producer.decode(), first=gap.first, last=gap.last
            )

    return log
