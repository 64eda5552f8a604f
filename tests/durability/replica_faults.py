"""Planted faults of a log that has copies: raw appends, cuts, the commit limit. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

COMMIT_LIMIT: Final = "tests/unit/engine/test_commit_limit.py::"
KEPT: Final = "tests/unit/index/test_kept_runs.py::"
CUTS: Final = "tests/unit/replica/test_truncation.py::"
CRASHES: Final = "tests/durability/test_truncation_crashes.py::"
EPOCHS: Final = "tests/unit/replica/test_epochs.py::"
WHOLE_END: Final = "tests/unit/replica/test_whole_end.py::"
RAW: Final = "tests/unit/log/test_raw_append.py::"

REPLICA_FAULTS: Final = (
    Planted(
        "a follower cuts its log to its commit offset",
        "store/trovemq_store/replica/epochs.py",
        "    return point\n",
        "    return committed\n",
        (f"{EPOCHS}test_a_follower_cuts_at_the_common_point_and_not_at_its_commit_offset",),
    ),
    Planted(
        "a follower cuts below its commit offset",
        "store/trovemq_store/replica/epochs.py",
        "    if point is not None and point < committed:",
        "    if False:",
        (f"{EPOCHS}test_a_common_point_below_the_commit_offset_is_an_error",),
    ),
    Planted(
        "a cut leaves the bytes of the last segment",
        "store/trovemq_store/replica/truncation.py",
        "    zero_after(files, log, end)\n",
        "",
        (
            f"{CUTS}test_a_tail_that_was_cut_came_back",
            f"{CRASHES}test_a_crash_leaves_all_of_a_cut_or_nothing[0]",
        ),
    ),
    Planted(
        "a cut is forgotten before it is on disk",
        "store/trovemq_store/replica/truncation.py",
        "    zero_after(files, log, end)\n",
        "    replica_file.ReplicaFile.open(files).end_truncation()\n    zero_after(files, log, end)\n",
        (f"{CRASHES}test_a_crash_leaves_all_of_a_cut_or_nothing[0]",),
    ),
    Planted(
        "a cut begins before its bytes are kept",
        "store/trovemq_store/engine/replica_appending.py",
        "        dropped = keep_tail(self.files, self._log, replica.epochs, end, self._committed())\n",
        "        replica.begin_truncation(end, 0)\n"
        "        dropped = keep_tail(self.files, self._log, replica.epochs, end, self._committed())\n",
        (f"{CRASHES}test_a_crash_leaves_all_of_a_cut_or_nothing[0]",),
    ),
    Planted(
        "a store that may be cut at its next start takes records",
        "store/trovemq_store/engine/replica_appending.py",
        "self.mark_failed()  # first: if the next call fails, its change may be on disk all the same",
        "pass",
        (f"{CRASHES}test_a_call_that_fails_during_a_cut_is_made_again[replica.after_save]",),
    ),
    Planted(
        "a next queue offset comes from the queues only",
        "store/trovemq_store/engine/appending.py",
        "        if self._dispatcher.position >= unoffered:",
        "        if True:",
        (f"{COMMIT_LIMIT}test_a_queue_offset_of_an_uncommitted_record_was_given_again",),
    ),
    Planted(
        "records above the commit limit are applied",
        "store/trovemq_store/engine/message_store.py",
        "appended if appended <= self.commit_limit else self.commit_limit",
        "appended",
        (f"{COMMIT_LIMIT}test_a_record_above_the_commit_limit_was_visible",),
    ),
    Planted(
        "a start applies records above the commit limit",
        "store/trovemq_store/engine/opening.py",
        "        if run.end <= self._limit:\n",
        "        if True:\n",
        (f"{COMMIT_LIMIT}test_a_start_showed_records_that_are_not_committed",),
    ),
    Planted(
        "a follower shows half of a transaction",
        "store/trovemq_store/index/undispatched.py",
        "        count = count_whole(below)\n",
        "        count = len(below.records)\n",
        (f"{COMMIT_LIMIT}test_half_of_a_transaction_was_visible_at_a_limit_inside",),
    ),
    Planted(
        "a saved commit is ahead of the log's sync",
        "store/trovemq_store/engine/store_checkpoint.py",
        "                commit_offset=committed if",
        "                commit_offset=self._queues.position if",
        (f"{COMMIT_LIMIT}test_a_power_cut_within_a_transaction_showed_a_part_of_it",),
    ),
    Planted(
        "half of a transaction in a kept frame becomes visible",
        "store/trovemq_store/index/kept_runs.py",
        "                count = count_whole(records_below(run, end))\n",
        "                count = len(records_below(run, end).records)\n",
        (f"{KEPT}test_half_of_a_kept_transaction_was_visible",),
    ),
    Planted(
        "a frame that ends within a transaction is kept",
        "store/trovemq_store/index/kept_runs.py",
        " or not (follows and self._whole)",
        "",
        (f"{KEPT}test_a_frame_with_a_part_of_a_transaction_is_read_again[2]",),
    ),
    Planted(
        "a raw append of records of another place",
        "store/trovemq_store/log/raw_append.py",
        "        physical_offset_of_data=physical_offset,\n",
        "        physical_offset_of_data=None,\n",
        (f"{RAW}test_a_run_that_is_not_whole_records_of_its_place_changed_the_log",),
    ),
    Planted(
        "a promoted node begins its epoch within an atomic run",
        "store/trovemq_store/replica/whole_end.py",
        "        return runs.unfinished[-1].physical_offset\n",
        "        return log.end\n",
        (f"{WHOLE_END}test_a_promoted_node_began_its_epoch_after_half_a_run",),
    ),
    Planted(
        "a follower's commit lies within an atomic run",
        "store/trovemq_store/replica/whole_end.py",
        "            return mark.begin\n",
        "            return at\n",
        (f"{WHOLE_END}test_a_frame_ends_before_a_run_that_lacks_records",),
    ),
    Planted(
        "the first epoch of a converted store begins at its end",
        "store/trovemq_store/replica/conversion.py",
        "epochs.last), log_begin)])",
        "epochs.last), log_end)])",
        (
            "tests/unit/replica/test_conversion.py"
            "::test_a_copy_that_ended_before_the_first_leadership_had_no_epoch",
        ),
    ),
)
