"""Damage of the log that this process found, counted by state; each place counts once.

Recovery counts the damage that it skips when the store is opened; reading counts later damage (bytes that
went bad in a running store). At most PLACES_MAX places are known; of the others that recovery found, the
number is, and each of them is known once a reader meets it after others were repaired. A place that was
repaired from another copy of the log (record_repair.py) is damaged no more. If it is met again it counts
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.log.reader import Damage

PLACES_MAX: Final = 4096
UNIT_UNREADABLE: Final = "unit-unreadable"


class DamageCounts:
    """The counts of one store. ranges, bytes: by RecordState.value; `ranges` also by UNIT_UNREADABLE.
    `on_new` and `on_new_unit` are called for each new place that a reader finds. repaired_ranges,
    repaired_bytes: of these, the ones that are good again."""

    def __init__(self, found: Iterable[Damage] = ()) -> None:
        self.ranges: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.on_new: Callable[[PhysicalOffset, int, str], None] = lambda physical_offset, size, state: None
        self.repaired_ranges = self.repaired_bytes = 0
        self._gone_ranges = self._gone_bytes = 0  # repaired, or removed with the log's beginning
        self._places: dict[PhysicalOffset, int] = {}
        self._unplaced = 0  # were counted, and are not known
        self.on_new_unit: Callable[[str, QueueId, QueueOffset], None] = lambda topic, queue_id, offset: None
        self._units: set[tuple[str, QueueId, QueueOffset]] = set()
        for damage in found:
            self._count(damage.physical_offset, damage.end - damage.physical_offset, damage.state.value)

    @property
    def places(self) -> Mapping[PhysicalOffset, int]:
        """Where the log is damaged, with the sizes in bytes (0: unknown)."""
        return self._places

    @property
    def present(self) -> tuple[int, int]:
        """How many places are damaged still, and their bytes as far as their sizes are known."""
        return self.ranges.total() - self._gone_ranges, max(0, self.bytes.total() - self._gone_bytes)

    def repaired(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """Notes that the log is good again from `begin` to `end`."""
        for place in [one for one in self._places if begin <= one < end]:
            self.repaired_ranges += 1
            self.repaired_bytes += self._places[place]
            self.forget(place)

    def forget(self, physical_offset: PhysicalOffset) -> None:
        """The place is damaged no more, or the log begins after it by now."""
        if physical_offset in self._places:
            self._gone_ranges += 1
            self._gone_bytes += self._places.pop(physical_offset)

    def met(self, physical_offset: PhysicalOffset, size: int, state: str) -> None:
        """Notes that a reader found a bad record there, of `size` bytes (0: unknown)."""
        if physical_offset not in self._places and len(self._places) < PLACES_MAX:
            if self._unplaced:  # it is most likely one of these
                self._unplaced -= 1
                self._places[physical_offset] = size
            else:
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
            self._places[physical_offset] = size
        else:
            self._unplaced += 1
        self.ranges[state] += 1
        self.bytes[state] += size
