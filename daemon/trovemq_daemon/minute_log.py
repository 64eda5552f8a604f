"""Logs events that may occur many times: the first of a kind in a minute at once, and the number of the
others at the end of the minute.

Invariant: at most KINDS_MAX kinds are counted in a minute; all further kinds are counted together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from trovemq_daemon.logging import get_logger

INTERVAL_MS: Final = 60_000
KINDS_MAX: Final = 1_000

Level = Literal["info", "warning"]
_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_Kind = tuple[Level, str, tuple[tuple[str, Any], ...]]


class MinuteLog:
    """To be called: `note()` for each event, and `flush()` at intervals, because no event may follow."""

    def __init__(self) -> None:
        self._again: dict[_Kind, int] = {}
        self._others = 0
        self._from_ms = 0

    def __len__(self) -> int:
        return len(self._again)

    def note(
        self,
        level: Level,
        event: str,
        now_ms: int,
        *,
        of_first: Mapping[str, object] = _NONE,
        **fields: object,
    ) -> None:
        """Logs or counts one event. Events with the same `fields`, which must be hashable, are of one
        kind. `of_first`: fields that only the first of a kind is logged with."""
        self.flush(now_ms)
        kind = (level, event, tuple(fields.items()))
        if kind in self._again:
            self._again[kind] += 1
        elif len(self._again) >= KINDS_MAX:
            self._others += 1
        else:
            self._again[kind] = 0
            getattr(get_logger(), level)(event, **fields, **of_first)

    def flush(self, now_ms: int) -> None:
        """Logs the counts of minutes that have ended."""
        if 0 <= now_ms - self._from_ms < INTERVAL_MS:
            return
        self._from_ms = now_ms
        for (level, event, fields), again in self._again.items():
            if again:
                getattr(get_logger(), level)(event, **dict(fields), again=again)
        if self._others:
            get_logger().warning("log.kinds_left_out", events=self._others)
        self._again.clear()
        self._others = 0
