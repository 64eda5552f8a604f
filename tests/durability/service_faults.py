"""Old faults of the broker's services: a part of old_faults.py."""

from __future__ import annotations

from typing import Final

from tests.durability.planted import Planted

SERVICE_FAULTS: Final = (
    Planted(
        "A member's description kept every topic that it had ever named, also topics that do not exist",
        "broker/trovemq_broker/server/native/membership.py",
        "        if len(subscriptions) > TOPICS_MAX:",
        "        if False:",
        ("tests/unit/server/test_membership.py::test_a_member_took_memory_for_every_topic_it_ever_named",),
    ),
    Planted(
        "With the client id of a producer, any user got the half messages of that producer",
        "broker/trovemq_broker/server/native/half_checks.py",
        "        return topic in self._topics",
        "        return True",
        (
            "tests/unit/server/test_producer_service.py::test_a_half_message_was_shown_to_a_stream_without_its_topic",
        ),
    ),
    Planted(
        "With the client id of a consumer, any user got the messages that an operator had it consume",
        "broker/trovemq_broker/server/rocketmq/telemetry.py",
        "            self._admit_again(needed)",
        "            self._admits(needed)",
        (
            "tests/unit/server/access/test_open_streams.py::test_a_message_to_consume_was_shown_to_any_user_with_its_client_id",
        ),
    ),
    Planted(
        "A transaction was given up after checks that no client had seen",
        "broker/trovemq_broker/server/rocketmq/telemetry.py",
        "        return self._admits is None or self._admits(producer_of(topic))",
        "        return True",
        (
            "tests/unit/server/access/test_open_streams.py::test_a_stream_that_is_refused_counted_as_a_producer_to_ask",
        ),
    ),
    Planted(
        "A client's status that the broker does not know failed the administrator's call",
        "broker/trovemq_broker/server/wire/audit_fields.py",
        "    return Code.Name(code) if code in Code.values() else str(code)",
        "    return Code.Name(code)",
        ("tests/unit/server/access/test_audit.py::test_a_clients_unknown_status_failed_the_admins_call",),
    ),
    Planted(
        "A check of a transaction ended the Consume stream of a member with its producer's client id",
        "broker/trovemq_broker/server/native/membership.py",
        'are not asked about transactions."""\n        return False',
        'are not asked about transactions."""\n        return True',
        ("tests/unit/server/test_membership.py::test_a_check_of_a_transaction_ended_the_stream_of_a_member",),
    ),
    Planted(
        "A send that waited for its sync held its bodies twice",
        "broker/trovemq_broker/server/wire/send_requests.py",
        "    call.parsed = None  #",
        "    #",
        (
            "tests/unit/server/rocketmq/test_send_requests.py::test_a_send_that_waited_for_its_sync_held_its_bodies_twice",
        ),
    ),
    Planted(
        "Calls cancelled as they met a quota counted as open for ever: their user was refused after a while",
        "broker/trovemq_broker/server/access/checked_call.py",
        "                add_layer((call,), self._failed)",
        "                call.layers = call.layers",
        (
            "tests/unit/server/access/test_quotas_at_the_door.py::test_a_call_cancelled_as_it_met_a_quota_counted_as_open_for_ever",
        ),
    ),
    Planted(
        "An unexpected exception in the check of access of one call failed those that one read had brought",
        "broker/trovemq_broker/server/access/guard.py",
        "            except Exception as error:  # other calls are served",
        "            except ZeroDivisionError as error:",
        (
            "tests/unit/server/access/test_callbacks.py::test_a_fault_in_the_check_of_one_call_failed_all_of_the_turn",
        ),
    ),
    Planted(
        "A message with a delay waited longer where the broker had no capacity when it got the message",
        "broker/trovemq_broker/server/native/producer_service.py",
        "wire.delayed_send(request, body_size_max, came_ms, delay_max_ms)",
        "wire.delayed_send(request, body_size_max, self._core.clock_ms(), delay_max_ms)",
        ("tests/unit/server/test_producer_service.py::test_a_delay_began_when_a_full_broker_had_space",),
    ),
    Planted(
        "A delayed message was stored twice if the broker was killed within 100 ms of its delivery",
        "broker/trovemq_broker/timers/timers.py",
        "rows = unrecorded_rows(self._store, self._table, recorded_end, self._late_ended)",
        "rows = self._table.calendar.rows()[:0]",
        (
            "tests/unit/timers/test_killed_deliveries.py::"
            "test_a_message_whose_broker_died_after_delivery_came_twice",
        ),
    ),
    Planted(
        "A nameserver lost a broker that lived: a message of an orderly group that a member was handling went"
        " to another member when its lease ended, before it was acknowledged",
        "clients/python/trovemq/_consume/group_stream.py",
        "        return self._has_work or self._inbox.has_lane(self._broker)",
        "        return self._has_work",
        (
            "tests/unit/sdk/test_void_batches.py::"
            "test_a_message_in_hand_went_to_others_as_routes_lost_its_broker",
        ),
    ),
    Planted(
        "During `topic spread` a send to a FIFO topic failed with `TOPIC_NOT_FOUND`: its new broker did not"
        " have the topic yet",
        "clients/python/trovemq/_produce/delivery.py",
        "        return placed and any(routes.has_topic(topic, other) for other in others)",
        "        return False and placed and any(others)",
        (
            "tests/unit/sdk/test_fifo_queues.py::"
            "test_sends_failed_as_a_broker_did_not_have_the_moved_topic_yet",
        ),
    ),
    Planted(
        "A broker that joins a cluster was asked at `/readyz` in the first milliseconds of its start, and"
        " served messages without the configuration",
        "broker/trovemq_broker/cluster/config_condition.py",
        "        if self._role.removed or not self._role.is_known:",
        "        if self._role.removed:",
        ("tests/unit/cluster_config/test_config_nodes.py::test_a_joining_broker_served_if_asked_too_early",),
    ),
    Planted(
        "A numbered producer started again, and skipped a message: the broker had counted its number before"
        " it was on disk, and a power cut took it",
        "broker/trovemq_broker/server/native/message_service.py",
        "        await core.appender.acknowledged(topic, core.store.end_offset)",
        "        pass",
        (
            "tests/unit/server/test_producer_numbers.py::"
            "test_a_producer_skipped_numbers_of_messages_that_a_power_cut_took",
        ),
    ),
    Planted(
        "A broker was removed while another one lagged: its last reports acknowledged changes that no other"
        " member but the owner had, which were lost with the owner's disk",
        "broker/trovemq_broker/cluster_config/owner.py",
        "max((self._reported.get(name, 0) for name in members), default=0)",
        "max(self._reported.values(), default=0)",
        (
            "tests/unit/cluster_config/test_config_symptoms.py::"
            "test_a_removed_broker_alone_acknowledges_a_change",
        ),
    ),
    Planted(
        "`topic spread` failed with `BROKER_UNREACHABLE` because one broker of the cluster had just died,"
        " while the owner of the configuration served",
        "clients/python/trovemq/admin.py",
        "self._alter([self._unit_sharing(name)], name",
        "self._alter([self._unit_sharing(name)[:1]], name",
        ("tests/unit/sdk/test_shared_config.py::test_a_spread_failed_because_one_broker_had_just_died[b]",),
    ),
    Planted(
        "On grpcio each client that left before its reply was written made two stacks in the log: the"
        " broker stood still where its log was not read",
        "daemon/trovemq_daemon/handler_guard.py",
        "                if isinstance(error, grpc.aio.InternalError):",
        "                if False:",
        (
            "tests/unit/daemon/test_grpcio_writes.py::"
            "test_each_client_that_left_was_logged_as_an_unexpected_error[stream_of_requests]",
        ),
    ),
)
