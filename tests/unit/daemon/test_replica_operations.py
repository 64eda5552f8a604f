"""The operations HTTP of a node: who leads, and its figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from trovemq_broker.daemon.replica.operations import ReplicaCollector, RoleFigures, node_routes
from trovemq_broker.replication.frames import Identity, InSyncSet, Offset
from trovemq_broker.replication.status import CopyStatus, NodeStatus, Role
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.log.damage_counts import DamageCounts
from trovemq_store.replica.membership import Member, Members

IN_SYNC = InSyncSet(64, 2, frozenset(Identity(node, "s", 1) for node in "ab"))
COPY = CopyStatus(node="b", end=Offset(90), flushed=Offset(80), lag_ms=250, is_connected=True)
LEADER = NodeStatus(
    group="g",
    node="a",
    cluster="id",
    role=Role.LEADER,
    epoch=64,
    leader="a",
    end=100,
    in_sync=IN_SYNC,
    in_sync_min=2,
    listed=Members.first(Member(node, f"{node}:1", f"{node}:2") for node in "abc"),
    copies=(COPY,),
)
FOLLOWER = replace(LEADER, node="b", role=Role.FOLLOWER, copies=(), lag_bytes=10)


async def got(status: NodeStatus, target: str) -> Response:
    """The answer to that request."""
    path, _, query = target.partition("?")
    (route,) = [one for one in node_routes(lambda: status) if one.path == path]
    scope = {"type": "http", "query_string": query.encode()}
    found: Response = await route.endpoint(Request(scope))
    return found


@pytest.mark.parametrize(
    ("status", "code"),
    [(LEADER, 200), (replace(LEADER, role=Role.OPENING), 503), (FOLLOWER, 503)],
)
@pytest.mark.asyncio
async def test_only_the_leader_that_serves_answers_leader_with_200(status: NodeStatus, code: int) -> None:
    found = await got(status, "/leader")
    assert (found.status_code, json.loads(bytes(found.body))) == (code, {"leader": "a", "epoch": 64})
    shown = json.loads(bytes((await got(status, "/replica")).body))
    assert (shown["role"], shown["in_sync"]) == (status.role.value, ["a", "b"])


@pytest.mark.parametrize(
    ("status", "query", "code"),
    [
        (FOLLOWER, "", 200),
        (replace(FOLLOWER, lag_ms=500), "max_lag_ms=500", 200),
        (replace(FOLLOWER, lag_ms=501), "max_lag_ms=500", 503),
        (FOLLOWER, "max_lag_ms=500", 503),  # it has not had all since it began to follow
        (replace(FOLLOWER, role=Role.NEW, lag_ms=0), "max_lag_ms=500", 503),
        (LEADER, "max_lag_ms=0", 200),
        (replace(LEADER, role=Role.OPENING), "max_lag_ms=500", 503),
        (LEADER, "max_lag_ms=-1", 400),
        (LEADER, "max_lag_ms=", 400),
        (LEADER, "max_lag_ms=%D9%A3", 400),
    ],
)
@pytest.mark.asyncio
async def test_a_node_whose_readers_lag_was_healthy_for_a_balancer(
    status: NodeStatus, query: str, code: int
) -> None:
    found = await got(replace(status, coordination="etcd", lease_left_ms=2_300), f"/replica?{query}")
    assert found.status_code == code
    if code != 400:
        shown = json.loads(bytes(found.body))
        assert (shown["lag_ms"], shown["lag_bytes"]) == (status.lag_ms, status.lag_bytes)
        assert (shown["leader"], shown["epoch"]) == ("a", 64)
        assert (shown["coordination"], shown["lease_left_ms"]) == ("etcd", 2_300)


def figures(status: NodeStatus, role: RoleFigures | None = None) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ReplicaCollector(lambda: status, lambda: role or RoleFigures(DamageCounts())))
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    assert {sample.labels.pop("group") for sample in samples} == {"g"}
    return {f"{sample.name}{sample.labels or ''}": sample.value for sample in samples}


def test_a_leader_shows_the_lag_of_its_copies() -> None:
    found = figures(LEADER)
    assert (found["trovemq_group_epoch"], found["trovemq_group_is_leader"]) == (64, 1)
    assert (found["trovemq_group_in_sync_replicas"], found["trovemq_group_under_replicated"]) == (2, 1)
    assert found["trovemq_group_replica_lag_bytes{'node': 'b'}"] == 10
    assert found["trovemq_group_replica_lag_seconds{'node': 'b'}"] == 0.25


def test_a_follower_shows_its_own_lag() -> None:
    found = figures(FOLLOWER)
    assert found["trovemq_group_is_leader"] == 0
    assert found["trovemq_group_replica_lag_bytes{'node': 'b'}"] == 10


def test_a_node_shows_its_damage_and_repairs_and_for_whom_it_keeps_no_log() -> None:
    damage = DamageCounts()
    for place in (0, 100, 200):
        damage.met(PhysicalOffset(place), 50, "damaged")
    damage.repaired(PhysicalOffset(90), PhysicalOffset(150))
    found = figures(LEADER, RoleFigures(damage, frozenset({"c"})))
    assert found["trovemq_group_damaged_places"] == 2
    assert (found["trovemq_group_repaired_places_total"], found["trovemq_group_repaired_bytes_total"]) == (
        1,
        50,
    )
    assert found["trovemq_group_log_not_kept{'node': 'c'}"] == 1
    assert damage.present == (2, 100)
    damage.forget(PhysicalOffset(0))
    assert (set(damage.places), damage.present) == ({200}, (1, 50)), "the log begins after it"
