"""The members of a group at its leader: a change counts when the copies of the sets have stored it, beside a
promotion, too; and a removed store does not come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.replication.test_leader import Group, open_group, refusal
from trovemq_broker.daemon.replica import member_changes
from trovemq_broker.daemon.replica.finding import Finding
from trovemq_broker.daemon.replica.gathering import Gathering, Leadership
from trovemq_broker.daemon.replica.member_changes import GroupMembers
from trovemq_broker.replication.election_members import MemberChange, members_changed
from trovemq_broker.replication.election_records import (
    CONFIG,
    GroupConfig,
    GroupState,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import Identity, InSyncSet, Offset
from trovemq_broker.replication.leader import CopyState, GroupSettings
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus, PromotionAsked, Role
from trovemq_broker.server.wire.replica_frames import PromiseAsked
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Member, Members, Membership

pytestmark = pytest.mark.asyncio

EPOCH = 128
FOUNDED = Members.first(Member(node, f"h{node}:1", f"h{node}:2") for node in "abc")
D = Member("d", "hd:1", "hd:2")
ALONE = Members.first([Member("a", "ha:1", "ha:2")])


def grown() -> Members:
    """Of a group that a founded, and to which b was added."""
    changes = MemberChanges(ALONE, 64, "a")
    changes.counts = True
    changes.add(FOUNDED.nodes[1])
    changes.counts = True
    changes.make_voter("b", "store of b")
    return changes.newest


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_changes, "COUNTS_S", 0.0)
    monkeypatch.setattr(member_changes, "POLL_S", 0.0)


def identity(node: str, store: str = "") -> Identity:
    return Identity(node, store or f"store of {node}", 1)


def in_sync(nodes: str, version: int = 5) -> InSyncSet:
    return InSyncSet(EPOCH, version, frozenset(identity(node) for node in nodes))


@dataclass
class OtherNode:
    """`is_here`: it answers. `promised`: it stores no list of a leader below that epoch."""

    identity: Identity
    listed: Members = FOUNDED
    promised: int = EPOCH
    in_sync: InSyncSet | None = None
    is_here: bool = True
    role: Role = Role.FOLLOWER

    def status(self) -> NodeStatus:
        return NodeStatus(
            group="g",
            node=self.identity.node,
            cluster="" if self.role is Role.NEW else "c",
            role=self.role,
            promised=self.promised,
            last_epoch=EPOCH,
            end=100,
            in_sync=self.in_sync,
            listed=self.listed,
            ack="replicated",
            store_id=self.identity.store_id,
            incarnation=1,
        )


@dataclass
class World:
    """Leader a, in sync with the nodes of `counted`, and the other nodes. `in_sync_mins`: those that it has
    got, with the number of voters."""

    counted: str = "ab"
    listed: Members = FOUNDED
    nodes: dict[str, OtherNode] = field(
        default_factory=lambda: {node: OtherNode(identity(node), in_sync=in_sync("ab")) for node in "bcd"}
    )
    copies: list[CopyState] = field(default_factory=list)
    settings: GroupSettings | None = None
    in_sync_mins: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = Membership(
            cluster="c",
            group="g",
            node="a",
            store_id="store of a",
            in_sync_min=2,
            listed=self.listed,
            in_sync=in_sync(self.counted),
        )
        self.nodes["d"] = OtherNode(identity("d"), Members(version=0), 0, role=Role.NEW)
        self.state = SimpleNamespace(commit=Offset(100))
        self.refused: list[str] = []
        self.in_sync = SimpleNamespace(counted=frozenset(identity(node) for node in self.counted))
        me: Any = self
        group = GroupSettings("c", "g", {}, 4_096)
        self.members = GroupMembers(me, me, lambda: me, EPOCH, group, self.statuses)

    def statuses(self) -> dict[str, NodeStatus]:
        """Of the members, as they were asked last."""
        names = [one.node for one in self.place.members if one.node != "a"]
        return {node: self.nodes[node].status() for node in names if self.nodes[node].is_here}

    # --- the leader's node and streams --------------------------------------------------------------------
    def take_members(self, listed: Members) -> None:
        self.place = self.place.with_members(listed)

    @property
    def leader(self) -> Any:
        return SimpleNamespace(in_sync=self.in_sync)

    def copy_states(self) -> list[CopyState]:
        return self.copies

    def regroup(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.in_sync_mins.append((len(self.place.voters), settings.in_sync_min))

    # --- calls of the other nodes -------------------------------------------------------------------------
    async def status(self, member: Member, _cluster: str) -> NodeStatus:
        self._check_here(member.node)
        return self.nodes[member.node].status()

    async def store_members(self, member: Member, change: MembersChange) -> Identity:
        self._check_here(member.node)
        node = self.nodes[member.node]
        if node.role is Role.NEW:
            raise TroveError(errors.REPLICA_STATE_ILLEGAL, "the node has no group yet")
        if change.epoch < node.promised:
            self.refused.append(member.node)
            raise TroveError(errors.EPOCH_STALE, f"epoch {node.promised} is promised")
        node.listed = change.listed
        return node.identity

    async def promise(self, member: Member, asked: PromiseAsked) -> Promised:
        self._check_here(member.node)
        return self.promise_of(member.node, asked.epoch)

    def promise_of(self, name: str, epoch: int) -> Promised:
        node = self.nodes[name]
        node.promised = max(node.promised, epoch)
        epochs = Epochs.of([(EPOCH, 0)])
        return Promised(node.identity, epoch, epochs, Offset(100), node.in_sync, node.listed)

    def _check_here(self, node: str) -> None:
        if not self.nodes[node].is_here:
            raise TroveError(errors.BROKER_UNREACHABLE, f"node {node} is away")

    # --- steps --------------------------------------------------------------------------------------------
    def join(self, node: str, store: str = "") -> None:
        """A node that was added has the list, and all of the log."""
        found = self.nodes[node]
        found.identity, found.role, found.listed = identity(node, store), Role.FOLLOWER, self.place.listed
        self.copies = [CopyState(found.identity, Offset(100), Offset(100), 0, is_connected=True)]

    async def poll(self) -> None:
        """One round of run()."""
        await (self.members._make_voters() if self.members.counts else self.members._offer())

    async def gather(self, me: str, *, without: str = "a") -> Leadership:
        """An operator promotes that node. The leader is cut off."""
        node = self.nodes[me]
        others = {name: one.status() for name, one in self.nodes.items() if name not in (me, without)}
        others = {name: one for name, one in others.items() if self.nodes[name].is_here}
        place = replace(
            self.place, node=me, store_id=f"store of {me}", listed=node.listed, in_sync=node.in_sync
        )

        async def own(asked: PromiseAsked) -> Promised:
            return self.promise_of(me, asked.epoch)

        calls: Any = self
        return await Gathering(place, node.status(), calls, own).run(PromotionAsked(), others)


async def refused(spec: ErrorSpec, change: Any) -> str:
    with pytest.raises(TroveError) as error:
        await change
    assert error.value.spec is spec
    return error.value.message


async def test_a_node_is_a_learner_until_it_has_the_log() -> None:
    world = World()
    world.nodes["c"].is_here = False
    await world.members.add(D)
    assert world.settings is not None
    assert world.settings.voters == {"a": True, "b": True, "c": True, "d": False}
    assert world.nodes["b"].listed == world.place.listed
    await world.poll()
    assert "d" not in world.place.voters, "it has not joined"
    world.join("d")
    await world.poll()
    assert world.place.listed.places == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert world.place.listed.stores == {"d": "store of d"}
    assert world.members.counts, "c, which is away and in no set, blocks no change"
    assert (world.settings.voters["d"], world.settings.stores) == (True, {"d": "store of d"})


async def test_a_node_stayed_a_learner_when_another_leader_followed() -> None:
    """Or the leader started again: only the memory of the leader before had that it is to vote."""
    world = World()
    await world.members.add(D)
    found = await world.gather("b")
    assert found.listed.joining == ("d",)
    next_leader = World(listed=found.listed)
    next_leader.join("d")
    await next_leader.poll()
    assert next_leader.members.counts, "the list that it found counts first"
    await next_leader.poll()
    assert next_leader.place.listed.stores == {"d": "store of d"}
    assert next_leader.place.listed.joining == ()


async def test_a_learner_that_is_added_as_a_voter_joins() -> None:
    world = World()
    await world.members.add(D._replace(is_voter=False))
    world.join("d")
    await world.poll()
    assert ("d" in world.place.voters, world.place.listed.joining) == (False, ())
    await world.members.add(D)
    await world.members.add(D)  # again: it is no fault
    await world.poll()
    assert "d" in world.place.voters


async def test_a_change_counts_when_each_copy_that_counts_has_it() -> None:
    world = World("abc")
    world.nodes["c"].is_here = False
    assert "c is away" in await refused(errors.NOT_ENOUGH_REPLICAS, world.members.add(D))
    assert world.place.members == FOUNDED.nodes, "the list that this leader found does not count yet"
    world.nodes["c"].is_here = True
    await world.members.add(D)
    world.join("d")
    world.nodes["c"].is_here = False
    await world.poll()
    assert (world.place.listed.newest, world.members.counts) == ("d", False)
    assert world.settings is not None
    assert not world.settings.voters["d"], "it is in no set before"
    await refused(errors.NOT_ENOUGH_REPLICAS, world.members.remove("d"))
    world.nodes["c"].is_here = True
    await world.poll()
    assert world.members.counts
    assert world.settings.voters["d"]


async def test_a_node_of_the_set_is_removed_only_when_stopped_at_the_minimum() -> None:
    world = World()
    assert "stop it" in await refused(errors.REPLICA_STATE_ILLEGAL, world.members.remove("b"))
    await world.members.remove("c")
    assert world.place.voters == ["a", "b"]
    world.copies = [CopyState(identity("b"), Offset(100), Offset(100), 0, is_connected=True)]
    assert "stop it" in await refused(errors.REPLICA_STATE_ILLEGAL, world.members.remove("b"))
    world.copies = []
    world.nodes["b"].is_here = False
    await refused(errors.NOT_ENOUGH_REPLICAS, world.members.remove("b"))
    assert (world.place.voters, world.members.counts) == (["a"], False)
    world.in_sync.counted = frozenset({identity("a")})  # the set shrinks, because one copy is enough
    assert world.settings is not None
    assert world.settings.in_sync_min == 1
    await world.poll()
    assert world.members.counts
    assert set(world.place.listed.removed) == {"store of b", "store of c"}


async def test_a_leader_of_two_that_led_again_counted_alone() -> None:
    """The list that it found had added the other one, and did not count while that one was away."""
    world = World(listed=grown())
    world.nodes["b"].is_here = False
    await world.poll()
    settings = world.members.settings()
    assert (world.members.counts, settings.in_sync_min) == (False, 2)
    assert settings.voters["b"], "it was in a set, so its list has counted: its next store may replace it"


async def test_a_lost_copy_is_removed_although_it_cannot_store_the_list() -> None:
    """By a leader that has started since it was lost, with that list."""
    world = World(listed=grown())
    world.copies = [CopyState(identity("b"), Offset(100), Offset(100), 0, is_connected=True)]
    assert "stop it" in await refused(errors.REPLICA_STATE_ILLEGAL, world.members.remove("b"))
    world.copies = []
    world.nodes["b"].is_here = False
    await refused(errors.NOT_ENOUGH_REPLICAS, world.members.remove("b"))
    assert (world.place.voters, world.members.settings().in_sync_min) == (["a"], 1)
    world.in_sync.counted = frozenset({identity("a")})
    await world.poll()
    assert world.members.counts


async def test_a_group_that_grows_to_its_minimum_needs_it_from_the_list_on() -> None:
    """The new voter has the list before it counts, and alone is enough to choose a leader then."""
    world = World("a", listed=ALONE)
    await world.members.add(D)
    world.join("d")
    world.nodes["d"].promised = 2 * EPOCH  # it stores no list of this leader
    await world.poll()
    assert world.place.voters == ["a", "d"]
    assert {needed for voters, needed in world.in_sync_mins if voters == 1} == {1}
    assert {needed for voters, needed in world.in_sync_mins if voters == 2} == {2}


async def test_a_removed_store_came_back_under_its_nodes_name() -> None:
    world, group = World(), open_group()
    await world.members.remove("c")
    assert world.place.listed.removed == ("store of c",)
    c = FOUNDED.nodes[2]._replace(place=-1)
    assert "empty" in await refused(errors.REPLICA_STATE_ILLEGAL, world.members.add(c))
    world.nodes["c"].is_here = False
    await world.members.add(c)  # its store is not known before its Hello
    assert world.settings is not None
    _regroup(group, world.settings)
    old = Identity("c", "store of c", 1)
    assert refusal(group.hello(2, old)) is errors.NOT_A_MEMBER
    assert refusal(group.hello(3, old._replace(store_id="new"), in_sync=None)) is None


def _regroup(group: Group, settings: GroupSettings) -> None:
    own = group.settings
    same = with_fields(own, voters=settings.voters, stores=settings.stores, removed=settings.removed)
    group.take(group.leader.regroup(same, 0))


async def test_a_store_of_unknown_id_that_was_in_a_set_never_votes() -> None:
    world = World()
    world.nodes["c"].is_here = False
    await world.members.remove("c")
    assert world.place.listed.removed == (), "no leader has seen it"
    await world.members.add(FOUNDED.nodes[2])
    world.join("c")
    world.nodes["c"].is_here = True
    await world.poll()
    assert "c" not in world.place.voters
    assert world.place.listed.joining == (), "no later leader tries it, either"
    await world.poll()
    world.nodes["c"].in_sync = None
    world.join("c", "another store")
    await world.poll()
    assert "c" not in world.place.voters, "it has to be added again"
    await world.members.add(FOUNDED.nodes[2])
    await world.poll()
    assert world.place.listed.places["c"] == 3, "not the place that its former list gives it"


# --- with an election -----------------------------------------------------------------------------------
async def test_a_list_that_was_written_without_an_answer_counts_all_the_same() -> None:
    """The next change began from the list before, and gave another one the same version."""
    world = World()
    etcd = MemberChanges(FOUNDED, EPOCH, "a")
    etcd.counts = True

    class Election:
        listed: Members | None = None

        async def change_members(self, change: MemberChange) -> Members:
            self.listed = change(etcd)
            raise TroveError(errors.COORDINATION_UNAVAILABLE, "no answer")

    election: Any = Election()
    world.members._election = election
    await refused(errors.COORDINATION_UNAVAILABLE, world.members.remove("c"))
    assert world.place.voters == ["a", "b", "c"]
    await world.members._take_written()
    assert (world.place.voters, world.members.counts) == (["a", "b"], False)
    await world.poll()
    assert world.members.counts


async def test_a_node_stayed_a_learner_when_etcds_next_leader_followed() -> None:
    """The list in etcd says that it is to vote. One of the version before does not, and opens."""
    config = GroupConfig(
        cluster="c", group="g", in_sync_min=2, is_sync=True, segment_size=4_096, listed=FOUNDED
    )
    state = GroupState(epoch=EPOCH, leader="a", version=5, in_sync=tuple(sorted(in_sync("ab").copies)))
    before = to_bytes(config).replace(b',"joining":[]', b"")
    assert b"joining" not in before
    assert from_bytes(CONFIG, before, GroupConfig) == config
    stored = to_bytes(members_changed(config, state, lambda changes: changes.add(D)))
    found = from_bytes(CONFIG, stored, GroupConfig)
    assert found.listed.joining == ("d",)
    world = World(listed=found.listed)
    world.join("d")
    await world.poll()
    await world.poll()
    assert "d" in world.place.voters


# --- beside a promotion ---------------------------------------------------------------------------------
async def test_a_change_after_the_promises_never_counts() -> None:
    """Leader a is cut off from the operator only. b has promised a higher epoch before a's change."""
    world = World()
    await world.members.add(D)
    world.join("d")
    found = await world.gather("b")
    assert (found.promoted.promised, found.listed.version) == (("b", "c"), world.place.listed.version)
    await world.poll()
    assert world.refused[0] == "b"
    assert (world.place.listed.newest, world.members.counts) == ("d", False)
    assert "d" not in world.nodes["b"].listed.places
    assert world.settings is not None
    assert not world.settings.voters["d"], "a commits with b alone, which promised another leader"


