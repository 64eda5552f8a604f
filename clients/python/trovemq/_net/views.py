"""Merges the given servers' views of the cluster into one: state only, no calls.

Nameservers know nothing of each other, and each may lack something: it may have just started, or a broker
cannot reach it. So the client merges their views.

- A broker is in the routes while any valid view has it: no server can hide a live broker.
- A broker is lost if any valid view says so, and none has it in the routes.
- If views differ on a broker, the higher epoch counts (of a replica group's leader), then the higher data
  version (the broker's own count of its topics' changes), then the newest report: an old view never removes a
  topic.
- The view of a disconnected server stays valid for KEPT_SECONDS, or until another server reports. If no
  server can be reached, all views are valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, ServerInfo
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

KEPT_SECONDS: Final = 30.0
"""Long enough for a nameserver to restart and to hear from its brokers."""


@dataclass(slots=True)
class _View:
    server: ServerInfo
    state: ClusterState
    broken_at: float | None = None
    reported: dict[str, tuple[BrokerRoute, int]] = field(default_factory=dict)
    """For each broker its entry, and when it was new, as a count of all reports."""

    @property
    def other_brokers(self) -> int:
        """Of an earlier version only the number when it was connected is known."""
        present = self.state.other_brokers
        return self.server.other_brokers if present is None else present

    def counts(self, now: float) -> bool:
        return self.broken_at is None or now < self.broken_at + KEPT_SECONDS


class Views:
    """The views by address. `now` is a time of one clock, in seconds."""

    def __init__(self) -> None:
        self._views: dict[str, _View] = {}
        self._count = 0

    def update(self, address: str, state: ClusterState, server: ServerInfo | None = None) -> None:
        """Sets the server's present view, which is also a sign of life. `server` identifies it, at least the
        first time."""
        before = self._views.get(address)
        if server is None:
            assert before is not None
            server = before.server
        known = {} if before is None else before.reported
        self._count += 1
        reported = {
            route.broker.name: kept
            if (kept := known.get(route.broker.name)) is not None and kept[0] == route
            else (route, self._count)
            for route in state.brokers
        }
        self._views[address] = _View(server, state, None, reported)

    def check_name(self, address: str, state: ClusterState, server: ServerInfo) -> None:
        """Raises TroveError BROKER_NAME_TAKEN if the server is a broker, and another given one has its name:
        one of them would hide the other."""
        for other, view in self._views.items():
            is_one = other != address and view.broken_at is None and view.server.role == "broker"
            if server.role != "broker" or not is_one or view.server.name != server.name:
                continue
            own, theirs = state.broker(server.name), view.state.broker(server.name)
            if server.node or view.server.node:
                continue  # nodes of a replica group have one name
            if own and theirs and own.broker.address != theirs.broker.address:
                text = f"{address} and {other} are two brokers of the name {server.name}: {other} is used"
                raise TroveError(errors.BROKER_NAME_TAKEN, text, name=server.name, address=other)

    def is_known(self, address: str) -> bool:
        """Whether the server has identified itself."""
        return address in self._views

    def broken(self, address: str, now: float) -> bool:
        """The server is disconnected. Returns False if it was not connected before."""
        view = self._views.get(address)
        if view is None or view.broken_at is not None:
            return False
        view.broken_at = now
        return True

    def whole(self, now: float) -> ClusterState:
        """The merged routes, brokers by name."""
        views = [view for view in self._views.values() if view.counts(now)]
        if not any(view.broken_at is None for view in views):
            views = list(self._views.values())
        best: dict[str, tuple[BrokerRoute, int]] = {}
        for view in views:
            for name, one in view.reported.items():
                if name not in best or _rank(one) > _rank(best[name]):
                    best[name] = one
        lost = {one.name: one for view in views for one in view.state.lost if one.name not in best}
        refusals = [view.state.refusal for view in views if view.state.refusal is not None]
        return ClusterState(
            tuple(best[name][0] for name in sorted(best)),
            max((v.state.version for v in views), default=0),
            tuple(lost[name] for name in sorted(lost)),
            min(refusals, key=_names_no_leader, default=None) if not best else None,
            removed=tuple(sorted({name for view in views for name in view.state.removed} - best.keys())),
        )

    def unseen(self) -> int:
        """How many brokers of the cluster are not in the routes, because only brokers were given, and
        each knows the routes to itself. At least that many."""
        views = [view for view in self._views.values() if view.broken_at is None]
        if not views or any(view.server.role != "broker" for view in views):
            return 0
        seen = {route.broker.name for view in views for route in view.state.brokers}
        return max(0, max(view.other_brokers for view in views) + 1 - len(seen))

    def address_of(self, broker: BrokerInfo) -> str | None:
        """The address by which the broker was given; None if it is known from routes. Of a replica group only
        that of its leader counts."""
        for address, view in self._views.items():
            if view.server.role == "broker" and view.server.name == broker.name:
                own = view.state.broker(broker.name)
                if not view.server.node or (own is not None and own.broker.epoch == broker.epoch):
                    return address
        return None

    def nameservers(self) -> bool:
        """Whether a nameserver is among the servers."""
        return any(view.server.role != "broker" for view in self._views.values())


def _names_no_leader(refusal: TroveError) -> bool:
    return "leader" not in refusal.fields


def _rank(one: tuple[BrokerRoute, int]) -> tuple[int, int, int]:
    route, reported = one
    return route.broker.epoch, route.broker.data_version, reported
