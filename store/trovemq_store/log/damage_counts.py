"""Damage of the log that this process found, counted by state; each place counts once.

Recovery counts the damage that it skips when the store is opened; reading counts later damage (bytes that
went bad in a running store). At most PLACES_MAX places are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.log.reader import Damage

PLACES_MAX: Final = 4096
UNIT_UNREADABLE: Final = "unit-unreadable"


class DamageCounts:
    """The counts of one store. ranges, bytes: by RecordState.value; `ranges` also by UNIT_UNREADABLE.
    `on_new` and `on_new_unit` are called for each new place that a reader finds."""

    def __init__(self, found: Iterable[Damage] = ()) -> None:
        self.ranges: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.on_new: Callable[[PhysicalOffset, int, str], None] = lambda physical_offset, size, state: None
        self._places: set[PhysicalOffset] = set()
        self.on_new_unit: Callable[[str, QueueId, QueueOffset], None] = lambda topic, queue_id, offset: None
        self._units: set[tuple[str, QueueId, QueueOffset]] = set()
        for damage in found:
            self._count(damage.physical_offset, damage.end - damage.physical_offset, damage.state.value)

    def met(self, physical_offset: PhysicalOffset, size: int, state: str) -> None:
        """Notes that a reader found a bad record there, of `size` bytes (0: unknown)."""
        if physical_offset not in self._places and len(self._places) < PLACES_MAX:
            self._count(physical_offset, size, state)
            self.on_new(physical_offset, size, state)

    def met_unit(self, topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> None:
        """Notes that the disk does not return a unit of a consume queue: its message is skipped."""
        unit = (topic, queue_id, queue_offset)
        if unit not in self._units and len(self._units) < PLACES_MAX:
            self._units.add(unit)
            self.ranges[UNIT_UNREADABLE] += 1
            self.on_new_unit(*unit)

    def _count(self, physical_offset: PhysicalOffset, size: int, state: str) -> None:
        if len(self._places) < PLACES_MAX:
            self._places.add(physical_offset)
        self.ranges[state] += 1
        self.bytes[state] += size
