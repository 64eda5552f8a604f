"""The delivery events of a log (topic rmq_sys_trovemq_delivery), segment by segment, by group and queue.

A block is an array of EVENT_DTYPE in log order. Event times are those of the broker's clock at the moment of
the event, in milliseconds; the record that holds them may be up to 100 ms later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_spark.log.scan import good_runs
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_store.events import codec
from trovemq_store.events.codec import EVENTS_TOPIC, EventKind
from trovemq_store.log.projection import DispatchBatch

EVENT_DTYPE: Final = np.dtype(
    [
        ("order", "i8"),
        ("kind", "u1"),
        ("count", "u4"),
        ("offset", "i8"),
        ("time_ms", "i8"),
        ("until", "i8"),
        ("attempt", "u4"),
    ]
)
"""order: place in the log of the event's record, and of the event in the record; the other fields as in the
codec."""
_EVENTS_A_RECORD: Final = codec.EVENTS_MAX
SETTLED: Final = (EventKind.ACKNOWLEDGED, EventKind.DEAD_LETTERED, EventKind.RETRIED)

Subscription = tuple[str, str, int]
"""(group, topic, queue id); the topic may be empty for a deleted group."""


def events_of_segment(log: LogDirectory, file: SegmentFile) -> Iterator[tuple[Subscription, bytes]]:
    """Blocks of this segment's events by subscription. A record that cannot be read is skipped."""
    blocks: dict[Subscription, list[NDArray[np.void]]] = {}
    for run in good_runs(log, file, log.known_end):
        for body, physical in _bodies(run):
            for subscription, events in _decode(body, physical):
                blocks.setdefault(subscription, []).append(events)
    for subscription, parts in blocks.items():
        yield subscription, np.concatenate(parts).tobytes()


def joined(blocks: list[bytes]) -> NDArray[np.void]:
    """All events of one subscription in log order."""
    events = np.concatenate([np.frombuffer(block, EVENT_DTYPE) for block in blocks])
    return events[np.argsort(events["order"], kind="stable")]


def _bodies(run: DispatchBatch) -> Iterator[tuple[bytes, int]]:
    for topic, indexes in run.records.topic_groups():
        if topic == EVENTS_TOPIC:
            for index in indexes.tolist():
                try:
                    body = run.records.message(index).body
                except TroveError:
                    continue
                yield body, run.offset_of(index)


def _decode(body: bytes, physical_offset: int) -> Iterator[tuple[Subscription, NDArray[np.void]]]:
    """The record's events by subscription; none if the record is damaged or of a newer format."""
    try:
        texts, raw = codec.read_events(body)
    except ValueError:
        return
    events = np.empty(len(raw), EVENT_DTYPE)
    # A record has more bytes than events, so no two events of the log get the same number.
    events["order"] = physical_offset + np.arange(len(raw))
    for name in ("kind", "count", "offset", "time_ms", "until", "attempt"):
        events[name] = raw[name]
    owners = raw["group"].astype(np.int64) << 48 | raw["topic"].astype(np.int64) << 32
    owners |= raw["queue_id"].astype(np.int64) & 0xFFFF_FFFF
    for owner in np.unique(owners).tolist():
        group, topic = texts[owner >> 48 & 0xFFFF], texts[owner >> 32 & 0xFFFF]
        if group:
            yield (group, topic, owner & 0xFFFF_FFFF), events[owners == owner]
