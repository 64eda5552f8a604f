"""The times of one segment's messages, as (key, block) pairs that are grouped by key.

| key                                    | block                                                            |
|----------------------------------------|------------------------------------------------------------------|
| ("stored", topic, hour)                | HISTOGRAM_DTYPE: born to stored, ms                              |
| ("copies", kind, group, topic)         | COPIES_DTYPE: retries or dead letters by attempts          |
| ("queue", topic, queue id, number)     | ("", MESSAGE_DTYPE) or (group, EVENT_DTYPE) of 2**20 offsets     |

`hour`: of the store time, in hours since 1970 UTC. A histogram holds each value once with its count, so that
quantiles of the collected values are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records import RecordBatch
from trovemq_proto.records.layout import PROPERTY_DEAD_TOPIC
from trovemq_spark.audit.delivery_events import EVENT_DTYPE, events_of_segment
from trovemq_spark.log.scan import good_runs
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_store.events.codec import EventKind
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import kind_of
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.deletions import TopicDeletions
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

HISTOGRAM_DTYPE: Final = np.dtype([("value", "i8"), ("count", "i8")])
MESSAGE_DTYPE: Final = np.dtype([("offset", "i8"), ("born", "i8"), ("stored", "i8")])
COPIES_DTYPE: Final = np.dtype([("attempts", "i4"), ("count", "i8")])
HOUR_MS: Final = 3_600_000
_BLOCK_BITS: Final = 20
_WANTED_EVENTS: Final = (EventKind.RECEIVED, EventKind.ACKNOWLEDGED, EventKind.DEAD_LETTERED)
_RETRY_TOPIC: Final = "RETRY_TOPIC"

Key = tuple[str | int, ...]
Block = tuple[str, bytes]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TracedLog:
    """The input of a task. topics, groups: only these; all if empty."""

    log: LogDirectory
    deletions: TopicDeletions | None
    has_events: bool
    """Without delivery events, messages need not be brought together with them."""
    topics: frozenset[str]
    groups: frozenset[str]

    def includes(self, topic: str) -> bool:
        return not self.topics or topic in self.topics


def times_of_segment(traced: TracedLog, file: SegmentFile) -> Iterator[tuple[Key, Block]]:
    """The pairs of one segment; damaged records are skipped."""
    parts: dict[tuple[Key, str], list[NDArray[np.void]]] = {}
    for run in good_runs(traced.log, file, traced.log.known_end):
        for key, block in _pairs(traced, run):
            parts.setdefault((key, ""), []).append(block)
    if traced.has_events:
        for group, key, events in _events(traced, file):
            parts.setdefault((key, group), []).append(events)
    for (key, group), blocks in parts.items():
        block = np.concatenate(blocks)
        yield key, (group, (merged(block) if key[0] == "stored" else block).tobytes())


def _pairs(traced: TracedLog, run: DispatchBatch) -> Iterator[tuple[Key, NDArray[np.void]]]:
    deletions, records = traced.deletions, run.records
    alive = None if deletions is None else deletions.alive_mask(records, run.physical_offset)
    for topic, all_indexes in records.topic_groups():
        indexes = all_indexes if alive is None else all_indexes[alive[all_indexes]]
        is_retry = topic.startswith(RETRY_PREFIX)
        if not len(indexes):
            continue
        if is_retry or topic.startswith(DEAD_LETTER_PREFIX):
            yield from _copies(traced, records, topic, indexes)
        elif not is_system_topic(topic) and traced.includes(topic):
            yield from _stored(records, topic, indexes)
        else:
            continue
        if traced.has_events and not topic.startswith(DEAD_LETTER_PREFIX):
            yield from _messages(records, topic, indexes)


def _stored(records: RecordBatch, topic: str, indexes: Int64s) -> Iterator[tuple[Key, NDArray[np.void]]]:
    stored = records.store_timestamps[indexes]
    taken = stored - records.born_timestamps[indexes]
    hours = stored // HOUR_MS
    for hour in np.unique(hours).tolist():
        yield ("stored", topic, hour), histogram(taken[hours == hour])


def _copies(
    traced: TracedLog, records: RecordBatch, topic: str, indexes: Int64s
) -> Iterator[tuple[Key, NDArray[np.void]]]:
    """Retries and dead letters are few: their origins are read one by one."""
    is_retry = topic.startswith(RETRY_PREFIX)
    group = topic.removeprefix(RETRY_PREFIX if is_retry else DEAD_LETTER_PREFIX)
    origins = records.property_values(_RETRY_TOPIC if is_retry else PROPERTY_DEAD_TOPIC)
    counts: dict[tuple[str, str, int], int] = {}
    for index in indexes.tolist():
        origin = origins[index] or ""
        owner = group
        for separator in "_+":  # a retry topic of one topic has that topic's name after the group
            if is_retry and origin and group.endswith(separator + origin):
                owner = group.removesuffix(separator + origin)
        attempts = int(records.reconsume_times[index])
        if (not origin or traced.includes(origin)) and (not traced.groups or owner in traced.groups):
            counts[owner, origin, attempts] = counts.get((owner, origin, attempts), 0) + 1
    for (owner, origin, attempts), count in counts.items():
        kind = "retries" if is_retry else "deadLetters"
        yield ("copies", kind, owner, origin), np.array([(attempts, count)], COPIES_DTYPE)


def _messages(records: RecordBatch, topic: str, indexes: Int64s) -> Iterator[tuple[Key, NDArray[np.void]]]:
    messages = np.empty(len(indexes), MESSAGE_DTYPE)
    messages["offset"] = records.queue_offsets[indexes]
    messages["born"] = records.born_timestamps[indexes]
    messages["stored"] = records.store_timestamps[indexes]
    queues = records.queue_ids[indexes].astype(np.int64)
    numbers = messages["offset"] >> _BLOCK_BITS
    places = np.unique(np.stack([queues, numbers]), axis=1).T
    for queue_id, number in places.tolist():
        yield ("queue", topic, queue_id, number), messages[(queues == queue_id) & (numbers == number)]


def _events(traced: TracedLog, file: SegmentFile) -> Iterator[tuple[str, Key, NDArray[np.void]]]:
    """(group, key, events), an event for each offset."""
    for (group, topic, queue_id), block in events_of_segment(traced.log, file):
        kind, origin = kind_of(group, topic)
        is_wanted = kind is not SourceKind.TOPIC or traced.includes(origin)
        if not is_wanted or (traced.groups and group not in traced.groups):
            continue
        events = np.frombuffer(block, EVENT_DTYPE)
        events = events[np.isin(events["kind"], _WANTED_EVENTS)]
        each = np.repeat(events, events["count"])
        firsts = np.cumsum(events["count"].astype(np.int64)) - events["count"]
        each["offset"] += np.arange(len(each)) - np.repeat(firsts, events["count"])
        numbers = each["offset"] >> _BLOCK_BITS
        for number in np.unique(numbers).tolist():
            yield group, ("queue", topic, queue_id, number), each[numbers == number]


def histogram(values: Int64s) -> NDArray[np.void]:
    """HISTOGRAM_DTYPE of these values, ascending."""
    different, counts = np.unique(values, return_counts=True)
    counted = np.empty(len(different), HISTOGRAM_DTYPE)
    counted["value"], counted["count"] = different, counts
    return counted


def merged(parts: NDArray[np.void]) -> NDArray[np.void]:
    """One histogram from several, one after the other."""
    values, places = np.unique(parts["value"], return_inverse=True)
    whole = np.zeros(len(values), HISTOGRAM_DTYPE)
    whole["value"] = values
    np.add.at(whole["count"], places, parts["count"])
    return whole
