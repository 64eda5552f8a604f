"""A model of etcd: linearizable, and bad on purpose where etcd is (replication.md names the issues).

Time comes in with each call. Faults that the walks begin: no quorum; leases revoked early; keep-alives that a
deposed leader answers; every TTL started again; a backup that is restored. That answers are lost or late, and
watches lag or end, is the caller's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trovemq_broker.coordination.coordinator import (
    Change,
    Compare,
    KeyValue,
    Lease,
    Put,
    Snapshot,
    Swapped,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(frozen=True)
class Backup:
    """Keys without a lease, at one revision."""

    revision: int
    values: dict[str, KeyValue]


class ModelEtcd:
    """`changed`: is called after each change of keys, with those before."""

    def __init__(self, changed: Callable[[dict[str, KeyValue]], None] = lambda _before: None) -> None:
        self.changed = changed
        self.revision = 1
        self.values: dict[str, KeyValue] = {}
        self.leases: dict[int, tuple[int, int]] = {}
        """By id: TTL in seconds, and the time of its end."""
        self._last_lease = 0
        self.has_quorum = True
        self.deposed_until_ms = -1
        """Until then keep-alives are answered, and renew nothing."""

    # --- the calls --------------------------------------------------------------------------------------
    def read(self, now_ms: int) -> Snapshot:
        self._work(now_ms)
        return Snapshot(self.revision, dict(self.values))

    def swap(self, compares: Sequence[Compare], changes: Sequence[Change], now_ms: int) -> Swapped:
        """A lease that is gone makes it undone: etcd refuses the whole transaction."""
        self._work(now_ms)
        leases = {one.lease for one in changes if isinstance(one, Put) and one.lease}
        is_equal = all(self._changed(one.key) == one.changed for one in compares)
        if not is_equal or not leases <= self.leases.keys():
            return Swapped(False, self.read(now_ms))
        before, self.values = self.values, dict(self.values)
        self.revision += 1
        for one in changes:
            former = self.values.pop(one.key, None)
            if isinstance(one, Put):
                created = self.revision if former is None else former.created
                self.values[one.key] = KeyValue(one.key, one.value, created, self.revision, one.lease)
        self.changed(before)
        return Swapped(True, self.read(now_ms))

    def grant(self, ttl_s: int, now_ms: int) -> Lease:
        self._work(now_ms)
        self._last_lease += 1
        self.leases[self._last_lease] = (ttl_s, now_ms + ttl_s * 1_000)
        return Lease(self._last_lease, ttl_s)

    def keep_alive(self, lease: int, now_ms: int) -> int:
        self._work(now_ms)
        if lease not in self.leases:
            return 0
        ttl_s, end_ms = self.leases[lease]
        if now_ms > self.deposed_until_ms:
            end_ms = now_ms + ttl_s * 1_000
        self.leases[lease] = (ttl_s, end_ms)
        return ttl_s

    def revoke(self, lease: int, now_ms: int) -> None:
        self._work(now_ms)
        self._end(lease)

    def expire(self, now_ms: int) -> None:
        """Without quorum no lease ends."""
        if self.has_quorum:
            for lease in [one for one, (_, end_ms) in self.leases.items() if end_ms <= now_ms]:
                self._end(lease)

    # --- its faults -------------------------------------------------------------------------------------
    def restart_ttls(self, now_ms: int) -> None:
        """Another of its members leads: each TTL begins again."""
        self.leases = {one: (ttl_s, now_ms + ttl_s * 1_000) for one, (ttl_s, _) in self.leases.items()}

    def revoke_early(self) -> None:
        """Every lease, although they were renewed."""
        for lease in list(self.leases):
            self._end(lease)

    def backup(self) -> Backup:
        return Backup(self.revision, {key: one for key, one in self.values.items() if not one.lease})

    def restore(self, backup: Backup) -> None:
        self.revision, self.values, self.leases = backup.revision, dict(backup.values), {}

    # --- helpers ----------------------------------------------------------------------------------------
    def _work(self, now_ms: int) -> None:
        if not self.has_quorum:
            raise TroveError(errors.COORDINATION_UNAVAILABLE, "no quorum")
        self.expire(now_ms)

    def _changed(self, key: str) -> int:
        return self.values[key].changed if key in self.values else 0

    def _end(self, lease: int) -> None:
        self.leases.pop(lease, None)
        keys = [key for key, one in self.values.items() if one.lease == lease]
        if keys:
            before, self.values = self.values, {k: v for k, v in self.values.items() if k not in keys}
            self.revision += 1
            self.changed(before)
