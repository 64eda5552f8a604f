"""The election of one node, rule by rule, at the model of etcd (one_node.py)."""

from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace

from tests.unit.replication.model_etcd import ModelEtcd
from tests.unit.replication.one_node import (
    A,
    B,
    C,
    OneNode,
    etcd_of,
    identity,
    is_here,
    leading,
    lock_as,
    state_of,
    wanted,
)
from trovemq_broker.coordination.coordinator import Compare, Delete, Lease, Put, Swapped
from trovemq_broker.replication import election_actions as actions
from trovemq_broker.replication.election import ElectionRole
from trovemq_broker.replication.election_members import (
    recovered,
)
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    PAUSE,
    STATE,
    GroupConfig,
    GroupState,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import Identity, InSyncSet
from trovemq_broker.replication.in_sync import InSyncChanges
from trovemq_proto.positions import PhysicalOffset


# --- a campaign ------------------------------------------------------------------------------
def test_a_campaign_ends_the_stream_then_promises_then_writes() -> None:
    node = OneNode(etcd_of(), slow=True)
    node.after(300)
    (at,) = [n for n, one in enumerate(node.did) if isinstance(one, actions.Promise)]
    assert isinstance(node.did[at - 1], actions.Unfollow)
    assert state_of(node.etcd).epoch == 64, "nothing is written before the promise is on disk"
    node.promise()
    assert node.leads
    assert state_of(node.etcd).leader == "b"
    lead = node.last(actions.Lead)
    assert lead.epoch == state_of(node.etcd).epoch > node.promised > 64


def test_of_two_candidates_one_is_elected_and_the_other_follows_at_once() -> None:
    etcd = etcd_of()
    one, other = OneNode(etcd, B, slow=True), OneNode(etcd, C, slow=True)
    one.after(500)
    other.after(500)
    other.promise()
    one.promise()
    assert other.leads
    assert not one.leads
    assert one.last(actions.Follow) == actions.Follow("c", other.election.epoch)
    assert one.promised <= other.election.epoch, "its promise is no reason for a third epoch"


def test_copies_with_longer_logs_campaign_first() -> None:
    etcd = etcd_of()
    is_here(etcd, C, held=1_000)
    node = OneNode(etcd, B)
    node.after(100)
    assert not node.all(actions.Promise)
    node.after(200)
    assert node.leads


def test_no_campaign_begins_while_another_node_holds_the_lock() -> None:
    etcd = etcd_of()
    lock_as(etcd, A, 64)
    node = OneNode(etcd)
    node.after(5_000)
    assert node.last(actions.Follow) == actions.Follow("a", 64)
    assert not node.all(actions.Promise)


def test_after_a_kill_the_dead_leader_leaves_the_set_at_once() -> None:
    etcd = etcd_of()
    lock_as(etcd, A, 64)
    is_here(etcd, C)
    node = OneNode(etcd)
    node.run(node.election.leader_lost("a", 64, node.now_ms, dead=True))
    assert node.leads
    assert state_of(etcd).in_sync == (B, C), "the key nodes/a lives for seconds"


def test_a_machine_that_is_lost_is_replaced_within_five_seconds() -> None:
    """Its lock goes with its lease of 3 s. A killed process is replaced at once: the test before."""
    etcd = etcd_of()
    for one in (B, C):
        is_here(etcd, one)
    gone = leading(etcd, A)
    gone.after(1_000)
    nodes = [OneNode(etcd, B), OneNode(etcd, C)]
    for node in nodes:
        node.now_ms = gone.now_ms
    while not any(node.leads for node in nodes):
        for node in nodes:
            node.after(50)
        assert node.now_ms <= gone.now_ms + 5_000
    assert nodes[0].leads != nodes[1].leads
    assert A not in state_of(etcd).in_sync


def test_a_stream_that_ends_is_no_proof_of_a_dead_leader() -> None:
    etcd = etcd_of()
    lock_as(etcd, A, 64)
    node = OneNode(etcd)
    node.run(node.election.leader_lost("a", 64, node.now_ms, dead=False))
    node.run(node.election.leader_lost("a", 63, node.now_ms, dead=True))
    node.after(2_000)
    assert not node.all(actions.Promise), "its later leadership is another process"


def test_an_election_keeps_as_many_copies_as_the_minimum() -> None:
    etcd = etcd_of(in_sync_min=3)
    OneNode(etcd).after(500)
    assert state_of(etcd).in_sync == (A, B, C)
    etcd = etcd_of()
    OneNode(etcd).after(500)
    assert len(state_of(etcd).in_sync) == 2


