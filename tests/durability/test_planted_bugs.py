"""Deliberate faults in the engine, each found by the tests: see planted.py."""

from __future__ import annotations

import pytest

from tests.durability.planted import Planted, Planting, find
from tests.support.trials import SOAK, Trials

ENGINE = "tests/unit/engine/"
AFTER_A_CRASH = f"{ENGINE}test_after_a_crash.py::"
RESTART = f"{ENGINE}test_restart.py::"
RETENTION = f"{ENGINE}test_retention.py::"
DEDUPLICATION = "tests/unit/trees/test_deduplication.py::"
MODEL_WALK = "tests/durability/test_model_walks.py::test_a_walk_agrees_with_the_models[0]"
ONE_TEST = f"{RESTART}test_abort_names_the_process_while_the_store_is_open"

BUGS = (
    Planted(
        "the log is not synced",
        "store/trovemq_store/log/commit_log.py",
        "            segment.file.sync()\n",
        "",
        (f"{RESTART}test_a_power_cut_keeps_everything_that_was_acknowledged[9]",),
    ),
    Planted(
        "acknowledged while the sync runs",
        "broker/trovemq_broker/produce/group_commit.py",
        "        self._thread.start(self._work.run, self._synced)\n",
        "        self._thread.start(self._work.run, lambda _failure: None)\n        self._synced(None)\n",
        ("tests/unit/produce/test_group_commit.py::test_appends_that_come_during_a_sync_share_the_next_one",),
    ),
    Planted(
        "a new segment's directory is not synced",
        "store/trovemq_store/log/commit_log.py",
        "            self._files.sync_directory(DIRECTORY)\n",
        "",
        (f"{RESTART}test_a_power_cut_keeps_everything_that_was_acknowledged[12]",),
    ),
    Planted(
        "the key index is trusted after a crash",
        "store/trovemq_store/index/key_index.py",
        "            self._cut(trusted_position, store_timestamp_at)\n",
        "",
        (f"{AFTER_A_CRASH}test_items_of_records_that_a_power_cut_took_are_not_believed",),
    ),
    Planted(
        "what is behind the end is not zeroed",
        "store/trovemq_store/engine/opening.py",
        "        return zero_after(self._files, self._log, end)",
        "        return 0",
        (f"{RESTART}test_a_torn_record_at_the_end_is_cut_and_its_bytes_are_zeroed[50]",),
    ),
    Planted(
        "PHYSICALOFFSET is not compared",
        "proto/trovemq_proto/records/check.py",
        "    elsewhere = physical_offset is not None and ",
        "    elsewhere = False and ",
        (f"{AFTER_A_CRASH}test_a_record_of_an_older_generation_after_the_end_is_not_a_message",),
    ),
    Planted(
        "no CRC is compared",
        "proto/trovemq_proto/records/check.py",
        "    if check_crc and ",
        "    if False and ",
        (f"{RESTART}test_a_record_damaged_in_the_middle_is_not_answered_but_neighbours_are",),
    ),
    Planted(
        "state.json names what was not synced",
        "store/trovemq_store/engine/message_store.py",
        "        log_end, timestamp = self._log.flushed_offset, self._flushed_timestamp\n",
        "        log_end, timestamp = self._log.end, self._flushed_timestamp\n",
        (f"{AFTER_A_CRASH}test_the_saved_state_names_nothing_that_no_sync_has_covered",),
    ),
    Planted(
        "state.json names index items that were not synced",
        "store/trovemq_store/engine/store_checkpoint.py",
        "key_index_position=min(self._index_position, whole)",
        "key_index_position=log_end",
        (f"{AFTER_A_CRASH}test_the_saved_state_names_nothing_of_the_index_that_was_not_synced",),
    ),
    Planted(
        "events after the snapshot are not replayed",
        "broker/trovemq_broker/state/consumer_state.py",
        "        self._replay(state.event_offset, state.log_end)",
        "        pass",
        (
            f"{ENGINE}test_consumer_state_opening.py::test_after_a_kill_the_events_after_the_snapshot_are_replayed",
        ),
    ),
    Planted(
        "what recovery found is not synced",
        "store/trovemq_store/engine/opening.py",
        "        segment.file.sync()\n",
        "        pass\n",
        (f"{AFTER_A_CRASH}test_what_a_start_after_a_kill_found_survives_a_power_cut",),
    ),
    Planted(
        "carrying forgets to write its events",
        "broker/trovemq_broker/state/consumer_state.py",
        "        self.events.flush(now_ms)\n        return count\n",
        "        return count\n",
        (f"{RETENTION}test_what_is_pending_is_delivered_once_after_its_segment_went[after-cut_off]",),
    ),
    Planted(
        "a timer comes early",
        "broker/trovemq_broker/timers/calendar.py",
        'head["deliver_ms"], now_ms, "right")',
        'head["deliver_ms"], now_ms + 1, "right")',
        ("tests/unit/timers/test_calendar.py::test_it_gives_what_a_sorted_list_gives",),
    ),
    Planted(
        "items that do not fit into an index file are dropped",
        "store/trovemq_store/index/key_index.py",
        "                done += file.put(hashes[done:end], physical[done:end], timestamps[done:end])",
        "                file.put(hashes[done:end], physical[done:end], timestamps[done:end])\n"
        "                done = len(hashes)",
        ("tests/unit/index/test_key_index.py::test_one_messages_keys_are_split_over_two_files",),
    ),
    Planted(
        "a queue offset is given twice",
        "store/trovemq_store/engine/appending.py",
        "            after[queue] = first + count\n",
        "            after[queue] = first + 1\n",
        (f"{RESTART}test_a_batch_of_one_topic_lies_in_one_segment_after_a_restart",),
    ),
    Planted(
        "pending timers are not carried at expiry",
        "broker/trovemq_broker/state/consumer_state.py",
        "        count += self.timers.reappend_live_records_before(physical_offset, now_ms)\n",
        "",
        (f"{RETENTION}test_what_is_pending_is_delivered_once_after_its_segment_went[after-killed]",),
    ),
    Planted(
        "consumer offsets are stored beyond the synced log",
        "store/trovemq_store/topics/offsets.py",
        "        return offset if self.limit is None else min(offset, self.limit(topic, queue_id))",
        "        return offset",
        ("tests/unit/topics/test_offsets.py::test_what_is_stored_never_passes_the_synced_log",),
    ),
    Planted(
        "store times follow a clock that goes back",
        "store/trovemq_store/engine/store_time.py",
        "        return max(now_ms, self.last_ms)",
        "        return now_ms",
        (f"{ENGINE}test_append.py::test_the_three_orders_agree_and_times_never_go_back",),
    ),
    Planted(
        "files of old segments go newest first",
        "store/trovemq_store/engine/trim.py",
        "            del self._removals[0]",
        "            del self._removals[0]\n            self._removals.reverse()",
        (f"{RETENTION}test_files_go_oldest_first_and_each_segment_leaves_before_the_next",),
    ),
    Planted(
        "an id counts as known for ever",
        "store/trovemq_store/index/trees/unique_ids.py",
        "                    if known is not None and since.has(offset, known.place.store_timestamp):\n",
        "                    if known is not None:\n",
        (f"{DEDUPLICATION}test_reading_a_longer_window_hides_nothing_that_is_known",),
    ),
    Planted(
        "ids leave the memory before the tree has them",
        "store/trovemq_store/index/trees/store_trees.py",
        "unique_ids.committed(position)",
        "unique_ids.committed(1 << 62)",
        (f"{DEDUPLICATION}test_an_id_that_came_while_a_step_ran_is_known",),
    ),
    Planted(
        "an id of a deleted topic counts",
        "store/trovemq_store/index/trees/unique_ids.py",
        "                if offset is not None and offset >= alive_from and unique_id:\n",
        "                if offset is not None and unique_id:\n",
        (f"{DEDUPLICATION}test_an_id_of_a_deleted_topic_may_be_sent_again[False]",),
    ),
    Planted(
        "half of a transaction is visible",
        "store/trovemq_store/index/consume_queues.py",
        "        together = len(runs) == 1 or len({queue for queue, _, _ in runs}) == len(runs)\n",
        "        together = False\n",
        ("tests/unit/atomic/test_atomic_commits.py::test_a_consume_queue_without_space_shows_no_half_of_it",),
    ),
    Planted(
        "a transaction that is not whole is not cut",
        "store/trovemq_store/log/whole_runs.py",
        "        if found.end == self._reader.position and ",
        "        if False and ",
        ("tests/durability/test_transaction_crashes.py::test_a_run_that_was_cut_off_at_any_byte_is_gone",),
    ),
    Planted(
        "an acknowledgement is stored before its transaction is on disk",
        "broker/trovemq_broker/atomic/commits.py",
        "            self._store.offsets.needs_log(result.end)\n",
        "",
        (
            "tests/unit/atomic/test_atomic_commits.py::"
            "test_an_acknowledgement_waits_for_its_transaction_to_be_on_disk",
        ),
    ),
    Planted(
        "one acknowledgement of a transaction is not in its run",
        "broker/trovemq_broker/atomic/commits.py",
        "(acknowledgement.event(now_ms) for acknowledgement in prepared)",
        "(acknowledgement.event(now_ms) for acknowledgement in prepared[1:] or prepared)",
        (MODEL_WALK,),
        {"TRIAL": "0"},
    ),
    Planted(
        "a producer's number that is just too old is stored",
        "store/trovemq_store/index/trees/producers.py",
        "            if sequence <= highest - DEPTH:\n",
        "            if sequence < highest - DEPTH:\n",
        (MODEL_WALK,),
        {"TRIAL": "0"},
    ),
    Planted(
        "a search forgets what the trees lack",
        "broker/trovemq_broker/query/search/search.py",
        "        return min(high, max(low, trees.search.position if trees is not None else LOG_ORIGIN))",
        "        return high if trees is not None else low",
        (
            "tests/unit/search/test_search.py::"
            "test_explain_names_the_index_and_how_many_entries_it_will_touch",
            f"{MODEL_WALK}",
        ),
        {"TRIAL": "0"},
    ),
    Planted(
        "the cursor of a priority passes a message",
        "broker/trovemq_broker/groups/delivery/priority_receiver.py",
        "        self._order.cursors[priority] = offset + 1\n",
        "        self._order.cursors[priority] = offset + 2\n",
        (
            "tests/unit/delivery/test_priority_order.py::"
            "test_higher_ones_go_first_and_each_priority_in_the_order_of_sending",
        ),
    ),
    Planted(
        "until_acknowledged waits for one group only",
        "broker/trovemq_broker/state/held_log.py",
        '        offset, group = min(acknowledged, default=(0, ""))\n',
        '        offset, group = max(acknowledged, default=(0, ""))\n',
        (f"{ENGINE}test_held_log.py::test_every_group_counts_and_a_deleted_one_counts_no_more",),
    ),
    Planted(
        "a new topic gets the number of the deleted one of its name",
        "store/trovemq_store/index/trees/topic_numbers.py",
        "TopicEntry(self._next, ",
        "TopicEntry(old.number if old else self._next, ",
        (
            "tests/unit/trees/test_store_trees.py::"
            "test_a_topic_deleted_and_created_again_has_none_of_its_old_entries",
        ),
    ),
    Planted(
        "a sweep takes messages that are there",
        "store/trovemq_store/index/trees/sweeping.py",
        "if offset >= below] if value",
        "if offset > below + 4_096] if value",
        (
            "tests/unit/trees/test_store_trees.py::"
            "test_entries_of_what_retention_removed_are_swept_and_no_others",
        ),
    ),
)


def test_each_bug_has_its_place_in_the_code() -> None:
    for bug in BUGS:
        bug.source()


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS if SOAK else BUGS[::2], ids=lambda bug: bug.name.replace(" ", "_"))
def test_the_tests_find_it(bug: Planted, trials: Trials, planting: Planting) -> None:
    find(bug, planting)
    trials.count("planted", "planted bugs found")


def test_a_bug_that_no_longer_fits_the_code_is_an_error(planting: Planting) -> None:
    with pytest.raises(AssertionError, match="is stale"):
        find(
            Planted("gone", "store/trovemq_store/engine/message_store.py", "no such text", "", (ONE_TEST,)),
            planting,
        )


@pytest.mark.slow
def test_a_bug_that_nothing_finds_is_an_error(planting: Planting) -> None:
    harmless = Planted(
        "harmless",
        "store/trovemq_store/engine/store_checkpoint.py",
        "INDEX_FLUSH_EVERY: Final = 10\n",
        "INDEX_FLUSH_EVERY: Final = 11\n",
        (ONE_TEST,),
    )
    with pytest.raises(AssertionError, match="passes although"):
        find(harmless, planting)
