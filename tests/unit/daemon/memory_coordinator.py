"""A Coordinator in memory, which answers at once; or not at all, while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from trovemq_broker.coordination.coordinator import (
    Change,
    Compare,
    KeyValue,
    Lease,
    LeaseId,
    Put,
    Revision,
    Snapshot,
    Swapped,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class MemoryCoordinator:
    """`is_away`: no call is answered. `calls`: their names."""

    def __init__(self) -> None:
        self.is_away = False
        self.calls: list[str] = []
        self.values: dict[str, KeyValue] = {}
        self.leases: dict[LeaseId, int] = {}
        self._revision: Revision = 1
        self._changed = asyncio.Condition()

    async def read(self) -> Snapshot:
        self._note("read")
        return Snapshot(self._revision, dict(self.values))

    async def swap(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Swapped:
        self._note("swap")
        leases = {one.lease for one in changes if isinstance(one, Put)} - {0}
        if leases - set(self.leases) or not all(self._holds(one) for one in compares):
            return Swapped(False, Snapshot(self._revision, dict(self.values)))
        self._revision += 1
        for one in changes:
            known = self.values.pop(one.key, None)
            if isinstance(one, Put):
                created = self._revision if known is None else known.created
                self.values[one.key] = KeyValue(one.key, one.value, created, self._revision, one.lease)
        await self._notify()
        return Swapped(True, Snapshot(self._revision, dict(self.values)))

    async def grant(self, ttl_s: int) -> Lease:
        self._note("grant")
        lease = Lease(len(self.leases) + 1, ttl_s)
        self.leases[lease.id] = ttl_s
        return lease

    async def keep_alive(self, lease: LeaseId) -> int:
        self._note("keep_alive")
        return self.leases.get(lease, 0)

    async def revoke(self, lease: LeaseId) -> None:
        self._note("revoke")
        self.leases.pop(lease, None)
        self._revision += 1
        self.values = {key: one for key, one in self.values.items() if one.lease != lease}
        await self._notify()

    async def watch(self, after: Revision) -> AsyncGenerator[Revision, None]:
        self._note("watch")
        while True:
            async with self._changed:
                await self._changed.wait_for(partial(self._is_later, after))
            after = self._revision
            yield after

    def _is_later(self, revision: Revision) -> bool:
        return self._revision > revision

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.is_away:
            raise TroveError(errors.COORDINATION_UNAVAILABLE, "no answer")

    def _holds(self, compare: Compare) -> bool:
        known = self.values.get(compare.key)
        return (0 if known is None else known.changed) == compare.changed

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
