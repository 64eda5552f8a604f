"""Old faults of the SDK, the command line and the pipeline: a part of old_faults.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

CLIENT_FAULTS: Final = (
    Planted(
        "Messages of a group overtook one that was returned while its poll was still arriving",
        "clients/python/trovemq/_consume/inbox.py",
        "        del self._lanes[key]\n        self._return(lane.later)\n        return lane.later\n",
        "        del self._lanes[key]\n        return []\n",
        ("tests/unit/sdk/test_inbox.py::test_what_a_poll_brought_late_overtook_what_was_returned",),
    ),
    Planted(
        "A query with a cursor that somebody made up ended with a KeyError",
        "clients/python/trovemq/_lookup/cursor.py",
        "    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:",
        "    except ZeroDivisionError as error:",
        ("tests/unit/sdk/test_query_cursor.py::test_a_made_up_cursor_raised_a_key_error",),
    ),
    Planted(
        "A delayed message of an idempotent producer, in doubt, was sent to a second broker: stored on both",
        "clients/python/trovemq/_produce/deferred.py",
        "broker_name = broker.name  # a broker that deduplicates knows only its own messages\n",
        "pass\n",
        (
            "tests/unit/sdk/test_transactions.py::test_a_delayed_message_in_doubt_stays_at_its_broker_and_keeps_its_id",
        ),
    ),
    Planted(
        "A topic was deleted and recreated while `tail`'s connection was broken: `tail` ended with an error,"
        " although it waits where the connection holds",
        "clients/python/trovemq/cli/tailing.py",
        "            if error.spec not in GONE:",
        "            if error.spec not in NOT_FOUND:",
        (
            "tests/world/test_first_contact.py::"
            "test_tail_ended_where_a_deleted_topic_was_made_again_before_it_looked",
        ),
    ),
    Planted(
        "A topic was deleted just when a batch of it arrived, and recreated: a subscription got that batch"
        " of the deleted topic among the messages of the new one",
        "clients/python/trovemq/_consume/group_stream.py",
        "        self._arrived.clear()  # of",
        "        pass  # of",
        (
            "tests/unit/sdk/test_unconfirmed_batches.py::"
            "test_a_batch_of_a_deleted_topic_came_with_the_first_of_the_new_one",
        ),
    ),
    Planted(
        "A kill of `compact` while it replaced the links of a day hid that day from globs until the next run",
        "pipeline/trovemq_spark/archive/swap.py",
        "    if not (added and removed and _exchanged(root, folder, added, removed)):",
        "    for name in removed:\n        (root / folder / name).unlink(missing_ok=True)\n    if True:",
        (
            "tests/unit/pipeline/test_archive_links.py::test_after_a_kill_within_a_swap_a_glob_saw_no_row_of_a_day",
        ),
    ),
    Planted(
        "A group was reset while a worker had prefetched messages: the worker ran up to 256 of them"
        " afterwards",
        "clients/python/trovemq/_consume/group_stream.py",
        "        if answer.void_batch:",
        "        if False:",
        ("tests/unit/sdk/test_void_batches.py::test_after_a_reset_the_program_got_all_that_was_prefetched",),
    ),
    Planted(
        "A topic was deleted: its messages that waited in a client still went to the program",
        "clients/python/trovemq/_consume/grouped.py",
        "                self._forget_waiting(broker)",
        "                pass",
        ("tests/unit/sdk/test_void_batches.py::test_messages_of_a_deleted_topic_waited_for_the_program",),
    ),
    Planted(
        "A worker that joined a group got no message for half a minute: the first one had received all 60,"
        " and worked on them one by one",
        "clients/python/trovemq/_consume/group_stream.py",
        "        if answer.joined:",
        "        if False:",
        (
            "tests/unit/sdk/test_released_early.py::"
            "test_a_member_that_joins_gets_what_the_program_has_not_begun",
        ),
    ),
    Planted(
        "An orderly group: one task worked on a message for an hour, and the others waited as long, because"
        " all messages that the subscription held were of the same message group",
        "clients/python/trovemq/_consume/inbox.py",
        "                if self._getters.count:",
        "                if False:",
        ("tests/unit/sdk/test_starved_lanes.py::test_a_task_waited_until_a_long_piece_of_work_was_done",),
    ),
    Planted(
        "With a prefetch of more than 262,144 messages, or more than 1 GiB, a subscription stood still"
        " after the first messages",
        "clients/python/trovemq/_consume/credit.py",
        "        if abs(messages) < max(1, min(inbox.count_max, CREDIT_MESSAGES_MAX) // CREDIT_SHARE):",
        "        if abs(messages) < max(1, inbox.count_max // CREDIT_SHARE):",
        (
            "tests/unit/sdk/test_credit.py::test_a_large_prefetch_got_no_messages_after_the_first_ones[1000000-1099511627776]",
        ),
    ),
    Planted(
        "An orderly group was reset, and then another member joined: a message ran a second time while"
        " its first run was under way",
        "clients/python/trovemq/_consume/inbox.py",
        "            if id(lane.head) not in heads or lane.head.place in waiting:",
        "            if lane.head.place in waiting:",
        (
            "tests/unit/sdk/test_inbox_returns.py::test_a_message_ran_beside_its_second_delivery_when_a_member_joined",
        ),
    ),
    Planted(
        "An orderly group: a cancelled `next_batch` blocked the message groups of its messages in that"
        " subscription for ever",
        "clients/python/trovemq/_consume/grouped.py",
        "        for other in self._inbox.settled(message, done=False):",
        "        for other in ():",
        (
            "tests/unit/sdk/test_starved_lanes.py::test_a_cancelled_next_batch_blocked_its_message_group_for_ever",
        ),
    ),
    Planted(
        "A program that asked for messages of a quiet topic with a time limit, again and again, took"
        " more memory each time",
        "clients/python/trovemq/_consume/waiters.py",
        "                    self.waiting.remove(future)",
        "                    pass",
        ("tests/unit/sdk/test_inbox.py::test_waits_that_were_given_up_took_memory_until_a_message_came",),
    ),
    Planted(
        "A worker that joined at eight brokers made another one with its own prefetch return all but a"
        " few of its messages, instead of the half",
        "clients/python/trovemq/_consume/hold.py",
        "        if not self.yields(now):",
        "        if True:",
        (
            "tests/unit/sdk/test_hold.py::test_a_member_that_joined_at_eight_brokers_got_all_but_a_few_messages",
        ),
    ),
    Planted(
        "After a break of its connection a member of an orderly group could run a message beside its"
        " second delivery",
        "clients/python/trovemq/_consume/inbox.py",
        "            if id(lane.head) not in heads or lane.head.place in waiting:",
        "            if self._ready and (id(lane.head) not in heads or lane.head.place in waiting):",
        (
            "tests/unit/sdk/test_inbox_returns.py::test_a_message_ran_beside_its_second_delivery_after_a_break",
        ),
    ),
    Planted(
        "After a reset each message that a failing handler returned left a traceback of asyncio in the log",
        "clients/python/trovemq/_consume/settlements.py",
        "        future.add_done_callback(lambda done: done.cancelled() or done.exception())",
        "        ",
        (
            "tests/unit/sdk/test_void_batches.py::test_a_refused_return_was_logged_as_an_exception_that_nobody_saw",
        ),
    ),
    Planted(
        "A message whose `extend` was answered after its time-out was delivered again, though acknowledged",
        "clients/python/trovemq/_consume/settlements.py",
        "            message.receipt_handle, message.receipt = handle, None\n",
        "            pass\n",
        (
            "tests/unit/sdk/test_stream_membership.py::test_a_late_answer_to_an_extension_left_the_void_handle",
        ),
    ),
    Planted(
        "A message that was acknowledged while its lease was being extended was delivered again",
        "clients/python/trovemq/_consume/settlements.py",
        "        if (waiting := self._extending.get(message)) is not None:",
        "        if (waiting := None) is not None:",
        (
            "tests/unit/sdk/test_stream_membership.py::test_an_acknowledgement_overtaken_by_an_extension_was_refused[True-ack]",
        ),
    ),
)
