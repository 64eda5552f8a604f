"""Planted faults of elections at a coordinator (replication/election*.py, in_sync.py). See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

PACKAGE: Final = "broker/trovemq_broker/replication/"
ELECTION: Final = f"{PACKAGE}election.py"
VIEW: Final = f"{PACKAGE}election_view.py"
LEASE: Final = f"{PACKAGE}election_lease.py"
LEADERSHIP: Final = f"{PACKAGE}election_leadership.py"
RULES: Final = "tests/unit/replication/test_election.py::"
CHANGES: Final = "tests/unit/replication/test_election_changes.py::"
RECOVERY: Final = "tests/unit/replication/test_recovery.py::"
WALK: Final = (
    "tests/unit/replication/test_election_walks.py::test_a_walk_keeps_every_acknowledged_record[0]",
)
GROWING: Final = (
    "tests/unit/replication/test_election_walks.py"
    "::test_a_walk_of_a_group_that_grows_keeps_every_acknowledged_record"
)

ELECTION_FAULTS: Final = (
    Planted(
        "a proposed in-sync set counts for nothing until etcd answers",
        f"{PACKAGE}in_sync.py",
        "sets = [*self.proposed, *([self.confirmed] if self.confirmed is not None else [])]",
        "sets = [self.confirmed] if self.confirmed is not None else self.proposed",
        (f"{RULES}test_a_proposal_counts_until_a_later_one_is_written", *WALK),
        {"TRIAL": "2000"},
    ),
    Planted(
        "an in-sync set counts for nothing once a later one is proposed",
        f"{PACKAGE}in_sync.py",
        "sets = [*self.proposed, *([self.confirmed] if self.confirmed is not None else [])]",
        "sets = [self.newest]",
        (f"{RULES}test_a_proposal_counts_until_a_later_one_is_written", *WALK),
        {"TRIAL": "4"},
    ),
    Planted(
        "an election leaves fewer copies than the minimum",
        VIEW,
        "        if len(copies) > view.config.in_sync_needed:",
        "        if len(copies) > 1:",
        (f"{RULES}test_an_election_keeps_as_many_copies_as_the_minimum", *WALK),
        {"TRIAL": "0"},
    ),
    Planted(
        "a campaign is written before its promise is on disk",
        ELECTION,
        "        return [Unfollow(), Promise(promise)]\n",
        "        self._promised, self._campaign.is_promised = promise, True\n"
        "        swap = self._campaigning(self._campaign, view, self._now_ms)\n"
        "        return [Unfollow(), Promise(promise), *swap]\n",
        (f"{RULES}test_a_campaign_ends_the_stream_then_promises_then_writes", *WALK),
        {"TRIAL": "0"},
    ),
    Planted(
        "a campaign begins while the stream to the leader is open",
        ELECTION,
        "return [Unfollow(), Promise(promise)]",
        "return [Promise(promise)]",
        (f"{RULES}test_a_campaign_ends_the_stream_then_promises_then_writes", *WALK),
        {"TRIAL": "40"},
    ),
    Planted(
        "a reading of a restored etcd is believed",
        ELECTION,
        "self._illegal = went_back(view, sent.known)",
        'self._illegal = ""',
        (f"{RULES}test_a_reading_that_is_older_than_this_node_s_log_is_refused",),
    ),
    Planted(
        "an epoch is led below a later promise",
        ELECTION,
        "        elif campaign is not None and campaign.promise < epoch:",
        "        elif epoch < 0:",
        (f"{RULES}test_an_election_done_late_is_not_led_after_a_later_promise",),
    ),
    Planted(
        "a start after which bytes may be lost keeps its place in the set",
        VIEW,
        "if me not in state.in_sync and not _is_alone(state, me):",
        "if me[:2] not in [one[:2] for one in state.in_sync]:",
        (f"{RULES}test_only_a_copy_of_the_set_campaigns", *WALK),
        {"TRIAL": "80"},
    ),
    Planted(
        "another store of a listed node may be elected",
        VIEW,
        "if me not in state.in_sync and not _is_alone(state, me):",
        "if me.node not in [one.node for one in state.in_sync]:",
        (f"{RULES}test_only_a_copy_of_the_set_campaigns", *WALK),
        {"TRIAL": "80"},
    ),
    Planted(
        "a node outside of the in-sync set may be elected, by the length of its log",
        VIEW,
        "if me not in state.in_sync and not _is_alone(state, me):",
        "if not state.in_sync:",
        (f"{RULES}test_only_a_copy_of_the_set_campaigns", *WALK),
        {"TRIAL": "80"},
    ),
    Planted(
        "the lease counts from its answer",
        LEASE,
        "            self.until_ms = max(self.until_ms, self.right_until(sent_ms, ttl_s))",
        "            self.until_ms = max(self.until_ms, self.right_until(now_ms, ttl_s))",
        (f"{RULES}test_the_lease_counts_from_when_it_was_asked_for",),
    ),
    Planted(
        "a leader delivers although its lease has ended",
        ELECTION,
        "        return by_lock or now_ms < lead.stream_until_ms\n",
        "        return True\n",
        (f"{RULES}test_a_process_that_was_stopped_delivers_nothing_when_it_wakes", *WALK),
        {"TRIAL": "160"},
    ),
    Planted(
        "a promise is forgotten after a lost answer",
        ELECTION,
        "            self._fresh_ms, self._retry_ms = now_ms, now_ms + RETRY_MS\n",
        "            self._fresh_ms, self._retry_ms, self._campaign = now_ms, now_ms + RETRY_MS, None\n"
        "            self._promised = 0\n",
        (f"{RULES}test_a_lost_answer_keeps_the_promise_and_is_found_by_reading", *WALK),
        {"TRIAL": "40"},
    ),
    Planted(
        "a leader that meets a later promise leads on",
        ELECTION,
        "if self._lead is not None and epoch > self._lead.epoch:",
        "if self._lead is not None and epoch < 0:",
        (f"{RULES}test_a_leader_that_meets_a_later_promise_takes_an_epoch_above_it", *WALK),
        {"TRIAL": "40"},
    ),
    Planted(
        "a campaign does not compare the state",
        ELECTION,
        "            Compare(STATE, view.state_changed),\n",
        "",
        (f"{RULES}test_a_campaign_that_comes_late_is_never_done_after_another_one",),
    ),
    Planted(
        "an in-sync set is written over a state that was not read",
        LEADERSHIP,
        "return WantedSwap((state, config), (Put(STATE, to_bytes(later)),))\n        if (changed",
        "return WantedSwap((config,), (Put(STATE, to_bytes(later)),))\n        if (changed",
        (f"{RULES}test_a_set_of_a_deposed_leader_is_never_written", *WALK),
        {"TRIAL": "2000"},
    ),
    Planted(
        "a set is written by a list of members that has changed",
        LEADERSHIP,
        "return WantedSwap((state, config), (Put(STATE, to_bytes(later)),))\n        if (changed",
        "return WantedSwap((state,), (Put(STATE, to_bytes(later)),))\n        if (changed",
        (f"{CHANGES}test_a_set_compares_the_members_that_were_read",),
    ),
    Planted(
        "a copy that lacks a committed record is elected, because its disk was rolled back",
        VIEW,
        "if (reached := counted_end(own, is_sync=view.config.is_sync)) < state.commit_floor:",
        "if (reached := counted_end(own, is_sync=view.config.is_sync)) < 0:",
        (f"{RULES}test_a_node_whose_disk_was_rolled_back_does_not_campaign",),
    ),
    Planted(
        "followers store an in-sync set that is not written yet",
        f"{PACKAGE}in_sync.py",
        "return self._confirmed if self._is_coordinated else self.newest",
        "return self.newest",
        (f"{RULES}test_with_a_coordinator_copies_confirm_no_set",),
    ),
    Planted(
        "a planned switch-over that may be done is led on",
        ELECTION,
        "if sent.resigns and self._lead is not None and (swapped is None or swapped.done):",
        "if sent.resigns and self._lead is not None and swapped is not None and swapped.done:",
        (f"{CHANGES}test_a_lock_that_may_be_given_up_is_not_led_on",),
    ),
    Planted(
        "a recovery goes by the newest in-sync set that is known",
        f"{PACKAGE}promotion.py",
        "return frozenset(one for one, end in ends.items() if end == last)",
        "return newest.copies & ends.keys()",
        (f"{RECOVERY}test_the_set_that_no_node_knows_had_one_of_them",),
    ),
    Planted(
        "new voters that were never in sync are enough for a recovery",
        f"{PACKAGE}promotion.py",
        "if all(one.in_sync is None for one in counted):",
        "if not counted:",
        (f"{RECOVERY}test_new_voters_that_were_never_in_sync_are_not_enough", GROWING),
        {"TRIAL": "2"},
    ),
    Planted(
        "a replaced disk counts in a recovery",
        f"{PACKAGE}promotion.py",
        "if one.identity.node in voters and one.identity.node not in replaced",
        "if one.identity.node in voters",
        (f"{RECOVERY}test_a_promise_without_the_log_of_then_is_none",),
    ),
    Planted(
        "a copy out of sync is elected beside one that is in sync",
        f"{PACKAGE}election_members.py",
        ".intersection(state.in_sync)",
        ".intersection(())",
        (f"{RECOVERY}test_an_in_sync_copy_that_may_come_back_leads_instead",),
    ),
)
