"""The timeline of a message, and every reason for which a group has not consumed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY
from tests.support.engine import NOW_MS
from tests.support.settling import dead_letter
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.track.copies import CopyRole, Location
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.topics.subscription_groups import SubscriptionGroup

from .conftest import Member, World, orderly, reasons, with_limits


def error_of(world: World, identifier: str | Location, topic: str = "") -> errors.ErrorSpec:
    with pytest.raises(TroveError) as caught:
        world.track_of(identifier, topic)
    return caught.value.spec


# --- the life of a message -----------------------------------------------------------------------------
def test_a_message_is_delivered_fails_is_delivered_again_and_acknowledged(world: World) -> None:
    world.send("a")
    world.now_ms += 1_000
    world.receive()
    world.now_ms += LEASE_MS
    (again,) = world.receive(client_id="workers-2")
    world.now_ms += 500
    world.ack(again)
    events = world.story("a").events
    assert [(event.time_ms - NOW_MS, event.kind, event.attempt, event.client_id) for event in events] == [
        (-5, "produced", 0, ""),
        (0, "stored", 0, ""),
        (1_000, "delivered", 1, "workers-1"),
        (11_000, "expired", 1, "workers-1"),
        (11_000, "delivered", 2, "workers-2"),
        (11_500, "acknowledged", 2, "workers-2"),
    ]
    status = world.status("a")
    assert (status.reason, status.until_ms, status.attempt, status.client_id) == (
        "acknowledged",
        NOW_MS + 11_500,
        2,
        "workers-2",
    )


def test_who_produced_it_and_where_it_was_stored(world: World) -> None:
    world.send("a", tag="paid")
    story = world.story("a")
    (copy,) = story.copies
    assert (copy.role, copy.topic, copy.queue_id, copy.queue_offset, copy.tag) == (
        CopyRole.MESSAGE,
        "orders",
        0,
        0,
        "paid",
    )
    produced, stored = story.events
    assert "10.0.0.2:50123" in produced.detail
    assert "10.0.0.1:8081" in stored.detail


def test_a_message_is_found_by_id_by_key_and_by_place(world: World) -> None:
    world.send("a")
    offset_msg_id = world.story("a").copies[0].offset_msg_id
    by_id = world.track_of(offset_msg_id)
    by_place = world.track_of(Location("orders", QueueId(0), QueueOffset(0)))
    assert by_id.messages[0].copies == by_place.messages[0].copies == world.story("a").copies


def test_a_message_that_is_not_there_is_an_error_and_never_an_empty_answer(world: World) -> None:
    world.send("a")
    world.store.topics.create("bills", queue_count=1)
    assert error_of(world, "no-such-id") is errors.MESSAGE_NOT_FOUND
    assert error_of(world, "id-a", "bills") is errors.MESSAGE_NOT_FOUND
    assert error_of(world, "id-a", "no-such-topic") is errors.TOPIC_NOT_FOUND
    assert error_of(world, Location("orders", QueueId(0), QueueOffset(9))) is errors.OFFSET_OUT_OF_RANGE
    assert error_of(world, "two words") is errors.MESSAGE_ID_ILLEGAL


def test_several_messages_under_one_key_each_have_a_life_of_their_own(world: World) -> None:
    world.store.topics.create("bills", queue_count=1)
    world.send("first", key="same")
    world.send("other topic", key="same", topic="bills")
    world.ack(*world.receive())
    world.send("second", key="same")
    found = world.track_of("same")
    assert [(life.topic, reasons(life.statuses)) for life in found.messages] == [
        ("orders", {"workers": "acknowledged"}),
        ("bills", {}),
        ("orders", {"workers": "not-reached"}),
    ]
    assert [life.topic for life in world.track_of("same", "bills").messages] == ["bills"]
    second = found.messages[2].copies[0].offset_msg_id
    assert [life.copies[0].queue_offset for life in world.track_of(second).messages] == [1]


# --- one group: pending messages -------------------------------------------------------------------------
def test_in_flight_until_its_lease_ends_then_ready(world: World) -> None:
    world.send("a")
    world.receive()
    status = world.status("a")
    assert (status.reason, status.until_ms, status.client_id) == (
        "in-flight",
        NOW_MS + LEASE_MS,
        "workers-1",
    )
    world.now_ms += LEASE_MS
    assert world.status("a").reason == "ready"
    assert world.happenings("a", "workers") == ["delivered", "expired"]


def test_a_broker_renewed_lease_is_in_flight_and_its_renewals_one_event(world: World) -> None:
    world.send("a")
    world.receive(renewed=True)
    for _ in range(3):
        world.now_ms += world.model.settings.renewed_lease_ms - 1_000
        world.model.delivery.renew(world.now_ms, lambda _client: True)
    story = world.story("a")
    assert [(event.kind, event.count) for event in story.events[2:]] == [("delivered", 1), ("renewed", 3)]
    assert world.status("a").reason == "in-flight"
    world.model.delivery.release_client("workers-1", world.now_ms)
    assert world.happenings("a", "workers") == ["delivered", "renewed", "released"]


def test_returned_with_a_back_off(world: World) -> None:
    world.send("a")
    (one,) = world.receive()
    world.return_message(one, 30_000)
    status = world.status("a")
    assert (status.reason, status.until_ms, status.attempt) == ("returned", NOW_MS + 30_000, 1)
    world.now_ms += 30_000
    world.receive()
    assert world.happenings("a", "workers") == ["delivered", "returned", "delivered"]
    assert world.status("a").reason == "in-flight"


def test_not_reached_says_how_many_are_ahead(world: World) -> None:
    for body in "abcde":
        world.send(body)
    world.receive(count=2)
    status = world.status("e")
    assert (status.reason, status.ahead, status.next_offset) == ("not-reached", 2, 2)
    assert status.subscribed == 1


def test_messages_that_the_filter_drops_are_not_ahead(world: World) -> None:
    world.send("a")
    world.receive(count=1)
    world.members["workers"] = [Member(expression="paid")]
    for body in "bcde":
        world.send(body, tag="paid" if body in "ce" else "void")
    assert world.status("e").ahead == 1


def test_by_priority_what_is_higher_is_ahead_whatever_its_offset(world: World) -> None:
    world.store.topics.alter("orders", options={"order": "priority"})
    for number, priority in enumerate((1, 5, 1, 9)):
        world.send(f"p{number}", priority=priority, tag="void" if number == 1 else "paid")
    world.receive(count=1)  # the one of priority 9
    assert [(world.status(f"p{n}").reason, world.status(f"p{n}").ahead) for n in (1, 0, 2)] == [
        ("not-reached", 0),
        ("not-reached", 1),
        ("not-reached", 2),
    ]
    assert world.happenings("p1", "workers") == []  # later messages were delivered: it was not skipped
    world.receive(count=1, filter=parse_filter("tag", "paid"))
    assert world.status("p1").reason == "filtered-out"
    assert world.happenings("p1", "workers") == ["filtered"]
    assert world.status("p0").reason == "in-flight"
    world.model.events.flush(world.now_ms)
    assert world.happenings("p1", "workers") == ["filtered"]
    assert world.status("p2").ahead == 0


def test_by_priority_what_is_ahead_is_reported_after_a_start_without_trees(world: World) -> None:
    world.store.topics.alter("orders", options={"order": "priority"})
    for number, priority in enumerate((1, 5, 9)):
        world.send(f"p{number}", priority=priority)
    world.ack(*world.receive())
    world.stop()
    for number, priority in enumerate((2, 7), 3):
        world.send(f"p{number}", priority=priority)
    assert [world.status(f"p{number}").ahead for number in (3, 4)] == [1, 0]


def test_a_group_without_members_or_with_another_topic(world: World) -> None:
    world.send("a")
    world.send("b")
    world.receive(count=1)
    world.members["workers"] = []
    assert world.status("b").reason == "no-member"
    world.members["workers"] = [Member(topic="bills"), Member(topic="bills")]
    status = world.status("b")
    assert (status.reason, status.online, status.subscribed) == ("no-member", 2, 0)
    assert "none subscribes to orders" in status.detail
    assert world.status("a").reason == "in-flight"
    world.now_ms += LEASE_MS
    assert world.status("a").reason == "no-member"


def test_filtered_out_before_and_after_it_was_looked_at(world: World) -> None:
    world.send("a", tag="void")
    world.send("b", tag="paid")
    world.members["workers"] = [Member(expression="paid")]
    assert world.status("a").reason == "filtered-out"
    world.receive(filter=parse_filter("tag", "paid"))
    status = world.status("a")
    assert (status.reason, status.until_ms, status.filter) == ("filtered-out", NOW_MS, "paid")
    assert world.happenings("a", "workers") == ["filtered"]
    world.send("c", tag="void")
    world.receive(filter=parse_filter("tag", "paid"))
    assert world.happenings("c", "workers") == ["filtered"]


def test_a_filter_that_changed_drops_what_came_back(world: World) -> None:
    world.send("a", tag="void")
    world.receive()
    world.now_ms += LEASE_MS
    world.receive(filter=parse_filter("tag", "paid"))
    assert world.status("a").reason == "dropped"
    assert world.happenings("a", "workers")[-1] == "dropped"


def test_an_orderly_group_waits_for_the_locked_message_group(world: World) -> None:
    group = orderly(world)
    for body, key in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")):
        world.send(body, group=key)
    (first,) = world.receive(settings=group, count=1)
    status = world.status("b")
    assert (status.reason, status.blocked_by, status.until_ms) == ("locked", 0, NOW_MS + LEASE_MS)
    assert world.status("c").reason == "not-reached"
    world.receive(settings=group)
    assert (world.status("b").reason, world.status("d").reason) == ("locked", "locked")
    assert world.happenings("b", "workers") == ["held"]
    world.ack(first)
    assert world.status("b").reason == "ready"
    world.members["workers"] = []
    assert world.status("b").reason == "no-member"


def test_a_lock_is_known_after_a_start_before_anybody_receives(world: World) -> None:
    group = orderly(world)
    world.send("a", group="x")
    world.send("b", group="x")
    world.receive(settings=group, count=1)
    world.model.events.flush(world.now_ms)
    world.files = world.files.after_process_kill()
    world.open()
    assert world.status("b").reason == "locked"


def test_a_reset_turns_back_or_passes_by(world: World) -> None:
    world.send("a")
    world.send("b")
    world.ack(*world.receive())
    assert world.status("a").reason == "acknowledged"
    world.model.delivery.reset("workers", "orders", {QueueId(0): 0}, world.now_ms)
    assert world.status("a").reason == "not-reached"
    world.model.delivery.reset("workers", "orders", {QueueId(0): 2}, world.now_ms)
    assert world.status("a").reason == "skipped"
    assert world.happenings("a", "workers") == ["delivered", "acknowledged", "reset", "reset"]


def test_a_group_that_pulls_by_offset_is_judged_by_its_offset(world: World) -> None:
    for body in "abc":
        world.send(body)
    world.store.offsets.commit("pullers", "orders", QueueId(0), QueueOffset(1))
    assert [world.status(body, "pullers").reason for body in "ab"] == ["consumed", "not-reached"]
    status = world.status("c", "pullers")
    assert (status.ahead, status.committed) == (1, 1)
    assert "pulls by offset" in status.detail


def test_a_group_that_only_subscribed_has_not_reached_it(world: World) -> None:
    world.send("a")
    world.members["new"] = [Member()]
    assert world.status("a", "new").reason == "not-reached"


# --- dead letters and retries ----------------------------------------------------------------------------
def test_a_dead_letter_says_how_often_it_was_delivered(world: World) -> None:
    group = SubscriptionGroup("workers", retry_max=1)
    world.send("a")
    for _ in range(3):
        world.receive(settings=group)
        world.now_ms += LEASE_MS
    story = world.story("a")
    assert [event.kind for event in story.events] == [
        "produced",
        "stored",
        "delivered",
        "expired",
        "delivered",
        "expired",
        "dead-letter-stored",
        "dead-lettered",
    ]
    (status,) = story.statuses
    assert (status.reason, status.attempt, status.topic) == ("dead", 2, "%DLQ%workers")
    assert [copy.role for copy in story.copies] == ["message", "dead-letter"]


def test_a_client_that_forwards_to_the_dead_letters(world: World) -> None:
    world.send("a")
    (one,) = world.receive()
    dead_letter(world.model.delivery, "workers", "orders", one.receipt_handle, world.now_ms)
    assert (world.status("a").reason, world.status("a").detail) == ("dead", "moved by the consumer")
    assert set(world.happenings("a", "workers")) == {"delivered", "dead-letter-stored", "dead-lettered"}
    details = [event.detail for event in world.story("a").events if event.kind == "dead-lettered"]
    assert details == ["after 1 delivery: moved by the consumer"], "it was neither late nor delivered twice"


def test_a_last_attempt_that_was_returned_is_not_delivered_again(world: World) -> None:
    group = SubscriptionGroup("workers", retry_max=0)
    world.send("a")
    (one,) = world.receive(settings=group)
    world.return_message(one, 10)
    world.now_ms += 10
    world.receive(settings=group)
    events = [event for event in world.story("a").events if event.group == "workers"]
    assert [event.kind for event in events] == [
        "delivered",
        "returned",
        "dead-letter-stored",
        "dead-lettered",
    ]
    assert events[1].detail == "after the last attempt: a dead letter then"
    assert events[3].detail == "after 1 delivery: returned after the last attempt"


def test_after_a_stop_it_continues_as_a_retry_message(world: World) -> None:
    world.send("a")
    world.send("b")
    (first, _) = world.receive()
    world.return_message(first, 0)
    world.now_ms += 1
    world.stop()
    story = world.story("b")  # invisible still: its retry waits
    assert {copy.role for copy in story.copies} == {"message", "delayed"}
    (waiting,) = story.statuses
    assert (waiting.reason, waiting.until_ms, waiting.detail) == ("delayed", NOW_MS + LEASE_MS, "as a retry")
    retry = world.status("a")
    assert (retry.reason, retry.topic) == ("not-reached", "%RETRY%workers_orders")
    world.ack(*world.receive())
    assert world.status("a").reason == "acknowledged"
    assert world.happenings("a", "workers")[-4:] == [
        "retry-stored",
        "retried",
        "delivered",
        "acknowledged",
    ]
    world.now_ms += LEASE_MS
    world.model.timers.deliver_due(world.now_ms)
    world.see()
    world.receive()
    assert (world.status("b").reason, world.status("b").attempt) == ("in-flight", 2)


def test_a_deleted_topic_leaves_the_dead_letter(world: World) -> None:
    world.send("a")
    (one,) = world.receive()
    dead_letter(world.model.delivery, "workers", "orders", one.receipt_handle, world.now_ms)
    world.send("b")
    world.store.delete_topic("orders", world.now_ms)
    world.model.delivery.forget_topic("orders", world.now_ms)
    assert error_of(world, "id-b") is errors.MESSAGE_NOT_FOUND
    found = world.track_of("id-a")
    (life,) = found.messages
    assert (life.topic, reasons(life.statuses)) == ("orders", {"workers": "dead"})
    assert any("no longer in the log" in note for note in found.notes)


def test_a_deleted_group_is_forgotten_and_said(world: World) -> None:
    world.send("a")
    world.receive()
    world.model.delivery.forget_group("workers", world.now_ms)
    world.store.offsets.delete_group("workers")
    world.members.clear()
    story = world.story("a")
    assert story.statuses == []
    assert story.events[-1].kind == "forgotten"


# --- delays and transactions ------------------------------------------------------------------------------
def test_a_delayed_message_waits_until_its_time_and_is_then_delivered(world: World) -> None:
    world.members["workers"] = [Member()]
    world.schedule("a", 60_000)
    status = world.status("a")
    assert (status.reason, status.until_ms) == ("delayed", NOW_MS + 60_000)
    world.now_ms += 60_000
    world.model.timers.deliver_due(world.now_ms)
    world.see()
    assert world.status("a").reason == "not-reached"
    assert world.happenings("a") == ["produced", "delayed", "stored", "wait-ended"]
    assert [copy.role for copy in world.story("a").copies] == ["delayed", "delivered"]


def test_a_recalled_message_is_got_by_nobody(world: World) -> None:
    world.members["workers"] = [Member()]
    world.schedule("a", 60_000)
    world.model.timers.recall("orders", NOW_MS + 60_000, "id-a", world.now_ms)
    world.see()
    assert world.status("a").reason == "recalled"
    assert world.happenings("a") == ["produced", "delayed", "recalled"]


def test_a_delayed_message_of_a_deleted_topic_is_gone(world: World) -> None:
    world.members["workers"] = [Member()]
    world.schedule("a", 60_000)
    world.model.timers.forget_topic("orders", world.now_ms)
    assert world.status("a").reason == "gone"


def test_an_open_transaction_then_its_commit(world: World) -> None:
    world.members["workers"] = [Member()]
    record = world.record("a", PGROUP="shop")
    world.model.transactions.prepare(record, world.now_ms)
    world.see()
    assert world.status("a").reason == "in-transaction"
    world.now_ms += 60_000
    world.model.transactions.due_checks(world.now_ms)
    world.now_ms += 1
    world.model.transactions.end("id-a", "orders", True, world.now_ms)
    world.see()
    story = world.story("a")
    assert [event.kind for event in story.events] == ["produced", "prepared", "checked", "committed"]
    assert "producer group shop" in story.events[0].detail
    assert reasons(story.statuses) == {"workers": "not-reached"}


def test_a_rolled_back_transaction(world: World) -> None:
    world.members["workers"] = [Member()]
    world.model.transactions.prepare(world.record("a"), world.now_ms)
    world.see()
    world.now_ms += 7
    world.model.transactions.end("id-a", "orders", False, world.now_ms)
    world.see()
    assert world.status("a").reason == "rolled-back"
    assert world.story("a").events[-1].kind == "rolled-back"
    assert world.story("a").events[-1].time_ms == NOW_MS + 7


def test_a_transaction_that_was_given_up(world: World) -> None:
    world.members["workers"] = [Member()]
    world.model.transactions.prepare(world.record("a"), world.now_ms)
    world.see()
    for _ in range(3):
        world.now_ms += 3_600_000
        world.model.transactions.due_checks(world.now_ms)
        world.see()
    assert world.status("a").reason == "given-up"
    assert world.happenings("a") == ["produced", "prepared", "checked", "checked", "given-up"]


# --- limits ---------------------------------------------------------------------------------------------
def test_events_beyond_the_limit_of_the_scan_are_said(world: World) -> None:
    world.send("a")
    for _ in range(4):
        world.receive()
        world.now_ms += LEASE_MS
        world.model.events.flush(world.now_ms)
        world.see()
    assert world.track_of("id-a").complete
    with_limits(world, event_records_max=2)
    found = world.track_of("id-a")
    assert not found.complete
    assert any("there are too many" in note for note in found.notes)
    with_limits(world, event_records_max=1_000, event_bytes_max=1)
    assert not world.track_of("id-a").complete


def test_events_and_groups_beyond_the_limits_are_said(world: World) -> None:
    world.send("a")
    for name in ("one", "two", "workers"):
        world.receive(name)
    with_limits(world, events_max=3, groups_max=2)
    found = world.track_of("id-a")
    assert not found.complete
    assert len(found.messages[0].events) == 3
    assert len(found.messages[0].statuses) == 2
    assert len(found.notes) == 2


def test_more_copies_than_an_answer_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trovemq_broker.track.copies.COPIES_MAX", 3)
    for body in "abcde":
        world.send(body, key="same")
    found = world.track_of("same")
    assert not found.complete
    assert [life.copies[0].queue_offset for life in found.messages] == [2, 3, 4]


def test_a_key_of_hundreds_of_messages_held_the_loop_for_half_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status for each message and group, and each event compared with each message."""
    monkeypatch.setattr("trovemq_broker.track.copies.MESSAGES_MAX", 4)
    for number in range(10):
        world.send(f"{number}", key="same")
    for name in ("one", "two", "workers"):
        world.receive(name)
    found = world.track_of("same")
    assert not found.complete
    assert [life.copies[0].queue_offset for life in found.messages] == [6, 7, 8, 9]
    assert [len(life.statuses) for life in found.messages] == [3] * 4
    assert found.notes == ["older messages are left out: the newest 4 of 10 are shown"]
    with_limits(world, groups_max=5)
    found = world.track_of("same")
    assert [len(life.statuses) for life in found.messages] == [0, 0, 2, 3], "the most of one answer"
    assert len(found.notes) == 2


def test_without_a_key_or_an_index_only_the_record_itself_is_reported() -> None:
    world = World(replace(ROOMY, message_index_enable=False))
    world.send("a")
    found = world.track_of(Location("orders", QueueId(0), QueueOffset(0)))
    assert not found.complete
    assert any("index is disabled" in note for note in found.notes)


def test_events_that_are_not_readable_yet_are_said(world: World) -> None:
    world.send("a")
    world.receive()
    world.model.on_append = lambda: None  # appended, and not yet visible
    world.model.events.flush(world.now_ms)
    found = world.track_of("id-a")
    assert not found.complete
    assert "the newest events are not on disk yet" in found.notes


def test_events_of_others_that_come_meanwhile_are_not_missed(world: World) -> None:
    """On a busy broker every second track was called incomplete."""
    world.send("a")
    world.receive()
    world.model.events.flush(world.now_ms)
    asked_at = world.model.events.next_offset
    world.send("b")
    world.receive()
    world.model.on_append = lambda: None  # appended, and not yet visible
    world.model.events.flush(world.now_ms)
    assert world.model.events.next_offset > asked_at
    found = world.track_of("id-a", events_end=asked_at)
    assert found.complete
    assert found.notes == []
