"""The promises for a new leadership: refused before the first one where it could not succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_fields
from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_broker.daemon.replica.gathering import Gathering, Leadership, Recovered, may_lead_alone
from trovemq_broker.replication.frames import Identity, InSyncSet, Offset
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import NodeStatus, PromotionAsked, Role
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Member, Members, Membership

pytestmark = pytest.mark.asyncio


def listed(nodes: str) -> Members:
    return Members.first(Member(node, f"{node}:1", f"{node}:2") for node in nodes)


ABC = listed("abc")
EPOCHS = Epochs.of([(64, 0)])


def in_sync(nodes: str, version: int = 1) -> InSyncSet:
    return InSyncSet(64, version, frozenset(Identity(node, "s", 1) for node in nodes))


def place(me: str = "b", **changes: Any) -> Membership:
    made = Membership(
        cluster="c", group="g", node=me, store_id="s", in_sync_min=2, listed=ABC, in_sync=in_sync("abc")
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
        "listed": ABC,
        "store_id": "s",
        "incarnation": 1,
    }
    return NodeStatus(**{**values, **changes})


class Nodes:
    """The other nodes. `before`: changes before a promise, by its number."""

    def __init__(self, *statuses: NodeStatus, fails: str = "") -> None:
        self.statuses = {one.node: one for one in statuses}
        self.now = dict(self.statuses)
        self.asked: list[str] = []
        self.before: dict[int, Callable[[], None]] = {}
        self.epochs: dict[str, Epochs] = {}
        self._fails = fails

    def change(self, node: str, **fields: Any) -> None:
        self.now[node] = with_fields(self.now[node], **fields)

    def answer(self, node: str, epoch: int) -> Promised:
        self.before.get(len(self.asked) + 1, lambda: None)()
        one = self.now[node]
        self.asked.append(one.node)
        if one.node in self._fails:
            raise TroveError(errors.STORE_FAILED, f"node {one.node} has no disk")
        epochs = self.epochs.get(node, EPOCHS)
        return Promised(one.identity, epoch, epochs, Offset(one.end), one.in_sync, one.listed)

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        return self.answer(member.node, asked.epoch)

    async def recovered(self, own: NodeStatus, asked: PromotionAsked | None = None) -> Recovered:
        """By an etcd that has nothing of the group."""
        self.now[own.node] = own

        async def promise_own(ask: PromiseAsked) -> Promised:
            return self.answer(own.node, ask.epoch)

        calls: Any = self
        gathering = Gathering(place(own.node), own, calls, promise_own)
        return await gathering.recover(asked or PromotionAsked(how="recover"), self.statuses)

    async def run(
        self, own: NodeStatus, asked: PromotionAsked | None = None, where: Membership | None = None
    ) -> Leadership:
        self.now[own.node] = own

        async def promise_own(ask: PromiseAsked) -> Promised:
            return self.answer(own.node, ask.epoch)

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
    assert nodes.asked == ["b", "c", "b", "c"], "this node promises first, and all are asked twice"
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
    as_learner = ABC.nodes[1]._replace(is_voter=False, place=-1)
    learner = replace(ABC, nodes=(ABC.nodes[0], as_learner, ABC.nodes[2]))
    await Nodes(status("c")).refused(errors.NOT_A_MEMBER, status("b"), None, place(listed=learner))


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
    assert may_lead_alone(replace(alone, listed=listed("a")), [])
    changed = status("c", in_sync=None, listed=replace(ABC, version=2))
    assert not may_lead_alone(alone, [without[0], changed]), "another one has led"


# --- changes of the members -------------------------------------------------------------------------------
def after_changes() -> tuple[Members, Members]:
    """The lists of leader a without c, and then with aa as a voter."""
    group = MemberChanges(ABC, 64, "a")
    assert group.confirm({}, [])
    without_c = group.remove("c", ["s"], [])
    assert group.confirm({}, [])
    group.add(Member("aa", "aa:1", "aa:2"))
    assert group.confirm({}, [])
    return without_c, group.make_voter("aa", "s9")


async def test_two_nodes_with_different_lists_chose_one_epoch() -> None:
    """By sorted names, aa has b's place in the list after it."""
    _, later = after_changes()
    own = status("aa", listed=later, store_id="s9", in_sync=None)
    older = await Nodes(status("c")).run(status("b"))
    newer = await Nodes(status("a", listed=later), status("b", listed=later)).run(
        own, PromotionAsked("off", 0), place("aa", listed=later, store_id="s9")
    )
    assert (older.epoch % 64, newer.epoch % 64) == (8 + 1, 3 * 8 + 3)


def with_d(**changes: Any) -> Members:
    """With d as a voter, a list that may not count yet."""
    d = Member("d", "d:1", "d:2", is_voter=True, place=3, store_id="s4")
    return replace(replace(ABC, version=64 << 16, nodes=(*ABC.nodes, d)), newest="d", last_place=3, **changes)


async def test_the_newest_list_of_a_status_says_who_is_asked() -> None:
    d = status("d", listed=with_d(), store_id="s4", in_sync=None)
    nodes = Nodes(d, status("c"))
    found = await nodes.run(status("b"))
    assert nodes.asked == ["b", "c", "d"] * 2
    assert found.listed == with_d(), "the leader takes it"
    assert found.promoted.away == ("a",)
    other = Nodes(with_fields(d, store_id="s5"), status("c"))
    await other.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))


