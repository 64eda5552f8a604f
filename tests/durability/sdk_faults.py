"""Planted faults of the SDK and of the command line. See planted.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

SDK_FAULTS: Final = (
    Planted(
        "a local cluster stops its nameserver before its brokers",
        "clients/python/trovemq/cli/local/supervisor.py",
        "for stage in reversed(self._stages):",
        "for stage in self._stages:",
        ("tests/unit/cli/test_supervisor.py::test_a_signal_stops_brokers_before_the_nameserver",),
    ),
    Planted(
        "a local cluster gives a store that exists other sizes",
        "clients/python/trovemq/cli/local/members.py",
        "= dict(NEW_STORE) if is_new else {}",
        "= dict(NEW_STORE)",
        (
            "tests/unit/cli/test_local_directory.py::"
            "test_a_new_store_gets_small_files_and_an_old_one_keeps_its_own",
        ),
    ),
    Planted(
        "a message in doubt moves to another broker, which stores it again",
        "clients/python/trovemq/_produce/delivery.py",
        "                batch.stay()\n",
        "                pass\n",
        ("tests/unit/sdk/test_delivery.py::test_a_message_in_doubt_moved_to_another_broker[True]",),
    ),
    Planted(
        "kombu's channel acknowledges a message that is to be delivered again",
        "clients/python/trovemq/_kombu/qos.py",
        "            self.settle(held.leased.nack, 0)",
        "            self.settle(held.leased.consumed)",
        ("tests/unit/sdk/test_kombu_qos.py::test_each_settlement_reaches_the_lease_once",),
    ),
    Planted(
        "a message that the handler has settled is settled again after its error",
        "clients/python/trovemq/_run/worker.py",
        "        if message.settled or action is None:",
        "        if action is None:",
        ("tests/unit/sdk/test_running.py::test_a_batch_fails_as_a_whole_but_for_messages_it_settled",),
    ),
    Planted(
        "a settled message of a list is acknowledged with the others",
        "clients/python/trovemq/received_batch.py",
        "        unsettled = [message for message in self if not message.settled]",
        "        unsettled = list(self)",
        ("tests/unit/sdk/test_running.py::test_a_list_is_acknowledged_but_for_settled_messages",),
    ),
    Planted(
        "a batch counts as one message of a handler's rate",
        "clients/python/trovemq/_run/worker.py",
        "loop.time() + len(messages) / rate_max",
        "loop.time() + 1 / rate_max",
        ("tests/unit/sdk/test_running.py::test_a_batch_counted_as_one_message_of_the_rate",),
    ),
    Planted(
        "a late answer about a topic that is back begins an outage",
        "clients/python/trovemq/_net/outages.py",
        "        if asked_after is not None and asked_after != self._ended[place]:\n            return\n",
        "",
        (
            "tests/unit/sdk/test_broadcast_outages.py::"
            "test_a_late_answer_about_a_topic_that_is_back_began_an_outage[False]",
        ),
    ),
    Planted(
        "a message that is extended to now stays unsettled",
        "clients/python/trovemq/received.py",
        "        if not duration_ms:\n            await self.nack(0)\n            return\n",
        "",
        ("tests/unit/sdk/test_subscribe.py::test_a_message_extended_to_now_kept_a_void_handle[0]",),
    ),
    Planted(
        "a cancelled sender keeps the turn of the next one",
        "clients/python/trovemq/_produce/in_flight.py",
        "                if waiter.done() and not waiter.cancelled():\n                    "
        "self._wake_next()  # it was woken and cancelled at once: the next one gets the wake-up\n",
        "                pass\n",
        (
            "tests/unit/sdk/test_places_in_line.py::"
            "test_a_sender_cancelled_in_its_turn_held_up_those_after_it",
        ),
    ),
    Planted(
        "a message in doubt is sent again though its program wants none twice",
        "clients/python/trovemq/_produce/delivery.py",
        "        elif in_doubt and not self._retry_in_doubt:",
        "        elif in_doubt and self._retry_in_doubt:",
        ("tests/unit/sdk/test_delivery.py::test_what_may_be_stored_is_not_sent_again",),
    ),
    Planted(
        "an ordered batch overtakes one that is tried again",
        "clients/python/trovemq/_produce/delivery.py",
        "            if len(lane) > 1:\n                return\n",
        "",
        ("tests/unit/sdk/test_producer.py::test_ordered_batches_go_one_after_the_other",),
    ),
    Planted(
        "a message that is sent again gets another number",
        "clients/python/trovemq/_produce/outgoing.py",
        "        broker = self.broker\n        if self.numbered_for != broker:\n",
        "        broker = self.broker\n        if True:\n",
        ("tests/unit/sdk/test_sequences.py::test_what_is_sent_again_keeps_its_number[False]",),
    ),
    Planted(
        "credit of a broken stream is counted on the next one",
        "clients/python/trovemq/_consume/credit.py",
        "        self._messages = self._bytes = 0\n        self.may_shrink = False\n",
        "        self.may_shrink = False\n",
        ("tests/unit/sdk/test_credit.py::test_a_new_stream_of_a_broker_got_no_credit",),
    ),
    Planted(
        "a message whose lease has ended goes to the program",
        "clients/python/trovemq/_consume/inbox.py",
        "            lease_end = message.lease_end\n            if lease_end is None or "
        "lease_end > (_time() if now is None else now):\n                return message\n  "
        "          lane",
        "            lease_end = message.lease_end\n            if lease_end is None or "
        "lease_end:\n                return message\n            lane",
        ("tests/unit/sdk/test_inbox.py::test_a_lease_that_is_over_is_dropped_with_what_waits_after_it",),
    ),
    Planted(
        "a message that was delivered again waits twice",
        "clients/python/trovemq/_consume/inbox.py",
        "        known = self._waiting.get(place)\n        if known is not None:",
        "        known = None\n        if known is not None:",
        ("tests/unit/sdk/test_inbox.py::test_several_at_once_are_as_one_at_a_time",),
    ),
    Planted(
        "a redelivery waits for the delivery whose lease has ended",
        "clients/python/trovemq/_consume/inbox.py",
        "        if delivered:\n            self._return(",
        "        if False:\n            self._return(",
        ("tests/unit/sdk/test_inbox.py::test_a_lane_stood_still_after_a_message_never_settled",),
    ),
    Planted(
        "the hold of a slow program does not shrink",
        "clients/python/trovemq/_consume/hold.py",
        "        self._count = max(self.least, min(wanted, HOLD_MAX))",
        "        self._count = max(self._count, self.least, min(wanted, HOLD_MAX))",
        ("tests/unit/sdk/test_hold.py::test_a_program_that_becomes_slow_holds_little_after_two_messages",),
    ),
    Planted(
        "an answer that goes too far is returned twice",
        "clients/python/trovemq/_consume/fetch_plan.py",
        "        batch = fetch.batch if fetch.start >= self.position else _from(fetch.batch, self.position)",
        "        batch = fetch.batch",
        ("tests/unit/sdk/test_fetch_plan.py::test_nothing_missing_nothing_twice",),
    ),
    Planted(
        "the last message of a page is on the next one, too",
        "clients/python/trovemq/_lookup/merge.py",
        "return physical_offset < last if self.query.newest_first else physical_offset > last",
        "return physical_offset <= last if self.query.newest_first else physical_offset >= last",
        ("tests/unit/sdk/test_queries.py::test_pages_of_two_brokers_merge_newest_first[1-2]",),
    ),
    Planted(
        "messages of two brokers are merged without regard to time",
        "clients/python/trovemq/_lookup/merge.py",
        "key=lambda one: (one.waiting[0].store_timestamp, one.name)",
        "key=lambda one: one.name",
        ("tests/unit/sdk/test_queries.py::test_pages_of_two_brokers_merge_newest_first[1-1]",),
    ),
    Planted(
        "a cursor is accepted by another query of the client",
        "clients/python/trovemq/_lookup/cursor.py",
        "    if query != digest:",
        "    if False:",
        ("tests/unit/sdk/test_queries.py::test_cursors_are_checked",),
    ),
    Planted(
        "a broker that lost messages says so on the first page only",
        "clients/python/trovemq/_lookup/cursor.py",
        "*([True] if p.lacking else [])]",
        "*([True] if p.lacking and not p.done else [])]",
        (
            "tests/unit/sdk/test_queries.py::"
            "test_a_cursor_that_names_a_broker_which_is_gone_never_ended[False]",
        ),
    ),
    Planted(
        "an old view takes a topic away",
        "clients/python/trovemq/_net/views.py",
        "    return route.broker.epoch, route.broker.data_version, reported",
        "    return route.broker.epoch, reported, route.broker.data_version",
        ("tests/unit/sdk/test_views.py::test_a_view_that_is_behind_takes_no_topic_away",),
    ),
    Planted(
        "a nameserver that is gone counts for ever",
        "clients/python/trovemq/_net/views.py",
        "return self.broken_at is None or now < self.broken_at + KEPT_SECONDS",
        "return True",
        ("tests/unit/sdk/test_views.py::test_what_a_nameserver_said_counts_for_a_while_after_it_is_gone",),
    ),
    Planted(
        "frames of a restarted broker that it had not read are in doubt",
        "clients/python/trovemq/_net/append_stream.py",
        "        in_doubt = errors.UNREAD not in error.fields\n",
        "        in_doubt = True\n",
        ("tests/unit/sdk/test_append_stream.py::test_a_restart_failed_sends_that_the_broker_had_not_read",),
    ),
    Planted(
        "a frame overtakes one of its own queue",
        "clients/python/trovemq/_net/append_stream.py",
        "            if held is not None and queue in held:\n                continue\n",
        "",
        ("tests/unit/sdk/test_append_stream.py::test_every_frame_is_sent_once_in_order_and_ends_once",),
    ),
    Planted(
        "a secret in a URL is shown up to its first @",
        "clients/python/trovemq/_net/servers.py",
        'r"^(trovemq://[^:@]*:).*@")',
        'r"^(trovemq://[^:@]*:)[^@]*@")',
        ("tests/unit/sdk/test_servers.py::test_keys_of_a_url_count_where_nothing_else_names_any",),
    ),
    Planted(
        "the first failure of several servers ends the wait",
        "clients/python/trovemq/_net/first_answer.py",
        "            grace = grace or any(task.exception() is None for task in done)",
        "            grace = True",
        (
            "tests/unit/sdk/test_places_in_line.py::"
            "test_the_first_server_failed_and_the_others_were_not_waited_for",
        ),
    ),
    Planted(
        "unacknowledged messages of a closed client are not reported",
        "clients/python/trovemq/_run/closing.py",
        "            await abort_all(self._all_producers)\n            await self._pool.close()",
        "            await self._pool.close()",
        ("tests/unit/sdk/test_unacknowledged.py::test_a_closed_client_dropped_messages_without_a_line",),
    ),
    Planted(
        "`1h` in a period is an hour ahead",
        "clients/python/trovemq/cli/times.py",
        "return _relative(self.text, now_ms, 1 if self.ahead else -1)",
        "return _relative(self.text, now_ms, 1)",
        ("tests/unit/cli/test_times.py::test_anything_else_is_wrong_usage[99999999w]",),
    ),
    Planted(
        "a time without a zone is this machine's",
        "clients/python/trovemq/cli/times.py",
        "        moment = moment.replace(tzinfo=UTC)\n",
        "        moment = moment.astimezone()\n",
        ("tests/unit/cli/test_times.py::test_a_time_without_a_zone_was_one_of_this_machines_zone",),
    ),
    Planted(
        "a page that lacks a broker is followed by others",
        "clients/python/trovemq/cli/paging.py",
        "        if page.complete or not page.cursor or page.unreachable:",
        "        if page.complete or not page.cursor:",
        ("tests/unit/cli/test_search.py::test_a_broker_that_did_not_answer_is_named_and_nobody_is_asked_on",),
    ),
    Planted(
        "the second page of an answer has more than was asked for",
        "clients/python/trovemq/cli/paging.py",
        "        left -= len(page.messages)\n",
        "        left -= 1\n",
        ("tests/unit/sdk/test_places_in_line.py::test_a_second_page_had_more_messages_than_were_asked_for",),
    ),
    Planted(
        "dead letters that failed count as sent",
        "clients/python/trovemq/cli/dead_letters.py",
        "sent = len(results) - len(failed) - before",
        "sent = len(results) - before",
        ("tests/unit/cli/test_dead_letters.py::test_resend_sends_those_chosen_and_shows_each_result",),
    ),
    Planted(
        "a rate of dead letters counts the calls",
        "clients/python/trovemq/cli/dead_letters.py",
        "max(begin + len(results) / rate - clock.time(), 0)",
        "max(begin + 1 / rate - clock.time(), 0)",
        ("tests/unit/cli/test_dead_letters.py::test_a_rate_is_kept",),
    ),
    Planted(
        "a row of CSV with too few columns is sent",
        "clients/python/trovemq/cli/produce_input.py",
        "            if None in row or None in row.values():",
        "            if None in row:",
        ("tests/unit/cli/test_produce.py::test_input_that_is_not_what_it_should_be_names_its_line",),
    ),
    Planted(
        "KiB are thousands",
        "clients/python/trovemq/cli/sizes.py",
        '    "kib": 1 << 10,',
        '    "kib": 1_000,',
        ("tests/unit/cli/test_sizes.py::test_a_size_with_a_unit_was_refused",),
    ),
    Planted(
        "the last middleware is the outermost",
        "clients/python/trovemq/_run/worker.py",
        "        for middleware in reversed(self._handlers.middleware):",
        "        for middleware in self._handlers.middleware:",
        ("tests/unit/sdk/test_running.py::test_middleware_is_around_the_call_the_first_outermost",),
    ),
    Planted(
        "a handler's rate is not kept",
        "clients/python/trovemq/_run/worker.py",
        "                self._free_at = loop.time() + len(messages) / rate_max",
        "                self._free_at = loop.time()",
        ("tests/unit/sdk/test_running.py::test_no_more_messages_a_second_than_the_rate",),
    ),
    Planted(
        "a topic that a change removed stays in the routes",
        "clients/python/trovemq/_wire/convert.py",
        "            topics.pop(name, None)\n",
        "            pass\n",
        ("tests/unit/sdk/test_views.py::test_changes_alone_make_the_state_that_a_whole_reply_has",),
    ),
    Planted(
        "of conditions with `match=any` all must be met",
        "clients/python/trovemq/models/search.py",
        'Where.any_of(*parts) if match == "any" and parts else',
        'Where.any_of(*parts) if match == "any" and not parts else',
        ("tests/unit/sdk/test_searching.py::test_conditions_are_combined_by_what_was_given",),
    ),
    Planted(
        "the last messages of a queue that are lost are not reported",
        "clients/python/trovemq/_verify/checking.py",
        "        self._evidence.compare(place, position, OFFSET_MAX, {}, frozenset())\n\n    # ---",
        "        pass\n\n    # ---",
        ("tests/unit/cli/test_verify.py::test_people_see_the_verdict",),
    ),
    Planted(
        "pauses between attempts have no longest one",
        "clients/python/trovemq/_common/backoff.py",
        "min(self.delay_max_ms, self.delay_ms * 2.0 ** min(failures - 1, 30))",
        "self.delay_ms * 2.0 ** min(failures - 1, 30)",
        ("tests/unit/sdk/test_places_in_line.py::test_pauses_between_attempts_grew_beyond_their_longest",),
    ),
    Planted(
        "the reaction of a handler to an error is not checked",
        "clients/python/trovemq/handlers.py",
        "        if not isinstance(action, Retry) and action not in",
        "        if not isinstance(action, Retry | str) and action not in",
        ("tests/unit/sdk/test_running.py::test_what_cannot_run_is_refused_before_anything_is_opened",),
    ),
    Planted(
        "offsets of dead letters are not checked",
        "clients/python/trovemq/_admin/groups.py",
        "if not 0 <= offset <= _OFFSET_MAX]:",
        "if not offset <= _OFFSET_MAX]:",
        ("tests/unit/sdk/test_groups.py::test_what_no_broker_could_take_is_refused_before_any_call",),
    ),
    Planted(
        "a commit that met a broken disk is forgotten, and the checker is asked in its place",
        "clients/python/trovemq/transaction.py",
        " and error.spec is not errors.STORE_FAILED",
        "",
        (
            "tests/unit/sdk/test_transactions.py::"
            "test_a_commit_that_did_not_arrive_is_the_answer_to_the_check[error1]",
        ),
    ),
    Planted(
        "a delay begins again with each attempt",
        "clients/python/trovemq/_produce/deferred.py",
        "stored = await hand_over(calls, int((loop.time() - began) * 1000))",
        "stored = await hand_over(calls, 0)",
        ("tests/unit/sdk/test_transactions.py::test_a_delayed_message_that_was_sent_again_waited_anew",),
    ),
)
