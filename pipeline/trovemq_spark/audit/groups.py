"""Finds the messages that a consumer group never acknowledged.

The committed offset of a group and queue is the next one to consume: all messages from there to the queue's
end are open, except those that our broker's delivery events show as settled out of order (acknowledged,
copied to a retry or dead-letter topic, or skipped by the group's filter).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_spark.audit.delivery_events import SETTLED, Subscription, events_of_segment, joined
from trovemq_spark.audit.found import FindingList
from trovemq_spark.audit.place_files import as_file_system
from trovemq_spark.audit.store import AuditedStore
from trovemq_spark.tasks import Runner
from trovemq_store.events.codec import EventKind
from trovemq_store.files.files import StorageError
from trovemq_store.topics.offsets import OFFSETS_PATH, ConsumerOffsets

FIRST_OFFSETS_MAX: Final = 10
_WINDOW_MAX: Final = 1 << 24
"""The events are read for this many offsets after the committed one; later offsets count as open."""
_RESTARTS: Final = (EventKind.RESET, EventKind.FORGOTTEN)
_HANDED_OUT: Final = (EventKind.RECEIVED, EventKind.HELD)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """For one group and queue: how many messages of [committed, end) it did not settle, and the first of
    them."""

    group: str
    topic: str
    queue_id: int
    committed: int
    end: int
    count: int
    first_offsets: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "group": self.group,
            "topic": self.topic,
            "queueId": self.queue_id,
            "committed": self.committed,
            "end": self.end,
            "count": self.count,
            "firstOffsets": list(self.first_offsets),
        }


def unacknowledged(
    store: AuditedStore, runner: Runner, groups: frozenset[str], found: FindingList
) -> list[Unacknowledged]:
    """groups: only these; all if it is empty. A committed offset after the queue's end is a finding."""
    spans = _spans(store, groups, found)
    if not spans:
        return []
    reduce = partial(_open_of, spans)
    read = partial(events_of_segment, store.log)
    with_events = runner.shuffle("delivery events", read, store.log.segments, reduce)
    backlogs = {(one.group, one.topic, one.queue_id): one for one in with_events}
    for key, (committed, end) in spans.items():
        if key not in backlogs and committed < end:
            backlogs[key] = _open(
                key, committed, end, np.zeros(min(end - committed, FIRST_OFFSETS_MAX), np.bool_)
            )
    return [backlogs[key] for key in sorted(backlogs) if backlogs[key].count]


def _spans(
    store: AuditedStore, groups: frozenset[str], found: FindingList
) -> dict[Subscription, tuple[int, int]]:
    """(committed, end) by group, topic and queue."""
    spans = {}
    for group, topic, queue_id, committed in _committed(store):
        queue = store.queues.get((topic, queue_id))
        if (groups and group not in groups) or queue is None:
            continue
        if committed > queue.end:
            what = (
                f"group {group} has committed offset {committed} of queue {queue_id} of topic {topic}, "
                f"which ends at {queue.end}"
            )
            found.of("committedOffset").add(OFFSETS_PATH, 0, what, note=not store.clean)
        spans[group, topic, queue_id] = (committed, queue.end)
    return spans


def known_groups(store: AuditedStore) -> set[str]:
    """The groups with a committed offset."""
    return {group for group, *_ in _committed(store)}


def _committed(store: AuditedStore) -> list[tuple[str, str, int, int]]:
    """(group, topic, queue id, committed offset)."""
    try:
        return list(ConsumerOffsets.load(as_file_system(store.files)).entries())
    except (TroveError, StorageError):
        return []  # reported with the small files


def _open_of(
    spans: Mapping[Subscription, tuple[int, int]], key: Subscription, blocks: list[bytes]
) -> Iterable[Unacknowledged]:
    """The open rest of the subscription's range, by its events."""
    if key not in spans:
        return []
    committed, end = spans[key]
    events = joined(blocks)
    restarts = np.flatnonzero(np.isin(events["kind"], _RESTARTS))
    events = events[restarts[-1] + 1 :] if len(restarts) else events
    size = min(max(end - committed, 0), _WINDOW_MAX)
    read = np.arange(committed, committed + size) < _read_to(events)
    handed_out = _covered(events[np.isin(events["kind"], _HANDED_OUT)], committed, size)
    settled = _covered(events[np.isin(events["kind"], SETTLED)], committed, size)
    return [_open(key, committed, end, settled | (read & ~handed_out))]


def _read_to(events: NDArray[np.void]) -> int:
    """The offset up to which the group has read: its filter skipped the messages that were not delivered."""
    ends = np.where(events["kind"] == EventKind.ADVANCED, events["until"], events["offset"] + events["count"])
    known = np.isin(events["kind"], (EventKind.ADVANCED, EventKind.DEAD_LETTERED, *_HANDED_OUT))
    return int(ends[known].max(initial=0))


def _covered(events: NDArray[np.void], begin: int, size: int) -> Bools:
    """Which of [begin, begin + size) the events' offsets name."""
    steps = np.zeros(size + 1, np.int64)
    np.add.at(steps, np.clip(events["offset"] - begin, 0, size), 1)
    np.add.at(steps, np.clip(events["offset"] + events["count"] - begin, 0, size), -1)
    return np.cumsum(steps)[:size] > 0


def _open(key: Subscription, committed: int, end: int, settled: Bools) -> Unacknowledged:
    group, topic, queue_id = key
    offsets = np.flatnonzero(~settled) + committed
    count = max(end - committed, 0) - int(np.count_nonzero(settled))
    first = tuple(offsets[:FIRST_OFFSETS_MAX].tolist())
    return Unacknowledged(group, topic, queue_id, committed, end, count, first)
