"""A node without a group: it founds one only beside nodes that are all new, and joins only when empty."""

from __future__ import annotations

from dataclasses import replace as with_settings
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_broker.daemon.replica import new_node
from trovemq_broker.daemon.replica.finding import Finding
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.status import NodeStatus, Role
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Member, Members, Membership
from trovemq_store.replica.replica_file import ReplicaFile

NODES = tuple(
    f"{node}@127.0.0.1:{port}/127.0.0.1:{port + 100}" for node, port in zip("abc", (1, 2, 3), strict=True)
)
SETTINGS = BrokerSettings(
    coordination="manual", name="g", node_name="a", replication_listen="127.0.0.1:101", replica_nodes=NODES
)


class Node:
    """An open node without a group; its log ends at `end`."""

    def __init__(self, end: int = 0) -> None:
        self.log = SimpleNamespace(begin=LOG_ORIGIN, end=PhysicalOffset(end))
        self.file = ReplicaFile.open(MemoryFileSystem())
        self.state = ReplicaState(0, Epochs(), LOG_ORIGIN, None)
        self.is_empty = not end
        self.directory = 7
        self.place: Membership | None = None

    def enter_group(self, place: Membership) -> None:
        self.place = place


def new(node: str) -> NodeStatus:
    return NodeStatus(group="g", node=node)


def leader(node: str, members: str = "abc", group: str = "g") -> NodeStatus:
    listed = tuple(Member(one, f"{one}:1", f"{one}:2") for one in members)
    return NodeStatus(
        group=group,
        node=node,
        cluster="id",
        role=Role.LEADER,
        epoch=64,
        listed=replace(Members.first(listed), version=3),
        in_sync_min=2,
    )


def step(node: Node, *others: NodeStatus, settings: BrokerSettings = SETTINGS) -> str:
    calls: Any = None
    finding = Finding(settings, calls, lambda: None, lambda: None)
    finding.statuses = {one.node: one for one in others}
    away = TroveError(errors.BROKER_UNREACHABLE, "refused")
    finding.failures = {one: away for one in "abc" if one not in finding.statuses}
    opened: Any = node
    return new_node.step(opened, settings, finding)


def test_the_first_node_founds_the_group_when_all_are_new() -> None:
    node = Node()
    assert step(node, new("b"), new("c")) == ""
    assert node.place is not None
    assert (node.place.voters, node.place.leads, node.place.in_sync_needed) == (["a", "b", "c"], True, 2)
    assert node.place.in_sync is not None
    assert node.place.in_sync.nodes == ["a"]


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ((new("b"),), "waits for c"),
        ((), "waits for b, c"),
        # The first node has lost its disk, and the others have not been promoted yet.
        (
            (new("b"), NodeStatus(group="g", node="c", cluster="id", role=Role.FOLLOWER)),
            "c are members of one",
        ),
    ],
)
def test_no_group_is_founded_while_a_node_is_away_or_has_one(
    others: tuple[NodeStatus, ...], why: str
) -> None:
    node = Node()
    assert why in step(node, *others)
    assert node.place is None


def test_another_node_waits_for_the_founder() -> None:
    node = Node()
    assert (
        step(node, new("a"), new("c"), settings=with_settings(SETTINGS, node_name="b"))
        == "node a founds the group"
    )
    assert node.place is None


def test_a_group_of_one_and_a_log_with_messages_need_a_command() -> None:
    alone = with_settings(SETTINGS, replica_nodes=NODES[:1])
    assert "trovemq cluster init" in step(Node(), settings=alone)
    assert "no group yet" in step(Node(), settings=with_settings(SETTINGS, replica_nodes=()))
    assert "has messages" in step(Node(500), new("b"), new("c"))


def test_an_empty_node_joins_the_group_that_lists_it() -> None:
    node = Node()
    assert step(node, leader("b")) == ""
    assert node.place is not None
    assert (node.place.cluster, node.place.listed.version, node.place.in_sync, node.place.leads) == (
        "id",
        3,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("node", "found", "why"),
    [
        (Node(500), leader("b"), "needs an empty one"),
        (Node(), leader("b", "bc"), "trovemq cluster add a"),
        (Node(), leader("b", group="h"), "is of group h"),
    ],
)
def test_a_node_that_may_not_join_says_why(node: Node, found: NodeStatus, why: str) -> None:
    assert why in step(node, found)
    assert node.place is None


def test_a_store_with_messages_gets_its_first_epoch_at_its_beginning() -> None:
    node = Node(500)
    opened: Any = node
    new_node.found(opened, SETTINGS, (Member("a", "a:1", "a:2"),))
    assert node.state.epochs == Epochs.of([(1, 0)])
    assert node.file.promised_epoch == node.state.promised == 1
    assert node.place is not None
    assert node.place.in_sync_needed == 1, "a group of one"
