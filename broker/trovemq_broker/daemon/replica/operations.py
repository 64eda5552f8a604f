"""A node's part of the operations HTTP: `/leader`, `/replica`, and its figures in `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from trovemq_broker.replication.frames import Node
from trovemq_broker.replication.status import NodeStatus, Role
from trovemq_store.log.damage_counts import DamageCounts

Status = Callable[[], NodeStatus]
LIMIT: Final = re.compile(r"[0-9]{1,12}")


def node_routes(status: Status) -> tuple[Route, ...]:
    """`/leader`: 200 on the leader that serves alone. `/replica`: the state of the node; with
    `max_lag_ms=N` 503 where its readers lag by more, or by an unknown time."""

    async def leader(_request: Request) -> Response:
        found = status()
        serves = found.role is Role.LEADER
        return JSONResponse(
            {"leader": found.leader or None, "epoch": found.epoch}, status_code=200 if serves else 503
        )

    async def replica(request: Request) -> Response:
        found, limit = status(), request.query_params.get("max_lag_ms")
        if limit is None:
            return JSONResponse(shown(found))
        if not LIMIT.fullmatch(limit):
            return JSONResponse({"problem": "max_lag_ms is a number of milliseconds"}, status_code=400)
        return JSONResponse(shown(found), status_code=200 if _is_within(found, int(limit)) else 503)

    return Route("/leader", leader), Route("/replica", replica)


def _is_within(status: NodeStatus, max_lag_ms: int) -> bool:
    """A leader that serves has no lag. A follower's counts from a heartbeat of the leader: one that hears
    nothing lags more and more."""
    if status.role is Role.FOLLOWER:
        return status.lag_ms is not None and status.lag_ms <= max_lag_ms
    return status.role is Role.LEADER


def shown(status: NodeStatus) -> dict[str, Any]:
    """For JSON."""
    return {
        "group": status.group,
        "node": status.node,
        "role": status.role.value,
        "epoch": status.epoch,
        "promised": status.promised,
        "leader": status.leader or None,
        "end": status.end,
        "flushed": status.flushed,
        "commit": status.commit,
        "in_sync": [] if status.in_sync is None else status.in_sync.nodes,
        "in_sync_min": status.in_sync_min,
        "lag_bytes": status.lag_bytes,
        "lag_ms": status.lag_ms,
        "coordination": status.coordination,
        "lease_left_ms": status.lease_left_ms,
        "problem": status.problem or None,
    }


@dataclass(frozen=True, slots=True)
class RoleFigures:
    """`damage`: of the open store. `not_kept`: the nodes for which a leader keeps no log any more."""

    damage: DamageCounts
    not_kept: frozenset[Node] = frozenset()


class ReplicaCollector(Collector):
    """The figures of a node. A leader has those of its followers. `figures`: of the present role; None while
    there is none. `election`: the figures of one."""

    def __init__(
        self,
        status: Status,
        figures: Callable[[], RoleFigures | None],
        election: Collector | None = None,
    ) -> None:
        self._status = status
        self._figures = figures
        self._election = election

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        in_sync = 0 if status.in_sync is None else len(status.in_sync.copies)
        voters = sum(one.is_voter for one in status.members)
        for name, what, value in (
            ("epoch", "Epoch that the node leads or follows; 0: none.", status.epoch),
            ("is_leader", "1 on the node that leads its group and serves.", int(status.role is Role.LEADER)),
            ("in_sync_replicas", "Copies in the in-sync set, as the node knows it.", in_sync),
            (
                "in_sync_min",
                "Copies below which the in-sync set never shrinks.",
                min(status.in_sync_min, max(1, voters)),
            ),
            ("under_replicated", "Voters that are not in the in-sync set.", max(0, voters - in_sync)),
        ):
            figure = GaugeMetricFamily(f"trovemq_group_{name}", what, labels=("group",))
            figure.add_metric((status.group,), value)
            yield figure
        lag = GaugeMetricFamily(
            "trovemq_group_replica_lag_bytes",
            "Bytes of the leader's log that a copy lacks.",
            labels=("group", "node"),
        )
        seconds = GaugeMetricFamily(
            "trovemq_group_replica_lag_seconds",
            "How long ago a copy had all of the leader's log, as the leader, or the copy itself, sees it.",
            labels=("group", "node"),
        )
        if status.leads:
            for one in status.copies:
                lag.add_metric((status.group, one.node), max(0, status.end - one.end))
                seconds.add_metric((status.group, one.node), one.lag_ms / 1000)
        elif status.role is Role.FOLLOWER:
            lag.add_metric((status.group, status.node), status.lag_bytes)
            if status.lag_ms is not None:
                seconds.add_metric((status.group, status.node), status.lag_ms / 1000)
        yield lag
        yield seconds
        figures = self._figures()
        if figures is not None:
            yield from _of_damage(status.group, figures.damage)
            not_kept = GaugeMetricFamily(
                "trovemq_group_log_not_kept",
                "1 for a node that lags so far, or is away for so long, that the leader's retention does not"
                " wait for it.",
                labels=("group", "node"),
            )
            for node in sorted(figures.not_kept):
                not_kept.add_metric((status.group, node), 1)
            yield not_kept
        if self._election is not None:
            yield from self._election.collect()


def _of_damage(group: str, damage: DamageCounts) -> Iterator[Metric]:
    places = GaugeMetricFamily(
        "trovemq_group_damaged_places",
        "Damaged places of the node's log that no other node's copy has repaired.",
        labels=("group",),
    )
    places.add_metric((group,), damage.present[0])
    yield places
    for name, what, value in (
        ("repaired_places", "Damaged places repaired from another node.", damage.repaired_ranges),
        ("repaired_bytes", "Their bytes, as far as sizes were known.", damage.repaired_bytes),
    ):
        counter = CounterMetricFamily(f"trovemq_group_{name}", what, labels=("group",))
        counter.add_metric((group,), value)
        yield counter