async def test_a_change_before_the_promises_is_the_next_leaders() -> None:
    """c has the list before: by it b and c were enough, or a and c."""
    world = World()
    await world.members.add(D)
    world.nodes["c"].listed = world.place.listed
    world.join("d")
    world.nodes["c"].is_here = False
    await world.poll()
    assert world.members.counts
    world.nodes["c"].is_here = True
    assert "d" not in world.nodes["c"].listed.places
    world.nodes["d"].is_here = False
    message = await refused(errors.NOT_ENOUGH_REPLICAS, world.gather("b"))
    assert "2 of the 3 voters" in message, "of four voters, a and d are away"
    world.nodes["d"].is_here = True
    found = await world.gather("b")
    assert found.promoted.promised == ("b", "c", "d")
    assert found.listed == world.place.listed
    assert found.epoch % 64 == 8 + 1


async def test_a_list_of_a_deposed_leader_is_not_learned() -> None:
    def lists(node: str, epoch: int, version: int) -> NodeStatus:
        listed = replace(FOUNDED, version=version)
        return NodeStatus(group="g", node=node, cluster="c", role=Role.LEADER, epoch=epoch, listed=listed)

    unused: Any = None
    finding = Finding(unused, unused, lambda: None, lambda: None)
    place = World().place
    finding.statuses = {"a": lists("a", 64, 9)}
    assert finding.later_members(place, 128) is None
    assert finding.later_members(place, 64) == replace(FOUNDED, version=9)
    finding.statuses = {"a": lists("a", 64, 9), "b": lists("b", 128, 7)}
    assert finding.later_members(place, 128) == replace(FOUNDED, version=7)
    assert finding.later_members(replace(place, listed=replace(FOUNDED, version=7)), 128) is None
