"""Messages that were recalled and whose slot (second of delivery) has not passed.

Invariant: the heap has each slot of the table once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class RecalledKeys:
    """(topic, unique key) of each recalled message, by slot."""

    def __init__(self) -> None:
        self._keys: dict[int, set[tuple[str, str]]] = {}
        self._order: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, slot: int, topic: str, unique_key: str) -> None:
        if slot not in self._keys:
            self._keys[slot] = set()
            heapq.heappush(self._order, slot)
        keys = self._keys[slot]
        self._count += (topic, unique_key) not in keys
        keys.add((topic, unique_key))

    def has(self, slot: int, topic: str, unique_key: str) -> bool:
        keys = self._keys.get(slot)
        return keys is not None and (topic, unique_key) in keys

    def items(self) -> Iterator[tuple[int, str, str]]:
        for slot, keys in self._keys.items():
            for topic, unique_key in keys:
                yield slot, topic, unique_key

    def forget_before(self, slot: int) -> None:
        """Forgets the slots below `slot`, which have passed."""
        while self._order and self._order[0] < slot:
            self._count -= len(self._keys.pop(heapq.heappop(self._order)))
