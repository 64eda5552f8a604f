"""Events and copies that are seldom: as RocketMQ leaves them, damaged, or carried by retention."""

from __future__ import annotations

from typing import Any

from tests.support.engine import NOW_MS, record
from trovemq_broker.track.copies import Copy, CopyRole, TrackedMessage, copy_of, messages_of
from trovemq_broker.track.history import RecordPosition, scan_events
from trovemq_broker.track.timeline import GroupEvents, TrackEventKind
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId, QueueOffset
from trovemq_proto.records import decode_stored
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.codec import EVENTS_TOPIC, Event, EventKind

from .conftest import Member, World, orderly, run

PLACE = RecordPosition("orders", QueueId(0), 7)


def copy(topic: str, at: int, properties: dict[str, str] | None = None, **fields: Any) -> Copy:
    """A record of that topic at a physical offset, as it would be found."""
    data = record(b"x", topic=topic, unique_key="k", properties=properties, physical_offset=at, **fields)
    return copy_of(decode_stored(data), QueueOffset(at))


def roles(messages: list[TrackedMessage]) -> list[tuple[str, list[str]]]:
    return [(life.topic, [one.role for one in life.copies]) for life in messages]


def test_a_classic_retry_belongs_to_the_topic_that_it_names() -> None:
    messages = messages_of(
        [
            copy("orders", 1),
            copy("bills", 2),
            copy("%RETRY%workers", 3, {"RETRY_TOPIC": "orders"}),
            copy("%DLQ%workers", 4, {"RETRY_TOPIC": "orders"}),
        ]
    )
    assert roles(messages) == [("orders", ["message", "retry", "dead-letter"]), ("bills", ["message"])]
    assert [one.group for one in messages[0].copies] == ["", "workers", "workers"]


def test_retry_topics_of_both_forms_name_their_group() -> None:
    messages = messages_of([copy("orders", 1), copy("%RETRY%a_b_orders", 2), copy("%RETRY%a+orders", 3)])
    assert [one.group for one in messages[0].copies] == ["", "a_b", "a"]


def test_what_is_left_of_a_message_is_a_life_of_its_own() -> None:
    waiting = {
        "REAL_TOPIC": "%RETRY%workers",
        "REAL_QID": "0",
        "TIMER_OUT_MS": "1700000060000",
        "RETRY_TOPIC": "orders",
    }
    messages = messages_of([copy("rmq_sys_wheel_timer", 5, waiting)])
    assert roles(messages) == [("orders", ["delayed"])]
    assert (messages[0].copies[0].group, messages[0].copies[0].deliver_ms) == ("workers", 1_700_000_061_000)
    (alone,) = messages_of([copy("%DLQ%workers", 5, {"DLQ_ORIGIN_TOPIC": "orders"})])
    assert (alone.topic, alone.consumable) == ("orders", None)


def test_a_commit_belongs_to_the_half_that_it_points_to() -> None:
    half = {"REAL_TOPIC": "orders", "REAL_QID": "0", "TRAN_MSG": "true"}
    committed = copy("orders", 9, {"TRAN_MSG": "true"}, sys_flag=8, prepared_transaction_offset=1)
    messages = messages_of(
        [copy("RMQ_SYS_TRANS_HALF_TOPIC", 1, half), copy("RMQ_SYS_TRANS_HALF_TOPIC", 5, half), committed]
    )
    assert roles(messages) == [("orders", ["half", "committed"]), ("orders", ["half"])]


def test_records_that_were_appended_again_stay_with_their_message() -> None:
    half = {"REAL_TOPIC": "orders", "REAL_QID": "0", "TRAN_MSG": "true"}
    messages = messages_of(
        [
            copy("RMQ_SYS_TRANS_HALF_TOPIC", 1, half),
            copy("RMQ_SYS_TRANS_HALF_TOPIC", 2, {**half, "TRANSACTION_CHECK_TIMES": "1"}),
            copy("rmq_sys_trovemq_carried", 3),
        ]
    )
    assert roles(messages) == [("orders", ["half", "half", "carried"])]


