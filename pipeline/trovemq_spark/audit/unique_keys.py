"""Finds message ids that a topic has twice.

Each segment gives (64-bit hash of topic and key, physical offset) of its records; equal hashes are grouped,
and only their records are read again. The broker's own copies have the id of their original: retry and
dead-letter topics, delayed messages and half messages are in system topics, which are skipped. A message that
was delivered or committed from there is in a user's topic once. It is there twice only after a crash between
its delivery and the record of that, which is reported as a note.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message
from trovemq_proto.records.layout import PROPERTY_UNIQ_KEY
from trovemq_proto.records.message import decode_stored
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_spark.audit.found import Counted, FindingList
from trovemq_spark.audit.store import AuditedStore
from trovemq_spark.log.scan import good_runs
from trovemq_spark.log.segments import SegmentFile
from trovemq_store.check.findings import EACH_MAX
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.names import is_system_topic

Uint64s = NDArray[np.uint64]
BUCKETS: Final = 64
KEY_DTYPE: Final = np.dtype([("hash", "u8"), ("physical", "i8")])
_MULTIPLIER: Final = np.uint64(0x9FB2_1C65_1E98_DF25)
_SHIFT: Final = np.uint64(32)
_OF_A_COPY: Final = ("REAL_TOPIC", "DELAY", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "TRAN_MSG", "RETRY_TOPIC")


def keys_of_segment(store: AuditedStore, file: SegmentFile) -> Iterator[tuple[int, bytes]]:
    """(bucket, KEY_DTYPE records) of the records of users' topics that have a message id and are not
    deleted."""
    parts = [_keys_of(store, run) for run in good_runs(store.log, file, store.known_end)]
    if not parts:
        return
    keys = np.concatenate(parts)
    buckets = (keys["hash"] % np.uint64(BUCKETS)).astype(np.int64)
    for bucket in np.unique(buckets).tolist():
        yield bucket, keys[buckets == bucket].tobytes()


def _keys_of(store: AuditedStore, run: DispatchBatch) -> NDArray[np.void]:
    records = run.records
    alive = store.deletions.alive_mask(records, run.physical_offset)
    topics = np.zeros(len(records), np.uint64)
    for topic, indexes in records.topic_groups():
        if not is_system_topic(topic):
            topics[indexes] = zlib.crc32(topic.encode()) + 1
    if alive is not None:
        topics[~alive] = 0
    parts = []
    for scan in records.property_scans:
        found = scan.find(PROPERTY_UNIQ_KEY.encode())
        found = found.where((topics[found.records] != 0) & (found.ends > found.starts))
        keys = np.empty(len(found.records), KEY_DTYPE)
        keys["hash"] = _hashes(scan, found) * _MULTIPLIER + topics[found.records]
        keys["physical"] = run.physical_offset + records.positions[found.records]
        parts.append(keys)
    return np.concatenate(parts) if parts else np.empty(0, KEY_DTYPE)


def _hashes(scan: PropertyScan, values: Slices) -> Uint64s:
    """A 64-bit hash of each value. Values of the same length are hashed together, eight bytes at a time."""
    hashes = np.zeros(len(values.starts), np.uint64)
    lengths = values.ends - values.starts
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        words = np.zeros((len(chosen), -(-length // 8) * 8), np.uint8)
        words[:, :length] = scan.flat[values.starts[chosen][:, None] + np.arange(length)]
        mixed = np.full(len(chosen), length, np.uint64)
        for word in words.view("<u8").T:
            mixed = (mixed ^ word) * _MULTIPLIER
            mixed ^= mixed >> _SHIFT
        hashes[chosen] = mixed
    return hashes


def find_twice(store: AuditedStore, bucket: int, blocks: list[bytes]) -> Iterable[Counted]:
    """The duplicates in the blocks of one bucket."""
    keys = np.concatenate([np.frombuffer(block, KEY_DTYPE) for block in blocks])
    keys = keys[np.lexsort((keys["physical"], keys["hash"]))]
    same = np.flatnonzero(keys["hash"][1:] == keys["hash"][:-1])
    found = FindingList("messageId")
    for i in same[:EACH_MAX].tolist():
        _compare(store, int(keys["physical"][i]), int(keys["physical"][i + 1]), found)
    if len(same) > EACH_MAX:
        path, at = store.log_place(int(keys["physical"][int(same[EACH_MAX]) + 1]))
        found.add(path, at, f"and {len(same) - EACH_MAX} more message ids that a topic has twice")
    return [Counted.of(found)] if len(same) else []


def _compare(store: AuditedStore, first: int, second: int, found: FindingList) -> None:
    before, again = _message_at(store, first), _message_at(store, second)
    if before is None or again is None:
        return
    name = PROPERTY_UNIQ_KEY
    if before.topic != again.topic or before.properties.get(name) != again.properties.get(name):
        return  # two different keys with the same hash
    path, at = store.log_place(second)
    is_copy = any(name in message.properties for message in (before, again) for name in _OF_A_COPY)
    what = (
        f"topic {again.topic} has the message id {again.properties.get(PROPERTY_UNIQ_KEY)} "
        f"again, first at {first} of the log"
    )
    found.add(path, at, what, note=is_copy)


def _message_at(store: AuditedStore, physical_offset: int) -> Message | None:
    for file in store.log.covering(physical_offset, physical_offset + 1):
        segment = store.log.open_segment(file)
        view, position = segment.file.view(), physical_offset - segment.start
        size = int.from_bytes(view[position : position + 4])
        try:
            return decode_stored(view[position : position + size])
        except TroveError:
            return None
    return None
