"""The promises for a new leadership: refused before the first one where it could not succeed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_broker.daemon.replica.gathering import Gathering, Leadership, may_lead_alone
from trovemq_broker.replication.frames import Identity, InSyncSet, Offset
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import NodeStatus, PromotionAsked, Role
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Member, Membership

pytestmark = pytest.mark.asyncio

MEMBERS = tuple(Member(node, f"{node}:1", f"{node}:2") for node in "abc")
EPOCHS = Epochs.of([(64, 0)])


def in_sync(nodes: str, version: int = 1) -> InSyncSet:
    return InSyncSet(64, version, frozenset(Identity(node, "s", 1) for node in nodes))


def place(me: str = "b", **changes: Any) -> Membership:
    made = Membership(
        cluster="c", group="g", node=me, store_id="s", in_sync_min=2, members=MEMBERS, in_sync=in_sync("abc")
    )
    return replace(made, **changes)


def status(node: str, **changes: Any) -> NodeStatus:
    values: dict[str, Any] = {
        "group": "g",
        "node": node,
        "cluster": "c",
        "role": Role.FOLLOWER,
        "last_epoch": 64,
        "promised": 64,
        "end": 100,
        "in_sync": in_sync("abc"),
        "ack": "replicated",
    }
    return NodeStatus(**{**values, **changes})


class Nodes:
    """The other nodes; `promised` is called for each promise, in order."""

    def __init__(self, *statuses: NodeStatus, fails: str = "") -> None:
        self.statuses = {one.node: one for one in statuses}
        self.asked: list[str] = []
        self._fails = fails

    def answer(self, one: NodeStatus, epoch: int) -> Promised:
        self.asked.append(one.node)
        if one.node in self._fails:
            raise TroveError(errors.STORE_FAILED, f"node {one.node} has no disk")
        return Promised(Identity(one.node, "s", 1), epoch, EPOCHS, Offset(one.end), one.in_sync)

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        return self.answer(self.statuses[member.node], asked.epoch)

    async def run(
        self, own: NodeStatus, asked: PromotionAsked | None = None, where: Membership | None = None
    ) -> Leadership:
        async def promise_own(ask: PromiseAsked) -> Promised:
            return self.answer(own, ask.epoch)

        calls: Any = self
        gathering = Gathering(where or place(own.node), own, calls, promise_own)
        return await gathering.run(asked or PromotionAsked(), self.statuses)

    async def refused(self, spec: ErrorSpec, *arguments: Any) -> str:
        with pytest.raises(TroveError) as error:
            await self.run(*arguments)
        assert error.value.spec is spec
        return error.value.message


async def test_two_of_three_are_enough_and_the_epoch_is_above_all_promises() -> None:
    nodes = Nodes(status("c", promised=640))
    found = await nodes.run(status("b"))
    assert nodes.asked == ["b", "c"], "this node promises first"
    assert (found.promoted.promised, found.promoted.away, found.is_forced) == (("b", "c"), ("a",), False)
    assert found.epoch == 64 * 11 + 8 + 1


async def test_with_one_of_three_nothing_is_promised() -> None:
    nodes = Nodes()
    message = await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))
    assert "1 of the 2 voters" in message
    assert "start a or c" in message
    assert nodes.asked == []


async def test_a_new_node_or_one_of_another_group_does_not_count() -> None:
    new, other = status("a", role=Role.NEW, cluster="", in_sync=None), status("c", cluster="other")
    nodes = Nodes(new, other)
    await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))
    assert nodes.asked == []


async def test_a_node_with_an_older_set_names_the_one_to_promote() -> None:
    nodes = Nodes(status("c", in_sync=in_sync("ac", 2)))
    message = await nodes.refused(errors.REPLICA_STATE_ILLEGAL, status("b"))
    assert "that of a, c" in message
    assert nodes.asked == [], "nobody has to step down for a promotion that cannot succeed"


async def test_unacknowledged_records_of_others_are_cut() -> None:
    found = await Nodes(status("c", end=150)).run(status("b"))
    assert found.promoted.cut_bytes == 50


async def test_acknowledged_by_the_leader_alone_they_need_consent() -> None:
    nodes, own = Nodes(status("c", end=150, ack="leader")), status("b", ack="leader")
    assert "lacks 50 bytes" in await nodes.refused(errors.REPLICA_STATE_ILLEGAL, own)
    await nodes.refused(errors.REPLICA_STATE_ILLEGAL, own, PromotionAsked("power off", 49))
    found = await nodes.run(own, PromotionAsked("power off", 50))
    assert not found.is_forced, "enough have promised"


async def test_a_fenced_promotion_leads_alone() -> None:
    found = await Nodes().run(status("b"), PromotionAsked("the rack is gone", 0))
    assert (found.is_forced, found.fenced) == (True, "the rack is gone")
    assert found.promoted.promised == ("b",)


async def test_a_promise_that_fails_ends_the_promotion() -> None:
    nodes = Nodes(status("c"), fails="c")
    message = await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))
    assert "node c has no disk" in message


async def test_a_learner_is_not_promoted() -> None:
    learner = (*MEMBERS[:1], MEMBERS[1]._replace(is_voter=False), MEMBERS[2])
    await Nodes(status("c")).refused(errors.NOT_A_MEMBER, status("b"), None, place(members=learner))


async def test_a_leader_that_was_alone_in_the_set_leads_again() -> None:
    alone = place("a", in_sync=in_sync("a"))
    assert not may_lead_alone(place("a"), []), "it was not alone"
    assert not may_lead_alone(alone, []), "b and c may have a set that it had proposed"
    without = [status(node, in_sync=None) for node in "bc"]
    assert may_lead_alone(alone, without)
    assert not may_lead_alone(alone, without[:1])
    later = status("c", in_sync=in_sync("ac", 2))
    assert not may_lead_alone(alone, [without[0], later])
    assert may_lead_alone(replace(alone, in_sync_min=1), []), "each choice needs its own promise"
    assert may_lead_alone(replace(alone, members=MEMBERS[:1]), [])
