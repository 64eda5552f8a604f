"""Which ids records have that count for deduplication, and their keys in the tree `unique-id`.

A producer's own send counts; half and delayed messages count for the topic that the producer named. Copies
that the broker makes (commits, deliveries, retries, moved and carried records) are left out, by what their
records say.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records import PROPERTY_UNIQ_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import PROPERTY_REAL_TOPIC, SYS_FLAG_TRANSACTION_MASK
from trovemq_proto.records.property_scan import PropertyScan, Slices

WAITING_TOPICS: Final = ("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
"""Where messages wait that a producer sent to another topic."""
ID_SIZE_MAX: Final = 255
_CUT: Final = 240

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_COPY_MARKS: Final = (
    b"TRANSACTION_CHECK_TIMES",
    b"TRAN_PREPARED_QUEUE_OFFSET",
    b"TIMER_ROLL_TIMES",
    b"TIMER_DEL_UNIQKEY",
)
"""Of records in WAITING_TOPICS that no producer sent."""


def stored_id(unique_id: bytes) -> bytes:
    """What stands for an id in the tree."""
    if len(unique_id) <= ID_SIZE_MAX:
        return unique_id
    return unique_id[:_CUT] + blake2b(unique_id, digest_size=16).digest()


def id_keys(prefix: bytes, ids: Sequence[bytes]) -> list[bytes]:
    """The keys of these ids in the topic whose number is `prefix`."""
    if len(max(ids, key=len, default=b"")) <= ID_SIZE_MAX:
        return [prefix + unique_id for unique_id in ids]
    return [prefix + stored_id(unique_id) for unique_id in ids]


def ids_of(batch: RecordBatch) -> list[bytes]:
    """The id of each record; empty where it has none or is a copy that the broker made."""
    found = [b""] * len(batch)
    copied = copies(batch)
    for scan in batch.property_scans:
        slices = scan.find(_UNIQ_KEY)
        if not copied.any() and len(slices.records) == len(batch):
            return _texts(scan, slices)
        for record, text in zip(slices.records.tolist(), _texts(scan, slices), strict=True):
            if not copied[record]:
                found[record] = text
    return found


def copies(batch: RecordBatch) -> NDArray[np.bool_]:
    """Which records of a user's topic are commits or deliveries of messages that had waited."""
    copied: NDArray[np.bool_] = (batch.sys_flags & SYS_FLAG_TRANSACTION_MASK) != 0
    for scan in batch.property_scans:
        if _REAL_TOPIC in scan.joined:
            copied[scan.find(_REAL_TOPIC).records] = True
    return copied


def _texts(scan: PropertyScan, slices: Slices) -> list[bytes]:
    joined = scan.joined
    return [
        joined[begin:end] for begin, end in zip(slices.starts.tolist(), slices.ends.tolist(), strict=True)
    ]


def waiting_ids(batch: RecordBatch) -> dict[str, list[tuple[int, bytes]]]:
    """Of records in WAITING_TOPICS: (record, id) by the topic that the producer named."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for scan in batch.property_scans:
        copied = {record for mark in _COPY_MARKS for record in scan.find(mark).records.tolist()}
        topics, ids = scan.find(_REAL_TOPIC), scan.find(_UNIQ_KEY)
        named = dict(zip(topics.records.tolist(), _texts(scan, topics), strict=True))
        for record, text in zip(ids.records.tolist(), _texts(scan, ids), strict=True):
            if record in named and record not in copied:
                found.setdefault(named[record].decode("utf-8", "replace"), []).append((record, text))
    return found
