"""A planned switch-over and changes of the members, as one node's election carries them out (one_node.py)."""

from __future__ import annotations

import pytest

from tests.unit.replication.one_node import (
    A,
    B,
    C,
    OneNode,
    config_at,
    etcd_of,
    is_here,
    leading,
    state_of,
    wanted,
)
from trovemq_broker.coordination.coordinator import Put
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    STATE,
    SWITCH,
    SwitchWanted,
    to_bytes,
)
from trovemq_broker.replication.members import MemberChanges
from trovemq_store.replica.membership import Member, Members


def without_c(changes: MemberChanges) -> Members:
    return changes.remove("c", ["c-0"], ())


# --- a planned switch-over ---------------------------------------------------------------------
def test_a_planned_switch_over_holds_then_gives_up_the_lock() -> None:
    etcd = etcd_of()
    is_here(etcd, C)
    node = leading(etcd)
    etcd.swap((), (Put(SWITCH, to_bytes(SwitchWanted(target="c"))),), node.now_ms)
    node.after(1_100)
    assert node.last(actions.Hold) == actions.Hold("c")
    node.run(node.election.held(node.now_ms))
    assert not node.leads
    assert LOCK not in etcd.values
    other = OneNode(etcd, C)
    assert other.leads, "the target waits for no other node"
    assert SWITCH not in etcd.values


def test_a_leader_delivered_while_the_target_of_its_switch_over_led() -> None:
    etcd = etcd_of()
    is_here(etcd, C)
    node = leading(etcd)
    node.run(node.election.switch_over("c", node.now_ms))
    wanted_now = node.election.held(node.now_ms)
    assert any(isinstance(one, actions.Swap) for one in wanted_now)
    assert not node.election.may_deliver(node.now_ms), "the answer is under way"
    node.run(wanted_now)
    assert not node.leads


def test_a_wish_is_no_proof_that_the_leader_has_resigned() -> None:
    """It was cut off from etcd, so that its lock ended: it may still deliver."""
    etcd = etcd_of()
    etcd.swap((), (Put(SWITCH, to_bytes(SwitchWanted(target="b"))),), 0)
    node = leading(etcd)
    assert not node.election.may_deliver_in_order(node.now_ms)
    assert SWITCH not in etcd.values


def test_for_two_seconds_only_the_target_campaigns() -> None:
    etcd = etcd_of()
    etcd.swap((), (Put(SWITCH, to_bytes(SwitchWanted(target="c", resigned=64))),), 0)
    node = OneNode(etcd)
    node.after(1_900)
    assert not node.all(actions.Promise)
    node.after(500)
    assert node.leads


def test_a_hold_that_takes_too_long_is_abandoned() -> None:
    etcd = etcd_of()
    is_here(etcd, C)
    node = leading(etcd)
    node.run(node.election.switch_over("c", node.now_ms))
    node.after(1_100)
    assert node.all(actions.Release)
    node.run(node.election.held(node.now_ms))
    assert node.leads
    assert LOCK in etcd.values


def test_a_target_that_is_not_in_sync_is_refused() -> None:
    etcd = etcd_of(in_sync=(A, B))
    node = leading(etcd)
    etcd.swap((), (Put(SWITCH, to_bytes(SwitchWanted(target="c"))),), node.now_ms)
    node.after(1_100)
    assert not node.all(actions.Hold)
    assert SWITCH not in etcd.values
    assert "not in sync" in node.election.problem


def test_a_lock_that_may_be_given_up_is_not_led_on() -> None:
    etcd = etcd_of()
    is_here(etcd, C)
    node = leading(etcd)
    node.run(node.election.switch_over("c", node.now_ms))
    node.lost = {actions.Swap, actions.Read}
    node.run(node.election.held(node.now_ms))
    assert not node.leads


# --- the members --------------------------------------------------------------------------------
def test_members_change_one_at_a_time_by_compare_and_swap() -> None:
    node = leading()
    now_ms, election = node.now_ms, node.election
    new = Member("d", "d:1", "d:2", False)
    node.run(election.change_members(lambda changes: changes.add(new), now_ms))
    assert node.last(actions.Regroup).config == config_at(node.etcd)
    node.run(election.change_members(lambda changes: changes.make_voter("d", "d-0"), now_ms))
    places = config_at(node.etcd).listed.places
    assert len({*places.values()}) == len(places) == 4
    with pytest.raises(ValueError, match="in-sync set"):
        election.change_members(without_c, now_ms)
    node.run(election.in_sync_wanted(wanted(node, A, B), now_ms))
    node.run(election.change_members(without_c, now_ms))
    assert config_at(node.etcd).listed.removed == ("c-0",)


def test_a_dead_node_of_the_smallest_set_was_to_be_stopped_and_waited_for() -> None:
    """It never leaves a set that has no copy to spare."""
    node = leading(etcd_of(in_sync=(B, C)))
    with pytest.raises(ValueError, match="Start it at its addresses, with an empty disk"):
        node.election.change_members(without_c, node.now_ms)
    etcd = etcd_of()
    is_here(etcd, A)
    is_here(etcd, C)
    node = leading(etcd)
    with pytest.raises(ValueError, match="stop it, and wait"):
        node.election.change_members(without_c, node.now_ms)


def test_a_change_without_an_answer_was_replaced_by_the_next_one() -> None:
    """c was removed; the answer was lost. The next list had c again, with the same version."""
    node = leading(etcd_of(in_sync=(A, B)))
    node.lost = {actions.Swap}
    node.run(node.election.change_members(without_c, node.now_ms))
    node.lost = set()
    node.after(2_000)
    new = Member("d", "d:1", "d:2", False)
    node.run(node.election.change_members(lambda changes: changes.add(new), node.now_ms))
    listed = config_at(node.etcd).listed
    assert [one.node for one in listed.nodes] == ["a", "b", "d"]
    assert listed.removed == ("c-0",)


def test_a_member_that_came_into_the_set_meanwhile_was_removed() -> None:
    node = leading(etcd_of(in_sync=(A, B)))
    now_ms, listed = node.now_ms, config_at(node.etcd).listed
    node.away = {actions.Swap}
    node.run(node.election.in_sync_wanted(wanted(node, A, B, C), now_ms))
    node.run(node.election.change_members(without_c, now_ms))
    node.away = set()
    node.after(2_000)
    assert state_of(node.etcd).in_sync == (A, B, C)
    assert config_at(node.etcd).listed == listed
    assert "refused" in node.election.problem


def test_a_set_with_a_removed_member_is_never_written() -> None:
    node = leading(etcd_of(in_sync=(A, B)))
    node.run(node.election.change_members(without_c, node.now_ms))
    node.run(node.election.in_sync_wanted(wanted(node, A, B, C), node.now_ms))
    node.after(2_000)
    assert state_of(node.etcd).in_sync == (A, B)


def test_a_set_compares_the_members_that_were_read() -> None:
    node = leading()
    node.away = {actions.Swap}
    node.run(node.election.in_sync_wanted(wanted(node, B, C), node.now_ms))
    keys = {one.key for one in node.last(actions.Swap).compares}
    assert keys == {STATE, CONFIG}
