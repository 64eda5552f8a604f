"""`%RETRY%group`, the retry topic of RocketMQ's push consumers: one queue for all topics of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.unit.delivery.test_rocketmq_import import revive_record
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.state.rocketmq_import import import_from_rocketmq
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.sources import kind_of
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

CLASSIC = "%RETRY%workers"


def with_bills(settings: ConsumerSettings | None = None) -> Engine:
    """An engine with the topics orders and bills, and the group's classic retry topic."""
    engine = Engine(settings)
    engine.store.topics.create("bills", queue_count=1)
    engine.store.topics.ensure_internal(CLASSIC, 1)
    return engine


def retry(engine: Engine, body: str, topic: str = "", *, times: int = 1, tag: str = "") -> int:
    """Appends a classic retry of the topic; where its record lies."""
    properties = {"RETRY_TOPIC": topic, "TAGS": tag}
    record = NewRecord(
        CLASSIC,
        QueueId(0),
        body.encode(),
        {name: value for name, value in properties.items() if value},
        reconsume_times=times,
    )
    return engine.writer.append([record], engine.now_ms)[0].physical_offset


def test_a_retry_that_came_back_is_of_its_own_topic_only() -> None:
    engine = with_bills()
    retry(engine, "a", "orders")
    assert bodies(engine.receive()) == ["a"]
    retry(engine, "b", "bills")
    assert bodies(engine.receive(topic="bills")) == ["b"]
    engine.now_ms += LEASE_MS
    bills = engine.receive(topic="bills")
    assert (bodies(bills), attempts(bills)) == (["b"], [3])
    assert bodies(engine.receive()) == ["a"]


def test_a_retry_that_can_be_read_again_goes_to_its_own_topic() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    engine = Engine(files=files)  # type: ignore[arg-type]
    engine.store.topics.create("bills", queue_count=1)
    engine.store.topics.ensure_internal(CLASSIC, 1)
    for body, topic in (("b", "bills"), ("a", "orders")):
        retry(engine, body, topic)
    assert bodies(engine.receive()) == ["a"]
    state = engine.delivery.snapshot()
    files.unreadable[f"commitlog/{0:020d}"] = (0, engine.store.end_offset)
    engine.delivery = Delivery(engine.store, engine.writer, engine.events, engine.groups, engine.settings)
    engine.delivery.restore(state)
    engine.delivery.complete_replay()
    files.unreadable.clear()
    assert bodies(engine.receive()) == ["a"], "nobody knew whose lease it was"
    assert engine.receive() == []
    assert bodies(engine.receive(topic="bills")) == ["b"]


def test_a_batch_that_is_full_leaves_the_rest_of_the_held_ones() -> None:
    engine = with_bills()
    for number in range(3):
        retry(engine, f"b{number}", "bills")
    assert engine.receive() == []
    assert bodies(engine.receive(topic="bills", count=2)) == ["b0", "b1"]
    assert engine.receive() == [], "b2 is still held for bills"
    assert bodies(engine.receive(topic="bills", count=2)) == ["b2"]


def test_the_filter_of_a_receive_counts_for_retries_new_and_held() -> None:
    engine = with_bills()
    retry(engine, "b0", "bills", tag="blue")
    retry(engine, "a0", "orders", tag="blue")
    retry(engine, "a1", "orders", tag="red")
    red = parse_filter("tag", "red")
    assert bodies(engine.receive(filter=red)) == ["a1"]
    assert engine.receive(topic="bills", filter=red) == []
    engine.crash(flushed=True)
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["a1"]
    assert engine.receive(topic="bills") == []


def test_a_queue_of_others_messages_is_read_no_further_than_the_limit() -> None:
    engine = with_bills(replace(Engine().settings, in_flight_max=2))
    for body, topic in (("b0", "bills"), ("b1", "bills"), ("b2", "bills"), ("a0", "orders")):
        retry(engine, body, topic)
    assert engine.receive() == []
    assert len(engine.delivery.group_topics.state("workers", CLASSIC, QueueId(0)).held) == 2  # type: ignore[union-attr]
    engine.ack(*engine.receive(topic="bills"), topic="bills")
    assert bodies(engine.receive()) == ["a0"]


def test_retries_out_of_attempts_become_dead_letters_of_their_topic() -> None:
    engine = with_bills()
    engine.groups.create(SubscriptionGroup("workers", retry_max=2))
    retry(engine, "b", "bills", times=3)
    retry(engine, "a", "orders", times=3)
    assert engine.receive() == []
    assert engine.receive(topic="bills") == []
    letters = engine.messages("%DLQ%workers")
    assert [(one.body, one.properties["DLQ_ORIGIN_TOPIC"]) for one in letters] == [
        (b"a", "orders"),
        (b"b", "bills"),
    ]
    assert engine.committed(topic=CLASSIC) == 2


def test_one_refused_dead_letter_of_a_receive_stands_for_the_other_queues() -> None:
    engine = with_bills()
    engine.groups.create(SubscriptionGroup("workers", retry_max=0))
    engine.store.topics.ensure_internal("%RETRY%workers+orders", 1)
    engine.writer.append(
        [NewRecord("%RETRY%workers+orders", QueueId(0), b"v2", {}, reconsume_times=1)], engine.now_ms
    )
    retry(engine, "a", "orders")
    engine.store.mark_failed()
    assert engine.receive() == []
    assert engine.delivery.dead_letter_failures == 1
    engine.store._marked_failed = False
    assert engine.receive() == []
    assert [one.body for one in engine.messages("%DLQ%workers")] == [b"v2", b"a"]


