"""The history of one message in groups: the events in rmq_sys_trovemq_delivery about its places.

An event lies in the log after the record that it names, so the events are read from there on. One answer
reads a bounded number of records and bytes; an incomplete answer is marked.

For one group and one place:
- an event RECEIVED, HELD, ADVANCED, … about a later offset, without an earlier event about the place, means
  that the group skipped it: its filter did not match, or the record could not be read;
- in a queue that is received by priority, only PASSED of the message's priority means that;
- STARTED or RESET with a later offset means that the group's offset was set after it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.events.codec import EVENT_DTYPE, EVENTS_TOPIC, FLAG_RENEWED, Event, EventKind, read_events
from trovemq_store.events.event_log import EVENTS_QUEUE_ID

RECORDS_MAX: Final = 100_000
BYTES_MAX: Final = 256 << 20
"""The most bytes of events that one answer reads."""


class RecordPosition(NamedTuple):
    """Where a record lies. `half`: it is a half message at that offset of the half topic; `topic` is then its
    real topic, as in the events about its checks."""

    topic: str
    queue_id: QueueId
    offset: int
    half: bool = False


NO_PRIORITIES: Final[Mapping[RecordPosition, int]] = MappingProxyType({})

_BEYOND_KINDS: Final = (
    EventKind.RECEIVED,
    EventKind.HELD,
    EventKind.DEAD_LETTERED,
    EventKind.STARTED,
    EventKind.RESET,
)
_NAMING_KINDS: Final = (
    EventKind.RECEIVED,
    EventKind.ACKNOWLEDGED,
    EventKind.CHANGED,
    EventKind.DEAD_LETTERED,
    EventKind.RETRIED,
    EventKind.MOVED,
    EventKind.HELD,
    EventKind.TIMER_ENDED,
)
_CHECKED: Final = EventKind.TRANSACTION_CHECKED
_TURNS_BACK: Final = (EventKind.STARTED, EventKind.RESET, EventKind.FORGOTTEN)


Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Scan:
    """The events about the places, in log order, and whether these are all."""

    events: list[tuple[RecordPosition, Event]] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)


def scan_events(
    store: MessageStore,
    places: Iterable[RecordPosition],
    physical_offset: PhysicalOffset,
    pending: Iterable[Event] = (),
    *,
    priorities: Mapping[RecordPosition, int] = NO_PRIORITIES,
    records_max: int = RECORDS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Generator[None, None, Scan]:
    """The events after that physical offset, then the `pending` ones; yields between two records.
    `priorities`: those of places in queues that are received by priority."""
    scan = Scan()
    finder = _Finder(list(places), priorities, scan)
    queue = store.consume_queues.get(EVENTS_TOPIC, EVENTS_QUEUE_ID)
    begin = queue.lower_bound(physical_offset) if queue is not None else QUEUE_ORIGIN
    byte_count = last_ms = 0
    for record_count, (_, message) in enumerate(messages_from(store, EVENTS_TOPIC, EVENTS_QUEUE_ID, begin)):
        if record_count >= records_max or byte_count >= bytes_max:
            scan.complete = False
            scan.notes.append(f"events after {last_ms} (epoch ms) were not read: there are too many")
            return scan
        byte_count += message.store_size
        last_ms = message.store_timestamp
        try:
            finder.find(*read_events(message.body))
        except ValueError:
            scan.complete = False
            scan.notes.append(f"a record of events at {message.physical_offset} cannot be read")
        yield
    for event in pending:
        finder.add(event)
    return scan


class _Finder:
    """Finds the events about some places. After a group has passed a place, its later events do not concern
    the place, until the group's offset is set back."""

    def __init__(
        self, places: list[RecordPosition], priorities: Mapping[RecordPosition, int], scan: Scan
    ) -> None:
        self._places = places
        self._priorities = priorities
        self._scan = scan
        self._passed: dict[RecordPosition, set[str]] = {place: set() for place in places}
        self._by_queue: dict[tuple[str, QueueId], list[RecordPosition]] = {}
        for place in places:
            self._by_queue.setdefault((place.topic, place.queue_id), []).append(place)

    def find(self, texts: list[str], events: NDArray[np.void]) -> None:
        """Finds events in one record."""
        kinds = events["kind"]
        numbers = {text: number for number, text in enumerate(texts)}
        chosen = (kinds == EventKind.FORGOTTEN).copy()
        for (topic, queue_id), places in self._by_queue.items():
            if (number := numbers.get(topic)) is not None:
                here = (events["topic"] == number) & (events["queue_id"] == queue_id)
                if here.any():
                    for place in places:
                        chosen |= here & self._may_speak_of(place, here, numbers, events)
        for row in events[chosen]:
            if int(row["kind"]) in _KNOWN:
                self.add(_event(texts, row))

    def _may_speak_of(
        self, place: RecordPosition, here: Mask, numbers: Mapping[str, int], events: NDArray[np.void]
    ) -> Mask:
        """Which events of the place's queue (`here`) may be about the place."""
        offset, kinds = place.offset, events["kind"]
        begin, end = events["offset"], events["offset"] + events["count"]
        if place.half:
            checked: Mask = (kinds == EventKind.TRANSACTION_CHECKED) & (begin == offset)
            return checked
        found: Mask = np.isin(kinds, _NAMING_KINDS) & (begin <= offset) & (offset < end)
        priority = self._priorities.get(place)
        if priority is None:
            beyond = np.isin(kinds, _BEYOND_KINDS) & (begin > offset)
            beyond |= (kinds == EventKind.ADVANCED) & (events["until"] > offset)
        else:
            beyond = (kinds == EventKind.PASSED) & (begin > offset) & (events["attempt"] == priority)
        if not (here & np.isin(kinds, _TURNS_BACK)).any():
            passed = [numbers[group] for group in self._passed[place] if group in numbers]
            beyond &= ~np.isin(events["group"], passed)
        return found | beyond | np.isin(kinds, (EventKind.STARTED, EventKind.RESET))

    def add(self, event: Event) -> None:
        """Adds the event if it is about one of the places."""
        forgotten = event.kind is EventKind.FORGOTTEN
        for place in self._places if forgotten else self._by_queue.get((event.topic, event.queue_id), ()):
            if place.half:
                if (event.kind, event.offset) == (_CHECKED, place.offset):
                    self._scan.events.append((place, event))
            elif not forgotten:
                self._add_if_concerned(place, event)
            elif event.topic in ("", place.topic):
                self._passed[place].discard(event.group)
                self._scan.events.append((place, event))

    def _add_if_concerned(self, place: RecordPosition, event: Event) -> None:
        offset, passed = place.offset, self._passed[place]
        if event.kind in (EventKind.STARTED, EventKind.RESET):
            (passed.add if event.offset > offset else passed.discard)(event.group)
        elif _names(event, offset) or (event.group not in passed and self._is_beyond(place, event)):
            passed.add(event.group)
        else:
            return
        self._scan.events.append((place, event))

    def _is_beyond(self, place: RecordPosition, event: Event) -> bool:
        priority = self._priorities.get(place)
        if priority is not None:
            return (event.kind, event.attempt) == (EventKind.PASSED, priority) and event.offset > place.offset
        if event.kind is EventKind.ADVANCED:
            return event.until > place.offset
        return event.kind in _BEYOND_KINDS and event.offset > place.offset


def _names(event: Event, offset: int) -> bool:
    return event.kind in _NAMING_KINDS and event.offset <= offset < event.offset + event.count


_KNOWN: Final = frozenset(int(kind) for kind in EventKind)


def _event(texts: list[str], row: np.void) -> Event:
    assert row.dtype == EVENT_DTYPE, "one event"
    assert int(row["kind"]) in _KNOWN, "unknown kinds, of newer versions, are skipped before"
    return Event(
        EventKind(int(row["kind"])),
        EpochMs(int(row["time_ms"])),
        texts[int(row["group"])],
        texts[int(row["topic"])],
        QueueId(int(row["queue_id"])),
        int(row["offset"]),
        int(row["count"]),
        int(row["until"]),
        int(row["attempt"]),
        int(row["lease"]),
        texts[int(row["client"])],
        bool(int(row["flags"]) & FLAG_RENEWED),
        int(row["physical_offset"]),
    )
