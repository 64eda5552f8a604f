"""Which segments of the log are removed: RocketMQ's rules, from numbers alone (docs/store-format.md,
"Retention").

| rule | while                                                   | removed                                  |
|------|---------------------------------------------------------|------------------------------------------|
| age  | it is an hour of `deleteWhen`, or more of the disk than | segments whose last record is older than |
|      | `diskMaxUsedSpaceRatio` is used                         | `fileReservedTime`                       |
| disk | more than `diskSpaceCleanForciblyRatio` is used, and    | the oldest segments, however young, as   |
|      | `cleanFileForciblyEnable` (off unless it is given)      | many as bring the disk below it          |
| free | at any time                                             | segments below `free_to` (held_log.py)   |

A segment that reaches beyond `held_from` is removed only because the disk is full.

At more than `diskSpaceWarningLevelRatio` new messages are refused as well.

Invariants
- Only the log's leading segments are removed, at most `files_max` a run; never the last one, nor one that is
  not on disk in every projection (the caller offers no such segment).
- The age of a segment is that of its last record. If that one's store time lies in the future, or before an
  earlier record's, a clock was wrong: then it counts as stored when the next such segment was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Percentages are of the disk's bytes. Each value is listed with RocketMQ's name."""

    reserved_ms: int = 72 * HOUR_MS  # fileReservedTime
    hours: frozenset[int] = frozenset({4})  # deleteWhen
    used_percent_max: int = 75  # diskMaxUsedSpaceRatio
    forcible_percent: int = 85  # diskSpaceCleanForciblyRatio
    warning_percent: int = 90  # diskSpaceWarningLevelRatio
    forcible_enable: bool = False  # cleanFileForciblyEnable
    files_max: int = 10  # deleteFileBatchMax
    unacknowledged_max_ms: int = 720 * HOUR_MS
    """The age limit of topics that keep messages until they are acknowledged, and set no limit of their
    own."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes of the disk that the store lies on."""

    total: int
    free: int

    @property
    def used(self) -> int:
        return max(0, self.total - self.free)

    @property
    def used_percent(self) -> float:
        return 100 * self.used / self.total if self.total > 0 else 0.0

    def above(self, percent: int) -> int:
        """How many bytes more than this share are used; 0 if none."""
        return max(0, self.used - self.total * percent // 100)


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that may be removed; `last_stored_ms` is the store time of its last record."""

    start: PhysicalOffset
    end: PhysicalOffset
    last_stored_ms: EpochMs


@dataclass(frozen=True, slots=True)
class Decision:
    """`end`: the log may begin there (at its present minimum: nothing is removed). forced: how many of the
    `count` segments are removed only to free the disk; newest_early_ms: the newest store time in these.
    pressed: the disk is so full that pending messages may be removed, too."""

    end: PhysicalOffset
    count: int = 0
    forced: int = 0
    pressed: bool = False
    newest_early_ms: EpochMs = EpochMs(0)


def is_disk_full(policy: RetentionPolicy, disk: DiskUse) -> bool:
    """Whether new messages are to be refused."""
    return disk.above(policy.warning_percent) > 0


def with_ages(
    closed: Iterable[ClosedSegment], now_ms: EpochMs, before_ms: int = 0
) -> Iterator[tuple[ClosedSegment, EpochMs]]:
    """Each segment and the time as of which it counts as stored, never too early. before_ms: the highest
    store time before these segments, if the first one's step back; 0 if not."""
    highest = EpochMs(before_ms if before_ms <= now_ms else 0)
    waiting: list[ClosedSegment] = []
    for segment in closed:
        waiting.append(segment)
        if highest <= segment.last_stored_ms <= now_ms:
            highest = segment.last_stored_ms
            for each in waiting:
                yield each, highest
            waiting.clear()
    for each in waiting:
        yield each, now_ms


def decide(
    closed: Iterable[ClosedSegment],
    policy: RetentionPolicy,
    disk: DiskUse,
    *,
    min_offset: PhysicalOffset,
    hour: int,
    now_ms: EpochMs,
    held_from: PhysicalOffset | None = None,
    free_to: PhysicalOffset = LOG_ORIGIN,
    before_ms: int = 0,
) -> Decision:
    """closed: the segments that may be removed, oldest first; only as many are read as needed. hour: local,
    0 to 23. held_from, free_to: of the table above; before_ms: the highest store time before these segments,
    if the first one's step back. now_ms: 0 while the clock is not to be trusted; then nothing is old."""
    due = hour in policy.hours or disk.above(policy.used_percent_max) > 0
    to_free = 0
    if policy.forcible_enable:
        to_free = disk.above(min(policy.forcible_percent, policy.warning_percent))
    end, count, forced, freed, newest_early_ms = min_offset, 0, 0, 0, EpochMs(0)
    if not due and not to_free and free_to <= min_offset:
        return Decision(end)
    for segment, stored_ms in with_ages(closed, now_ms, before_ms):
        held = held_from is not None and segment.end > held_from
        old = due and stored_ms + policy.reserved_ms <= now_ms
        expired = (old and not held) or segment.end <= free_to
        if count >= policy.files_max or not (expired or freed < to_free):
            break
        end, count, forced = segment.end, count + 1, forced + (not expired)
        freed += segment.end - segment.start
        if not expired:
            newest_early_ms = max(newest_early_ms, segment.last_stored_ms)
    assert end >= min_offset, "the log's minimum only rises"
    assert forced <= count <= policy.files_max, (forced, count)
    return Decision(end, count, forced, to_free > 0, newest_early_ms)


def parse_hours(text: str) -> frozenset[int]:
    """deleteWhen: hours of the day, several joined by `;`. ValueError."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        raise ValueError(f"{text!r} is not an hour from 0 to 23, nor several joined by ;")
    return frozenset(map(int, parts))
