"""The state of delivery as plain values, for the snapshot file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId


class LeaseSnapshot(msgspec.Struct, array_like=True):
    """One lease and the runs [first, end) of offsets that are open under it."""

    number: int
    attempt: int
    until_ms: EpochMs
    granted_until_ms: EpochMs
    received_ms: EpochMs
    client_id: str
    renewed: bool
    ended: bool
    runs: list[tuple[int, int]]


class QueueSnapshot(msgspec.Struct, array_like=True):
    group: str
    topic: str
    queue_id: QueueId
    committed: int
    next_offset: int
    next_lease: int
    ended_lease: int
    leases: list[LeaseSnapshot]
    held: list[tuple[int, int]]
    moved: dict[int, PhysicalOffset]
    packed_clients: list[str] = []
    packed: list[bytes] = []
    """Rows of packed leases (lease_rows.py), since format 2."""
    cursors: list[int] = []
    waiting_from: int = 0
    waiting_count: int = 0
    """Of a queue that is received by priority (by_priority.py); there are no cursors if it is received in its
    order."""
    redelivered: dict[int, tuple[EpochMs, ...]] = {}


class DeliveryState(msgspec.Struct):
    queues: list[QueueSnapshot]


def snapshot(pairs: GroupTopicTable) -> DeliveryState:
    return DeliveryState([_queue_snapshot(state) for state in pairs.states()])


def restore(pairs: GroupTopicTable, saved: DeliveryState) -> None:
    for one in saved.queues:
        state = pairs.add(one.group, one.topic, one.queue_id, one.committed)
        state.next_offset = one.next_offset
        state.next_lease = one.next_lease
        state.ended_lease = one.ended_lease
        state.moved.update(one.moved)
        state.redelivered.update(one.redelivered)
        for first, end in one.held:
            state.held.add_range(first, end)
        state.open.packed.restore(one.packed_clients, one.packed)
        if one.cursors:
            state.order = ByPriority(one.waiting_from)
            state.order.restore(one.cursors, one.waiting_count)
        for lease in one.leases:
            _restore_lease(state, lease)


def _queue_snapshot(state: QueueState) -> QueueSnapshot:
    offsets: dict[int, list[int]] = {}
    leases: dict[int, Lease] = {}
    for offset, lease in sorted(state.open.loose.items()):
        leases[id(lease)] = lease
        offsets.setdefault(id(lease), []).append(offset)
    packed_clients, packed = state.open.packed.save()
    return QueueSnapshot(
        state.group,
        state.topic,
        state.queue_id,
        state.committed,
        state.next_offset,
        state.next_lease,
        state.ended_lease,
        [_lease_snapshot(leases[key], found) for key, found in offsets.items()],
        state.held.ranges(),
        dict(state.moved),
        packed_clients,
        packed,
        *(([], 0, 0) if state.order is None else state.order.save()),
        dict(state.redelivered),
    )


def _lease_snapshot(lease: Lease, offsets: list[int]) -> LeaseSnapshot:
    return LeaseSnapshot(
        lease.number,
        lease.attempt,
        lease.until_ms,
        lease.granted_until_ms,
        lease.received_ms,
        lease.client_id,
        lease.renewed,
        lease.ended,
        runs_of(offsets),
    )


def _restore_lease(state: QueueState, saved: LeaseSnapshot) -> None:
    lease = Lease(
        saved.number,
        saved.attempt,
        saved.runs[0][0],
        saved.runs[-1][1],
        saved.until_ms,
        saved.received_ms,
        saved.client_id,
        saved.renewed,
    )
    lease.granted_until_ms = saved.granted_until_ms
    lease.ended = saved.ended
    for first, end in saved.runs:
        state.open.loose.update(dict.fromkeys(range(first, end), lease))
        lease.live += end - first


def runs_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs [first, end)."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