def test_a_reset_of_the_retry_topic_wakes_every_topic_of_the_group() -> None:
    engine = with_bills()
    retry(engine, "a", "orders")
    engine.ack(*engine.receive())
    assert engine.receive(topic="bills") == []
    engine.receive("others")
    assert engine.delivery.reset("workers", CLASSIC, {QueueId(0): 0}, engine.now_ms) == {0: 0}
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "bills"), ("workers", "orders")]
    assert bodies(engine.receive()) == ["a"]


def test_a_deleted_retry_topic_voids_its_handles_and_no_others() -> None:
    engine = with_bills()
    assert engine.receive(topic="bills") == []  # knows nothing of the retry topic yet
    engine.send("m")
    retry(engine, "a", "orders")
    message, a = engine.receive()
    engine.store.delete_topic(CLASSIC, now_ms=engine.now_ms)
    assert engine.receive() == [], "its queues are still known, and have nothing new"
    engine.delivery.forget_topic(CLASSIC, engine.now_ms)
    with pytest.raises(TroveError, match="of a queue that does not exist"):
        engine.ack(a)
    engine.ack(message)
    assert engine.committed() == 1
    engine.delivery.forget_topic(CLASSIC, engine.now_ms)
    engine.delivery.forget_group("nobody", engine.now_ms)
    engine.crash(flushed=True)
    assert engine.receive() == []


def test_at_a_clean_stop_retries_continue_as_retries_of_their_topic() -> None:
    engine = with_bills()
    retry(engine, "a", "orders")
    retry(engine, "b", "bills", times=4)
    (a,) = engine.receive()
    engine.export_to_rocketmq()
    assert engine.committed(topic=CLASSIC) == 2
    (waiting,) = engine.messages(WHEEL_TOPIC)
    assert (waiting.body, waiting.properties["REAL_TOPIC"]) == (b"a", "%RETRY%workers_orders")
    assert (waiting.reconsume_times, int(waiting.properties["TIMER_DELIVER_MS"])) == (2, a.until_ms)
    (again,) = engine.receive(topic="bills")
    assert (bodies([again]), again.attempt) == (["b"], 5)


@pytest.mark.parametrize("topic", ["", "../../etc", "t" * 250])
def test_a_retry_of_no_topic_was_lost_to_rocketmq_by_a_clean_stop(topic: str) -> None:
    """Or made a topic whose queue's directory no file system takes."""
    engine = with_bills()
    retry(engine, "nobody's", topic)
    assert engine.receive() == []
    engine.export_to_rocketmq()
    assert [one.body for one in engine.messages(CLASSIC)] == [b"nobody's", b"nobody's"]
    assert engine.committed(topic=CLASSIC) == 1, "the copy is for RocketMQ's consumers"
    assert engine.store.topics.get(f"%RETRY%workers_{topic}") is None


def test_a_retry_unreadable_after_a_restart_held_up_the_offset_for_ever() -> None:
    engine = with_bills()
    held = retry(engine, "b", "bills")
    taken = retry(engine, "a", "orders")
    good = retry(engine, "c", "orders")
    assert bodies(engine.receive()) == ["a", "c"]
    engine.spoil(held)
    engine.spoil(taken)
    assert good > taken
    assert engine.delivery.pairs() == [("workers", "orders")]
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["c"]
    assert engine.delivery.damaged_count == 2
    assert engine.committed(topic=CLASSIC) == 2


def test_a_lease_of_nothing_that_can_be_read_is_nobodys() -> None:
    engine = with_bills()
    place = retry(engine, "a", "orders")
    engine.receive(renewed=True)
    engine.spoil(place)
    assert engine.receive(topic="bills") == []
    assert engine.delivery.pairs() == [("workers", "bills"), ("workers", "orders")]
    assert engine.delivery.in_flight_count == 0
    assert engine.committed(topic=CLASSIC) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", (0, "orders")),
        ("%RETRY%workers_orders", (1, "orders")),
        ("%RETRY%workers+orders", (2, "orders")),
        ("%RETRY%workers", (3, "")),
        ("%RETRY%workers2", (0, "%RETRY%workers2")),
        ("%RETRY%workers_", (0, "%RETRY%workers_")),
        ("%RETRY%workers+", (0, "%RETRY%workers+")),
    ],
)
def test_what_a_stored_topic_is_to_a_group(name: str, expected: tuple[int, str]) -> None:
    assert kind_of("workers", name) == expected


def test_a_check_point_of_a_classic_retry_is_of_the_topic_that_it_names() -> None:
    engine = with_bills()
    retry(engine, "b", "bills", times=2)
    engine.store.offsets.commit("workers", CLASSIC, QueueId(0), QueueOffset(1))
    revive_record(engine, "ck", t=CLASSIC, n=1, it=500)
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    (again,) = engine.receive(topic="bills")
    assert (bodies([again]), again.attempt) == (["b"], 4)


def test_a_last_retry_of_a_deleted_topic_stopped_all_dead_letters() -> None:
    """An assertion failed in the task that makes them: the topic was deleted after the lease had ended."""
    engine = with_bills()
    engine.groups.create(SubscriptionGroup("workers", retry_max=1))
    retry(engine, "b", "bills")
    assert attempts(engine.receive(topic="bills")) == [2]
    engine.now_ms += LEASE_MS
    engine.delivery.due_pairs(engine.now_ms)
    engine.store.topics.delete("bills")
    engine.delivery.forget_topic("bills", engine.now_ms)
    engine.delivery.make_dead_letters(engine.now_ms)
    assert [one.body for one in engine.messages("%DLQ%workers")] == [b"b"]
    assert engine.delivery.in_flight_count == 0
