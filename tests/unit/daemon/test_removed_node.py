"""A node that was removed while it was cut off: the first member that it reaches has the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.daemon.test_gathering import ABC, Nodes, place, status
from trovemq_broker.daemon.replica.finding import Finding
from trovemq_broker.replication.status import NodeStatus, PromotionAsked, Role
from trovemq_proto import errors
from trovemq_store.replica.membership import Members

LATER = replace(ABC, version=128 << 16, nodes=(ABC.nodes[0], ABC.nodes[2]), removed=("s of b",))
FENCED = PromotionAsked("its power is off", 1 << 30)


def here(**changes: Any) -> Any:
    """Node b's place."""
    return place("b", store_id="s of b", **changes)


def other(listed: Members, role: Role = Role.FOLLOWER, node: str = "c", **fields: Any) -> NodeStatus:
    return status(node, listed=listed, role=role, **fields)


def removed_by(*others: NodeStatus, where: Any = None) -> str | None:
    unused: Any = None
    finding = Finding(unused, unused, lambda: None, lambda: None)
    found: Mapping[str, NodeStatus] = {one.node: one for one in others}
    finding.statuses = found
    return finding.removed_by(here() if where is None else where)


def test_any_member_with_a_later_list_is_enough() -> None:
    assert removed_by() is None
    assert removed_by(other(ABC)) is None
    assert removed_by(other(ABC, node="a"), other(LATER)) == "c"
    without_its_id = replace(LATER, removed=())
    assert removed_by(other(without_its_id)) == "c", "the list names nodes, too"
    assert removed_by(other(LATER, cluster="another")) is None
    assert removed_by(with_fields(other(LATER), role=Role.NEW, cluster="", listed=Members(version=0))) is None


def test_its_own_list_is_enough_once_it_is_the_later_one() -> None:
    assert removed_by(where=here(listed=LATER)) == "b"


def test_a_store_of_the_same_name_that_was_added_later_is_a_member() -> None:
    again = replace(ABC, version=128 << 16, removed=("s of b",))
    assert removed_by(other(again)) == "c"
    assert removed_by(other(again), where=place("b", store_id="a new one")) is None


def test_a_leader_is_enough_although_it_has_led_meanwhile() -> None:
    """Its list has the version of a higher epoch."""
    led = here(listed=replace(ABC, version=640 << 16))
    assert removed_by(other(LATER, Role.LEADER), where=led) == "c"
    assert removed_by(other(LATER), where=led) is None, "a list that is not later may never have counted"
    before_it_was_added = replace(LATER, removed=())
    assert removed_by(other(before_it_was_added, Role.LEADER), where=led) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("asked", [PromotionAsked(), FENCED])
async def test_it_is_not_promoted(asked: PromotionAsked) -> None:
    own = status("b", store_id="s of b")
    for one, where in (
        (other(LATER), here()),
        (other(LATER, Role.LEADER), here(listed=replace(ABC, version=640 << 16))),
    ):
        nodes = Nodes(one)
        message = await nodes.refused(errors.NOT_A_MEMBER, own, asked, where)
        assert "cluster add b" in message
        assert nodes.asked == [], "nothing is promised"


@pytest.mark.asyncio
async def test_where_no_member_answers_an_operator_decides() -> None:
    found = await Nodes().run(status("b", store_id="s of b"), FENCED, here())
    assert found.is_forced
