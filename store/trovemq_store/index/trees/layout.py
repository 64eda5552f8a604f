"""The keys and values of the B+trees beside the log (`trovemq/trees/`, LMDB). All integers are big-endian.

| tree     | key                                                  | value                                   |
|----------|------------------------------------------------------|-----------------------------------------|
| meta     | `format`                                             | u32 format version                      |
|          | `next-topic`                                         | u32 the next topic number               |
|          | `index:` NAME                                        | a mark (below): how far that index is   |
|          | `property:` topic number u32, name                   | physical offset u64 from which on the   |
|          |                                                      | topic's records have terms of it        |
| topics   | name of a topic                                      | number u32, since i64, messages i64,    |
|          |                                                      | bytes i64                               |
| retired  | number u32 of a topic that was deleted               | empty: its entries are to be removed    |
| location | physical offset u64 of the first of up to 96 records | an entry of 20 bytes each (below)       |
| term     | topic number u32, kind u8, [name, 0x01], term, 0x01, | further physical offsets, u64 each,     |
|          | physical offset u64                                  | ascending                               |

The trees `unique-id`, `producer`, `producer-sequence` and `order` have their tables where they are written:
unique_keys.py, producer_entries.py, order_tree.py.

location entry: distance u32 from the first record, topic number u32, queue id u32, queue offset u64. mark:
position i64, physical offset i64 of the last record below it (-1: none), its size u32, its store time i64,
the CRC-32 of its bytes u32. kind: 1 unique key, 2 key, 3 tag, 4 property (which alone has a name). An entry
of a unique key has one physical offset; an entry of another term has up to 200, those that one step found. A
value of more than 350 bytes, or with a 0x01, is cut: its term is its first 334 bytes, or those before the
0x01, and the BLAKE2b of all of it (8 bytes, as 16 hexadecimal digits). So no term has a 0x01. The record of
an entry is always checked. `since`: where the topic of that number begins in the log; a topic that is
deleted and created again gets a new number.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from trovemq_proto.positions import EpochMs, PhysicalOffset

FORMAT_VERSION: Final = 1
DIRECTORY: Final = "trovemq/trees"

META: Final = "meta"
TOPICS: Final = "topics"
RETIRED: Final = "retired"
LOCATION: Final = "location"
TERM: Final = "term"
UNIQUE_ID: Final = "unique-id"
ORDER: Final = "order"
PRODUCER: Final = "producer"
SEQUENCE: Final = "producer-sequence"

FORMAT_KEY: Final = b"format"
NEXT_TOPIC_KEY: Final = b"next-topic"
PROPERTY_FROM: Final = b"property:"

UNIQUE_KEY: Final = 1
KEY: Final = 2
TAG: Final = 3
PROPERTY: Final = 4

TERM_SIZE_MAX: Final = 350
_CUT: Final = TERM_SIZE_MAX - 16
TERM_END: Final = b"\x01"

NUMBER: Final = Struct(">I")
OFFSET: Final = Struct(">Q")
TERM_HEAD: Final = Struct(">IB")
TOPIC_VALUE: Final = Struct(">Iqqq")
MARK: Final = Struct(">qqIqI")

LOCATION_RECORDS_MAX: Final = 96
LOCATION_ENTRY: Final = np.dtype(
    [("distance", ">u4"), ("topic", ">u4"), ("queue_id", ">u4"), ("queue_offset", ">u8")]
)
POSTINGS_MAX: Final = 200
"""The most physical offsets of one entry: its value fits into a page."""


class TopicEntry(NamedTuple):
    """The value of an entry of the tree `topics`."""

    number: int
    since: PhysicalOffset
    message_count: int
    byte_count: int


class Mark(NamedTuple):
    """The position of an index, and the record by which the log is recognised."""

    position: PhysicalOffset
    physical_offset: PhysicalOffset = PhysicalOffset(-1)
    size: int = 0
    store_timestamp: EpochMs = EpochMs(0)
    crc: int = 0


def mark_key(name: str) -> bytes:
    return b"index:" + name.encode()


def property_key(topic_number: int, name: str) -> bytes:
    """A key of `meta`."""
    return PROPERTY_FROM + NUMBER.pack(topic_number) + name.encode()


def term_of(value: bytes) -> bytes:
    """The form of a value in a key."""
    if len(value) <= TERM_SIZE_MAX and TERM_END not in value:
        return value
    return prefix_of(value) + blake2b(value, digest_size=8).hexdigest().encode()


def term_prefix(topic_number: int, kind: int, name: str = "") -> bytes:
    """The beginning of the keys of all terms of that kind (and property) in that topic."""
    head = TERM_HEAD.pack(topic_number, kind)
    return head + name.encode() + TERM_END if kind == PROPERTY else head


def prefix_of(value: bytes) -> bytes:
    """The beginning of the terms of all values that begin with `value` (of some others, too, if it is
    cut)."""
    return value[:_CUT].partition(TERM_END)[0]


def postings(key: bytes, value: bytes) -> list[PhysicalOffset]:
    """The physical offsets of an entry of `term`, ascending."""
    (first,) = OFFSET.unpack_from(key, len(key) - 8)
    return [first, *np.frombuffer(value, ">u8").tolist()] if value else [first]
