"""Planted faults of the replication's state machines (replication/). The walks find all that need no rare
steps; the others have tests of their rule. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

PACKAGE: Final = "broker/trovemq_broker/replication/"
WALKS: Final = "tests/unit/replication/test_replication_walks.py::test_a_walk_keeps_every_acknowledged_record"
ALL_ORDERS: Final = "tests/unit/replication/test_all_orders.py::test_no_order_of_events_loses_a_record"
MEMBERS: Final = "tests/unit/replication/test_members.py::"
NODE: Final = "broker/trovemq_broker/daemon/replica/"
GATHERING: Final = "tests/unit/daemon/test_gathering.py::"
CHANGES: Final = "tests/unit/daemon/test_member_changes.py::"
FOLLOWER: Final = "tests/unit/replication/test_follower.py::"
WALK: Final = (f"{WALKS}[0]",)

REPLICATION_FAULTS: Final = (
    Planted(
        "the leader acknowledges before a follower has synced",
        f"{PACKAGE}peers.py",
        "return self.flushed if is_sync else self.end",
        "return self.end",
        (
            "tests/unit/replication/test_leader.py::test_nothing_is_committed_before_a_follower_has_synced",
            *WALK,
        ),
        {"TRIAL": "759"},
    ),
    Planted(
        "the in-sync set grows, and the copies of the set before are not counted meanwhile",
        f"{PACKAGE}in_sync.py",
        "sets = [*self.proposed, *([self.confirmed] if self.confirmed is not None else [])]",
        "sets = [*([self.confirmed] if self.confirmed is not None else self.proposed)]",
        ("tests/unit/replication/test_leader.py::test_a_proposed_copy_counts_however_late_it_is",),
    ),
    Planted(
        "the in-sync set shrinks below its minimum",
        f"{PACKAGE}in_sync.py",
        "            if len(copies) > self.in_sync_min:",
        "            if len(copies) > 1:",
        WALK,
        {"TRIAL": "4"},
    ),
    Planted(
        "of two late copies the one that does not answer stays in the set",
        f"{PACKAGE}in_sync.py",
        "lost.sort(key=lambda one: (-_silent_ms(known.get(one)), one))",
        "lost.sort()",
        (
            "tests/unit/replication/test_leader.py::"
            "test_a_copy_that_stood_still_stayed_in_the_set_instead_of_a_late_one",
        ),
    ),
    Planted(
        "the time for which the leader stood still counts as its followers' lag",
        f"{PACKAGE}leader.py",
        "        if stood_ms > HEARTBEAT_MS:\n",
        "        if False:\n",
        ("tests/unit/replication/test_leader.py::test_a_leader_that_stood_still_put_copies_out_of_the_set",),
    ),
    Planted(
        "a report from before the leader's pause takes the forgiven time back",
        f"{PACKAGE}leader.py",
        "                peer.mark_ms = min(now_ms, peer.mark_ms + stood_ms)\n",
        "",
        (
            "tests/unit/replication/test_leader.py::"
            "test_a_report_from_before_a_pause_put_its_copy_out_of_the_set",
        ),
    ),
    Planted(
        "a set with fewer copies than the minimum commits",
        f"{PACKAGE}in_sync.py",
        "return self.confirmed is not None and len(self.confirmed.copies) >= self.in_sync_min",
        "return self.confirmed is not None",
        (
            "tests/unit/replication/test_leader.py::"
            "test_a_copy_that_was_alone_committed_what_no_other_choice_finds",
        ),
    ),
    Planted(
        "a copy is added that lacks a committed record",
        f"{PACKAGE}in_sync.py",
        "return is_new and copy.held >= needed and self",
        "return is_new and self",
        ("tests/unit/replication/test_leader.py::test_a_copy_that_lacks_a_committed_record_is_not_added",),
    ),
    Planted(
        "a follower reports before its promise is on disk",
        f"{PACKAGE}follower.py",
        "        if state.promised < welcome.epoch:\n            return [Promise(welcome.epoch)]\n",
        "",
        WALK,
        {"TRIAL": "0"},
    ),
    Planted(
        "a follower stores the in-sync set that it is not in",
        f"{PACKAGE}follower.py",
        "if self._me in in_sync.copies and in_sync.version > self._stored_version:",
        "if in_sync.version > self._stored_version:",
        ("tests/unit/replication/test_follower.py::test_only_a_copy_of_the_set_stores_it",),
    ),
    Planted(
        "frames of a former epoch are accepted",
        f"{PACKAGE}follower.py",
        "if epoch != self.epoch or epoch < self.state.promised:",
        "if False:",
        (
            "tests/unit/replication/test_follower.py::test_after_a_promise_to_another_leader_nothing_is_appended",
        ),
    ),
    Planted(
        "records of a former epoch are committed without one of this epoch",
        f"{PACKAGE}commit.py",
        "self._ends: deque[Offset] = deque([epoch_end])",
        "self._ends: deque[Offset] = deque(range(known + 1, epoch_end + 1))",
        ("tests/unit/replication/test_leader.py::test_records_of_a_former_epoch_wait_for_the_epoch_record",),
    ),
    Planted(
        "a commit is counted before the first in-sync set of the epoch is confirmed",
        f"{PACKAGE}leader.py",
        "if not self.in_sync.may_commit:\n            return\n        mine",
        "mine",
        ("tests/unit/replication/test_leader.py::test_nothing_is_committed_before_a_set_is_confirmed",),
    ),
    Planted(
        "a leadership is in the list of epochs only after its first records",
        f"{PACKAGE}follower.py",
        "            log.begin_epoch(starts[0])\n",
        "",
        WALK,
        {"TRIAL": "0"},
    ),
    Planted(
        "the node with the longest log leads, whether it was in the in-sync set or not",
        f"{PACKAGE}promotion.py",
        "able = [one for one in with_state if _version(one) == newest and _is_in_its_set(one)]",
        "able = with_state",
        WALK,
        {"TRIAL": "1"},
    ),
    Planted(
        "a node that lost its disk counts among those that promised",
        f"{PACKAGE}promotion.py",
        "    return one.in_sync is not None or stores",
        "    return True or stores",
        WALK,
        {"TRIAL": "41"},
    ),
    Planted(
        "one promise too few is enough",
        f"{PACKAGE}promotion.py",
        "return voters - in_sync_min + 1",
        "return max(1, voters - in_sync_min)",
        (*WALK, f"{ALL_ORDERS}[limits1-8000]"),
        {"TRIAL": "9"},
    ),
    Planted(
        "two nodes lead in one epoch",
        f"{PACKAGE}promotion.py",
        "return promised + _place(node, voters)",
        "return promised",
        ("tests/unit/replication/test_follower.py::test_no_two_nodes_lead_in_one_epoch",),
    ),
    Planted(
        "two operators who gather promises at once ask for one epoch",
        f"{PACKAGE}promotion.py",
        " + PLACES * _place(gatherer, voters)",
        "",
        (
            "tests/unit/replication/test_follower.py"
            "::test_after_a_promise_a_follower_followed_another_operators_leader",
        ),
    ),
    Planted(
        "a report above the sent bytes counts",
        f"{PACKAGE}leader.py",
        "peer.end <= progress.end <= peer.sent and ",
        "",
        ("tests/unit/replication/test_leader.py::test_a_report_above_the_sent_bytes_ends_the_stream",),
    ),
    Planted(
        "a store that may have lost a promise is added without a witness",
        f"{PACKAGE}peers.py",
        "    if peer.has_state:\n        return True\n",
        "    return True\n",
        WALK,
        {"TRIAL": "32"},
    ),
    Planted(
        "a commit does not wait for a copy that keeps up outside of the set",
        f"{PACKAGE}leader.py",
        "return found + [",
        "return found or [",
        (
            "tests/unit/replication/test_leader.py::test_a_copy_that_is_always_slower_never_came_back_under_load",
            "tests/unit/replication/test_replication_walks.py"
            "::test_the_slowest_copy_comes_back_while_load_lasts[0]",
        ),
    ),
    Planted(
        "each commit sends each follower a heartbeat",
        f"{PACKAGE}leader.py",
        " and peer.answered_ms >= peer.beaten_ms\n",
        "\n",
        ("tests/unit/replication/test_leader.py::test_a_peer_that_reads_nothing_collected_heartbeats",),
    ),
    Planted(
        "a new voter is in the in-sync set before the copies know that it is one",
        f"{PACKAGE}members.py",
        'waits = "" if self.counts else self._waits',
        'waits = ""',
        (f"{MEMBERS}test_a_node_becomes_a_learner_then_a_voter",),
    ),
    Planted(
        "a list of members counts once the leader has stored it",
        f"{PACKAGE}members.py",
        "not all(stored.get(one, 0) >= self.newest.version for one in counted)",
        "not stored",
        (f"{MEMBERS}test_a_node_becomes_a_learner_then_a_voter",),
    ),
    Planted(
        "a list that does not count yet lowers the copies that a commit needs",
        f"{NODE}member_changes.py",
        "in_sync_min=newest.needed(self._node.place.in_sync_min),",
        "in_sync_min=max(1, min(self._node.place.in_sync_min, sum(self._changes.voters.values()))),",
        (f"{CHANGES}test_a_group_that_grows_to_its_minimum_needs_it_from_the_list_on",),
    ),
    Planted(
        "a copy of the set cannot be replaced before it has stored the list",
        f"{PACKAGE}members.py",
        'self._waits: Node = "" if stored.newest in in_sync else stored.newest',
        "self._waits: Node = stored.newest",
        (f"{CHANGES}test_a_leader_of_two_that_led_again_counted_alone",),
    ),
    Planted(
        "a leader forgets which learners are to vote",
        f"{PACKAGE}members.py",
        "self.newest = replace(stored, version=max(stored.version, epoch * CHANGES_MAX))",
        "self.newest = replace(stored, version=max(stored.version, epoch * CHANGES_MAX), joining=())",
        (
            f"{CHANGES}test_a_node_stayed_a_learner_when_another_leader_followed",
            f"{CHANGES}test_a_node_stayed_a_learner_when_etcds_next_leader_followed",
        ),
    ),
    Planted(
        "the promise of a removed node counts",
        f"{PACKAGE}promotion.py",
        "[one for one in with_state if one.identity.node in voters]",
        "with_state",
        (f"{MEMBERS}test_a_removed_member_counted_in_a_promotion",),
    ),
    Planted(
        "a removed store returns",
        f"{PACKAGE}leader.py",
        "self._me.node or is_removed:",
        "self._me.node:",
        (f"{MEMBERS}test_a_removed_member_loses_its_stream_and_never_returns",),
    ),
    Planted(
        "places among the voters move when a member comes or goes",
        f"{PACKAGE}promotion.py",
        "    return voters[node] if isinstance(voters, Mapping) else sorted(voters).index(node)",
        "    return sorted(voters).index(node)",
        (f"{MEMBERS}test_two_nodes_with_different_lists_asked_for_one_epoch",),
    ),
    Planted(
        "a leader's list has the version of the leader before",
        f"{PACKAGE}members.py",
        "self.newest = replace(stored, version=max(stored.version, epoch * CHANGES_MAX))",
        "self.newest = stored",
        (f"{MEMBERS}test_a_list_that_never_counted_blocked_every_later_change",),
    ),
    Planted(
        "the start of a copied store ends the leadership of the other one",
        f"{NODE}former_run.py",
        "(place.node, place.directory) == (node, directory())",
        "place.node == node",
        ("tests/unit/daemon/test_former_run.py::test_the_lock_stays_where_the_store_is_a_copy_or_new",),
    ),
    Planted(
        "a promise counts whose disk was replaced since",
        f"{NODE}gathering.py",
        "if one.identity in known and one.identity.store_id not in removed",
        "if one.identity.store_id not in removed",
        (f"{GATHERING}test_a_disk_that_was_replaced_between_the_promises_counted",),
    ),
    Planted(
        "a promotion goes by the list of its gatherer",
        f"{NODE}gathering.py",
        "self._listed = listed = max((self._listed, *lists), key=lambda one: one.version)",
        "self._listed = listed = max((self._listed, *lists), key=lambda one: one is self._listed)",
        (f"{GATHERING}test_a_list_that_came_before_the_promise_counted_for_nothing",),
    ),
    Planted(
        "a fenced promotion cuts records of a later epoch",
        f"{NODE}gathering.py",
        "if later.last_epoch > self._own.last_epoch:",
        "if later.end > self._own.end:",
        (
            f"{GATHERING}test_a_fenced_promotion_lost_the_records_of_a_later_epoch",
            f"{GATHERING}test_a_fenced_recovery_lost_the_records_of_a_later_epoch",
        ),
    ),
    Planted(
        "a follower learns the members of a deposed leader",
        f"{NODE}finding.py",
        "if one.leads and one.cluster == place.cluster and one.epoch >= promised",
        "if one.leads and one.cluster == place.cluster",
        (f"{CHANGES}test_a_list_of_a_deposed_leader_is_not_learned",),
    ),
    Planted(
        "a change of the members counts when the leader has stored it",
        f"{NODE}member_changes.py",
        "if self._changes.confirm(self._stored, copies):",
        "if self._changes.confirm(self._stored, [place.identity]):",
        (
            f"{CHANGES}test_a_change_counts_when_each_copy_that_counts_has_it",
            f"{CHANGES}test_a_change_after_the_promises_never_counts",
        ),
    ),
    Planted(
        "a part of an append is committed",
        f"{PACKAGE}commit.py",
        "            self.offset = self._ends.popleft()\n",
        "            self.offset = self._ends.popleft()\n        self.offset = max(self.offset, least)\n",
        ("tests/unit/replication/test_leader.py::test_an_append_is_committed_as_a_whole",),
    ),
    Planted(
        "a follower trims its log before the leader does",
        f"{PACKAGE}follower.py",
        "return begin if self.epoch and self._log.flushed >= commit else LOG_ORIGIN",
        "return commit if self.epoch else LOG_ORIGIN",
        WALK,
        {"TRIAL": "0"},
    ),
    Planted(
        "a follower trims before it has the records that the leader appended again",
        f"{PACKAGE}follower.py",
        "return begin if self.epoch and self._log.flushed >= commit else LOG_ORIGIN",
        "return begin if self.epoch else LOG_ORIGIN",
        (f"{FOLLOWER}test_a_follower_removes_nothing_before_it_has_the_copies",),
    ),
    Planted(
        "a leader keeps no log for a follower that lags",
        f"{PACKAGE}kept_log.py",
        "            begin = min(begin, end)\n",
        "            pass\n",
        (
            "tests/unit/replication/test_kept_log.py::test_the_log_is_kept_from_the_end_of_the_follower_that_lags",
        ),
    ),
    Planted(
        "a copy of the in-sync set is held by the rate of catching up",
        f"{PACKAGE}leader.py",
        " or peer.identity in self.in_sync.counted:",
        ":",
        ("tests/unit/replication/test_catching_up.py::test_a_copy_of_the_set_that_lags_is_never_held",),
    ),
)
