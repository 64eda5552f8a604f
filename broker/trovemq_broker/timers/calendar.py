"""Delayed messages in memory, in the order of their times.

One row is one record of a delayed message:

| off | width | field      | notes                                                               |
|-----|-------|------------|---------------------------------------------------------------------|
| 0   | i64   | deliver_ms | not before this time, epoch ms                                      |
| 8   | i64   | offset     | queue offset of the record                                          |
| 16  | u32   | key_hash   | CRC-32 of its unique key                                            |
| 20  | u32   | topic      | number of the real topic                                            |
| 24  | u16   | source     | number of the queue in which the record lies                        |
| 26  | u16   | state      | 1 waits, 0 ended                                                    |

A slot is a second of RocketMQ's wheel: slot s has the times (1000 s, 1000 s + 1000]. Rows of later hours lie
in one array per hour. When an hour comes, its rows are distributed over its slots; when a slot comes, its
rows are sorted into a run.

Invariants
- take_due() returns no row before its time, however the clock was set before.
- A row is in one place: an hour, a slot or a run. Only take_due() removes it; an ended row stays until its
  time, and is not returned.
- `waiting_count` is the number of rows in the state WAITS, `waiting_by_topic` the same by number of the
  topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs

Rows = NDArray[np.void]
Mask = NDArray[np.bool_]

ROW_DTYPE: Final = np.dtype(
    [
        ("deliver_ms", "<i8"),
        ("offset", "<i8"),
        ("key_hash", "<u4"),
        ("topic", "<u4"),
        ("source", "<u2"),
        ("state", "<u2"),
    ]
)
assert ROW_DTYPE.itemsize == 28
ENDED: Final = 0
WAITS: Final = 1

SLOT_MS: Final = 1_000
HOUR_SLOTS: Final = 3_600
RUNS_MAX: Final = 8
"""With more runs, all but the longest one are merged."""
_NONE: Final = np.empty(0, ROW_DTYPE)


def slot_of(deliver_ms: EpochMs) -> int:
    return (deliver_ms - 1) // SLOT_MS


class _Bucket:
    """Rows in the order in which they were added; the array grows by an eighth at a time."""

    __slots__ = ("_array", "_count", "_earliest_ms")

    def __init__(self, rows: Rows) -> None:
        self._array = rows
        self._count = len(rows)
        self._earliest_ms: int | None = None

    @property
    def rows(self) -> Rows:
        return self._array[: self._count]

    def add(self, rows: Rows) -> None:
        count = self._count + len(rows)
        if count > len(self._array):
            grown = np.empty(max(count, count + count // 8), ROW_DTYPE)
            grown[: self._count] = self.rows
            self._array = grown
        self._array[self._count : count] = rows
        self._count = count
        if self._earliest_ms is not None:
            self._earliest_ms = min(self._earliest_ms, int(rows["deliver_ms"].min()))

    @property
    def earliest_ms(self) -> int:
        """The earliest delivery time of its rows, ended ones included."""
        if self._earliest_ms is None:
            self._earliest_ms = int(self.rows["deliver_ms"].min())
        return self._earliest_ms


class _Level:
    """Buckets by number (of an hour or of a slot), the earliest first."""

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._order: list[int] = []

    def add(self, number: int, rows: Rows) -> None:
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.add(rows)
            return
        self._buckets[number] = _Bucket(rows)
        heapq.heappush(self._order, number)

    @property
    def first(self) -> int | None:
        return self._order[0] if self._order else None

    @property
    def earliest_ms(self) -> int | None:
        return self._buckets[self._order[0]].earliest_ms if self._order else None

    def take_first(self) -> Rows:
        return self._buckets.pop(heapq.heappop(self._order)).rows

    def at(self, number: int) -> Iterator[Rows]:
        if number in self._buckets:
            yield self._buckets[number].rows

    def all(self) -> Iterator[Rows]:
        for bucket in self._buckets.values():
            yield bucket.rows


class Calendar:
    """Rows by their times. Only end() changes rows of views that callers have."""

    def __init__(self) -> None:
        self._hours = _Level()
        self._slots = _Level()
        self._runs: list[Rows] = []
        self._open_hour = -1
        self.waiting_count = 0
        self.waiting_by_topic: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, rows: Rows) -> None:
        """Adds rows in the state WAITS."""
        if not len(rows):
            return
        self._count(rows, 1)
        hours = (rows["deliver_ms"] - 1) // (SLOT_MS * HOUR_SLOTS)
        for hour, members in _grouped(hours, rows):
            if hour <= self._open_hour:
                self._add_to_slots(members)
            else:
                self._hours.add(hour, members.copy())  # a copy: a view would keep all of `rows` in memory

    def _add_to_slots(self, rows: Rows) -> None:
        for slot, members in _grouped((rows["deliver_ms"] - 1) // SLOT_MS, rows):
            self._slots.add(slot, members)

    def _count(self, rows: Rows, sign: int) -> None:
        """Counts rows that were added, or (sign -1) that have ended."""
        if not len(rows):
            return
        self.waiting_count += sign * len(rows)
        counts = np.bincount(rows["topic"], minlength=len(self.waiting_by_topic))
        missing = len(counts) - len(self.waiting_by_topic)
        if missing:
            self.waiting_by_topic = np.pad(self.waiting_by_topic, (0, missing))
        self.waiting_by_topic += sign * counts

    def waiting_of(self, topic: int) -> int:
        """waiting_by_topic of one topic's number."""
        counts = self.waiting_by_topic
        return int(counts[topic]) if topic < len(counts) else 0

    # --- due messages ---------------------------------------------------------------------------------
    @property
    def next_ms(self) -> int | None:
        """When the first row is due, or a little earlier if the first rows have ended."""
        times = [int(run[0]["deliver_ms"]) for run in self._runs]
        times += [time for time in (self._slots.earliest_ms, self._hours.earliest_ms) if time is not None]
        return min(times, default=None)

    def take_due(self, now_ms: EpochMs, count_max: int) -> Rows:
        """Removes and returns up to count_max rows whose time has come, in the order of time, then of source
        and offset."""
        taken: list[Rows] = []
        left = count_max
        while left > 0:
            self._open(now_ms, left)
            rows = self._take_from_runs(now_ms, left)
            if not len(rows):
                break
            alive = rows[rows["state"] != ENDED]
            taken.append(alive)
            left -= len(alive)
        found = np.concatenate(taken) if taken else _NONE
        self._count(found, -1)
        return found

    def put_back(self, rows: Rows) -> None:
        """Adds rows again that take_due() has returned and that could not be delivered."""
        if len(rows):
            self._count(rows, 1)
            self._add_run(rows)

    def _open(self, now_ms: EpochMs, count: int) -> None:
        """Makes runs of slots that have come, until the remaining slots have no rows of the next `count`."""
        slot_now = slot_of(now_ms)
        heads = [head for head in self._heads(now_ms, count) if len(head)]
        ready = sum(map(len, heads))
        last_slot = max((slot_of(EpochMs(int(head[-1]["deliver_ms"]))) for head in heads), default=-1)
        opened: list[Rows] = []
        while True:
            hour, slot = self._hours.first, self._slots.first
            if hour is not None and hour * HOUR_SLOTS <= min(slot_now, slot_now if slot is None else slot):
                self._open_hour = max(self._open_hour, hour)
                self._add_to_slots(self._hours.take_first())
            elif slot is not None and slot <= slot_now and (ready < count or slot <= last_slot):
                opened.append(self._slots.take_first())
                ready += len(opened[-1])
            else:
                break
        if opened:
            self._add_run(_sorted(np.concatenate(opened)))

    def _heads(self, now_ms: EpochMs, count: int) -> list[Rows]:
        """The first `count` due rows of each run."""
        heads = [run[:count] for run in self._runs]
        return [head[: np.searchsorted(head["deliver_ms"], now_ms, "right")] for head in heads]

    def _add_run(self, rows: Rows) -> None:
        rows = rows[rows["state"] != ENDED]
        if not len(rows):
            return
        self._runs.append(rows)
        if len(self._runs) > RUNS_MAX:
            self._runs.sort(key=len, reverse=True)  # the longest run is not copied
            self._runs[1:] = [_sorted(np.concatenate(self._runs[1:]))]

    def _take_from_runs(self, now_ms: EpochMs, count_max: int) -> Rows:
        heads = self._heads(now_ms, count_max)
        if not sum(map(len, heads)):
            return _NONE
        rows = np.concatenate(heads)
        owners = np.repeat(np.arange(len(heads)), [len(head) for head in heads])
        chosen = _order(rows)[:count_max] if len(heads) > 1 else slice(0, count_max)
        counts = np.bincount(owners[chosen], minlength=len(heads)).tolist()
        rest = [run[count:] for run, count in zip(self._runs, counts, strict=True)]
        self._runs = [run for run in rest if len(run)]
        return rows[chosen]

    # --- look-ups -------------------------------------------------------------------------------------
    def blocks(self) -> Iterator[Rows]:
        """Views of all rows, in no order."""
        yield from self._hours.all()
        yield from self._slots.all()
        yield from self._runs

    def blocks_at(self, slot: int) -> Iterator[Rows]:
        """Views that have every row of that slot, and others."""
        yield from self._hours.at(slot // HOUR_SLOTS)
        yield from self._slots.at(slot)
        yield from self._runs

    def end(self, block: Rows, chosen: Mask) -> Rows:
        """Ends the chosen rows of one of blocks() that are waiting; returns copies of them."""
        chosen = chosen & (block["state"] == WAITS)
        ended = block[chosen]
        block["state"][chosen] = ENDED
        self._count(ended, -1)
        return ended

    def rows(self) -> Rows:
        """A copy of every waiting row, in the order of source and offset."""
        parts = [block[block["state"] == WAITS] for block in self.blocks()]
        rows = np.concatenate(parts) if parts else _NONE
        return rows[np.lexsort((rows["offset"], rows["source"]))]


def _grouped(numbers: NDArray[np.int64], rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Copies of the rows of each number, in their order."""
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), rows.copy()
        return
    lowest = int(numbers.min())
    if int(numbers.max()) - lowest < 1 << 16:
        order = np.argsort((numbers - lowest).astype(np.uint16), kind="stable")  # a radix sort
    else:
        order = np.argsort(numbers, kind="stable")
    numbers, rows = numbers[order], rows[order]
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield int(numbers[start]), rows[start:end]


def _order(rows: Rows) -> NDArray[np.intp]:
    return np.lexsort((rows["offset"], rows["source"], rows["deliver_ms"]))


def _sorted(rows: Rows) -> Rows:
    return rows[_order(rows)]
