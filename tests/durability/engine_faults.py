"""Planted faults of the broker's engine: from produce/ to filters/. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

ENGINE_FAULTS: Final = (
    Planted(
        "a waiter of a later append is answered with an earlier sync",
        "broker/trovemq_broker/produce/waiters.py",
        "        while at and self._waiters[at - 1].end > waiter.end:",
        "        while at and self._waiters[at - 1].end < waiter.end:",
        ("tests/unit/produce/test_group_commit.py::test_a_waiter_of_an_earlier_append_may_come_later",),
    ),
    Planted(
        "the limit of unsynced bytes is not watched by who waits for it",
        "broker/trovemq_broker/produce/group_commit.py",
        "                while self.full and self.failure is None:",
        "                while self.full:",
        (
            "tests/unit/produce/test_group_commit.py::"
            "test_who_waited_for_space_went_on_waiting_after_the_store_had_failed",
        ),
    ),
    Planted(
        "a topic that was made read-only still takes messages",
        "broker/trovemq_broker/produce/append.py",
        "        if queue is not None and queue.config is self._store.topics.get(topic):",
        "        if queue is not None:",
        ("tests/unit/produce/test_appends_by_oracle.py::test_a_queue_follows_changes_of_its_topic",),
    ),
    Planted(
        "a pull at the end of its queue is out of range",
        "broker/trovemq_broker/fetch/pull.py",
        "        if not low <= request.offset <= high:",
        "        if not low <= request.offset < high:",
        ("tests/unit/consume/test_pull.py::test_everything_comes_once_and_in_order",),
    ),
    Planted(
        "a pull by tag skips the messages after its last one",
        "broker/trovemq_broker/fetch/pull.py",
        "        scanned = int(found[taken - 1]) + 1 if taken < len(found) else len(units)",
        "        scanned = len(units)",
        ("tests/unit/consume/test_pull.py::test_everything_comes_once_and_in_order",),
    ),
    Planted(
        "a tag with another tag's hash is answered",
        "broker/trovemq_broker/fetch/pull.py",
        "        if request.tags:\n            gathered.keep_tags(frozenset(request.tags))\n",
        "",
        ("tests/unit/consume/test_pull.py::test_limits_and_tags_never_lose_a_message",),
    ),
    Planted(
        "a waiter that was cancelled still counts",
        "broker/trovemq_broker/fetch/long_poll.py",
        "        del waiters[waiter]\n        self._count -= 1\n",
        "        del waiters[waiter]\n",
        ("tests/unit/consume/test_long_poll.py::test_growth_wakes_only_those_who_wait_for_the_queue",),
    ),
    Planted(
        "an offset is acknowledged before its file is written",
        "broker/trovemq_broker/fetch/offsets.py",
        "        self._set(group, topic, {queue_id: offset})\n        await self.save()\n",
        "        self._set(group, topic, {queue_id: offset})\n",
        ("tests/unit/consume/test_offsets.py::test_a_commit_is_on_disk_and_after_the_log",),
    ),
    Planted(
        "a reset of new queues moves those that have an offset",
        "broker/trovemq_broker/fetch/offsets.py",
        "        new = [entry for entry in entries if entry.offset_before is None]",
        "        new = entries",
        ("tests/unit/consume/test_offsets.py::test_only_new_leaves_queues_with_an_offset_alone",),
    ),
    Planted(
        "a message of just the end of a query's time is left out",
        "broker/trovemq_broker/query/key_query.py",
        "return self.begin <= timestamp <= self.end",
        "return self.begin <= timestamp < self.end",
        ("tests/unit/query/test_query_by_key.py::test_times_inside_a_second_are_exact[memory]",),
    ),
    Planted(
        "a cursor is accepted by another query",
        "broker/trovemq_broker/query/cursor.py",
        "        if match is None or match[1] != query.fingerprint():",
        "        if match is None:",
        ("tests/unit/query/test_query_by_key.py::test_a_cursor_belongs_to_its_query[memory]",),
    ),
    Planted(
        "a damaged record is answered by a look-up",
        "broker/trovemq_broker/query/candidates.py",
        "        if not crc_matches(record, fields):",
        "        if False:",
        ("tests/unit/query/test_query_by_key.py::test_a_damaged_record_is_skipped_with_a_note",),
    ),
    Planted(
        "the page of a search that is full ends the search",
        "broker/trovemq_broker/query/pages.py",
        "        messages_max -= len(page.records)\n",
        "        messages_max -= len(page.records) or messages_max\n",
        ("tests/unit/query/test_golden.py::test_every_message_is_found_by_each_of_its_names[crashed]",),
    ),
    Planted(
        "an expired lease is reported as in flight",
        "broker/trovemq_broker/track/diagnosis.py",
        "        if lease.over:\n            return self._ready(case, base, standing, lease.attempt)\n",
        "",
        ("tests/unit/track/test_message_track.py::test_in_flight_until_its_lease_ends_then_ready",),
    ),
    Planted(
        "a reset to just the message counts as one after it",
        "broker/trovemq_broker/track/timeline.py",
        "        is_after = event.offset > place.offset",
        "        is_after = event.offset >= place.offset",
        (
            "tests/unit/track/test_message_track.py::"
            "test_a_message_is_delivered_fails_is_delivered_again_and_acknowledged",
        ),
    ),
    Planted(
        "delayed messages of another topic are named",
        "broker/trovemq_broker/track/delayed.py",
        "                message = timers.waiting_message(topic, waiting_topic, record, queue_offset)",
        "                message = timers.waiting_message('', waiting_topic, record, queue_offset)",
        ("tests/unit/timers/test_timers.py::test_what_waits_is_found_by_topic_unique_key_and_keys",),
    ),
    Planted(
        "a topic is created while a deleted one's offsets are on disk",
        "broker/trovemq_broker/admin/topic_changes.py",
        "                while not wanted.done:\n                    await self._save_offsets()\n",
        "                while not wanted.done:\n",
        (
            "tests/unit/server/test_topic_changes.py::"
            "test_a_topic_was_recreated_before_the_groups_offsets_were_off_the_disk",
        ),
    ),
    Planted(
        "a caller that is gone still gets its topic",
        "broker/trovemq_broker/admin/topic_changes.py",
        "            if not wanted.done:\n                self._wanted.remove(wanted)  # "
        "its caller is gone\n",
        "            pass\n",
        (
            "tests/unit/server/test_topic_changes.py::"
            "test_each_of_many_topics_made_at_once_waited_for_a_sync_of_its_own",
        ),
    ),
    Planted(
        "a second drain makes the grace period longer",
        "broker/trovemq_broker/admin/drain.py",
        "        self._grace_ends = min(self._grace_ends, ends)",
        "        self._grace_ends = ends",
        ("tests/unit/server/test_drain.py::test_a_second_drain_put_off_the_end_of_the_first",),
    ),
    Planted(
        "a drained broker stops while transactions are open",
        "broker/trovemq_broker/admin/drain.py",
        "            if self._open_transactions() and now < self._stop_by:",
        "            if self._open_transactions() and now > self._stop_by:",
        (
            "tests/unit/server/test_drain.py::"
            "test_it_stops_when_no_transaction_is_open_and_at_the_limit[4.0-4.0]",
        ),
    ),
    Planted(
        "an undone drain still refuses messages",
        "broker/trovemq_broker/admin/drain.py",
        "        self._appender.drain(None)\n",
        "",
        ("tests/unit/server/test_drain.py::test_undo_offers_it_again",),
    ),
    Planted(
        "a group with messages that wait is forgotten",
        "broker/trovemq_broker/maintenance/group_expiry.py",
        "[name for name in old if name not in scan.waiting][:FORGOTTEN_MAX]",
        "old[:FORGOTTEN_MAX]",
        ("tests/unit/daemon/test_group_expiry.py::test_a_group_is_kept_while_it_is_used_or_wanted",),
    ),
    Planted(
        "a group whose members came back is forgotten",
        "broker/trovemq_broker/maintenance/group_expiry.py",
        " and name not in members:\n            return before",
        ":\n            return before",
        (
            "tests/unit/daemon/test_group_expiry.py::"
            "test_the_time_of_a_group_begins_when_its_last_member_has_left",
        ),
    ),
    Planted(
        "removals are not held back for a backup that has begun meanwhile",
        "broker/trovemq_broker/maintenance/retention_task.py",
        "            if self._store.removals_held():\n                return 0  # a backup "
        "has begun, and copies these segments\n",
        "",
        ("tests/unit/backup/test_hold.py::test_a_backup_that_begins_while_retention_is_at_work",),
    ),
    Planted(
        "messages that were removed early are not noted",
        "broker/trovemq_broker/maintenance/retention_task.py",
        "                await self._note_early(decision.newest_early_ms)",
        "                pass",
        (
            "tests/unit/engine/test_early_removal.py::"
            "test_answers_said_complete_though_fresh_messages_were_deleted",
        ),
    ),
    Planted(
        "trees lag while no message comes",
        "broker/trovemq_broker/maintenance/tree_task.py",
        "            if trees.urgent or self._visible != seen:",
        "            if trees.urgent:",
        ("tests/unit/trees/test_tree_task.py::test_while_messages_come_in_the_trees_take_only_their_share",),
    ),
    Planted(
        "an id that is used again leaves its first transaction open",
        "broker/trovemq_broker/atomic/open_transactions.py",
        "        if before is not None:\n            self.roll_back(before)\n",
        "",
        (
            "tests/unit/atomic/test_open_transactions.py::"
            "test_a_client_that_started_over_left_its_first_transaction_open",
        ),
    ),
    Planted(
        "memory of an ended transaction still counts",
        "broker/trovemq_broker/atomic/open_transactions.py",
        "        finally:\n            self._end(transaction)\n        if committed",
        "        finally:\n            self._open.pop(transaction.transaction_id, None)\n  "
        "      if committed",
        (
            "tests/unit/atomic/test_open_transactions.py::"
            "test_the_memory_of_a_transaction_was_counted_after_its_end",
        ),
    ),
    Planted(
        "an end record that retention removed is still answered",
        "broker/trovemq_broker/atomic/ends.py",
        "        if end is not None and end.begin < self._store.min_offset:",
        "        if False and end is not None:",
        (
            "tests/unit/atomic/test_open_transactions.py::"
            "test_a_commit_whose_messages_retention_removed_was_read_from_nothing",
        ),
    ),
    Planted(
        "one transaction more than the limit is open",
        "broker/trovemq_broker/atomic/open_transactions.py",
        "        if len(self._open) >= limits.atomic_open_max:",
        "        if len(self._open) > limits.atomic_open_max:",
        ("tests/unit/atomic/test_open_transactions.py::test_as_many_are_open_as_the_limit_says",),
    ),
    Planted(
        "an open half below the saved position is lost after a restart",
        "broker/trovemq_broker/transactions/transaction_log.py",
        "HALF_TOPIC, self._half_next if lowest is None else lowest.offset)",
        "HALF_TOPIC, self._half_next)",
        ("tests/unit/transactions/test_transactions.py::test_the_producers_own_time_before_the_first_check",),
    ),
    Planted(
        "a check is made an interval too early",
        "broker/trovemq_broker/transactions/open_halves.py",
        "            return half.checked_ms + self._settings.transaction_check_interval_ms",
        "            return half.checked_ms",
        ("tests/unit/transactions/test_rare_ends.py::test_only_its_own_give_up_record_ends_a_half[index]",),
    ),
    Planted(
        "a transaction is asked about once more than set",
        "broker/trovemq_broker/transactions/transactions.py",
        "            if half.checks >= self._settings.transaction_check_max:",
        "            if half.checks > self._settings.transaction_check_max:",
        (
            "tests/unit/transactions/test_rare_ends.py::"
            "test_a_half_that_went_bad_is_not_asked_about_and_given_up_in_the_end",
        ),
    ),
    Planted(
        "a replaced half comes back after a restart",
        "broker/trovemq_broker/transactions/transactions.py",
        "        if replaced is not None:\n            self._write_ops([replaced], now_ms)\n",
        "",
        (
            "tests/unit/transactions/test_transactions.py::"
            "test_a_second_attempt_of_the_producer_takes_the_first_ones_place",
        ),
    ),
    Planted(
        "a rolled-back id stays taken",
        "broker/trovemq_broker/transactions/transactions.py",
        "        if not commit:\n            self._withdrawn.add(half.offset)\n",
        "",
        (
            "tests/unit/trees/test_withdrawn_ids.py::"
            "test_a_message_under_a_rolled_back_id_was_lost_as_a_duplicate",
        ),
    ),
    Planted(
        "a record that was read counts for nothing in a step",
        "broker/trovemq_broker/timers/due_deliveries.py",
        "        bytes_remaining -= size\n",
        "",
        (
            "tests/unit/timers/test_rare_timers.py::"
            "test_a_step_reads_a_bounded_number_of_bytes_and_the_next_continues",
        ),
    ),
    Planted(
        "the first offset after an ended range has ended",
        "broker/trovemq_broker/timers/ended.py",
        "(index >= 0) & (offsets < ends[index])",
        "(index >= 0) & (offsets <= ends[index])",
        (
            "tests/unit/timers/test_rare_timers.py::"
            "test_an_offset_has_ended_where_a_range_of_its_source_has_it",
        ),
    ),
    Planted(
        "a recall handle whose padding was cut is refused",
        "broker/trovemq_broker/timers/recall_handle.py",
        'b64decode(handle + "=" * (-len(handle) % 4),',
        "b64decode(handle,",
        ("tests/unit/timers/test_recall_handle.py::test_a_handle_has_what_was_put_in",),
    ),
    Planted(
        "an unknown condition makes an AND false",
        "broker/trovemq_broker/filters/conditions.py",
        "            if truth is False:\n                return False\n            if "
        "truth is None:\n                result = None\n",
        "            if not truth:\n                return False\n",
        ("tests/unit/filters/test_sql_filter.py::test_conditions_that_do_not_match_the_message",),
    ),
    Planted(
        "BETWEEN leaves its ends out",
        "broker/trovemq_broker/filters/conditions.py",
        "compare(value, high, lambda a, b: a <= b)",
        "compare(value, high, lambda a, b: a < b)",
        ("tests/unit/filters/test_sql_filter.py::test_conditions_that_match_the_message",),
    ),
    Planted(
        "a filter whose condition is unknown takes the message",
        "broker/trovemq_broker/filters/sql.py",
        "return self._condition(properties) is True",
        "return self._condition(properties) is not False",
        ("tests/unit/filters/test_sql_filter.py::test_conditions_that_do_not_match_the_message",),
    ),
    Planted(
        "a tag that is a part of another one is accepted",
        "broker/trovemq_broker/filters/tags.py",
        "        return properties.get(PROPERTY_TAGS) in self.tags",
        "        return (properties.get(PROPERTY_TAGS) or '-') in self.expression",
        ("tests/unit/filters/test_filter.py::test_tags_are_matched_exactly",),
    ),
    Planted(
        "forgotten filters' length stays in the sum",
        "broker/trovemq_broker/filters/filter.py",
        "            self._length -= len(forgotten)\n",
        "            del forgotten\n",
        ("tests/unit/filters/test_filter.py::test_long_expressions_are_forgotten_sooner",),
    ),
    Planted(
        "a blank around a tag is a part of it",
        "broker/trovemq_broker/filters/tags.py",
        "for part in text.split(_SEPARATOR) if (tag := part.strip()))",
        "for part in text.split(_SEPARATOR) if (tag := part))",
        ("tests/unit/filters/test_filter.py::test_tags_are_matched_exactly",),
    ),
    Planted(
        "a wake-up that a cancelled receive got is lost",
        "broker/trovemq_broker/groups/members/receive_waits.py",
        "            if not future.cancelled() and future.result():\n                "
        "self._waits.wake(self.pair)\n",
        "",
        ("tests/unit/consume/test_receive_waits.py::test_a_wake_up_of_a_cancelled_waiter_goes_to_the_next",),
    ),
    Planted(
        "a drain is not sent to the nameservers",
        "broker/trovemq_broker/cluster/view.py",
        "return self._topics.data_version + self._changes",
        "return self._topics.data_version",
        (
            "tests/unit/server/test_drain.py::"
            "test_writes_leave_the_routes_at_once_and_are_refused_after_the_grace",
        ),
    ),
    Planted(
        "disk_used_percent_max is the limit of refusals",
        "broker/trovemq_broker/daemon/retention_settings.py",
        "warning_percent=self.disk_warning_percent",
        "warning_percent=self.disk_used_percent_max",
        ("tests/unit/settings/test_broker_settings.py::test_the_retention_policy_is_rocketmqs",),
    ),
    Planted(
        "the oldest message of groups shown together is the youngest",
        "broker/trovemq_broker/server/monitoring/group_series.py",
        "min(oldest, default=None)",
        "max(oldest, default=None)",
        ("tests/unit/server/test_group_series.py::test_the_oldest_message_of_the_others_is_theirs",),
    ),
    Planted(
        "delayed retries count for no lag",
        "broker/trovemq_broker/groups/lag/stored.py",
        "        lag.messages += waiting\n",
        "        del waiting\n",
        ("tests/unit/daemon/test_group_expiry.py::test_a_group_is_kept_while_it_is_used_or_wanted",),
    ),
    Planted(
        "an export names the wrong size of files",
        "broker/trovemq_broker/tools/export.py",
        "str(view.settings.consume_queue_file_size)",
        "str(view.settings.commit_log_file_size)",
        ("tests/unit/tools/test_tools.py::test_the_manifest_of_a_golden_store[collide]",),
    ),
)
