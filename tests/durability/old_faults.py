"""Old faults of docs/reports/track-record.md that one text brings back."""

from __future__ import annotations

from typing import Final

from tests.durability.client_faults import CLIENT_FAULTS
from tests.durability.clock_faults import CLOCK_FAULTS
from tests.durability.planted import Planted
from tests.durability.service_faults import SERVICE_FAULTS
from tests.durability.transport_faults import TRANSPORT_FAULTS

ENGINE = "tests/unit/engine/"
AFTER_A_CRASH = f"{ENGINE}test_after_a_crash.py::"
DAMAGE = f"{ENGINE}test_damage.py::"
DELIVERY = "tests/unit/delivery/test_delivery_troubles.py::"

# The name is the fault's row on the page; `new` is the essence of the old code.
FAULTS: Final = (
    Planted(
        "While no descriptor was free, delayed messages came twice, if a recall was read together with them",
        "broker/trovemq_broker/timers/waiting_table.py",
        "                self.positions[source] = max(self.positions.get(source, 0), offset)\n",
        "",
        (
            "tests/unit/timers/test_rare_timers.py::test_messages_before_a_recall_that_could_not_be_read_came_twice",
        ),
    ),
    Planted(
        "On a full disk, a step of the clock made the broker flush and warn ten times a second",
        "broker/trovemq_broker/maintenance/clock_task.py",
        "                self._save_from_ms = boot_ms + SAVE_PAUSE_MS",
        "                self._save_from_ms = boot_ms",
        ("tests/world/test_clock_task.py::test_a_full_disk_made_the_broker_warn_ten_times_a_second",),
    ),
    Planted(
        "A flush soon after a start on a large log made look-ups by time skip messages after the next",
        "store/trovemq_store/log/time_runs.py",
        "        if end >= self.known_from:",
        "        self.position = max(self.position, end)\n        if end >= self.known_from:",
        ("tests/unit/log/test_time_runs.py::test_a_flush_saved_the_newest_runs_as_those_of_the_whole_log",),
    ),
    Planted(
        "Messages that a member returned late came twice in one batch, each time as another attempt",
        "broker/trovemq_broker/groups/delivery/lease_writer.py",
        "        return bool(self._records) and self._first <= offset < self._end",
        "        return False",
        ("tests/unit/delivery/test_standard_groups.py::test_messages_returned_late_came_twice_in_one_batch",),
    ),
    Planted(
        "A topic was deleted and recreated: readers with offsets of their own began within the new one",
        "broker/trovemq_broker/fetch/pull.py",
        "        if identity is not None and identity != self._store.topic_identity(topic):",
        "        if False:",
        (
            "tests/unit/consume/test_recreated_topics.py::test_a_position_in_a_deleted_topic_was_read_on_in_its_namesake",
            "tests/unit/server/test_fetch_stream.py::test_a_fetch_that_waited_went_on_in_the_namesake_of_its_topic",
        ),
    ),
    Planted(
        "The disk failed within a write: the send was refused, and its message was there after a crash",
        "store/trovemq_store/log/commit_log.py",
        "        if self._dirty_end > self.end:",
        "        if False:",
        (f"{AFTER_A_CRASH}test_of_a_batch_whose_write_failed_half_way_nothing_comes_back",),
    ),
    Planted(
        "Behind a damaged record all messages of the queue moved to other queue offsets",
        "store/trovemq_store/index/consume_queue.py",
        "            self._write(self._end, _BLANK * (offset - self._end))",
        "            offset = self._end",
        (
            f"{DAMAGE}test_a_damaged_record_and_lost_queues_leave_other_messages_offsets",
            f"{DAMAGE}test_what_was_damaged_is_reported_and_readers_skip_the_blanks",
        ),
    ),
    Planted(
        "A store whose commit log was gone (a disk that was not mounted) started empty",
        "store/trovemq_store/engine/opening.py",
        "        if saved is not None and saved.log_end > 0 and not len(segments):",
        "        if False:",
        (f"{DAMAGE}test_a_store_whose_commit_log_is_gone_does_not_start_empty",),
    ),
    Planted(
        "Killed while it made a segment, the broker did not start again: a file of the log was too short",
        "store/trovemq_store/log/segments.py",
        'NEW_PATH = f"{OWN_DIRECTORY}/new-segment"',
        'NEW_PATH = f"{DIRECTORY}/new-segment"',
        (f"{DAMAGE}test_no_short_file_can_be_left_in_the_commit_log",),
    ),
    Planted(
        "After a power cut, and a run without the key index, keys found messages that never were",
        "store/trovemq_store/engine/opening.py",
        "        if saved is not None and not saved.key_index_closed:",
        "        if False:",
        (f"{DAMAGE}test_an_index_switched_off_after_a_power_cut_is_not_believed_later",),
    ),
    Planted(
        "A topic's deletion was refused by a full disk, and its messages were gone at the next start",
        "store/trovemq_store/topics/topic_deletion.py",
        "        self._deletions.save()\n",
        "        pass\n",
        (f"{DAMAGE}test_a_deletion_that_the_disk_refuses_loses_nothing",),
    ),
    Planted(
        "The checkpoint named messages that the queues lacked: RocketMQ would not have read them again",
        "store/trovemq_store/engine/message_store.py",
        "        if not self._dispatcher.has_before(work.end):",
        "        if True:",
        (f"{DAMAGE}test_the_checkpoint_does_not_pass_what_the_queues_lack",),
    ),
    Planted(
        "A message that a power cut had robbed of a sector came back with zeros among its properties",
        "store/trovemq_store/log/reader.py",
        "            if whole < len(records):",
        "            if False:",
        (f"{AFTER_A_CRASH}test_a_record_without_a_body_that_lost_a_sector_is_cut",),
    ),
    Planted(
        "Messages whose properties hold zeros were taken, and cut off at a start as if a sector were lost",
        "store/trovemq_store/engine/appending.py",
        "            check_properties(patched)\n",
        "            pass\n",
        (f"{DAMAGE}test_properties_that_look_like_a_lost_sector_are_refused",),
    ),
    Planted(
        "After a power cut the broker did not start: the disk had the name of a later segment, and not the "
        "one before it",
        "store/trovemq_store/log/segments.py",
        "            if not follows and known_end is not None and",
        "            if False and",
        (f"{AFTER_A_CRASH}test_segments_whose_names_outlived_the_one_before_them_go",),
    ),
    Planted(
        "A start that failed left files open, and the next one in the same process failed by them",
        "store/trovemq_store/engine/opening.py",
        "            on_failure.callback(projection.close_files)",
        "            pass",
        (f"{DAMAGE}test_a_store_that_cannot_be_opened_leaves_nothing_open",),
    ),
    Planted(
        "After a power cut, files of a deleted topic's queues came back under the new topic of that name",
        "store/trovemq_store/index/consume_queue.py",
        "            elif self._begins_below(base, deleted_below):",
        "            elif False:",
        (f"{DAMAGE}test_files_of_a_deleted_topic_that_come_back_do_not_mix_with_new_ones",),
    ),
    Planted(
        "A power cut lost dead letters whose originals counted as consumed",
        "broker/trovemq_broker/fetch/offsets.py",
        "            while offsets.dirty and offsets.log_needed > self._store.lasting_offset:",
        "            while False:",
        (
            "tests/unit/consume/test_offsets.py::"
            "test_a_power_cut_lost_dead_letters_whose_originals_counted_as_consumed",
        ),
    ),
    Planted(
        'With `start="latest"` or a time, messages of queues that the topic got while no worker ran were'
        " skipped, with a lag of 0",
        "broker/trovemq_broker/fetch/offsets.py",
        "        if whole and self._store.offsets.of(group, topic):",
        "        if False:",
        (
            "tests/unit/consume/test_offsets.py::"
            "test_a_first_contact_sets_every_queue_and_later_ones_begin_at_zero",
        ),
    ),
    Planted(
        "A group that had offsets of a topic and no delivery yet skipped the messages of queues that it had"
        " no offset of",
        "broker/trovemq_broker/groups/delivery/group_topics.py",
        " and not offsets.of(pair.group, name)",
        "",
        (
            "tests/unit/delivery/test_standard_groups.py::"
            "test_a_queue_later_than_a_stored_offset_is_read_from_its_beginning",
        ),
    ),
    Planted(
        "A message with full properties never became a dead letter",
        "broker/trovemq_broker/groups/delivery/dead_letters.py",
        "    copy = writer.informed(copy, {PROPERTY_DEAD_TOPIC: topic})\n"
        "    return writer.informed(copy, {PROPERTY_DEAD_ID: message.message_id})\n",
        "    copy = copy.with_properties({PROPERTY_DEAD_TOPIC: topic})\n"
        "    return copy.with_properties({PROPERTY_DEAD_ID: message.message_id})\n",
        (f"{DELIVERY}test_a_message_with_full_properties_never_became_a_dead_letter",),
    ),
    Planted(
        "A message with full properties made every clean stop fail",
        "broker/trovemq_broker/groups/delivery/retry_copies.py",
        "context.writer.informed(copy, {FIRST_POP_TIME_PROPERTY: first_pop})",
        "copy.with_properties({FIRST_POP_TIME_PROPERTY: first_pop})",
        (f"{DELIVERY}test_a_message_with_full_properties_made_every_clean_stop_fail",),
    ),
    Planted(
        "An orderly group stood still after a dead letter was refused",
        "broker/trovemq_broker/groups/delivery/orderly_receiver.py",
        "                    self._blocked.add(key)\n                    self._postponed = True",
        "                    self._blocked.add(key)",
        (f"{DELIVERY}test_an_orderly_group_stood_still_after_a_dead_letter_was_refused",),
    ),
    Planted(
        "A refused dead letter was tried again for each message of a receive, and held up what came back",
        "broker/trovemq_broker/groups/delivery/lease_writer.py",
        "            self._batch.dead_letters_refused = True\n",
        "",
        (f"{DELIVERY}test_a_refused_dead_letter_held_up_every_other_message_that_came_back",),
    ),
    Planted(
        "Polls of an orderly group slept on when its full window moved",
        "broker/trovemq_broker/groups/delivery/settlements.py",
        "            or (pair.keyed and moved and window_was_full)\n",
        "",
        (f"{DELIVERY}test_waiters_of_an_orderly_group_slept_on_when_its_full_window_moved",),
    ),
    Planted(
        "Events piled up in memory without end while the disk was full",
        "store/trovemq_store/events/event_log.py",
        "        if len(self._pending) >= PENDING_MAX:",
        "        if False:",
        (f"{DELIVERY}test_events_piled_up_without_end_while_the_disk_was_full",),
    ),
    Planted(
        "With asynchronous flush every clean stop with messages in flight failed",
        "broker/trovemq_broker/state/consumer_state.py",
        "        self.on_append = _nothing  # these appends",
        "        # these appends",
        (
            f"{ENGINE}test_consumer_state.py::"
            "test_every_clean_stop_with_messages_in_flight_failed_in_async_mode",
        ),
    ),
    Planted(
        "Killed after all its records had expired, a store began at physical offset 0 again or did not start",
        "store/trovemq_store/log/segments.py",
        "        while self._segments and self._segments[-1].start > offset:",
        "        while self._segments and self._segments[-1].start >= offset:",
        (f"{ENGINE}test_emptied_log.py::test_after_a_kill_an_emptied_stores_log_does_not_begin_at_0_again",),
    ),
    Planted(
        "`repair` gave up where a queue's file was cut behind units of expired records",
        "store/trovemq_store/check/repair.py",
        "        if sizes != {self._view.settings.consume_queue_file_size}:",
        "        if False:",
        ("tests/unit/tools/test_repair.py::test_a_queue_whose_file_was_cut_behind_expired_units_is_rebuilt",),
    ),
    Planted(
        "A delayed message that was due before 1970 was acknowledged and never delivered",
        "broker/trovemq_broker/timers/timers.py",
        "        if deliver_ms <= 0:",
        "        if False:",
        ("tests/durability/test_clocks.py::test_what_clocks_do[0]",),
        {"TRIAL": "18"},
    ),
    Planted(
        "Queues whose records had all expired began at 0 again: a start that made them again was killed",
        "store/trovemq_store/engine/opening.py",
        "            trusted = max(saved.consume_queue_position, self._log.min_offset)",
        "            trusted = saved.consume_queue_position",
        (f"{AFTER_A_CRASH}test_a_queue_of_expired_records_continues_its_offsets_when_rebuilt",),
    ),
    Planted(
        "A file system that says at a sync that it has no space (a network one, a quota): the next sync was "
        "believed, and a power cut could take units of the queues",
        "store/trovemq_store/files/guarded.py",
        "        if error.sync_failed and self.sync_failure is None:",
        "        if error.sync_failed and not error.disk_full and self.sync_failure is None:",
        (
            f"{ENGINE}test_full_disk.py::test_a_queue_sync_that_failed_for_space_was_believed_when_tried_again",
        ),
    ),
    Planted(
        "A store whose last segment was gone continued without it, and gave its offsets to other messages",
        "store/trovemq_store/engine/opening.py",
        "        if saved is not None and saved.log_end > segments.capacity_end:",
        "        if False:",
        (f"{DAMAGE}test_a_store_whose_last_segment_is_gone_does_not_reuse_its_offsets",),
    ),
    Planted(
        "On a disk with little space left the broker took all of it, again and again, for an index file that "
        "it never got: sends were refused",
        "store/trovemq_store/files/real.py",
        "                        _check_space(descriptor, size)\n",
        "",
        (
            "tests/unit/storage/test_files.py::test_a_preallocation_without_space_took_all_the_space_there_was",
        ),
    ),
    Planted(
        "A broker that could make no index file tried it some hundred times a second",
        "store/trovemq_store/index/dispatcher.py",
        "        return bool(self.lagging()) and before != after",
        "        return bool(self.lagging()) or before != after",
        (
            f"{ENGINE}test_full_disk.py::"
            "test_an_index_that_no_file_can_be_had_for_was_tried_again_all_the_time",
        ),
    ),
    Planted(
        "A message on a bad sector of a queue's file made every receive of its group fail",
        "store/trovemq_store/engine/queue_units.py",
        "    except UnreadableError:\n        if count == 1:",
        "    except ZeroDivisionError:\n        if count == 1:",
        (
            "tests/unit/delivery/test_unreadable.py::test_an_unreadable_part_of_a_queue_made_every_receive_fail",
        ),
    ),
    Planted(
        "One delayed message on a bad sector, and all that were due with it were forgotten",
        "broker/trovemq_broker/timers/due_deliveries.py",
        "        record = store.read_or_empty(physical_offset, size)",
        "        record = store.read(physical_offset, size)",
        (
            "tests/unit/delivery/test_unreadable.py::test_delayed_messages_were_forgotten_with_the_one_that_cannot_be_read",
        ),
    ),
    Planted(
        "A delivery that its client suspended twice kept every later event from the log",
        "broker/trovemq_broker/groups/delivery/settlements.py",
        "            max(0, before.attempt - self._suspend),",
        "            before.attempt - self._suspend,",
        (
            "tests/unit/delivery/test_rare_moments.py::test_a_delivery_suspended_twice_kept_every_later_event_from_the_log",
        ),
    ),
    Planted(
        "A classic retry that could not be read after a restart held up its group's offset for ever",
        "broker/trovemq_broker/groups/delivery/queue_receiver.py",
        "            if record is None:\n                return True\n            state.keys",
        "            if record is None:\n                return False\n            state.keys",
        (
            "tests/unit/delivery/test_classic_retries.py::test_a_retry_unreadable_after_a_restart_held_up_the_offset_for_ever",
        ),
    ),
    Planted(
        "A classic retry that names no topic was lost to RocketMQ by a clean stop",
        "broker/trovemq_broker/groups/delivery/retry_copies.py",
        "        if classic or not topic or not is_plausible_topic(target):",
        "        if classic:",
        (
            "tests/unit/delivery/test_classic_retries.py::test_a_retry_of_no_topic_was_lost_to_rocketmq_by_a_clean_stop",
        ),
    ),
    Planted(
        "A number out of range in `consumerOrderInfo.json` kept the broker from starting",
        "broker/trovemq_broker/groups/delivery/order_info.py",
        "            if info.is_plausible:",
        "            if True:",
        (
            "tests/unit/delivery/test_rocketmq_import_of_odd_files.py::test_an_order_info_number_no_event_can_say_kept_the_broker_from_start",
        ),
    ),
    Planted(
        "A damaged unit of a queue that points after the log made every receive of its group fail",
        "broker/trovemq_broker/groups/delivery/records.py",
        " or not 0 <= begin <= len(data) - size",
        "",
        (
            "tests/unit/delivery/test_rare_moments.py::test_a_unit_that_names_no_record_costs_no_other_message",
        ),
    ),
    Planted(
        "A delayed message of an old client, with full properties, was lost when its time came",
        "broker/trovemq_broker/timers/copies.py",
        "    if len(block) < PROPERTIES_SIZE_MAX:",
        "    if True:",
        (
            "tests/unit/timers/test_rare_timers.py::test_full_properties_without_the_last_separator_are_copied_unchanged",
        ),
    ),
    Planted(
        "A flipped bit in an index file's count hid the keys of the whole file, and no scrub said where",
        "store/trovemq_store/index/key_index.py",
        "        for file in self._index_files[:-1]:\n            file.expect_full()\n",
        "",
        (
            "tests/unit/scrub/test_index_counts.py::"
            "test_a_flipped_bit_of_an_index_files_count_hid_its_keys_unreported",
        ),
    ),
    Planted(
        "Where the disk was slow everybody waited while the key index made its next file: at the first "
        "message of an empty store, and each 20 million keys later",
        "store/trovemq_store/index/key_index.py",
        "            if self.files_by_work and not self._made:",
        "            if False:",
        ("tests/unit/index/test_index_later.py::test_to_make_an_index_file_held_up_everybody",),
    ),
    Planted(
        "A page of the queue of delayed messages that could not be read kept the broker from starting",
        "broker/trovemq_broker/timers/waiting_table.py",
        "units = readable_units(queue, QueueOffset(offset), UNITS_STEP)",
        "units = queue.units(QueueOffset(offset), UNITS_STEP)",
        (
            "tests/unit/timers/test_rare_timers.py::"
            "test_an_unreadable_page_of_the_delayed_queue_stopped_the_broker",
        ),
    ),
    Planted(
        "A topic was deleted and recreated just before a kill: a group never got its first messages",
        "broker/trovemq_broker/groups/delivery/delivery.py",
        "        if forgotten:\n            self._flush_events(now_ms)\n",
        "",
        (
            "tests/unit/delivery/test_life_of_the_state.py::test_messages_of_a_topic_recreated_before_a_kill_were_not_consumed",
        ),
    ),
    Planted(
        "After a kill a transaction acknowledged what waited for its priority, and it was delivered again",
        "broker/trovemq_broker/groups/delivery/lease_resolvers.py",
        "            or was_skipped(context, state, offset)  # a crash has lost the lease\n",
        "",
        (
            "tests/unit/delivery/test_priority_order.py::test_a_handle_whose_lease_a_crash_lost_acknowledges_nothing_waiting",
        ),
    ),
    Planted(
        "The biography of a message failed in a topic by priority, after a start without trees",
        "broker/trovemq_broker/groups/delivery/message_status.py",
        "order.next_from(other), until)",
        "order.cursors[other], until)",
        (
            "tests/unit/track/test_message_track.py::test_by_priority_what_is_ahead_is_reported_after_a_start_without_trees",
        ),
    ),
    Planted(
        "After a power cut a lost message at a segment's end stayed as damage, with later ones after it",
        "store/trovemq_store/log/tail.py",
        "    if not any(head) or any(magic and whole",
        "    if not any(head) or any(False and whole",
        ("tests/unit/engine/test_log_tail.py::test_the_first_bytes_of_a_lost_record_are_no_blank",),
    ),
    Planted(
        "One producer's illegal or repeated number failed the sends of others that arrived with it",
        "broker/trovemq_broker/produce/accumulator.py",
        "        except TroveError:  # nothing was written: each batch gets its own error, or none\n"
        "            self._append_each(waiting)\n        except",
        "        except",
        ("tests/unit/produce/test_accumulator.py::test_a_number_that_is_refused_fails_its_own_send_alone",),
    ),
    Planted(
        "Acknowledged records with forged marks of a transaction were cut off by the start after a kill",
        "store/trovemq_store/log/whole_runs.py",
        "        return read_mark(run.records, index, run.offset_of(index), sealed=self._sealed)",
        "        return read_mark(run.records, index, run.offset_of(index), sealed=False)",
        ("tests/unit/log/test_forged_marks.py::test_forged_transaction_marks_cut_off_acknowledged_messages",),
    ),
    Planted(
        "Clients wrote properties that only the broker, or the SDK, may write",
        "proto/trovemq_proto/records/internal_properties.py",
        "    if name.startswith(INTERNAL_PREFIX):",
        "    if False:",
        ("tests/unit/produce/test_doors.py::test_clients_wrote_properties_that_only_the_broker_may",),
    ),
    Planted(
        "One record with an odd born host stopped retention, dead letters and the clean stop",
        "store/trovemq_store/engine/record_writer.py",
        "            message.packed_born_host,",
        "            pack_host(message.born_host),",
        (
            "tests/unit/engine/test_whole_lives.py"
            "::test_one_odd_record_stopped_retention_dead_letters_and_the_clean_stop",
        ),
    ),
    Planted(
        "A FIFO topic took native messages without a message group, which lost their order",
        "broker/trovemq_broker/produce/append.py",
        "    check_kinds(config, batch)\n    if",
        "    if",
        (
            "tests/unit/produce/test_doors.py"
            "::test_the_native_protocol_stored_messages_not_of_their_topics_kind",
        ),
    ),
    Planted(
        "A key with spaces, sent by RocketMQ's protocol, was not found, though the answer was complete",
        "broker/trovemq_broker/query/key_query.py",
        '        if self.type is KeyType.KEY and " " in self.key:',
        "        if False:",
        ("tests/unit/server/rocketmq/test_keys_with_spaces.py::test_a_key_with_spaces_was_not_found",),
    ),
    Planted(
        "Delayed messages of RocketMQ's levels had no time of delivery in their queue after a recovery, where"
        " a topic with a name as long had records of the same layout beside them",
        "proto/trovemq_proto/records/index_entries.py",
        "topics.isdisjoint((None, SCHEDULE_TOPIC))",
        "topics.isdisjoint((SCHEDULE_TOPIC,))",
        (
            "tests/unit/records/test_agrees_with_reference.py"
            "::test_times_of_delivery_beside_a_topic_whose_name_is_as_long",
        ),
    ),
    Planted(
        "A topic that was made while the machine had run out of descriptors, after another change had been"
        " refused, was gone after a crash",
        "store/trovemq_store/topics/topic_journal.py",
        'changes[-1].get("written") == crc)',
        'any(change.get("written") == crc for change in changes))',
        (
            "tests/unit/topics/test_topic_journal.py::test_a_topic_made_after_a_refused_file_was_lost_by_a_crash",
        ),
    ),
    Planted(
        "A message of a sender by IPv6 came back with another store time and another born host, where it"
        " was appended together with others: the store wrote the time 12 bytes too early",
        "proto/trovemq_proto/records/patch.py",
        "    born_size = HOST_SIZE_IPV6 if sys_flag & SYS_FLAG_BORN_HOST_IPV6 else HOST_SIZE_IPV4",
        "    born_size = HOST_SIZE_IPV4",
        (
            "tests/unit/server/rocketmq/test_sends_of_one_turn.py::test_a_sender_by_ipv6_to_two_topics_had_its_records_overwritten",
        ),
    ),
    Planted(
        "Of two messages that a client of RocketMQ's protocol sent to one queue one after the other, the"
        " second was stored first",
        "broker/trovemq_broker/server/rocketmq/sender.py",
        "            for call in calls:\n                try:\n",
        "            for call in reversed(calls):\n                try:\n",
        ("tests/unit/server/rocketmq/test_sends_of_one_turn.py::test_a_send_overtook_another_of_its_queue",),
    ),
    Planted(
        "An unexpected exception in one of the calls that one read had brought failed all of them",
        "broker/trovemq_broker/server/core/acknowledger.py",
        "            if len(received) == 1:\n                received[0][0].answer(error)",
        "            if True:\n                [call.answer(error) for call, _ in received]",
        (
            "tests/unit/server/rocketmq/test_turns_of_acknowledgements.py::test_a_fault_in_a_joint_answer_failed_all_calls_of_the_turn",
        ),
    ),
    Planted(
        "After a start that had left thousands of consume queues unsynced, a power cut could lose their"
        " units: the first flush noted them as synced",
        "store/trovemq_store/engine/store_checkpoint.py",
        "        queues = queues or not self._synced\n",
        "\n",
        (
            "tests/unit/engine/test_after_a_crash.py::test_a_start_waited_until_thousands_of_files_were_on_disk",
        ),
    ),
    Planted(
        "A topic that was deleted while a sync ran, and recreated, made a start after a power cut read"
        " the whole log",
        "store/trovemq_store/engine/store_checkpoint.py",
        "            if self._queues.get(queue.topic, queue.queue_id) is queue:",
        "            if True:",
        (
            "tests/unit/daemon/test_projection_flushes.py::test_a_topic_made_again_since_the_sync_made_all_queues_again",
        ),
    ),
    Planted(
        "While the broker had no free descriptor, map or memory, a group passed acknowledged messages for"
        " good, and look-ups did not find them: the log counted as damaged",
        "store/trovemq_store/files/files.py",
        "        kind = ScarceError if error_number in SCARCE_NUMBERS else UnreadableError",
        "        kind = UnreadableError",
        (
            "tests/durability/test_scarce_reads.py::test_reads_that_lacked_a_descriptor_counted_as_bad_sectors",
        ),
    ),
    Planted(
        "A connection that died in silence (a firewall or NAT had forgotten it) held up subscriptions, "
        "followers, sends and look-ups for ever",
        "proto/trovemq_proto/channels.py",
        "KEEPALIVE_TIME_MS: Final = 6_000",
        "KEEPALIVE_TIME_MS: Final = 86_400_000",
        (
            "tests/world/test_silent_networks.py::"
            "test_a_connection_that_died_in_silence_held_up_its_streams_for_ever[both_ways-sends]",
        ),
    ),
    Planted(
        "A topic was deleted and recreated: the end of a stream of the old one could end leases of the new"
        " one, whose messages were delivered a second time",
        "broker/trovemq_broker/groups/delivery/lease_resolvers.py",
        " or lease.granted_until_ms != head.granted_until_ms",
        "",
        (
            "tests/unit/server/test_consume_stream.py::test_an_old_stream_ended_the_leases_of_its_topics_namesake",
        ),
    ),
    Planted(
        "Messages of a message group that a member had returned while an earlier one was in flight came to"
        " nobody for up to 20 seconds after its acknowledgement",
        "broker/trovemq_broker/groups/delivery/settlements.py",
        "            or (pair.keyed and state.blocked)\n",
        "",
        (
            "tests/unit/server/test_consume_stream.py::test_returned_messages_of_a_message_group_waited_for_20_seconds",
        ),
    ),
    *CLIENT_FAULTS,
    *CLOCK_FAULTS,
    *SERVICE_FAULTS,
    *TRANSPORT_FAULTS,
)
