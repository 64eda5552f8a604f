"""Acknowledgements of several calls, before their events are in the event log.

Clients acknowledge one message a call, so the calls of one iteration of the event loop name adjacent
messages. Their messages are consumed at once, call by call. The events, and the group's stored offsets, are
written at the end of the iteration: one event for a range, one offset for a queue.

Invariants
- An offset is added once: a message that is consumed has no lease.
- Messages of one event were open under one lease number with one attempt number.
- Outside of a `with` block no event waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog

_Key: TypeAlias = tuple[QueueState, int, int]
"""The queue, the lease's number, and its attempt."""


class GatheredAcknowledgements:
    """Acknowledgements gathered in a `with` block; their events are written on exit."""

    __slots__ = ("_commit", "_events", "_moved", "_offsets", "_time_ms", "is_open")

    def __init__(self, events: EventLog, commit: Callable[[QueueState], None]) -> None:
        """`commit`: sets the group's stored offset of a queue."""
        self._events = events
        self._commit = commit
        self._moved: dict[QueueState, None] = {}
        self._offsets: dict[_Key, list[int]] = {}
        self._time_ms = EpochMs(0)
        self.is_open = False

    def __enter__(self) -> None:
        assert not self.is_open, "blocks are not nested"
        assert not self._offsets, "outside of a block no event waits"
        self.is_open = True

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        self.add_events()
        moved, self._moved = self._moved, {}
        for state in moved:
            self._commit(state)

    def note_moved(self, state: QueueState) -> None:
        """The queue's `committed` has moved."""
        assert self.is_open, "the end of the block sets the stored offset"
        assert state.committed > 0, "it only rises"
        self._moved[state] = None

    def add(self, state: QueueState, lease: Lease, offsets: range, now_ms: EpochMs) -> None:
        """These messages were open under the lease, and are consumed."""
        assert self.is_open, "the end of the block adds the events"
        assert offsets, "some messages are consumed"
        self._offsets.setdefault((state, lease.number, lease.attempt), []).extend(offsets)
        self._time_ms = now_ms

    def add_events(self) -> None:
        """Adds the events that wait, one for each range of adjacent messages."""
        if not self._offsets:
            return
        gathered, self._offsets = self._offsets, {}
        for (state, number, attempt), offsets in gathered.items():
            for run in _ranges(offsets):
                self._events.add(
                    Event(
                        EventKind.ACKNOWLEDGED,
                        self._time_ms,
                        state.group,
                        state.topic,
                        state.queue_id,
                        run.start,
                        len(run),
                        attempt=attempt,
                        lease=number,
                    )
                )


def _ranges(offsets: list[int]) -> list[range]:
    """The ranges of adjacent offsets; each offset is there once."""
    assert offsets, "some messages are consumed"
    found = []
    offsets.sort()
    first = end = offsets[0]
    for offset in offsets:
        assert offset >= end, "a message is consumed once"
        if offset != end:
            found.append(range(first, end))
            first = offset
        end = offset + 1
    found.append(range(first, end))
    return found
