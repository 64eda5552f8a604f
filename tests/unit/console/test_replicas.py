"""The page of the replica groups."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.support.console_cluster import FakeCluster, console
from trovemq import ReplicaGroup, ReplicaNode, TroveError, errors


def node(name: str, role: str, **fields: object) -> ReplicaNode:
    made = ReplicaNode(
        node=name,
        role=role,
        address=f"{name}:8081",
        is_voter=True,
        epoch=64,
        end=4_096,
        flushed=4_096,
        commit=4_000,
        lag_bytes=0,
        lag_ms=0,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


LEADER = node("a", "leader")
FOLLOWER = node("b", "follower", end=3_072, lag_bytes=1_024, lag_ms=1_500)
GROUP = ReplicaGroup(
    group="orders",
    leader="a",
    epoch=64,
    in_sync=("a", "b"),
    in_sync_min=2,
    ack="replicated",
    nodes=(LEADER, FOLLOWER),
)


def shown(group: ReplicaGroup) -> str:
    cluster = FakeCluster()
    cluster.replicas.known = [group]
    with console(cluster) as browser:
        return browser.get("/replicas")


def cells(page: str) -> list[list[str]]:
    """The texts of the table, row by row."""
    rows = re.findall(r"<tr><td>(.*)</td></tr>", page)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.split("</td><td[^>]*>", row)] for row in rows]


def test_each_node_has_its_role_its_copy_and_its_lag() -> None:
    gone = node(
        "c", "unknown", epoch=0, end=None, commit=None, lag_bytes=None, lag_ms=None, problem="c:8081: refused"
    )
    learner = node("d", "follower", is_voter=False)
    joining = node("e", "follower", is_voter=False, is_joining=True)
    page = shown(replace(GROUP, nodes=(LEADER, FOLLOWER, gone, learner, joining)))
    assert "<strong>a</strong> leads, epoch 64. In sync: a, b; at least 2." in page
    assert cells(page) == [
        ["a", "leader", "in sync", "64", "4,096", "4,000", "0 B", "0 ms", "a:8081"],
        ["b", "follower", "in sync", "64", "3,072", "4,000", "1.0 KiB", "1 s", "b:8081"],
        ["c", "unknown", "not in sync", "—", "—", "—", "—", "—", "c:8081"],
        ["d", "follower", "learner", "64", "4,096", "4,000", "0 B", "0 ms", "d:8081"],
        ["e", "follower", "joining", "64", "4,096", "4,000", "0 B", "0 ms", "e:8081"],
    ]
    assert "Not in sync: c." in page
    assert "</span> c:8081: refused</div>" in page


AWAY = node("b", "unknown", end=None, commit=None, lag_bytes=None, lag_ms=None)


@pytest.mark.parametrize(
    ("group", "level", "text"),
    [
        (GROUP, "", ""),
        (replace(GROUP, leader=None), "bad", "No node leads"),
        (replace(GROUP, in_sync=("a",)), "bad", "Fewer copies are in sync than the group needs, 2"),
        (replace(GROUP, in_sync=("a",), in_sync_min=1), "warn", "Not in sync: b."),
        (replace(GROUP, nodes=(LEADER, AWAY)), "warn", "No answer from b"),
        (replace(GROUP, in_sync=("a",), nodes=(LEADER,)), "", ""),
    ],
)
def test_the_fault_of_a_group_is_said(group: ReplicaGroup, level: str, text: str) -> None:
    page = shown(group)
    notices = re.findall(r'class="notice (\w+)"><span[^>]*>\w+</span> ([^<]*)<', page)
    assert [one[0] for one in notices] == [level] * bool(level)
    assert all(one[1].startswith(text) for one in notices)


def test_a_cluster_of_single_brokers_has_no_groups() -> None:
    with console() as browser:
        assert "No broker is a node of a replica group" in browser.get("/replicas")


def test_a_user_who_may_not_see_the_groups_is_said() -> None:
    cluster = FakeCluster()
    cluster.replicas.refusal = TroveError(errors.ACCESS_DENIED, "cluster: Get is missing")
    with console(cluster) as browser:
        assert browser.status("/replicas") == 403
