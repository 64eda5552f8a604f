"""The state from its events and from a snapshot, also where the store has lost some of their records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery.delivery import DeliveryState
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC
from trovemq_broker.transactions.records import HALF_TOPIC
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.topics.subscription_groups import SubscriptionGroup


def with_messages(count: int) -> Engine:
    engine = Engine()
    for number in range(count):
        engine.send(f"m{number}", tag="red" if number % 2 else "blue")
    return engine


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_what_was_filtered_away_or_dead_lettered_stays_consumed(how: str) -> None:
    engine = with_messages(5)
    engine.groups.create(SubscriptionGroup("workers", retry_max=0))
    (one, three) = engine.receive(filter=parse_filter("tag", "red"))
    engine.ack(one)
    engine.now_ms += LEASE_MS
    assert engine.receive() == []
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"m3"]
    assert three.queue_offset == 3
    if how == "crash":
        engine.crash(flushed=True)
    else:
        engine.restart()
    assert engine.committed() == 5
    assert engine.receive() == []
    assert len(engine.messages("%DLQ%workers")) == 1


def test_what_was_visible_again_at_a_stop_is_visible_after_it() -> None:
    engine = with_messages(3)
    engine.receive(count=2)
    engine.now_ms += LEASE_MS
    engine.delivery.due_pairs(engine.now_ms)
    engine.restart()
    again = engine.receive()
    assert (bodies(again), attempts(again)) == (["m0", "m1", "m2"], [2, 2, 1])


@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("orderly", [False, True])
def test_a_queue_that_is_shorter_than_the_state_cuts_the_state(kept: int, orderly: bool) -> None:
    """As after a power cut: messages sent afterwards at those offsets are new to the group."""
    before = with_messages(5)
    group = SubscriptionGroup("workers", orderly=orderly)
    first, second, *_ = before.receive(group, count=3)
    before.ack(second)
    if orderly:
        assert before.receive(group) == [], "m3 and m4 are held"
    state: DeliveryState = before.delivery.snapshot()
    after = with_messages(min(kept, 5))
    after.delivery.restore(state)
    after.delivery.complete_replay()
    for number in range(min(kept, 5), 6):
        after.send(f"new {number}")
    after.now_ms += LEASE_MS
    got = bodies(after.receive(group))
    known = [f"m{number}" for number in range(min(kept, 5)) if number != 1]
    assert got == [*known, *(f"new {number}" for number in range(min(kept, 5), 6))]
    assert first.queue_offset == 0


def test_a_stored_offset_beyond_the_queue_is_cut_too() -> None:
    engine = with_messages(4)
    engine.receive(count=3)
    state = engine.delivery.snapshot()
    after = with_messages(2)
    after.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(3))
    after.delivery.restore(state)
    after.delivery.complete_replay()
    assert after.committed() == 2
    after.send("new")
    assert bodies(after.receive()) == ["new"]


def test_an_event_of_a_lease_that_is_not_known_any_more_changes_nothing() -> None:
    engine = with_messages(3)
    engine.ack(*engine.receive(count=2))
    engine.events.flush(engine.now_ms)
    for kind in (EventKind.CHANGED, EventKind.MOVED, EventKind.HELD):
        count = 1 if kind is EventKind.HELD else 2
        engine.events.add(
            Event(kind, engine.now_ms, "workers", "orders", QueueId(0), 0, count, until=9, lease=7)
        )
    engine.crash(flushed=True)
    assert engine.delivery.in_flight_count == 0
    assert bodies(engine.receive()) == ["m2"]


def test_a_forgotten_topic_and_group_have_nothing_after_a_crash() -> None:
    engine = with_messages(2)
    for group in ("workers", "others"):
        engine.receive(group)
    engine.delivery.forget_group("workers", engine.now_ms)
    engine.delivery.forget_group("workers", engine.now_ms)
    engine.crash(flushed=True)
    assert engine.delivery.pairs() == [("others", "orders")]
    assert bodies(engine.receive()) == ["m0", "m1"]


def test_a_snapshot_is_wanted_seldom_and_taken_when_it_is_asked_for() -> None:
    engine = with_messages(1)
    model = ConsumerState.open(engine.store, engine.files, ConsumerSettings(), engine.now_ms)
    assert model.begin_snapshot(engine.now_ms) is None
    model.request_snapshot()
    work = model.begin_snapshot(engine.now_ms)
    assert work is not None
    work.run()
    assert model.saved_log_end == work.log_end
    assert model.begin_snapshot(engine.now_ms) is None


def test_what_others_put_into_system_topics_is_read_as_their_queues_grow() -> None:
    engine = with_messages(0)
    model = ConsumerState.open(engine.store, engine.files, ConsumerSettings(), engine.now_ms)
    half = {"REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "A"}
    timer = half | {"TIMER_OUT_MS": str(engine.now_ms + 9_000)}
    engine.writer.append([NewRecord(HALF_TOPIC, QueueId(0), b"half", half)], engine.now_ms)
    engine.writer.append([NewRecord(WHEEL_TOPIC, QueueId(0), b"timer", timer)], engine.now_ms)
    model.on_messages_available([("orders", QueueId(0))])
    assert (model.transactions.open_count, model.timers.pending_count) == (0, 0)
    model.on_messages_available([(HALF_TOPIC, QueueId(0))])
    model.on_messages_available([(WHEEL_TOPIC, QueueId(0))])
    assert (model.transactions.open_count, model.timers.pending_count) == (1, 1)


def test_each_space_gets_its_own_events_after_a_kill() -> None:
    engine = with_messages(1)
    model = ConsumerState.open(engine.store, engine.files, ConsumerSettings(), engine.now_ms)
    record = NewRecord("orders", QueueId(0), b"body", {"UNIQ_KEY": "A"})
    model.transactions.prepare(record, engine.now_ms)
    model.timers.schedule(record, engine.now_ms + 10, engine.now_ms)
    engine.store.dispatch()
    model.timers.catch_up()
    checked_ms = engine.now_ms + model.settings.transaction_timeout_ms
    assert len(model.transactions.due_checks(checked_ms)) == 1
    assert model.timers.deliver_due(checked_ms) == 1
    model.events.flush(checked_ms)
    files = engine.files.after_process_kill()
    store = MessageStore.open(files, engine.store_settings, checked_ms, process_id=8)
    again = ConsumerState.open(store, files, ConsumerSettings(), checked_ms)
    assert again.timers.pending_count == 0
    assert again.transactions.next_check_ms() == checked_ms + again.settings.transaction_check_interval_ms
    assert again.transactions.snapshot().open[0].checks == 1


def test_a_reset_while_a_receive_waits_for_a_full_group() -> None:
    engine = Engine(replace(Engine().settings, in_flight_max=2))
    for number in range(4):
        engine.send(f"m{number}")
    first = engine.receive(count=2)
    assert engine.receive() == []
    assert engine.delivery.reset("workers", "orders", {QueueId(0): 3}, engine.now_ms) == {0: 2}
    assert bodies(engine.receive()) == ["m3"]
    assert len(first) == 2
