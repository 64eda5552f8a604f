"""Planted faults of the broker's services (server/): native, access, rocketmq, core, wire. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

SERVER_FAULTS: Final = (
    Planted(
        "a query's slot is not free after an error, or when its client has left",
        "broker/trovemq_broker/server/native/query_service.py",
        "        try:\n            yield\n        finally:\n            self._running -= 1\n",
        "        yield\n        self._running -= 1\n",
        (
            "tests/unit/server/test_query_service.py::"
            "test_after_look_ups_that_failed_every_other_one_was_refused",
        ),
    ),
    Planted(
        "a standing fetch is answered beyond its bytes",
        "broker/trovemq_broker/server/native/fetch_stream.py",
        "left > 0 and at_end and not last and space > 0",
        "left > 0 and at_end and not last",
        ("tests/unit/server/test_fetch_stream.py::test_the_replies_of_a_fetch_have_its_bytes_together",),
    ),
    Planted(
        "a waiting fetch is not checked again before its answer",
        "broker/trovemq_broker/server/native/fetch_stream.py",
        "            if self._admit_again is not None:\n",
        "            if False:\n",
        (
            "tests/unit/server/access/test_open_streams.py::"
            "test_a_waiting_fetch_brought_messages_to_a_user_without_the_right[False]",
        ),
    ),
    Planted(
        "a transaction whose stream breaks stays open",
        "broker/trovemq_broker/server/native/transaction_service.py",
        "            transactions.roll_back(opened)  # without effect if it has ended\n",
        "            pass\n",
        (
            "tests/unit/server/test_transact_stream.py::"
            "test_a_transaction_whose_stream_ended_kept_its_memory[frames0-REQUEST_ILLEGAL]",
        ),
    ),
    Planted(
        "a commit is answered before it is on disk",
        "broker/trovemq_broker/server/native/transaction_service.py",
        "        await appender.acknowledged(topic, committed.end)\n",
        "",
        ("tests/unit/server/test_transact_stream.py::test_a_commit_was_answered_before_it_was_on_disk",),
    ),
    Planted(
        "a failed backup holds back removals until the next start",
        "broker/trovemq_broker/server/native/store_service.py",
        "                self._store.removal_holds -= 1\n",
        "                self._store.removal_holds -= whole\n",
        (
            "tests/unit/server/test_store_service.py::"
            "test_one_backup_at_a_time_and_what_is_stopped_is_removed",
        ),
    ),
    Planted(
        "a backup may be written outside of backup_root",
        "broker/trovemq_broker/server/native/store_service.py",
        "        if not target.is_relative_to(self._backup_root.resolve()):\n",
        "        if not str(target).startswith(str(self._backup_root.resolve())):\n",
        ("tests/unit/server/test_store_service.py::test_a_backup_was_written_beside_the_allowed_directory",),
    ),
    Planted(
        "groups that only members name are not listed",
        "broker/trovemq_broker/server/native/group_service.py",
        "names = {*self._groups.names(), *topics, *self._registry.groups()}",
        "names = {*self._groups.names(), *topics}",
        (
            "tests/unit/server/test_group_service.py::"
            "test_lists_have_groups_of_the_table_of_offsets_and_of_members",
        ),
    ),
    Planted(
        "a thousand dead letters are one too many",
        "broker/trovemq_broker/server/wire/group_messages.py",
        "if not 1 <= len(offsets) <= RESEND_MAX:",
        "if not 1 <= len(offsets) < RESEND_MAX:",
        ("tests/unit/server/test_group_service.py::test_as_many_dead_letters_as_a_call_may_name_are_sent",),
    ),
    Planted(
        "a reset of a group needs no group",
        "broker/trovemq_broker/server/native/group_service.py",
        "        if not only_new:\n            self._topics_of(group)\n",
        "",
        ("tests/unit/server/test_group_service.py::test_a_misspelt_group_was_reset_without_a_word",),
    ),
    Planted(
        "a stream that ends loses the replies that are ready",
        "broker/trovemq_broker/server/native/reply_stream.py",
        "            await self._wait_for_waiting(0)\n        except",
        "        except",
        (
            "tests/unit/server/test_append_stream.py::"
            "test_the_end_of_the_requests_waits_for_the_last_reply[Context]",
        ),
    ),
    Planted(
        "a rule's change does not reach a stream that was admitted",
        "broker/trovemq_broker/server/access/checked_call.py",
        "        if generation is self._known_generation and topic == self._known_topic:",
        "        if topic == self._known_topic:",
        (
            "tests/unit/server/access/test_open_streams.py::"
            "test_a_waiting_fetch_brought_messages_to_a_user_without_the_right[False]",
        ),
    ),
    Planted(
        "ListMembers asks for no right",
        "broker/trovemq_broker/server/access/needs.py",
        '        "ListMembers": Row(_group(SEE)),',
        '        "ListMembers": Row(Level.USER),',
        (
            "tests/unit/server/access/test_rights.py::"
            "test_a_call_lost_one_of_its_rights[/trovemq.v1.GroupService/ListMembers]",
        ),
    ),
    Planted(
        "to forward to the dead letters asks for no right to the topic",
        "broker/trovemq_broker/server/access/needs.py",
        '"ForwardMessageToDeadLetterQueue": Row(_v2_both(SUB, SUB)),',
        '"ForwardMessageToDeadLetterQueue": Row(_v2_group(SUB)),',
        (
            "tests/unit/server/access/test_rights.py::"
            "test_a_call_lost_one_of_its_rights[/apache.rocketmq.v2.MessagingService/ForwardMessageToDeadLetterQueue]",
        ),
    ),
    Planted(
        "the open call of a refused caller still counts",
        "broker/trovemq_broker/server/access/checked_call.py",
        "                return HELD\n            self.end()\n",
        "                return HELD\n",
        (
            "tests/unit/server/access/test_quotas_at_the_door.py::"
            "test_open_calls_are_given_back_however_they_end",
        ),
    ),
    Planted(
        "a disabled user's certificate is accepted",
        "broker/trovemq_broker/server/access/gate.py",
        "        user = self._table.user(peer.certificate_name)\n        if user is None "
        "or not user.enabled:",
        "        user = self._table.user(peer.certificate_name)\n        if user is None:",
        (
            "tests/unit/server/access/test_matrix.py::"
            "test_a_certificate_is_a_user_where_that_is_set[/trovemq.v1.MessageService/Send]",
        ),
    ),
    Planted(
        "another user's producer id is accepted that begins like one's own",
        "broker/trovemq_broker/server/access/producer_ids.py",
        'return producer_id.startswith(f"{access_key}:")',
        "return producer_id.startswith(access_key)",
        ("tests/unit/server/access/test_producer_ids.py::test_ids_of_others_and_of_nobody_are_refused",),
    ),
    Planted(
        "an act is done before its audit record is on disk",
        "broker/trovemq_broker/server/access/audit.py",
        "            await durable(end)\n",
        "            _ = durable\n",
        ("tests/unit/server/access/test_audit.py::test_an_act_begins_when_its_record_is_on_disk",),
    ),
    Planted(
        "admitted names outlive a change of the rules",
        "broker/trovemq_broker/server/access/callbacks.py",
        "            self._admitted.clear()\n            self._generation = generation",
        "            self._generation = generation",
        ("tests/unit/server/access/test_callbacks.py::test_names_that_were_admitted_are_not_others",),
    ),
    Planted(
        "bodies that inflate are counted one by one",
        "broker/trovemq_broker/server/rocketmq/sender.py",
        "                inflated_size += len(body)\n",
        "                inflated_size = len(body)\n",
        ("tests/unit/server/rocketmq/test_sending.py::test_small_gzip_bodies_of_one_send_took_gigabytes",),
    ),
    Planted(
        "a send of messages to two topics is accepted",
        "broker/trovemq_broker/server/wire/send_requests.py",
        "        if topic and name != topic:",
        "        if not topic and name != topic and topic:",
        ("tests/unit/server/rocketmq/test_sending.py::test_no_message_and_mixed_topics_are_corrupted",),
    ),
    Planted(
        "1,024 messages are one too many",
        "broker/trovemq_broker/server/wire/send_requests.py",
        "    if len(messages) > MESSAGES_MAX:",
        "    if len(messages) >= MESSAGES_MAX:",
        ("tests/unit/server/rocketmq/test_sending.py::test_as_many_messages_as_a_send_may_have_are_stored",),
    ),
    Planted(
        "a half message is prepared by the native protocol in a topic of another type",
        "broker/trovemq_broker/server/native/producer_service.py",
        "        check_kind(config, kind)\n",
        "",
        (
            "tests/unit/server/test_producer_service.py::"
            "test_a_half_message_that_is_refused_is_counted[fields5-MESSAGE_TYPE_CONFLICT]",
        ),
    ),
    Planted(
        "a message that is due now is scheduled",
        "broker/trovemq_broker/timers/scheduling.py",
        "        due_ms = deliver_ms if deliver_ms > now_ms else None",
        "        due_ms = deliver_ms if deliver_ms >= now_ms else None",
        (
            "tests/unit/server/rocketmq/test_sending.py::"
            "test_a_delayed_message_whose_time_is_past_is_delivered_at_once",
        ),
    ),
    Planted(
        "a message that is refused fails those of other calls that came with it",
        "broker/trovemq_broker/produce/accumulator.py",
        "            if split is None:\n",
        "            if True:\n",
        (
            "tests/unit/server/rocketmq/test_sends_of_one_turn.py::"
            "test_a_refusal_of_all_is_that_of_the_one_at_fault",
        ),
    ),
    Planted(
        "a topic's change is not seen by later sends",
        "broker/trovemq_broker/server/rocketmq/sender.py",
        "self._known.get(topic) is not config",
        "topic not in self._known",
        (
            "tests/unit/server/rocketmq/test_sends_of_one_turn.py::"
            "test_sends_went_on_to_a_topic_that_was_made_read_only",
        ),
    ),
    Planted(
        "an answer to a pull ends after its first part",
        "broker/trovemq_broker/server/rocketmq/puller.py",
        "            if left <= 0 or space <= 0 or part.at_end:",
        "            if left >= 0 or space <= 0 or part.at_end:",
        (
            "tests/unit/server/rocketmq/test_pulling.py::"
            "test_a_pull_that_asks_for_more_than_a_part_gets_all_of_it",
        ),
    ),
    Planted(
        "a simple consumer's own polling time is replaced",
        "broker/trovemq_broker/server/wire/client_settings.py",
        "    if merged.client_type == v2.PUSH_CONSUMER or "
        "milliseconds(subscription.long_polling_timeout) <= 0:",
        "    if True:",
        ("tests/unit/server/rocketmq/test_telemetry.py::test_a_simple_consumer_keeps_its_polling_time",),
    ),
    Planted(
        "a drained broker's route offers writes",
        "broker/trovemq_broker/server/rocketmq/routes.py",
        "written = config.write_queue_count if self._offers_writes() else 0\n",
        "written = config.write_queue_count\n",
        (
            "tests/unit/server/test_drain.py::"
            "test_writes_leave_the_routes_at_once_and_are_refused_after_the_grace",
        ),
    ),
    Planted(
        "a command's slot is kept when its client does not answer",
        "broker/trovemq_broker/server/core/commands.py",
        "        finally:\n            del self._pending[command.nonce]\n",
        "        else:\n            del self._pending[command.nonce]\n",
        ("tests/unit/server/rocketmq/test_commands.py::test_a_client_that_never_answers_is_forgotten",),
    ),
    Planted(
        "another client's answer is accepted",
        "broker/trovemq_broker/server/core/commands.py",
        "pending is None or pending.client_id != client_id or pending.answer.done()",
        "pending is None or pending.answer.done()",
        ("tests/unit/server/rocketmq/test_commands.py::test_another_clients_answer_does_not_count",),
    ),
    Planted(
        "messages that were not written to a gone client are not returned",
        "broker/trovemq_broker/server/rocketmq/receive_calls.py",
        "        finally:\n            if not written:\n                self._give_back(taken, begun)\n",
        "        except ValueError:\n            self._give_back(taken, begun)\n",
        (
            "tests/unit/server/rocketmq/test_receiving.py::"
            "test_a_stream_that_is_broken_off_at_once_gives_its_messages_back",
        ),
    ),
    Planted(
        "a shortest lease is refused",
        "broker/trovemq_broker/server/core/receiver.py",
        "settings.invisible_min_ms <= invisible_ms <= settings.invisible_max_ms:",
        "settings.invisible_min_ms < invisible_ms <= settings.invisible_max_ms:",
        ("tests/unit/server/rocketmq/test_receiving.py::test_a_poll_is_woken_by_a_redelivery",),
    ),
    Planted(
        "a wake-up that a gone client got is lost",
        "broker/trovemq_broker/server/rocketmq/polls.py",
        "        if unused:\n            self._core.waits.wake(poll.wait.pair)\n",
        "",
        (
            "tests/unit/server/rocketmq/test_polls.py::"
            "test_a_wake_up_of_a_client_that_left_wakes_the_next_one",
        ),
    ),
    Planted(
        "only the first 128 polls of a tick end",
        "broker/trovemq_broker/server/rocketmq/polls.py",
        "        if polls:\n            self._ends[until] =",
        "        if polls and not polls:\n            self._ends[until] =",
        ("tests/unit/server/rocketmq/test_polls.py::test_polls_of_one_time_end_together_in_steps",),
    ),
    Planted(
        "the end of a replaced Consume stream forgets the next one",
        "broker/trovemq_broker/server/native/consume_streams.py",
        "pair.streams.get(stream.client_id) is not stream:",
        "stream.client_id not in pair.streams:",
        (
            "tests/unit/server/test_consume_stream.py::"
            "test_a_dead_stream_got_messages_beside_its_clients_next_one",
        ),
    ),
    Planted(
        "only the first Consume stream of a topic hears of void deliveries",
        "broker/trovemq_broker/server/native/consume_streams.py",
        "for stream in list(pair.streams.values()):\n",
        "for stream in list(pair.streams.values())[:1]:\n",
        (
            "tests/unit/server/test_void_deliveries.py::"
            "test_each_member_of_the_group_hears_of_its_own_last_batch",
        ),
    ),
    Planted(
        "a client that unregistered is not remembered",
        "broker/trovemq_broker/server/core/clients.py",
        "        self._terminated[client_id] = None\n",
        "",
        (
            "tests/unit/server/rocketmq/test_clients.py::"
            "test_a_termination_is_remembered_until_the_client_returns",
        ),
    ),
    Planted(
        "dropped expressions stay in their sum",
        "broker/trovemq_broker/server/core/clients.py",
        "            self._expressions_length -= len(dropped.expression)",
        "            pass",
        ("tests/unit/server/rocketmq/test_clients.py::test_long_expressions_filled_the_memory",),
    ),
    Planted(
        "the longest message id is refused",
        "broker/trovemq_broker/server/wire/send_checks.py",
        "    if len(message_id) > MESSAGE_ID_BYTES_MAX or (",
        "    if len(message_id) >= MESSAGE_ID_BYTES_MAX or (",
        ("tests/unit/server/rocketmq/test_sending.py::test_what_lies_exactly_at_its_limit_is_taken",),
    ),
    Planted(
        "a message group's size is counted in characters",
        "broker/trovemq_broker/server/wire/send_checks.py",
        "len(group.encode()) > MESSAGE_GROUP_BYTES_MAX",
        "len(group) > MESSAGE_GROUP_BYTES_MAX",
        ("tests/unit/server/rocketmq/test_sending.py::test_a_message_that_is_refused",),
    ),
    Planted(
        "a namespace's name is put before its own names again",
        "broker/trovemq_broker/server/wire/resources.py",
        "return name if name.startswith(start) or not name else start + name",
        "return start + name",
        ("tests/unit/server/rocketmq/test_resources.py::test_a_namespace_is_part_of_the_name",),
    ),
    Planted(
        "a gzip body that is cut short is stored",
        "broker/trovemq_broker/server/wire/send_requests.py",
        "    if not inflater.eof:",
        "    if False:",
        ("tests/unit/server/rocketmq/test_messages.py::test_a_gzip_body_that_is_none_is_refused",),
    ),
    Planted(
        "a message's times lose their milliseconds",
        "broker/trovemq_broker/server/wire/rocketmq_messages.py",
        "    timestamp.nanos = (epoch_ms - seconds * 1000) * 1_000_000",
        "    timestamp.nanos = (epoch_ms - seconds * 1000) * 1_000",
        ("tests/unit/server/rocketmq/test_messages.py::test_every_system_property_of_a_message",),
    ),
    Planted(
        "a frame whose last field is cut is accepted",
        "broker/trovemq_broker/server/wire/frames.py",
        "    if position != end:\n        cut",
        "    if position < end:\n        cut",
        ("tests/unit/server/test_frames.py::test_faults_keep_what_was_read_before",),
    ),
    Planted(
        "a reply to a long message id has a wrong size",
        "broker/trovemq_broker/server/wire/send_replies.py",
        "_ID_SIZE_SHORT: Final = (0x7F -",
        "_ID_SIZE_SHORT: Final = (0x9F -",
        (
            "tests/unit/server/rocketmq/test_sending.py::"
            "test_the_reply_to_a_send_with_a_long_id_could_not_be_read[0]",
        ),
    ),
    Planted(
        "moved queue offsets are left out of an answer",
        "broker/trovemq_broker/server/wire/native_messages.py",
        'return b"" if own == queue_offsets else',
        'return b"" if len(own) == len(queue_offsets) else',
        (
            "tests/unit/server/test_query_service.py::"
            "test_records_elsewhere_in_their_queue_had_their_own_offsets",
        ),
    ),
)
