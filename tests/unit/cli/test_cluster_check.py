"""cluster check: the judgement on a replica group; cluster watch: its changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq.cli.cluster_check import findings
from trovemq.cli.cluster_failover import changed
from trovemq.models.replica import ReplicaGroup, ReplicaNode


def node(name: str, **changes: Any) -> ReplicaNode:
    values: dict[str, Any] = {"role": "follower", "epoch": 64, "end": 100, "lag_bytes": 0, "lag_ms": 0}
    values |= {"clock_ahead_ms": 3, "etcd_members": 3, "etcd_version": "3.5.12", "sealing_key_id": "k"}
    return ReplicaNode(node=name, address=f"{name}:1", is_voter=True, **{**values, **changes})


def group(**changes: Any) -> ReplicaGroup:
    values: dict[str, Any] = {
        "group": "g",
        "leader": "a",
        "epoch": 64,
        "in_sync": ("a", "b", "c"),
        "in_sync_min": 2,
        "ack": "replicated",
        "nodes": (node("a", role="leader"), node("b"), node("c")),
        "coordination": "etcd",
        "lease_left_ms": 2_000,
    }
    return ReplicaGroup(**{**values, **changes})


def with_c(**changes: Any) -> ReplicaGroup:
    return group(nodes=(node("a", role="leader"), node("b"), node("c", **changes)))


def test_a_healthy_group_has_no_findings() -> None:
    assert findings(group()) == []
    assert findings(replace(group(), coordination="manual", lease_left_ms=None)) == []


@pytest.mark.parametrize(
    ("state", "check", "text"),
    [
        (group(leader=None, lease_left_ms=None), "leader", "no node leads"),
        (group(lease_left_ms=None), "leader", "without a lease"),
        (group(in_sync=("a", "b")), "copies", "c is not in sync"),
        (group(in_sync=("a",)), "copies", "no message is acknowledged"),
        (with_c(lag_ms=12_000, lag_bytes=7), "lag", "lacks 7 bytes"),
        (with_c(lag_ms=27_000, lag_bytes=None), "lag", "has heard from no leader for 27 s"),
        (with_c(role="unknown", end=None, problem="refused"), "nodes", "refused, at c:1"),
        (with_c(role="unknown", end=None, problem="c:1: refused"), "nodes", "c:1: refused"),
        (with_c(problem="it waits"), "nodes", "it waits"),
        (with_c(sealing_key_id="other"), "keys", "c has another sealing key"),
        (with_c(clock_ahead_ms=-600), "clocks", "c and a are 603 ms apart"),
        (with_c(etcd_problem="timed out"), "etcd", "does not answer: timed out"),
        (with_c(etcd_problem="COORDINATION_ILLEGAL: old"), "etcd", "COORDINATION_ILLEGAL: old"),
        (group(nodes=(node("a", role="leader", etcd_members=4),)), "etcd", "4 members"),
    ],
)
def test_each_problem_is_named_with_what_to_do(state: ReplicaGroup, check: str, text: str) -> None:
    (found,) = [one for one in findings(state) if one.check == check]
    assert text in found.what
    assert found.to_do
    assert not found.note


def test_a_trial_is_noted_and_no_problem() -> None:
    one = node("a", role="leader", etcd_members=1, etcd_version="3.4.23")
    state = group(nodes=(one, node("b", etcd_members=1, etcd_version="3.4.23")), in_sync=("a", "b"))
    assert [(found.check, found.note) for found in findings(state)] == [
        ("copies", True),
        ("etcd", True),
        ("etcd", True),
    ]


def test_a_pause_of_the_failover_is_noted() -> None:
    (found,) = findings(with_c(failover_paused=True))
    assert (found.check, found.note) == ("etcd", True)
    assert "the failover is paused" in found.what
    assert "pause-failover g --for 0" in found.to_do


def test_a_learner_is_noted() -> None:
    learner = replace(node("d"), is_voter=False)
    (found,) = findings(group(nodes=(*group().nodes, learner)))
    assert (found.check, found.note) == ("copies", True)
    assert "d is a learner" in found.what
    (found,) = findings(group(nodes=(*group().nodes, replace(learner, is_joining=True))))
    assert (found.check, found.note) == ("copies", True)
    assert "d joins" in found.what


def test_only_changes_are_printed_and_no_older_epoch() -> None:
    known: dict[str, Any] = {}
    assert len(list(changed(known, [group()]))) == 1
    assert list(changed(known, [group()])) == []
    assert list(changed(known, [group(epoch=63, leader="b")])) == []
    (later,) = changed(known, [group(epoch=128, leader="b", in_sync=("b", "c"))])
    assert (later.leader, later.epoch, later.in_sync) == ("b", 128, ("b", "c"))
    assert len(list(changed(known, [group(epoch=128, leader=None, in_sync=("b", "c"))]))) == 1


class Replicas:
    """`asked`: the calls."""

    def __init__(self, state: ReplicaGroup) -> None:
        self.state = state
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def groups(self) -> list[ReplicaGroup]:
        return [self.state]

    async def elect_unclean(self, name: str, **fields: Any) -> Any:
        self.asked.append((name, fields))
        raise AssertionError("it is not asked")


@pytest.fixture
def replicas(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Replicas:
    found = Replicas(group())
    monkeypatch.setattr(client, "replicas", found, raising=False)
    return found


def test_the_exit_code_says_whether_all_is_well(run: Any, replicas: Replicas) -> None:
    assert run("--json", "cluster", "check").code == 0
    replicas.state = group(in_sync=("a", "b"))
    ran = run("--json", "cluster", "check")
    assert (ran.code, ran.objects[0]["check"], ran.objects[0]["kind"]) == (1, "copies", "problem")
    assert run("cluster", "check", "--group", "other").code == 1, "it does not answer"


def test_a_watch_prints_each_group_once(run: Any, replicas: Replicas) -> None:
    ran = run("--json", "cluster", "watch", "--seconds", "0")
    assert [(one["group"], one["leader"], one["in_sync"]) for one in ran.objects] == [
        ("g", "a", ["a", "b", "c"])
    ]
    assert b"leader a, epoch 64, in sync a, b, c" in run("cluster", "watch", "--seconds", "0").out


def test_an_election_out_of_sync_needs_its_word_and_a_yes(run: Any, replicas: Replicas) -> None:
    assert run("cluster", "elect", "c", "--yes").code == 2
    assert run("cluster", "elect", "c", "--unclean").code != 0
    assert run("cluster", "recover", "c", "--accept-loss", "5", "--yes").code == 2
    assert replicas.asked == []
