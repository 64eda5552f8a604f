"""Events of stored messages (delivered, acknowledged, …) as records of the topic `rmq_sys_trovemq_delivery`.

A record's body holds many events. All numbers are little-endian.

| off | width | field                                                           |
|-----|-------|-----------------------------------------------------------------|
| 0   | u8    | format, 1                                                       |
| 1   | u8    | 0                                                               |
| 2   | u16   | number of texts                                                 |
| 4   | u32   | number of events                                                |
| 8   |       | the texts: each u16 size, then UTF-8. Text 0 is always empty    |
|     |       | zeros up to a multiple of 8                                     |
|     |       | the events: 56 bytes each                                       |

| off | width | field of an event                                               |
|-----|-------|-----------------------------------------------------------------|
| 0   | u8    | kind (EventKind)                                                |
| 1   | u8    | flags: 1 = the lease is renewed by the broker                   |
| 2   | u16   | group, as the number of a text                                  |
| 4   | u16   | topic                                                           |
| 6   | u16   | client id                                                       |
| 8   | i32   | queue id                                                        |
| 12  | u32   | count: offsets offset .. offset + count - 1                     |
| 16  | i64   | queue offset                                                    |
| 24  | i64   | time of the event, epoch ms                                     |
| 32  | i64   | until: epoch ms, or another queue offset, by kind               |
| 40  | i64   | physical offset; of PASSED: how many messages wait              |
| 48  | u32   | attempt: deliveries so far                                      |
| 52  | u32   | lease: number of the lease that the event gives or ends         |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs, QueueId

EVENTS_TOPIC: Final = "rmq_sys_trovemq_delivery"
FORMAT: Final = 1
EVENTS_MAX: Final = 4_096
"""The most events of one record."""
_HEADER: Final = Struct("<BBHI")
_TEXT_SIZE: Final = Struct("<H")
_TEXTS_MAX: Final = 0xFFFF

EVENT_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("group", "<u2"),
        ("topic", "<u2"),
        ("client", "<u2"),
        ("queue_id", "<i4"),
        ("count", "<u4"),
        ("offset", "<i8"),
        ("time_ms", "<i8"),
        ("until", "<i8"),
        ("physical_offset", "<i8"),
        ("attempt", "<u4"),
        ("lease", "<u4"),
    ]
)
assert EVENT_DTYPE.itemsize == 56

FLAG_RENEWED: Final = 1


class EventKind(IntEnum):
    """The kinds of events. Numbers are stable: a kind may be added, never renumbered."""

    STARTED = 1  # the group begins to read the queue at offset
    ADVANCED = 2  # offset .. until - 1 were examined; those not RECEIVED or HELD are consumed
    RECEIVED = 3  # count messages were delivered to the client, invisible until `until`
    ACKNOWLEDGED = 4
    CHANGED = 5  # invisible until `until` from now on, under a new lease
    DEAD_LETTERED = 6  # copied to the dead-letter topic, and consumed
    RETRIED = 7  # copied to the retry topic, and consumed
    RESET = 8  # the group continues at offset; nothing is in flight any more
    MOVED = 9  # in flight as before, but its record now lies at physical_offset
    HELD = 10  # examined, not delivered: an earlier one of its message group is in flight
    FORGOTTEN = 11  # the group (of all topics if the topic is empty) was deleted
    PASSED = 12  # RECEIVED or consumed: priority `attempt` below offset, all below `until`
    IN_LOG_ORDER = 13  # the queue is not received by priority any more; waiting messages were HELD
    TIMER_ENDED = (
        20  # topic, queue id and offset of a record that waited: it was delivered, moved or recalled
    )
    TRANSACTION_CHECKED = 30  # offset of a half message; attempt: checks so far


@dataclass(frozen=True, slots=True)
class Event:
    """One event; fields that its kind does not use are zero."""

    kind: EventKind
    time_ms: EpochMs
    group: str = ""
    topic: str = ""
    queue_id: QueueId = QueueId(0)
    offset: int = 0
    count: int = 1
    until: int = 0
    attempt: int = 0
    lease: int = 0
    client_id: str = ""
    renewed: bool = False
    physical_offset: int = 0
    """By kind: a physical offset, or how many messages wait."""


def encode_events(events: Iterable[Event]) -> bytes:
    """The body of one record of 1 to EVENTS_MAX events."""
    texts: dict[str, int] = {"": 0}
    rows = [
        (
            event.kind,
            FLAG_RENEWED if event.renewed else 0,
            texts.setdefault(event.group, len(texts)),
            texts.setdefault(event.topic, len(texts)),
            texts.setdefault(event.client_id, len(texts)),
            event.queue_id,
            event.count,
            event.offset,
            event.time_ms,
            event.until,
            event.physical_offset,
            event.attempt,
            event.lease,
        )
        for event in events
    ]
    assert 0 < len(rows) <= EVENTS_MAX, f"{len(rows)} events"
    assert len(texts) <= _TEXTS_MAX, "three texts an event at most: their numbers fit"
    parts = [_HEADER.pack(FORMAT, 0, len(texts), len(rows))]
    for text in texts:
        raw = text.encode("utf-8", "replace")
        parts += (_TEXT_SIZE.pack(len(raw)), raw)
    head = b"".join(parts)
    return head + bytes(-len(head) % 8) + np.array(rows, EVENT_DTYPE).tobytes()


def read_events(body: bytes | memoryview) -> tuple[list[str], NDArray[np.void]]:
    """(texts, EVENT_DTYPE events) of one record, as they are stored; kinds are not checked. ValueError if
    the body is not one that encode_events makes."""
    data = memoryview(body)
    texts, at, count = _read_head(data)
    if len(data) - at != count * EVENT_DTYPE.itemsize:
        raise ValueError(f"{len(data) - at} bytes are not {count} events")
    events = np.frombuffer(data[at:], EVENT_DTYPE)
    named = [int(events[name].max(initial=0)) for name in ("group", "topic", "client")]
    if max(named) >= len(texts):
        raise ValueError("an event names a text that is not there")
    return texts, events


def decode_events(body: bytes | memoryview) -> Iterator[Event]:
    """The events of one record, in order. ValueError if the body is not one that encode_events makes."""
    texts, events = read_events(body)
    for row in events.tolist():
        (
            kind,
            flags,
            group,
            topic,
            client,
            queue_id,
            number,
            offset,
            time_ms,
            until,
            physical,
            attempt,
            lease,
        ) = row
        yield Event(
            EventKind(kind),
            time_ms,
            texts[group],
            texts[topic],
            queue_id,
            offset,
            number,
            until,
            attempt,
            lease,
            texts[client],
            bool(flags & FLAG_RENEWED),
            physical,
        )


def _read_head(data: memoryview) -> tuple[list[str], int, int]:
    if len(data) < _HEADER.size:
        raise ValueError("too short for a header")
    version, _, text_count, count = _HEADER.unpack_from(data)
    if version != FORMAT:
        raise ValueError(f"format {version}, this version knows {FORMAT}")
    texts = []
    at = _HEADER.size
    for _ in range(text_count):
        if at + 2 > len(data):
            raise ValueError("the texts are cut off")
        (size,) = _TEXT_SIZE.unpack_from(data, at)
        at += 2
        texts.append(str(data[at : at + size], "utf-8", "replace"))
        at += size
    return texts, at + (-at % 8), count
