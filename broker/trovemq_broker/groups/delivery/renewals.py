"""Leases that the broker renews while their client is alive.

Invariant: a lease is in here from its start until it is released or has no live message.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease, LeaseHeap
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs

_CLIENTS_MIN: Final = 256
"""Clients without leases are forgotten when there are more than this many clients."""


class Renewed(NamedTuple):
    pair: GroupTopic
    state: QueueState
    lease: Lease


class Renewals:
    """The renewed leases of all pairs, by client and by the time at which they would end."""

    def __init__(self) -> None:
        self._heap: LeaseHeap[Renewed] = LeaseHeap()
        self._clients: dict[str, list[Renewed]] = {}
        self._prune_at: dict[str, int] = {}
        self._dropped: deque[tuple[Renewed, EpochMs]] = deque()
        self._idle_at = _CLIENTS_MIN

    def add(self, pair: GroupTopic, state: QueueState, lease: Lease) -> None:
        """Adds a new lease."""
        entry = Renewed(pair, state, lease)
        self._heap.push(lease, entry)
        entries = self._clients.setdefault(lease.client_id, [])
        entries.append(entry)
        if len(entries) > self._prune_at.get(lease.client_id, 64):
            entries = self._clients[lease.client_id] = [one for one in entries if _alive(one.lease)]
            self._prune_at[lease.client_id] = max(64, 2 * len(entries))

    def extend(self, entry: Renewed, until_ms: EpochMs) -> None:
        """Sets a later end of the lease; its receipt handles do not change."""
        entry.lease.until_ms = until_ms
        self._heap.push(entry.lease, entry)

    def due(self, until_ms: EpochMs, count_max: int) -> list[Renewed]:
        """Removes and returns leases that would end at or before until_ms, at most count_max: each is to be
        extended or released."""
        return [entry for _, entry in self._heap.pop_until(until_ms, count_max) if entry.lease.renewed]

    def earliest_ms(self) -> EpochMs | None:
        """When the first lease would end."""
        return self._heap.earliest_ms()

    def drop_client(self, client_id: str, gone_ms: EpochMs) -> None:
        """Marks the client as gone since gone_ms: take_dropped() returns its leases."""
        self._prune_at.pop(client_id, None)
        self._dropped.extend((entry, gone_ms) for entry in self._clients.pop(client_id, ()))

    def take_dropped(self, count_max: int) -> list[tuple[Renewed, EpochMs]]:
        """Removes and returns leases of gone clients, at most count_max, each with the time since when the
        client is gone; they are to be released."""
        taken = [self._dropped.popleft() for _ in range(min(count_max, len(self._dropped)))]
        return [(entry, gone_ms) for entry, gone_ms in taken if _alive(entry.lease)]

    @property
    def has_dropped(self) -> bool:
        return bool(self._dropped)

    def held_by(self, client_id: str) -> int:
        """How many messages the client has under renewed leases."""
        return sum(entry.lease.live for entry in self._clients.get(client_id, ()) if _alive(entry.lease))

    def forget_idle(self) -> None:
        """Forgets clients without leases, when there are many."""
        if len(self._clients) <= self._idle_at:
            return
        for client_id in [name for name, entries in self._clients.items() if not any(map(_live, entries))]:
            del self._clients[client_id]
            self._prune_at.pop(client_id, None)
        self._idle_at = max(_CLIENTS_MIN, 2 * len(self._clients))


def _alive(lease: Lease) -> bool:
    return lease.renewed and lease.live > 0 and not lease.ended


def _live(entry: Renewed) -> bool:
    return _alive(entry.lease)
