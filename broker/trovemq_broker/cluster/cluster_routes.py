"""The routes of the cluster's other brokers, as the nameservers show them: state only, no calls.

The nameservers know nothing of each other, so their views are merged. A broker is in the table while a valid
view has it. Of two views of a broker that of a connected nameserver counts, then the one with the higher
epoch (the leader of a replica group), then the one with the higher data
version (a broker that starts again, or has lost its disk, may have a lower one), then the newer one. A view
is valid while its nameserver is connected, and for KEPT_S afterwards; without end if no nameserver is.

A restarted nameserver hears of its brokers one after the other. So a broker that it had before the connection
broke, and has not named since, is kept for RETURN_S.

Of brokers that have left the table, and of those that nameservers name as lost, the addresses are known: the
list of queues of a FIFO topic that lies on them does not change while they are away.

Invariant: the brokers are ordered by name, so that queues keep their places in routes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from trovemq_broker.cluster.cluster_reply import BROKERS_MAX, RoutedBroker, Routes, TopicQueues
from trovemq_broker.cluster.view import NO_PLACEMENT
from trovemq_daemon.addresses import Address

KEPT_S: Final = 30.0
RETURN_S: Final = 10.0
"""Longer than the longest pause of a broker before it registers again, by its default."""
AWAY_MAX: Final = BROKERS_MAX

_Reported = tuple[RoutedBroker, int]
"""A broker, and when it was new: the count of all reports."""


class OtherQueues(NamedTuple):
    """The queues of a topic on one other broker; `server/core/other_brokers.py` describes them."""

    broker: str
    address: Address
    tls_address: Address | None
    draining: bool
    queue_count: int
    message_type: str
    placement: Mapping[str, int] = NO_PLACEMENT


@dataclass(slots=True)
class _View:
    brokers: dict[str, _Reported] = field(default_factory=dict)
    lost: Collection[str] = ()
    left_out: int = 0
    broken_at: float | None = None
    returning: dict[str, _Reported] = field(default_factory=dict)
    returning_until: float = -math.inf


class ClusterRoutes:
    """The table. `clock_s`: seconds of a monotonic clock."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._views: dict[str, _View] = {}
        self._brokers: tuple[RoutedBroker, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._lost: frozenset[str] = frozenset()
        self._addresses: frozenset[tuple[Address, bool]] = frozenset()
        self._away: dict[str, tuple[Address, Address | None]] = {}
        """Where brokers were that have left; the latest AWAY_MAX of them."""
        self._away_addresses: frozenset[tuple[Address, bool]] | None = None
        """Theirs; None until it is asked for."""
        self._check_at = math.inf
        """When views or brokers end to be valid."""
        self._listeners: list[Callable[[], None]] = []
        self.reports = 0

    # --- for the watches ----------------------------------------------------------------------------
    def report(self, nameserver: str, routes: Routes) -> None:
        """The nameserver's present view."""
        now = self._clock_s()
        self.reports += 1
        view = self._views.setdefault(nameserver, _View())
        before = view.brokers
        view.brokers = {
            name: known
            if (known := before.get(name)) is not None and known[0] is one
            else (one, self.reports)
            for name, one in routes.brokers.items()
        }
        view.lost, view.left_out = routes.lost_at.keys(), routes.left_out
        if view.broken_at is not None:
            view.broken_at = None
            view.returning.update(before)
            view.returning_until = now + RETURN_S
        for name in (*routes.brokers, *routes.lost):
            view.returning.pop(name, None)
        for name, address in routes.lost_at.items():
            self._away.setdefault(name, (address, None))
        self._away_addresses = None
        self._merge(now)

    def broken(self, nameserver: str) -> None:
        """The nameserver is not connected any more."""
        view = self._views.get(nameserver)
        if view is not None and view.broken_at is None:
            view.broken_at = self._clock_s()
            self._merge(view.broken_at)

    # --- look-ups -----------------------------------------------------------------------------------
    @property
    def connected(self) -> int:
        """How many nameservers report now."""
        return sum(view.broken_at is None for view in self._views.values())

    @property
    def left_out(self) -> int:
        """The most brokers that the limits left out of a view."""
        return max((view.left_out for view in self._views.values()), default=0)

    @property
    def brokers(self) -> Sequence[RoutedBroker]:
        """The other brokers, by name."""
        if self._clock_s() >= self._check_at:
            self._merge(self._clock_s())
        return self._brokers

    def holding(self, topic: str) -> list[OtherQueues]:
        """The queues of the topic on each other broker that has it, by the brokers' names."""
        return [
            _queues_on(one, queues) for one in self.brokers if (queues := one.topics.get(topic)) is not None
        ]

    def without(self, topic: str, placement: Mapping[str, int]) -> list[OtherQueues]:
        """The placement's brokers that do not have the topic now: they are away, or do not have it
        yet. Brokers whose address is not known are left out."""
        live = {one.name: one for one in self.brokers}
        found = []
        for name in sorted(placement):
            one = live.get(name)
            if one is None:
                addresses = self._away.get(name)
            else:
                addresses = None if topic in one.topics else (one.address, one.tls_address)
            if addresses is not None:
                found.append(OtherQueues(name, *addresses, False, 0, "FIFO", placement))
        return found

    def names(self) -> list[str]:
        """The other brokers' names, sorted."""
        return [one.name for one in self.brokers]

    def addresses(self) -> dict[str, str]:
        """The addresses for plain connections, by name."""
        return {one.name: str(one.address) for one in self.brokers}

    def lost(self) -> Collection[str]:
        """The names of those that nameservers have lost."""
        return self._lost

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called when the table has other brokers than before, live or lost."""
        self._listeners.append(listener)

    def knows(self, broker: str) -> bool:
        """Whether it is one of the other brokers, or was and is away."""
        return (bool(self.brokers) and broker in self._names) or broker in self._away

    def remembered(self) -> list[str]:
        """The other brokers' names, then those of brokers that are away."""
        return [*self.names(), *self._away]

    def draining(self) -> list[str]:
        """The other brokers that ask for messages to be sent elsewhere."""
        return [one.name for one in self.brokers if one.draining]

    def advertises(self, address: Address, *, by_tls: bool) -> bool:
        """Whether another broker advertises the address, for TLS or for plain connections."""
        return bool(self.brokers) and (_canonical(address), by_tls) in self._addresses

    def advertised(self, address: Address, *, by_tls: bool) -> bool:
        """The same, also of brokers that are away."""
        if self.advertises(address, by_tls=by_tls):
            return True
        if self._away_addresses is None:
            self._away_addresses = _addresses(self._away.values())
        return (_canonical(address), by_tls) in self._away_addresses

    # ------------------------------------------------------------------------------------------------
    def _merge(self, now: float) -> None:
        kept_s = KEPT_S if self.connected else math.inf
        best: dict[str, tuple[tuple[bool, int, int, int], RoutedBroker]] = {}
        self._check_at = math.inf
        for view in self._views.values():
            if view.broken_at is not None and not self._lasts(view.broken_at + kept_s, now):
                continue
            offered = [(view.broken_at is None, one) for one in view.brokers.values()]
            if view.returning and self._lasts(view.returning_until, now):
                offered += [(False, one) for one in view.returning.values()]
            else:
                view.returning.clear()
            for present, (one, reported) in offered:
                rank = present, one.epoch, one.data_version, reported
                if one.name not in best or rank > best[one.name][0]:
                    best[one.name] = rank, one
        for gone in self._brokers:
            if gone.name not in best:
                self._away[gone.name] = gone.address, gone.tls_address
        for name in best.keys() & self._away.keys():
            del self._away[name]
        while len(self._away) > AWAY_MAX:
            del self._away[next(iter(self._away))]
        self._away_addresses = None
        self._brokers = tuple(best[name][1] for name in sorted(best))
        before = self._names, self._lost
        self._names = frozenset(best)
        connected = [view for view in self._views.values() if view.broken_at is None]
        self._lost = frozenset(name for view in connected for name in view.lost) - self._names
        self._addresses = _addresses((one.address, one.tls_address) for one in self._brokers)
        if (self._names, self._lost) != before:
            for listener in self._listeners:
                listener()

    def _lasts(self, until: float, now: float) -> bool:
        """Whether that time has not come; the table is merged again when it has."""
        if now < until:
            self._check_at = min(self._check_at, until)
        return now < until


def _queues_on(one: RoutedBroker, queues: TopicQueues) -> OtherQueues:
    placement = dict(queues.placement) if queues.placement else NO_PLACEMENT
    return OtherQueues(
        one.name,
        one.address,
        one.tls_address,
        one.draining,
        queues.queue_count,
        queues.message_type,
        placement,
    )


def _addresses(pairs: Iterable[tuple[Address, Address | None]]) -> frozenset[tuple[Address, bool]]:
    """Of the plain addresses and those for TLS: each, and whether it is for TLS."""
    return frozenset(
        (_canonical(address), by_tls)
        for pair in pairs
        for address, by_tls in zip(pair, (False, True), strict=True)
        if address is not None
    )


@lru_cache(4 * BROKERS_MAX)  # else each change would parse the addresses of all brokers
def _canonical(address: Address) -> Address:
    return address.canonical