def event(kind: EventKind, offset: int, time_ms: int = NOW_MS, **fields: Any) -> Event:
    return Event(kind, EpochMs(time_ms), "workers", "orders", QueueId(0), offset, **fields)


def told(*events: Event) -> GroupEvents:
    groups = GroupEvents()
    groups.add((PLACE, one) for one in events)
    return groups


def test_a_group_that_began_after_the_message_has_skipped_it() -> None:
    groups = told(event(EventKind.STARTED, 9))
    assert [one.kind for one in groups.timeline] == [TrackEventKind.STARTED]
    assert groups.last_events["workers", PLACE].result is TrackEventKind.STARTED


def test_a_start_before_the_message_is_not_an_event_of_it() -> None:
    groups = told(
        event(EventKind.STARTED, 0), event(EventKind.RECEIVED, 7, attempt=1, lease=1, until=NOW_MS + 5)
    )
    assert [one.kind for one in groups.timeline] == [TrackEventKind.DELIVERED]


def test_a_forgotten_group_that_never_had_it_is_not_in_the_track() -> None:
    assert told(event(EventKind.FORGOTTEN, 0)).timeline == []


def test_an_unreadable_record_of_events_is_noted_and_skipped(world: World) -> None:
    world.send("a")
    world.receive()
    world.model.events.flush(world.now_ms)
    world.model.writer.append([NewRecord(EVENTS_TOPIC, QueueId(0), b"no events")], world.now_ms)
    events = world.model.events
    events._next_offset = QueueOffset(events._next_offset + 1)
    found = world.track_of("id-a")
    assert not found.complete
    assert any("cannot be read" in note for note in found.notes)
    assert "delivered" in world.happenings("a")


def test_events_in_the_log_give_the_same_track_as_waiting_ones(world: World) -> None:
    for body in "abc":
        world.send(body, tag="paid" if body == "b" else "void")
    (first, *_) = world.receive(count=2)
    world.ack(first)
    world.model.delivery.reset("workers", "orders", {QueueId(0): 0}, world.now_ms)
    world.receive("others", count=3)
    world.model.delivery.forget_group("others", world.now_ms)  # the log has it at once
    world.receive("others", count=2)
    before = [world.happenings(body) for body in "abc"]
    assert world.model.events.pending_count
    world.model.events.flush(world.now_ms)
    assert not world.model.events.pending_count
    assert [world.happenings(body) for body in "abc"] == before


def test_a_store_without_events_has_none() -> None:
    world = World()
    scan = run(scan_events(world.store, [PLACE], LOG_ORIGIN))
    assert (scan.events, scan.complete) == ([], True)


def test_a_message_that_retention_carried_is_reported_with_its_copy(world: World) -> None:
    world.send("a")
    world.receive()
    world.now_ms += 1
    world.model.reappend_live_records_before(world.store.end_offset, world.now_ms)
    world.see()
    story = world.story("a")
    assert [one.role for one in story.copies] == [CopyRole.MESSAGE, CopyRole.CARRIED]
    assert [one.kind for one in story.events][2:] == ["delivered", "carried"]
    assert world.status("a").reason == "in-flight"


def test_a_recall_that_came_before_its_delivery_of_two_messages(world: World) -> None:
    world.members["workers"] = [Member()]
    world.schedule("a", 60_000)
    world.model.timers.recall("orders", NOW_MS + 60_000, "id-a", world.now_ms)
    world.now_ms += 5
    world.schedule("a", 120_000)
    first, second = world.track_of("id-a").messages
    assert [life.statuses[0].reason for life in (first, second)] == ["recalled", "delayed"]


def test_the_lock_is_found_after_a_start_behind_many_other_message_groups(world: World) -> None:
    group = orderly(world)
    for number in range(1_200):
        world.send(f"other{number}", group=f"g{number}")
    world.send("a", group="x")
    while world.receive(settings=group, count=32):
        pass
    world.send("b", group="x")
    world.model.events.flush(world.now_ms)
    world.files = world.files.after_process_kill()
    world.open()
    status = world.status("b")
    assert (status.reason, status.blocked_by) == ("locked", 1_200)