# --- who may be elected ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("me", "why"),
    [
        (C, "outside of the set"),
        (identity("b", store=1), "another store of the node"),
        (identity("b", incarnation=1), "a start after which bytes may be lost"),
    ],
)
def test_only_a_copy_of_the_set_campaigns(me: Identity, why: str) -> None:
    node = OneNode(etcd_of(in_sync=(A, B), is_sync=False), me, end=1_000_000)
    node.after(10_000)
    assert not node.all(actions.Promise), why
    assert "not in the in-sync set" in node.election.problem


def test_a_copy_that_is_alone_is_elected_in_its_next_incarnation() -> None:
    node = OneNode(etcd_of(in_sync=(B,), is_sync=False, in_sync_min=1), identity("b", incarnation=4))
    node.after(500)
    assert node.leads
    assert state_of(node.etcd).in_sync == (identity("b", incarnation=4),)


def test_a_node_whose_disk_was_rolled_back_does_not_campaign() -> None:
    node = OneNode(etcd_of(commit_floor=101))
    node.after(5_000)
    assert not node.all(actions.Promise)
    assert "old disk" in node.election.problem


def test_a_node_that_could_not_open_the_users_was_elected_and_ended() -> None:
    node = OneNode(etcd_of(), cannot_lead="it has another sealing key")
    node.after(5_000)
    assert not node.all(actions.Promise)
    assert node.election.problem == "it has another sealing key"
    node.election.own_log(with_fields(node.own, cannot_lead=""))
    node.after(500)
    assert node.leads


def test_a_removed_node_does_not_campaign() -> None:
    node = OneNode(etcd_of(names="ac", in_sync=(A, B)))
    node.after(5_000)
    assert not node.all(actions.Promise)


def test_while_failover_is_paused_only_the_former_leader_campaigns() -> None:
    etcd = etcd_of()
    etcd.swap((), (Put(PAUSE, b"{}"),), 0)
    follower = OneNode(etcd, B)
    follower.after(5_000)
    assert not follower.leads
    former = OneNode(etcd, A)
    former.after(1_000)
    assert former.leads


# --- answers that are lost or late -----------------------------------------------------------
def test_a_lost_answer_keeps_the_promise_and_is_found_by_reading() -> None:
    node = OneNode(etcd_of(), slow=True)
    node.after(500)
    node.lost = {actions.Swap, actions.Read}
    node.promise()
    assert state_of(node.etcd).leader == "b"
    assert not node.all(actions.Lead), "it does not know yet"
    assert len(node.all(actions.Promise)) == 1
    node.lost = set()
    node.after(1_000)
    assert len(node.all(actions.Lead)) == 1
    assert len(node.all(actions.Promise)) == 1


def test_an_election_done_late_is_not_led_after_a_later_promise() -> None:
    """The swap comes to etcd when the node has promised the epoch of another leader."""
    node = OneNode(etcd_of(), slow=True)
    node.after(500)
    node.away = {actions.Swap, actions.Read}
    node.promise()
    late = node.last(actions.Swap)
    node.run(node.election.promised(1 << 20, node.now_ms))
    node.etcd.swap(late.compares, late.changes, node.now_ms)
    node.slow, node.away = False, set()
    node.after(2_000)
    assert node.leads
    assert node.election.epoch > 1 << 20, "it could not lead the one that it won"


def test_a_campaign_whose_promise_came_too_late_never_ended() -> None:
    """The node had promised another leader's epoch meanwhile, and was a candidate for ever."""
    node = OneNode(etcd_of(), slow=True)
    node.after(500)
    node.slow = False
    node.run(node.election.promised(1 << 20, node.now_ms))
    node.after(1_000)
    assert node.leads
    assert node.election.epoch > 1 << 20


def test_a_campaign_that_was_given_up_may_still_be_done() -> None:
    etcd = etcd_of()
    node = OneNode(etcd, slow=True)
    node.after(500)
    node.away = {actions.Swap}
    node.promise()
    late = node.last(actions.Swap)
    lock_as(etcd, A, 64, node.now_ms)  # the leader has its lock again
    node.after(1_500)
    assert node.election.role is ElectionRole.FOLLOWER
    assert node.last(actions.Follow) == actions.Follow("a", 64), "which sees the promise, and goes above"
    assert not etcd.swap(late.compares, late.changes, node.now_ms).done


def test_a_campaign_that_comes_late_is_never_done_after_another_one() -> None:
    """Although the lock is absent again, as it was."""
    etcd = etcd_of()
    node = OneNode(etcd, slow=True)
    node.after(500)
    node.away = {actions.Swap}
    node.promise()
    late = node.last(actions.Swap)
    leading(etcd, C)
    etcd.revoke(etcd.values[LOCK].lease, node.now_ms)
    assert not etcd.swap(late.compares, late.changes, node.now_ms).done
    assert state_of(etcd).leader == "c"


