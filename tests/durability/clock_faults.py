"""Old faults of clocks that were wrong, and of store times that step back: a part of old_faults.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

CLOCK_FAULTS: Final = (
    Planted(
        "A clock that was ahead made retention remove young segments",
        "store/trovemq_store/engine/clock_trust.py",
        "return EpochMs(0) if self._difference_ms is None or self._waited_ms < wait_ms else self._now_ms",
        "return self._now_ms",
        ("tests/world/test_clock_steps.py::test_a_clock_ahead_by_years_removed_young_segments",),
    ),
    Planted(
        "After a crash, damage in the log where store times step back cut off the good messages after it",
        "store/trovemq_store/log/reader.py",
        "        return min(last_ms, self.step_ms) if self.step_ms else last_ms",
        "        return last_ms",
        (
            "tests/unit/engine/test_log_tail.py::test_damage_where_store_times_step_back_cut_the_messages_after_it",
        ),
    ),
    Planted(
        "An index that Spark rebuilt used one file across a step of store times: the items after it said 0 s",
        "pipeline/trovemq_spark/rebuild/index.py",
        "            if stepped and space and len(rolled) < ROLLED_FILES_MAX - 1:",
        "            if False:",
        (
            "tests/unit/pipeline/test_rebuild_models.py::test_a_rebuilt_index_used_one_file_across_steps_of_store_times",
        ),
    ),
    Planted(
        "RocketMQ crashed after its clock was set back: the scan skipped messages that were not on disk",
        "store/trovemq_store/log/recovery.py",
        "        if _highest_ms(log, segment) > limit_ms:",
        "        if False:",
        (
            "tests/unit/log/test_foreign_scan_start.py::test_after_a_step_in_a_segment_a_scan_skipped_unsynced_messages",
        ),
    ),
    Planted(
        "After store times had stepped back, a dead letter that was sent again once more came twice",
        "broker/trovemq_broker/groups/dead_letters.py",
        "            if copy.physical_offset < message.physical_offset:",
        "            if copy.store_timestamp < message.store_timestamp:",
        (
            "tests/unit/consume/test_dead_letters.py::test_a_letter_was_sent_twice_when_store_times_had_stepped_back",
        ),
    ),
    Planted(
        "After an atomic transaction with an acknowledgement, returned messages of all groups were"
        " delivered again after a minute only",
        "broker/trovemq_broker/groups/delivery/settlements.py",
        "        self._settle(pair, GrantedLease(state, offsets), outcome, now_ms, now_ms)",
        "        lease_now_ms = self.context.lease_time.at(now_ms)\n"
        "        self._settle(pair, GrantedLease(state, offsets), outcome, now_ms, lease_now_ms)",
        (
            "tests/unit/atomic/test_atomic_commits.py::"
            "test_after_an_atomic_acknowledgement_returned_messages_waited_a_minute",
        ),
    ),
)
