"""Planted faults of the Spark pipeline. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

PIPELINE_FAULTS: Final = (
    Planted(
        "a pace counts each part from the one before, however late",
        "pipeline/trovemq_spark/replay/pace.py",
        "        begin = max(now, self.free_at)",
        "        begin = self.free_at if self.free_at > 0 else now",
        ("tests/unit/pipeline/test_replay_pace.py::test_no_window_has_more_than_its_share_and_one_part",),
    ),
    Planted(
        "a replay continues in the ledger of another one",
        "pipeline/trovemq_spark/replay/ledger.py",
        "        if other:\n",
        "        if len(other) == len(wanted):\n",
        (
            "tests/unit/pipeline/test_replay_ledger.py::"
            "test_a_replay_continues_with_its_own_ledger_and_no_other",
        ),
    ),
    Planted(
        "messages of another broker's queue count as sent",
        "pipeline/trovemq_spark/replay/messages.py",
        "    if queue.broker:\n        ours = pc.and_(ours, is_value(BROKER, queue.broker))\n",
        "",
        (
            "tests/unit/pipeline/test_replay_messages.py::"
            "test_only_messages_of_this_run_and_queue_are_its_own",
        ),
    ),
    Planted(
        "a replayed message is delayed again",
        "pipeline/trovemq_spark/replay/messages.py",
        "    for prefix in (PREFIX, INTERNAL_PREFIX, TRANSIENT_PREFIX):",
        "    for prefix in (PREFIX,):",
        (
            "tests/unit/pipeline/test_replay_messages.py::"
            "test_a_message_keeps_the_users_properties_and_names_its_origin",
        ),
    ),
    Planted(
        "a queue that is not named ends where it begins",
        "pipeline/trovemq_spark/sources/offsets.py",
        "    return _parse(text, LATEST_MARK)",
        "    return _parse(text, EARLIEST_MARK)",
        ("tests/unit/pipeline/test_offsets.py::test_there_and_back",),
    ),
    Planted(
        "a checkpoint continues in a recreated topic",
        "pipeline/trovemq_spark/sources/offsets.py",
        "own is None or identity is None or own == identity",
        "own is None or identity is None or own <= identity",
        ("tests/unit/pipeline/test_offsets.py::test_positions_say_of_which_topics_they_are",),
    ),
    Planted(
        "a range that is split loses its last offset",
        "pipeline/trovemq_spark/sources/live_ranges.py",
        "cuts = [whole.start + whole.size * i // count for i in range(count + 1)]",
        "cuts = [whole.start + (whole.size - 1) * i // count for i in range(count + 1)]",
        ("tests/unit/pipeline/test_live_ranges.py::test_split_ranges_hold_the_same_offsets",),
    ),
    Planted(
        "lost messages are skipped without an error",
        "pipeline/trovemq_spark/sources/live_ranges.py",
        "    if span.minimum <= wanted <= span.maximum:",
        "    if wanted <= span.maximum:",
        ("tests/unit/pipeline/test_live_ranges.py::test_offsets_out_of_range_are_lost_or_skipped[4-5]",),
    ),
    Planted(
        "the last message of an event's range is open",
        "pipeline/trovemq_spark/audit/groups.py",
        'np.clip(events["offset"] + events["count"] - begin, 0, size), -1)',
        'np.clip(events["offset"] + events["count"] - 1 - begin, 0, size), -1)',
        (
            "tests/unit/pipeline/test_audit_groups.py::"
            "test_unacknowledged_messages_are_reported_with_first_offsets[0]",
        ),
    ),
    Planted(
        "a batch that was committed before is committed once more",
        "pipeline/trovemq_spark/archive/manifest.py",
        "batch[1] <= self.last_batch(batch[0]):",
        "batch[1] < self.last_batch(batch[0]):",
        ("tests/unit/pipeline/test_manifest.py::test_the_manifest_agrees_with_the_model[1]",),
    ),
    Planted(
        "a file that is not as it was written is committed",
        "pipeline/trovemq_spark/archive/manifest.py",
        "            if sizes.get(entry.file) != entry.bytes:",
        "            if entry.file not in sizes:",
        ("tests/unit/pipeline/test_manifest.py::test_a_file_that_is_not_as_it_was_written_is_not_committed",),
    ),
    Planted(
        "a sweep removes files that readers have open",
        "pipeline/trovemq_spark/archive/manifest.py",
        "(*state.files, *state.retired)}",
        "(*state.files,)}",
        ("tests/unit/pipeline/test_manifest.py::test_the_manifest_agrees_with_the_model[0]",),
    ),
    Planted(
        "a small backlog beside a large one gets no share",
        "pipeline/trovemq_spark/sources/live_admission.py",
        "1 + (space * (size - 1) // rest if rest else 0)",
        "(space * (size - 1) // rest if rest else 0)",
        ("tests/unit/pipeline/test_live_ranges.py::test_shares_are_in_proportion_and_starve_no_queue",),
    ),
    Planted(
        "a number in an option may be beyond its bound",
        "pipeline/trovemq_spark/option_kinds.py",
        "or not low <= int(text) <= high:",
        "or not low <= int(text):",
        (
            "tests/unit/pipeline/test_options.py::"
            "test_contradicting_or_useless_options_are_refused[options17]",
        ),
    ),
    Planted(
        "records before a cut are read by two tasks",
        "pipeline/trovemq_spark/log/parts.py",
        "        yield LogPart(part.file, replace(bounds, begin=begin, end=end, known_end=known_end))",
        "        yield LogPart(part.file, replace(bounds, begin=bounds.begin, end=end, known_end=known_end))",
        (
            "tests/unit/pipeline/test_log_cuts.py::"
            "test_an_open_segment_that_is_nearly_empty_is_cut_where_its_records_are",
        ),
    ),
    Planted(
        "born times of rows are a thousand times too early",
        "pipeline/trovemq_spark/table/columns.py",
        "    return pa.array(milliseconds * _US_PER_MS).view(TIMESTAMP)",
        "    return pa.array(milliseconds).view(TIMESTAMP)",
        ("tests/unit/pipeline/test_columns.py::test_golden_stores_give_what_the_decoder_gives[collide]",),
    ),
    Planted(
        "a stream without a topic is found out by its first batch",
        "pipeline/trovemq_spark/sinks/options.py",
        '    if options.topic is None and "topic" not in names:',
        '    if options.topic is None and "topic" in names:',
        (
            "tests/unit/pipeline/test_sink_options.py::"
            "test_a_wrong_option_or_column_is_refused_saying_what_is_accepted",
        ),
    ),
    Planted(
        "an index beyond a list's end fails the search",
        "pipeline/trovemq_spark/search/json_path.py",
        "-len(value) <= step < len(value):",
        "-len(value) <= step <= len(value):",
        ("tests/unit/pipeline/test_json_path.py::test_a_path_beyond_the_end_of_a_list_failed_the_search",),
    ),
    Planted(
        "first deliveries count as redeliveries",
        "pipeline/trovemq_spark/jobs/trace_latency.py",
        'int(np.count_nonzero(received["attempt"] > 1)),',
        'int(np.count_nonzero(received["attempt"] >= 1)),',
        (
            "tests/unit/pipeline/test_trace_latency.py::"
            "test_attempts_and_dead_letters_of_a_group_that_never_acknowledges",
        ),
    ),
)
