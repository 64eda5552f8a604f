"""A replica group by the answers of its nodes: each knows the others, and some are away."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq._admin.replicas import _Answers
from trovemq._wire.replicas import MemberAddress, NodeAnswer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

MEMBERS = tuple(MemberAddress(node, f"{node}:1", f"{node}:2", is_voter=True) for node in "abc")
AWAY = TroveError(errors.BROKER_UNREACHABLE, "c:1: refused")


def answer(node: str, **changes: Any) -> NodeAnswer:
    values: dict[str, Any] = {
        "group": "g",
        "node": node,
        "cluster": "id",
        "role": "follower",
        "epoch": 64,
        "last_epoch": 64,
        "leader": "a",
        "end": 100,
        "flushed": 100,
        "commit": 90,
        "in_sync": ("a", "b"),
        "in_sync_version": (64, 2),
        "in_sync_min": 2,
        "members_version": 1,
        "members": MEMBERS,
        "copies": {},
        "lag_bytes": 0,
        "lag_ms": None,
        "problem": "",
        "ack": "replicated",
    }
    return NodeAnswer(**{**values, **changes})


def found(*nodes: NodeAnswer) -> _Answers:
    return _Answers({f"{one.node}:1": one for one in nodes}, {"c:1": AWAY})


LEADER = answer("a", role="leader", end=150, in_sync=("a", "b"), copies={"b": (100, 7, True)})


def test_the_leader_knows_the_lag_and_an_absent_node_has_its_error() -> None:
    group = found(LEADER, answer("b")).group("g")
    assert (group.leader, group.epoch, group.in_sync, group.in_sync_min) == ("a", 64, ("a", "b"), 2)
    nodes = {one.node: one for one in group.nodes}
    assert (nodes["a"].lag_bytes, nodes["a"].lag_ms) == (0, 0)
    assert (nodes["b"].lag_bytes, nodes["b"].lag_ms) == (50, 7)
    assert (nodes["c"].role, nodes["c"].is_reachable, nodes["c"].problem) == (
        "unknown",
        False,
        "c:1: refused",
    )


def test_an_elected_leader_has_a_lease() -> None:
    group = found(LEADER, answer("b")).group("g")
    assert (group.coordination, group.lease_left_ms) == ("manual", None)
    leader = answer("a", role="leader", coordination="etcd", lease_left_ms=2_100)
    group = found(leader, answer("b", coordination="etcd")).group("g")
    assert (group.coordination, group.lease_left_ms) == ("etcd", 2_100)


def test_without_a_leader_the_newest_set_is_shown_and_each_node_s_own_lag() -> None:
    later = answer("b", in_sync=("b", "c"), in_sync_version=(64, 3), leader="", lag_ms=7_000)
    group = found(answer("a", leader=""), later).group("g")
    assert (group.leader, group.in_sync) == (None, ("b", "c"))
    assert {one.lag_bytes for one in group.nodes} == {None}
    assert [one.lag_ms for one in group.nodes] == [None, 7_000, None]
    assert [one.commit for one in group.nodes] == [90, 90, None]


def test_of_two_leaders_the_one_of_the_higher_epoch_counts() -> None:
    former = answer("a", role="leader", epoch=64, in_sync=("a", "b", "c"))
    present = answer("b", role="opening", epoch=137, last_epoch=137, in_sync=("b", "c"))
    answers = found(former, present)
    assert answers.leader(None).node == "b"
    group = answers.group("g")
    assert (group.leader, group.epoch, group.in_sync) == ("b", 137, ("b", "c"))


def test_a_removed_or_new_node_that_answers_is_shown_as_no_voter() -> None:
    group = found(LEADER, answer("x", role="new", cluster="", members=(), members_version=0)).group("g")
    shown = {one.node: (one.role, one.is_voter) for one in group.nodes}
    assert shown["x"] == ("new", False)
    assert shown["b"] == ("unknown", True)


def test_a_name_in_two_groups_has_to_be_named_with_its_group() -> None:
    other = answer("a", group="h")
    answers = _Answers({"a:1": LEADER, "z:1": other}, {})
    with pytest.raises(TroveError) as ambiguous:
        answers.node("a", None)
    assert ambiguous.value.spec is errors.BROKER_AMBIGUOUS
    assert answers.address(answers.node("a", "h")) == "z:1"
    assert answers.group_of("b") is None, "both list it"
    with pytest.raises(TroveError) as missing:
        answers.node("y", None)
    assert missing.value.spec is errors.BROKER_NOT_FOUND


@pytest.mark.parametrize(
    ("answers", "node", "why"),
    [
        (found(LEADER), "c", "node c does not answer: c:1: refused"),
        (found(LEADER), "y", "no replica group has a node y, but a, b, c"),
        (_Answers({}, {}), "a", "nameservers know leaders only: connect to a node"),
    ],
)
def test_a_node_that_does_not_answer_is_distinct_from_a_wrong_name(
    answers: _Answers, node: str, why: str
) -> None:
    with pytest.raises(TroveError, match=why):
        answers.node(node, None)
