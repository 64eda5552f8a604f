"""The leaders of replica groups, as this client knows them: state only, no calls.

A replica group is one broker in the routes: its route has the node that leads, the epoch of this leadership,
and all nodes. A later leader is known from a route, or because a node has said itself that it leads.

| a route of the broker, or a node's answer            | then                                            |
|------------------------------------------------------|-------------------------------------------------|
| with the known epoch, or a higher one                | it counts                                       |
| with a lower epoch, or without one                   | the topics of the route count, not its address  |
| of another group of that name                        | it counts: the group was recreated              |
| there is none any more                               | the last one, for `patience_s`: a leader is     |
|                                                      | chosen meanwhile                                |

Invariant: addresses are those of the servers that the program has given, and those in routes. No refusal of a
call adds one: so the program's credentials go to no other server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, ServerInfo
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec

LOST: Final[tuple[ErrorSpec, ...]] = (
    errors.NOT_LEADER,
    errors.EPOCH_STALE,
    errors.BROKER_UNREACHABLE,
    errors.REQUEST_TIMEOUT,
    errors.SERVICE_NOT_AVAILABLE,
)
"""After these errors of a broker's calls another node of its group may lead."""
WAITED_FOR: Final[tuple[ErrorSpec, ...]] = (*LOST, errors.BROKER_NOT_FOUND, errors.NOT_ENOUGH_REPLICAS)
"""These pass when another node leads, or when its copies are back."""


@dataclass(slots=True)
class _Group:
    """`route`: with the highest epoch. `missing_since`: when it left the routes, in seconds; None: it is
    there."""

    route: BrokerRoute
    missing_since: float | None = None

    @property
    def broker(self) -> BrokerInfo:
        return self.route.broker


class Leaders:
    """The groups by broker name. `by_tls`: whether the client connects by TLS."""

    def __init__(self, patience_s: float, *, by_tls: bool) -> None:
        self._patience_s = patience_s
        self._by_tls = by_tls
        self._groups: dict[str, _Group] = {}

    def applied(self, state: ClusterState, now: float) -> tuple[ClusterState, float | None]:
        """The routes, with the leaders that count; and when they are to be applied again, if nothing else
        happens."""
        routes = {route.broker.name: self._applied(route, now) for route in state.brokers}
        again: float | None = None
        for name, group in list(self._groups.items()):
            if name in routes:
                continue
            if group.missing_since is None:
                group.missing_since = now
            if now >= group.missing_since + self._patience_s or name in state.removed:
                del self._groups[name]
            else:
                routes[name] = group.route
                ends = group.missing_since + self._patience_s
                again = ends if again is None else min(again, ends)
        lost = tuple(one for one in state.lost if one.name not in routes)
        brokers = tuple(routes[name] for name in sorted(routes))
        refusal = state.refusal if not brokers else None
        return replace(state, brokers=brokers, lost=lost, refusal=refusal), again

    def _applied(self, route: BrokerRoute, now: float) -> BrokerRoute:
        broker, group = route.broker, self._groups.get(route.broker.name)
        if broker.leader is None:
            return self._without_leader(route, group, now)
        known = None if group is None else group.broker.leader
        later = known is None or known.group_id != broker.leader.group_id or broker.epoch >= known.epoch
        if group is None or later:
            if len(broker.leader.nodes) > 1:
                self._groups[broker.name] = _Group(route)
            else:
                self._groups.pop(broker.name, None)
            return route
        group.missing_since = None
        group.route = replace(route, broker=group.broker)
        return group.route

    def _without_leader(self, route: BrokerRoute, group: _Group | None, now: float) -> BrokerRoute:
        """A route of a follower to itself, or of a broker that has left its group."""
        if group is None:
            return route
        if group.missing_since is None:
            group.missing_since = now
        if now >= group.missing_since + self._patience_s:
            del self._groups[route.broker.name]
            return route
        return replace(route, broker=group.broker)

    def adopt(self, name: str, dialled: str, answer: ServerInfo) -> bool:
        """A node of the group has answered at that address. Returns whether it is a later leader."""
        group, leader = self._groups.get(name), answer.leader
        if group is None or leader is None or not answer.leads or answer.name != name:
            return False
        known = group.broker.leader
        if known is None or known.group_id != leader.group_id or leader.epoch <= known.epoch:
            return False
        broker = replace(group.broker, leader=leader)
        broker = replace(broker, tls_address=dialled) if self._by_tls else replace(broker, address=dialled)
        group.route = replace(group.route, broker=broker)
        return True

    def is_known(self, name: str, answer: ServerInfo) -> bool:
        """Whether the node that answered is the leader that counts."""
        group = self._groups.get(name)
        known = None if group is None else group.broker.leader
        return (
            known is not None
            and answer.leads
            and answer.leader is not None
            and (
                (answer.leader.group_id, answer.leader.node, answer.leader.epoch)
                == (known.group_id, known.node, known.epoch)
            )
        )

    def has(self, name: str) -> bool:
        """Whether the broker is a replica group of several nodes."""
        return name in self._groups

    def names(self) -> list[str]:
        """Of the groups."""
        return list(self._groups)

    def missing(self) -> list[str]:
        """The groups that are in no route now."""
        return [name for name, group in self._groups.items() if group.missing_since is not None]

    def broker(self, name: str) -> BrokerInfo | None:
        """The leader that counts."""
        group = self._groups.get(name)
        return None if group is None else group.broker

    def nodes(self, name: str) -> Sequence[str]:
        """The addresses of the group's nodes; none by TLS, because routes have those without it."""
        group = self._groups.get(name)
        if group is None or group.broker.leader is None or self._by_tls:
            return ()
        return [one.address for one in group.broker.leader.nodes]
