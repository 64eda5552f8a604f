"""The log of streams that another one of the same node took: two processes of one name take it from each
other several times a second, for as long as both run."""

from __future__ import annotations

from typing import Final

from trovemq_broker.replication.frames import NowMs

TAKEN_LOG_EVERY_MS: Final = 10_000


class TakenStreams:
    """Of one node: the first is logged, then at most one within 10 s."""

    def __init__(self) -> None:
        self._logged_ms: NowMs | None = None
        self._since = 0

    def note(self, now_ms: NowMs) -> int:
        """Counts one more. How many there are since the last line, with this one; 0: it needs no line."""
        self._since += 1
        if self._logged_ms is not None and now_ms - self._logged_ms < TAKEN_LOG_EVERY_MS:
            return 0
        count, self._logged_ms, self._since = self._since, now_ms, 0
        return count
