"""The table of pending delayed messages, built from the records of their queues, in queue order.

Invariants
- A row of the calendar is a visible record; `positions` has the first unread offset of each source.
- A delete marker ends the waiting rows of its slot, topic and key; later copies of the message are ignored
  until the slot has passed.
- A record that was appended again (TIMER_ROLL_TIMES) ends the earlier rows of its slot, topic and key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec
import numpy as np

from trovemq_broker.timers.calendar import ROW_DTYPE, WAITS, Calendar, Mask, Rows, slot_of
from trovemq_broker.timers.recalled import RecalledKeys
from trovemq_broker.timers.sources import Sources, queue_of
from trovemq_broker.timers.wheel_records import DelayedDelivery
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP, UNREADABLE_UNIT_SIZE, readable_units

_Row = tuple[int, int, int, int, int, int]


class TimersState(msgspec.Struct, array_like=True):
    """The timers' part of a snapshot. `rows` are of ROW_DTYPE, `topics` are names by number, `recalled` are
    (slot, topic, unique key)."""

    positions: dict[int, int] = {}
    topics: list[str] = []
    rows: bytes = b""
    recalled: list[tuple[int, str, str]] = []


class WaitingTable:
    """The pending delayed messages of one store."""

    def __init__(self, store: MessageStore) -> None:
        self.sources = Sources(store)
        self._damage = store.damage
        self.calendar = Calendar()
        self.recalled = RecalledKeys()
        self.positions: dict[int, int] = {}
        self.topics: list[str] = []
        """Real topics by their numbers."""
        self._numbers: dict[str, int] = {}

    def topic_number(self, topic: str) -> int | None:
        return self._numbers.get(topic)

    def _numbered(self, topic: str) -> int:
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = len(self.topics)
            self.topics.append(topic)
        return number

    # --- reading --------------------------------------------------------------------------------------
    def catch_up(self) -> None:
        """Reads all new visible records; unreadable ones are skipped."""
        for source, queue in self.sources.queues():
            offset = max(self.positions.get(source, 0), queue.min_offset)
            while offset < queue.max_offset:
                units = readable_units(queue, QueueOffset(offset), UNITS_STEP)
                self._read(source, offset, units)
                offset += len(units)
                self.positions[source] = offset
            self.positions[source] = offset

    def reread(self, source: int, offsets: Sequence[int]) -> None:
        """Reads the records at these offsets, which lie below the source's position, and adds their rows."""
        queue = self.sources.queue(source)
        if queue is None:
            return
        for offset in offsets:
            self._read(source, offset, readable_units(queue, QueueOffset(offset), 1))

    def _read(self, source: int, first_offset: int, units: Rows) -> None:
        found: list[tuple[int, DelayedDelivery]] = []
        for offset, (physical_offset, size, tags_code) in enumerate(units.tolist(), first_offset):
            if size == BLANK_UNIT_SIZE:
                continue
            if size == UNREADABLE_UNIT_SIZE:
                self._damage.met_unit(*queue_of(source), QueueOffset(offset))
                continue
            waiting = self.sources.waiting_at(source, physical_offset, tags_code)
            if waiting is not None:
                found.append((offset, waiting))
        rows: list[_Row] = []
        for offset, waiting in found:  # all of them are read: units that are read again add none twice
            if waiting.deleted_unique_key or waiting.roll_times:
                self._add(rows)
                rows = []
                # It reads the records that it ends: if that fails, those before it are not added again.
                self.positions[source] = max(self.positions.get(source, 0), offset)
            if self._apply_effects(waiting):
                number = self._numbered(waiting.topic)
                rows.append((waiting.deliver_ms, offset, key_hash(waiting.unique_key), number, source, WAITS))
        self._add(rows)

    def _apply_effects(self, waiting: DelayedDelivery) -> bool:
        """Ends the rows that the record recalls or replaces. Returns whether the record itself is pending."""
        slot = slot_of(waiting.deliver_ms)
        if waiting.deleted_unique_key:
            # RocketMQ may put the topic before the key.
            self.recall(slot, waiting.topic, waiting.deleted_unique_key.removeprefix(f"{waiting.topic}+"))
            return False
        if waiting.roll_times:
            self._end_matching(slot, waiting.topic, waiting.unique_key)
        return not self.recalled.has(slot, waiting.topic, waiting.unique_key)

    def _add(self, rows: list[_Row]) -> None:
        self.calendar.add(np.array(rows, ROW_DTYPE))

    # --- finding and ending ---------------------------------------------------------------------------
    def recall(self, slot: int, topic: str, unique_key: str) -> None:
        self.recalled.add(slot, topic, unique_key)
        self._end_matching(slot, topic, unique_key)

    def _end_matching(self, slot: int, topic: str, unique_key: str) -> None:
        for block, index, _ in list(self.matching(slot, topic, unique_key)):
            chosen = np.zeros(len(block), np.bool_)
            chosen[index] = True
            self.calendar.end(block, chosen)

    def matching(self, slot: int, topic: str, unique_key: str) -> Iterator[tuple[Rows, int, DelayedDelivery]]:
        """The waiting rows of that slot, topic and key: (block, index in it, the decoded record)."""
        for block in self.calendar.blocks_at(slot):
            for index in np.flatnonzero(self.with_key_hash(block, topic, unique_key)).tolist():
                row = block[index]
                if slot_of(EpochMs(int(row["deliver_ms"]))) != slot:
                    continue
                waiting = self.sources.waiting(int(row["source"]), int(row["offset"]))
                if waiting is not None and waiting.unique_key == unique_key:
                    yield block, index, waiting

    def with_key_hash(self, block: Rows, topic: str, unique_key: str) -> Mask:
        """The waiting rows of that topic whose unique key has the same hash."""
        number = self._numbers.get(topic)
        if number is None or not unique_key:
            return np.zeros(len(block), np.bool_)
        found: Mask = (
            (block["key_hash"] == key_hash(unique_key))
            & (block["topic"] == number)
            & (block["state"] == WAITS)
        )
        return found

    # --- start and stop -------------------------------------------------------------------------------
    def snapshot(self) -> TimersState:
        rows = self.calendar.rows()
        return TimersState(
            dict(self.positions), list(self.topics), rows.tobytes(), list(self.recalled.items())
        )

    def restore(self, state: TimersState) -> None:
        """Restores the state into an empty table."""
        self.positions = dict(state.positions)
        for topic in state.topics:
            self._numbered(topic)
        for slot, topic, unique_key in state.recalled:
            self.recalled.add(slot, topic, unique_key)
        self.calendar.add(np.frombuffer(state.rows, ROW_DTYPE))


def key_hash(unique_key: str) -> int:
    return crc32(unique_key.encode("utf-8", "surrogatepass"))