def test_a_leader_that_meets_a_later_promise_takes_an_epoch_above_it() -> None:
    node = leading()
    former = node.election.epoch
    node.run(node.election.promise_seen(640, node.now_ms))
    assert [type(one) for one in node.did if isinstance(one, actions.StepDown | actions.Lead)] == [
        actions.Lead,
        actions.StepDown,
        actions.Lead,
    ]
    assert node.election.epoch > 640 > former
    assert node.last(actions.Swap).compares[1].key == STATE, "so that a late campaign is never done"


def test_a_reading_that_is_older_than_this_node_s_log_is_refused() -> None:
    etcd = etcd_of()
    old = etcd.backup()
    node = leading(etcd)
    epoch = node.election.epoch
    etcd.restore(old)
    node.after(1_000)
    assert "restored" in node.election.problem
    node.after(3_000)
    assert not node.leads
    assert node.last(actions.StepDown).reason.startswith("COORDINATION_ILLEGAL: epoch ")
    promises = len(node.all(actions.Promise))
    again = OneNode(etcd, B, promised=epoch, last_epoch=epoch)
    assert "restored" in again.election.problem
    node.after(10_000)
    assert len(node.all(actions.Promise)) == promises, "no epoch is below a promise"


def test_after_a_recovery_the_named_node_leads_above_all_epochs() -> None:
    config = from_bytes(CONFIG, etcd_of().values[CONFIG].value, GroupConfig)
    state = recovered(config, B, 6_400, 10, (B, A), "etcd was lost")
    etcd = ModelEtcd()
    etcd.swap((), (Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))), 0)
    node = leading(etcd)
    assert node.election.epoch > 6_400
    assert state_of(etcd).in_sync == (A, B)


@pytest.mark.parametrize("value", [b"", b"{}", b'{"format":2}', b'{"format":1,"epoch":-1}', b"[" * 70_000])
def test_a_value_that_does_not_parse_is_named_and_changes_nothing(value: bytes) -> None:
    node = leading()
    node.etcd.swap((), (Put(STATE, value),), node.now_ms)
    node.after(1_100)
    assert node.election.problem.startswith("COORDINATION_ILLEGAL: the value of state is illegal")
    assert node.election.epoch > 0, "it keeps its role until its lease ends"
    node.after(3_000)
    assert not node.leads
    assert node.last(actions.StepDown).reason == node.election.illegal
    assert not node.election.may_deliver(node.now_ms)


# --- the lease ------------------------------------------------------------------------------
def test_the_lease_counts_from_when_it_was_asked_for() -> None:
    node = leading()
    node.away = {actions.KeepAlive, actions.Grant}
    sent_ms = node.now_ms
    node.run(node.election.lease_kept(sent_ms, 3, sent_ms + 900))
    assert node.election.lease_until_ms == sent_ms + 2_500


def test_a_lease_counts_for_no_longer_than_was_asked_for() -> None:
    node = OneNode(etcd_of())
    node.run(node.election.lease_granted(Lease(7, 60), 0, 0))
    assert node.election.lease_until_ms == 2_500


def test_a_process_that_was_stopped_delivers_nothing_when_it_wakes() -> None:
    node = leading()
    assert node.election.may_deliver(node.now_ms)
    assert not node.election.may_deliver(node.now_ms + 30_000), "before it hears of anything"


def test_without_etcd_a_leader_whose_copies_answer_goes_on_delivering() -> None:
    node = leading()
    node.etcd.has_quorum = False
    for _ in range(20):
        node.after(500)
        node.run(node.election.streams_answered(node.now_ms - 10, node.now_ms))
        assert node.election.may_deliver(node.now_ms)
    node.after(3_000)
    assert not node.election.may_deliver(node.now_ms)
    assert node.leads, "a commit needs no lease"


def test_a_lost_lease_costs_no_epoch() -> None:
    node = leading()
    epoch = node.election.epoch
    node.etcd.revoke_early()
    node.after(2_000)
    assert node.election.epoch == epoch
    assert node.election.may_deliver(node.now_ms)
    assert LOCK in node.etcd.values


def test_ordered_groups_wait_until_the_leader_before_has_lost_its_rights() -> None:
    node = leading()
    assert node.election.may_deliver(node.now_ms)
    assert not node.election.may_deliver_in_order(node.now_ms)
    node.after(3_000)
    assert node.election.may_deliver_in_order(node.now_ms)


def test_a_winner_that_dropped_all_others_delivered_too_early() -> None:
    node = leading(etcd_of(in_sync=(A, B), in_sync_min=1))
    assert state_of(node.etcd).in_sync == (B,)
    assert not node.election.may_deliver_in_order(node.now_ms)
    again = leading(node.etcd)
    assert not again.election.may_deliver_in_order(again.now_ms), "after a start, too"
    alone = leading(etcd_of(names="b", in_sync=(B,), in_sync_min=1))
    assert alone.election.may_deliver_in_order(alone.now_ms), "no other node ever led"


