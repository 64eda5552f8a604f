"""Events of acknowledgements, and the acknowledgements of an atomic transaction between their check and its
commit."""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs
from trovemq_store.events.codec import Event, EventKind


class Acknowledgement(NamedTuple):
    """A client's request: its group, the topic that it received from, the handle of one delivery."""

    group: str
    topic: str
    receipt_handle: str


class PreparedAcknowledgement(NamedTuple):
    """One message that is open under a lease which has not ended."""

    pair: GroupTopic
    state: QueueState
    lease: Lease
    offset: int

    def event(self, now_ms: EpochMs) -> Event:
        """The event for the log."""
        offsets = range(self.offset, self.offset + 1)
        return settled_event(EventKind.ACKNOWLEDGED, self.state, self.lease, offsets, now_ms)


def settled_event(kind: EventKind, state: QueueState, lease: Lease, offsets: range, now_ms: EpochMs) -> Event:
    """The event that messages which were open under the lease are consumed; `kind` says how."""
    return Event(
        kind,
        now_ms,
        state.group,
        state.topic,
        state.queue_id,
        offsets.start,
        len(offsets),
        attempt=lease.attempt,
        lease=lease.number,
    )
