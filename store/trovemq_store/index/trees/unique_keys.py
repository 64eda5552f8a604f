"""Which ids records have that count for deduplication, and their keys in the tree `unique-id`.

Messages that a producer sent count; half and delayed ones count for the topic that the producer named. Copies
that the broker makes (commits, deliveries, retries, records that are moved or appended again) are recognised
by their records and left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records import PROPERTY_UNIQ_KEY, parse_properties
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.layout import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_WITHDRAWN,
    PROPERTY_WITHDRAWN_TOPIC,
    SYS_FLAG_TRANSACTION_MASK,
)
from trovemq_proto.records.property_scan import PropertyScan, Slices

WAITING_TOPICS: Final = ("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
"""Topics where messages wait that a producer sent to another topic."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
WITHDRAWN: Final = (1 << 32) - 1
"""In place of a queue id: the message was withdrawn, and the id may be stored again."""
ID_SIZE_MAX: Final = 255
_CUT: Final = 240
_DIGEST_SIZE: Final = 16
assert _CUT + _DIGEST_SIZE == ID_SIZE_MAX + 1

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_WITHDRAWN: Final = PROPERTY_WITHDRAWN.encode()
_COPY_MARKS: Final = (
    b"TRANSACTION_CHECK_TIMES",
    b"TRAN_PREPARED_QUEUE_OFFSET",
    b"TIMER_ROLL_TIMES",
    b"TIMER_DEL_UNIQKEY",
)
"""Properties that only those records in WAITING_TOPICS have that no producer sent."""
WITHDRAWALS: Final = {
    OP_TOPIC: (_WITHDRAWN, _WITHDRAWN, PROPERTY_WITHDRAWN_TOPIC.encode()),
    "rmq_sys_wheel_timer": (b"TIMER_DEL_UNIQKEY", _UNIQ_KEY, _REAL_TOPIC),
}
"""Topics with records that withdraw a message (it will never be delivered) -> the property that marks them,
and those with the id and topic of the message."""
_WITHDRAWAL_TOPICS: Final = frozenset(topic.encode() for topic in WITHDRAWALS)
_ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"


def stored_id(unique_id: bytes) -> bytes:
    """The form of an id in the tree."""
    if len(unique_id) <= ID_SIZE_MAX:
        return unique_id
    return unique_id[:_CUT] + blake2b(unique_id, digest_size=_DIGEST_SIZE).digest()


def id_keys(prefix: bytes, ids: Sequence[bytes]) -> list[bytes]:
    """The keys of these ids; `prefix`: the packed number of the topic."""
    if len(max(ids, key=len, default=b"")) <= ID_SIZE_MAX:
        return [prefix + unique_id for unique_id in ids]
    return [prefix + stored_id(unique_id) for unique_id in ids]


def ids_of(batch: RecordBatch) -> list[bytes]:
    """The id of each record; empty if it has none or is a copy that the broker made."""
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


def own_ids(batch: RecordBatch, chosen: NDArray[np.bool_]) -> Iterator[tuple[PropertyScan, Slices]]:
    """The ids of the chosen records, without those of copies that the broker made."""
    own = chosen & ~copies(batch)
    for scan in batch.property_scans:
        slices = scan.find(_UNIQ_KEY)
        own_slices = slices.where(own[slices.records])
        if len(own_slices.records):
            yield scan, own_slices


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


def withdrawn_ids(batch: RecordBatch, topic: str) -> dict[str, list[tuple[int, bytes]]]:
    """Of records of `topic` that withdraw messages: (record, id) by the topic that the producer named."""
    if topic not in WITHDRAWALS:
        return {}
    found: dict[str, list[tuple[int, bytes]]] = {}
    mark, id_name, topic_name = WITHDRAWALS[topic]
    for scan in batch.property_scans:
        if mark not in scan.joined:
            continue
        rolled = scan.find(_ROLL_TIMES).records.tolist()  # by RocketMQ: an earlier record withdrew it
        marked = set(scan.find(mark).records.tolist()).difference(rolled)
        topics, ids = scan.find(topic_name), scan.find(id_name)
        named = dict(zip(topics.records.tolist(), _texts(scan, topics), strict=True))
        for record, text in zip(ids.records.tolist(), _texts(scan, ids), strict=True):
            if record in named and record in marked:
                found.setdefault(named[record].decode("utf-8", "replace"), []).append((record, text))
    return found


def is_withdrawal(record: memoryview, fields: RecordFields) -> bool:
    """Whether the record withdraws a message."""
    begin = fields.topic_position
    topic = bytes(record[begin : begin + fields.topic_size])
    if topic not in _WITHDRAWAL_TOPICS:
        return False
    begin = fields.property_position
    properties = parse_properties(bytes(record[begin : begin + fields.property_size]))
    return WITHDRAWALS[topic.decode()][0].decode() in properties