def test_a_start_gives_up_the_lock_of_its_former_run() -> None:
    etcd = etcd_of(in_sync=(A, C))
    lock_as(etcd, identity("b"), 64)
    node = OneNode(etcd)
    assert LOCK not in etcd.values, "it may not be elected, so that another one may"
    assert not node.leads
    etcd = etcd_of()
    lock_as(etcd, identity("b"), 64)
    node = OneNode(etcd)
    assert node.leads, "no other node campaigns meanwhile"


def test_a_node_that_stops_leaves_no_lease() -> None:
    node = leading()
    node.run(node.election.resign(node.now_ms))
    assert node.all(actions.StepDown)
    assert not node.etcd.leases
    node.after(5_000)
    assert not node.leads


# --- the in-sync set ----------------------------------------------------------------------------
def test_a_set_is_confirmed_by_etcd_s_answer() -> None:
    node = leading()
    change = wanted(node, B, C)
    node.run(node.election.in_sync_wanted(change, node.now_ms))
    assert node.last(actions.ConfirmSet).in_sync == change
    assert state_of(node.etcd).in_sync == (B, C)


def test_a_set_without_an_answer_is_confirmed_when_it_is_read() -> None:
    node = leading()
    node.lost, change = {actions.Swap}, wanted(node, B, C)
    node.away = {actions.Read}
    node.run(node.election.in_sync_wanted(change, node.now_ms))
    assert not node.all(actions.ConfirmSet)
    node.lost = node.away = set()
    node.after(1_000)
    assert node.all(actions.ConfirmSet) == [actions.ConfirmSet(change)]


def test_a_set_of_a_deposed_leader_is_never_written() -> None:
    node = leading()
    state = replace(state_of(node.etcd), epoch=6_400, leader="c", in_sync=(B, C))
    node.etcd.swap((), (Put(STATE, to_bytes(state)),), node.now_ms)
    lock_as(node.etcd, C, 6_400, node.now_ms)
    node.run(node.election.in_sync_wanted(wanted(node, A, B), node.now_ms))
    assert state_of(node.etcd).in_sync == (B, C)
    assert not node.leads


def changes(*copies: Identity) -> InSyncChanges:
    first = InSyncSet(64, 1, frozenset(copies))
    return InSyncChanges(first, 64, A, in_sync_min=2, lag_max_ms=1_500, is_coordinated=True)


def test_a_proposal_counts_until_a_later_one_is_written() -> None:
    one = changes(A, B, C)
    grown = InSyncSet(64, 2, frozenset((A, B)))
    one.proposed.append(grown)
    other = InSyncSet(64, 3, frozenset((A, C)))
    one.proposed.append(other)
    assert one.counted == {A, B, C}
    assert one.confirm_written(grown)
    assert one.counted == {A, B, C}, "the later one may still be written"
    assert one.confirm_written(other)
    assert not one.confirm_written(grown), "an answer that came late"
    assert one.counted == {A, C}


def test_with_a_coordinator_copies_confirm_no_set() -> None:
    one = changes(A, B)
    one.proposed.append(InSyncSet(64, 2, frozenset((A, B, C))))
    assert not one.confirm({A: 2, B: 2, C: 2})
    assert one.to_store.version == 1, "the nodes store written sets only"


# --- a group that is new ------------------------------------------------------------------------
def test_without_a_group_nothing_is_done() -> None:
    node = OneNode(ModelEtcd())
    node.own = actions.OwnLog(
        end=PhysicalOffset(0), flushed=PhysicalOffset(0), commit=PhysicalOffset(0), last_epoch=0
    )
    node.after(3_000)
    assert not node.all(actions.Promise)


def test_a_late_answer_to_a_swap_that_failed_is_ignored() -> None:
    node = leading()
    assert node.election.swap_done(-1, Swapped(True, node.etcd.read(node.now_ms)), node.now_ms) == []


def test_the_lock_is_deleted_by_its_revision() -> None:
    etcd = etcd_of(in_sync=(A, C))
    lock_as(etcd, B, 64)
    revision = etcd.values[LOCK].changed
    node = OneNode(etcd)
    assert node.all(actions.Swap)[0] == actions.Swap(1, (Compare(LOCK, revision),), (Delete(LOCK),))


def test_the_state_keeps_the_floor_of_the_commit() -> None:
    node = leading()
    node.own = actions.OwnLog(
        end=PhysicalOffset(500), flushed=PhysicalOffset(500), commit=PhysicalOffset(400), last_epoch=64
    )
    node.election.own_log(node.own)
    node.after(11_000)
    state: GroupState = state_of(node.etcd)
    assert state.commit_floor == 400
