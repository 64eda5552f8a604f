"""The open half messages: by queue offset, by transaction, and by the time of the next check.

Invariants
- Half messages are added in the order of their queue offsets, which is that of the log.
- A topic and transaction id have one open half: a later one replaces it.
- Lists with ended halves have at most two entries per open half, and ENDED_KEPT_MAX more.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import Final

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.records import HalfMessage
from trovemq_proto.positions import EpochMs

ENDED_KEPT_MAX: Final = 1_024
"""A list is rebuilt when it has more entries than twice the open halves and this many."""


class OpenHalves:
    """The open half messages of one store."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.by_topic: Counter[str] = Counter()
        """How many are open, by topic."""
        self._by_offset: dict[int, HalfMessage] = {}
        self._by_id: dict[tuple[str, str], HalfMessage] = {}
        self._in_order: deque[HalfMessage] = deque()  # ended halves are dropped from the left
        self._due: list[tuple[int, int]] = []  # heap of (time of the next check, queue offset)

    def __len__(self) -> int:
        return len(self._by_offset)

    def at(self, offset: int) -> HalfMessage | None:
        return self._by_offset.get(offset)

    def of(self, topic: str, transaction_id: str) -> HalfMessage | None:
        return self._by_id.get((topic, transaction_id))

    def all(self) -> list[HalfMessage]:
        """All open halves, in the order of the queue."""
        return sorted(self._by_offset.values(), key=lambda half: half.offset)

    def lowest(self) -> HalfMessage | None:
        """The half with the lowest queue offset, and so the lowest physical offset."""
        while self._in_order and self._in_order[0].offset not in self._by_offset:
            self._in_order.popleft()
        return self._in_order[0] if self._in_order else None

    def add(self, half: HalfMessage) -> HalfMessage | None:
        """Returns the half that this one replaces, which is no longer open."""
        assert not self._in_order or self._in_order[-1].offset < half.offset, "halves come in order"
        key = (half.topic, half.transaction_id)
        replaced = self._by_id.get(key)
        if replaced is not None:
            del self._by_offset[replaced.offset]
        else:
            self.by_topic[half.topic] += 1
        self._by_offset[half.offset] = self._by_id[key] = half
        self._in_order.append(half)
        self.schedule(half)
        self._drop_ended()
        assert len(self._by_offset) == len(self._by_id), "one open half to a topic and transaction id"
        return replaced

    def remove(self, half: HalfMessage) -> None:
        del self._by_offset[half.offset]
        del self._by_id[half.topic, half.transaction_id]
        self.by_topic[half.topic] -= 1
        if not self.by_topic[half.topic]:
            del self.by_topic[half.topic]

    def _drop_ended(self) -> None:
        limit = 2 * len(self._by_offset) + ENDED_KEPT_MAX
        if len(self._in_order) > limit:
            self._in_order = deque(half for half in self._in_order if half.offset in self._by_offset)
        if len(self._due) > limit:
            self._due = [(self._due_ms(half), half.offset) for half in self._by_offset.values()]
            heapq.heapify(self._due)

    # --- checks -------------------------------------------------------------------------------------
    def count_check(self, half: HalfMessage, checks: int, checked_ms: int) -> None:
        half.checks, half.checked_ms = checks, checked_ms
        self.schedule(half)

    def schedule(self, half: HalfMessage) -> None:
        heapq.heappush(self._due, (self._due_ms(half), half.offset))

    def _due_ms(self, half: HalfMessage) -> int:
        if half.checked_ms:
            return half.checked_ms + self._settings.transaction_check_interval_ms
        return half.prepared_ms + (half.immunity_ms or self._settings.transaction_timeout_ms)

    def next_due_ms(self) -> int | None:
        while self._due:
            due_ms, offset = self._due[0]
            half = self._by_offset.get(offset)
            if half is not None and self._due_ms(half) == due_ms:
                return due_ms
            heapq.heappop(self._due)
        return None

    def take_due(self, now_ms: EpochMs) -> HalfMessage | None:
        """The half whose check has been due longest; the caller must schedule it again, or remove it."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        return self._by_offset[heapq.heappop(self._due)[1]]