async def test_a_list_that_came_before_the_promise_counted_for_nothing() -> None:
    """The statuses were asked before a leader added a voter, the promises after: two of four are too few."""
    nodes = Nodes(status("c"))
    nodes.before[2] = lambda: nodes.change("c", listed=with_d())
    message = await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))
    assert "2 of 3 nodes" in message
    assert nodes.asked == ["b", "c"] * 3, "all voters of the later list are asked twice"
    nodes = Nodes(status("a"), status("c"))
    nodes.before[2] = lambda: nodes.change("c", listed=with_d())
    found = await nodes.run(status("b"))
    assert (found.listed, found.promoted.promised) == (with_d(), ("a", "b", "c"))


async def test_a_disk_that_was_replaced_between_the_promises_counted() -> None:
    """With its promise of this epoch the former leader may have found it again, and counted it."""
    nodes = Nodes(status("c"))
    nodes.before[4] = lambda: nodes.change("c", store_id="s2", in_sync=in_sync("bc", 2))
    assert "1 of 2 nodes" in await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))


async def test_a_removed_node_or_store_gathered_promises() -> None:
    without_b, _ = after_changes()
    without_b = replace(without_b, nodes=(ABC.nodes[0], ABC.nodes[2]))
    nodes = Nodes(status("c", listed=without_b))
    assert "was removed" in await nodes.refused(errors.NOT_A_MEMBER, status("b"))
    assert nodes.asked == []
    again = replace(ABC, version=64 << 16, removed=("s of b",))
    nodes = Nodes(status("c", listed=again))
    own = status("b", store_id="s of b")
    assert "was removed" in await nodes.refused(errors.NOT_A_MEMBER, own, None, place(store_id="s of b"))
    nodes = Nodes(status("c", listed=again, store_id="s of b"))
    assert "1 of the 2 voters" in await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))
    nodes = Nodes(status("c"))
    nodes.before[2] = lambda: nodes.change("c", listed=again, store_id="s of b")
    assert "1 of 2 nodes" in await nodes.refused(errors.NOT_ENOUGH_REPLICAS, status("b"))


# --- in an etcd that has nothing of the group -----------------------------------------------------------
def by_etcd(node: str, **changes: Any) -> NodeStatus:
    return status(node, coordination="etcd", **changes)


async def test_a_recovery_goes_by_the_longest_log_and_beyond_all_that_is_known() -> None:
    found = await Nodes(by_etcd("c", promised=640)).recovered(by_etcd("b"))
    assert {one.node for one in found.copies} == {"b", "c"}
    assert (found.promoted.promised, found.promoted.away) == (("b", "c"), ("a",))
    assert found.promoted.epoch > 640 + 64, "a may have promised a later one"
    assert found.version > in_sync("abc").version + 1


async def test_a_recovery_names_the_node_that_has_more() -> None:
    nodes = Nodes(by_etcd("c", end=150))
    with pytest.raises(TroveError, match="trovemq cluster recover c"):
        await nodes.recovered(by_etcd("b"))
    with pytest.raises(TroveError, match="at least 50 bytes"):
        await nodes.recovered(by_etcd("b"), PromotionAsked("c burns", 49, "recover"))
    with pytest.raises(TroveError, match="trovemq cluster recover c"):
        await nodes.recovered(by_etcd("b"), PromotionAsked("c burns", 50, "recover"))
    found = await Nodes().recovered(by_etcd("b"), PromotionAsked("c has burnt", 50, "recover"))
    assert {one.node for one in found.copies} == {"b"}


LATER_LOG = Epochs.of([(64, 0), (128, 50)])
FENCED = PromotionAsked("a burnt", 0, "recover")


async def test_a_fenced_recovery_lost_the_records_of_a_later_epoch() -> None:
    """b's log is longer, and c's has 40 bytes of epoch 128 that were acknowledged: no byte seemed lost."""
    nodes = Nodes(by_etcd("c", end=90, last_epoch=128))
    nodes.epochs["c"] = LATER_LOG
    with pytest.raises(TroveError, match="trovemq cluster recover c"):
        await nodes.recovered(by_etcd("b"), FENCED)
    nodes.change("c", in_sync=None, store_id="s9")  # its promise does not count
    nodes.statuses = dict(nodes.now)
    del nodes.statuses["b"]
    with pytest.raises(TroveError, match="epoch 128, and node b none after epoch 64"):
        await nodes.recovered(by_etcd("b"), FENCED)


async def test_a_fenced_promotion_lost_the_records_of_a_later_epoch() -> None:
    nodes = Nodes(status("c", end=90, last_epoch=128, in_sync=in_sync("ac", 2)))
    message = await nodes.refused(errors.REPLICA_STATE_ILLEGAL, status("b"), FENCED)
    assert "node c has the newest in-sync set" in message
    nodes = Nodes(status("c", end=90, last_epoch=128, in_sync=None, store_id="s9"))
    message = await nodes.refused(errors.REPLICA_STATE_ILLEGAL, status("b"), FENCED)
    assert "name c instead" in message


async def test_a_recovery_with_too_few_nodes_names_the_others() -> None:
    with pytest.raises(TroveError, match=r"1 of 2 nodes .* start a, c") as refused:
        await Nodes().recovered(by_etcd("b"))
    assert refused.value.spec is errors.NOT_ENOUGH_REPLICAS


async def test_a_node_with_another_etcd_forbids_a_recovery() -> None:
    nodes = Nodes(by_etcd("a"), by_etcd("c"))

    def refuses() -> None:
        raise TroveError(errors.REPLICA_STATE_ILLEGAL, "its etcd has the group")

    nodes.before[2] = refuses
    nodes.before[5] = refuses
    with pytest.raises(TroveError, match="its etcd has the group"):
        await nodes.recovered(by_etcd("b"))
    with pytest.raises(TroveError, match="a has another coordination"):
        await Nodes(status("a"), by_etcd("c")).recovered(by_etcd("b"))
