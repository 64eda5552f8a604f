"""Changes of a group's members, one at a time: steps, refusals and limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.unit.replication.members_world import member_of, members_of
from tests.unit.replication.test_follower import promised
from tests.unit.replication.test_leader import A, B, C, Group, open_group, refusal
from trovemq_broker.replication.frames import Identity, InSyncSet
from trovemq_broker.replication.leader import GroupSettings
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import choose, epoch_of_leader, epoch_to_promise
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import REMOVED_MAX, Members

D = Identity("d", "store of d", 0)
ABC = members_of("abc")


def changes(stored: Members = ABC, epoch: int = 9) -> MemberChanges:
    """Of leader a, whose list counts."""
    found = MemberChanges(stored, epoch, "a")
    count(found)
    return found


def count(group: MemberChanges) -> None:
    assert group.confirm({A: group.newest.version, B: group.newest.version}, [A, B])


def test_a_node_becomes_a_learner_then_a_voter() -> None:
    group = changes()
    assert group.add(member_of("d")).member("d") == member_of("d")._replace(is_voter=False)
    assert group.voters == {"a": True, "b": True, "c": True, "d": False}
    count(group)
    later = group.make_voter("d", "store of d")
    assert (later.places["d"], later.newest, later.stores) == (3, "d", {"d": "store of d"})
    assert not group.voters["d"], "an operator with the list before does not ask it for a promise"
    assert not group.confirm({A: later.version, C: later.version}, [A, B])
    assert not group.voters["d"]
    count(group)
    assert group.voters["d"]


def test_a_learner_joins_until_it_votes_or_is_refused() -> None:
    group = changes()
    assert group.add(member_of("d")).joining == ("d",)
    count(group)
    assert group.add(member_of("e")._replace(is_voter=False)).joining == ("d",)
    count(group)
    assert group.join("e").joining == ("d", "e")
    count(group)
    with pytest.raises(ValueError, match="joins already"):
        group.join("e")
    assert group.refuse("e").joining == ("d",)
    count(group)
    with pytest.raises(ValueError, match="does not join"):
        group.refuse("e")
    assert group.make_voter("d", "store of d").joining == ()
    count(group)
    with pytest.raises(ValueError, match="no learner"):
        group.join("d")
    group.join("e")
    count(group)
    assert group.remove("e", [], [A, B]).joining == ()


def test_one_change_begins_when_the_one_before_counts() -> None:
    group = changes()
    group.add(member_of("d"))
    with pytest.raises(ValueError, match="not stored by all copies yet"):
        group.remove("c", ["store of c"], [A, B])
    count(group)
    group.remove("c", ["store of c"], [A, B])


def test_a_new_leader_counts_the_list_again() -> None:
    group = MemberChanges(changes().add(member_of("d")), 16, "a")
    with pytest.raises(ValueError, match="not stored by all copies yet"):
        group.make_voter("d", "store of d")
    count(group)
    group.make_voter("d", "store of d")


def test_a_voter_of_the_set_waits_for_no_list() -> None:
    """The list that added it has counted, or it was in no set; the next one that adds a voter has not."""
    listed = changes().add(member_of("d"))
    group = MemberChanges(listed, 16, "a")
    count(group)
    listed = group.make_voter("d", "store of d")
    assert not MemberChanges(listed, 24, "a", ["a", "b"]).voters["d"]
    group = MemberChanges(listed, 24, "a", ["a", "d"])
    assert group.voters["d"]
    count(group)
    group.remove("d", ["store of d"], [A, B])
    count(group)
    group.add(member_of("d"))
    count(group)
    group.make_voter("d", "another store")
    assert not group.voters["d"]


def test_a_list_that_never_counted_blocked_every_later_change() -> None:
    """C has stored a list of the leader before, which no promise had: it took no lower version than that."""
    unheard = changes().add(member_of("d"))
    group = MemberChanges(ABC, 16, "a")
    assert group.newest.version > unheard.version
    assert (group.newest.nodes, group.counts) == (ABC.nodes, False)
    assert not group.confirm({A: group.newest.version, C: unheard.version}, [A, C])
    assert group.confirm({A: group.newest.version, C: group.newest.version}, [A, C])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda group: group.add(member_of("b")), "is a member"),
        (lambda group: group.make_voter("c", "store"), "no learner"),
        (lambda group: group.make_voter("x", "store"), "no learner"),
        (lambda group: group.remove("x", [], [A]), "no member"),
        (lambda group: group.remove("a", [], [A, B]), "leads"),
        (lambda group: group.remove("b", [], [A, B]), "in the in-sync set"),
    ],
)
def test_a_change_that_is_not_safe_is_refused(change: Callable[[MemberChanges], object], text: str) -> None:
    group = changes()
    with pytest.raises(ValueError, match=text):
        change(group)
    assert (group.newest, group.counts) == (replace(ABC, version=9 << 16), True)


def test_the_limits_of_nodes_voters_and_removed_stores() -> None:
    with pytest.raises(ValueError, match="the most that it may have"):
        changes(members_of("abcdefg")).add(member_of("h"))
    with pytest.raises(ValueError, match="the most that a group remembers"):
        changes().remove("c", [str(number) for number in range(REMOVED_MAX + 1)], [A, B])


def test_versions_rise_over_leaderships() -> None:
    first = changes().add(member_of("d"))
    second = MemberChanges(first, 10, "b")
    count(second)
    third = second.remove("d", [D.store_id], [A, B])
    assert ABC.version < first.version < third.version
    other = changes(first, epoch=10)
    assert other.remove("c", [], [A, B]).version == third.version, "an epoch has one leader"


def test_two_nodes_with_different_lists_asked_for_one_epoch() -> None:
    """Places by the order of names move when a member comes or goes."""
    group = changes()
    later = group.remove("c", [], [A, B])
    count(group)
    last = group.add(member_of("aa"))
    count(group)
    last = group.make_voter("aa", "store")
    lists = [ABC, later, last]
    for before, after in pairwise(lists):
        for one in before.places:
            for other in after.places:
                asked = epoch_to_promise(0, one, before.places), epoch_to_promise(0, other, after.places)
                assert (asked[0] == asked[1]) == (one == other)
                led = [epoch_of_leader(64, one, before.places), epoch_of_leader(64, other, after.places)]
                assert (led[0] == led[1]) == (one == other)
    assert last.places["aa"] == 3, "c's place may be in a list that c has"


def test_a_removed_member_counted_in_a_promotion() -> None:
    in_sync = InSyncSet(1, 5, frozenset({A, B, C}))
    answers = [promised(B, 8, 100, in_sync), promised(C, 8, 100, in_sync)]
    assert choose(answers, 8, voters=["a", "b", "c"], in_sync_min=2) == "c"
    with pytest.raises(TroveError) as refused:
        choose(answers, 8, voters=["a", "b", "d"], in_sync_min=2)
    assert refused.value.spec is errors.NOT_ENOUGH_REPLICAS


def test_a_group_that_added_a_voter_could_promote_none() -> None:
    """The voter was in no set yet, so its promise did not count, and with it one more was needed."""
    in_sync = InSyncSet(1, 5, frozenset({A, B}))
    answers = [promised(B, 8, 100, in_sync), promised(C, 8, 100, in_sync), promised(D, 8, 100, None)]
    voters = ["a", "b", "c", "d"]
    assert choose(answers, 8, voters=voters, in_sync_min=2, stores={"d": D.store_id}) == "b"
    for stores in ({}, {"d": "the store before"}):
        with pytest.raises(TroveError):
            choose(answers, 8, voters=voters, in_sync_min=2, stores=stores)


def regrouped(group: Group, **fields: object) -> GroupSettings:
    values = {"cluster": "cluster", "group": "group", "segment_size": group.settings.segment_size}
    return GroupSettings(**{**values, **fields})  # type: ignore[arg-type]


def test_a_learner_comes_in_once_it_is_a_voter() -> None:
    group = open_group()
    voters = {"a": True, "b": True, "d": False}
    group.take(group.leader.regroup(regrouped(group, voters=voters), 0))
    group.hello(4, D, in_sync=None)
    group.report(4, 110)
    group.take(group.leader.tick(1_000), 1_000)
    assert group.leader.in_sync.newest.nodes == ["a", "b"]
    later = regrouped(group, voters={**voters, "d": True}, stores={"d": D.store_id})
    group.take(group.leader.regroup(later, 1_000), 1_000)
    group.report(4, 110, now_ms=1_010, echo_ms=1_000)
    group.report(1, 110, version=5, now_ms=1_010, echo_ms=1_000)
    group.take(group.leader.tick(1_010), 1_010)
    assert group.leader.in_sync.newest.nodes == ["a", "b", "d"]


def test_a_removed_member_loses_its_stream_and_never_returns() -> None:
    group = open_group()
    group.hello(3, C)
    left_out = regrouped(group, voters={"a": True, "b": True}, removed=frozenset({C.store_id}))
    assert refusal(group.take(group.leader.regroup(left_out, 10))) is errors.NOT_A_MEMBER
    assert refusal(group.hello(4, C)) is errors.NOT_A_MEMBER
    again = regrouped(group, voters={"a": True, "b": True, "c": True}, removed=frozenset({C.store_id}))
    group.take(group.leader.regroup(again, 20))
    assert refusal(group.hello(5, C)) is errors.NOT_A_MEMBER
    assert refusal(group.hello(6, C._replace(store_id="new"), in_sync=None)) is None
