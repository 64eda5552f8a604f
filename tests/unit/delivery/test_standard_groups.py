"""Groups without order: which messages are delivered, when they come back, and the effect of each handle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.settling import (
    RefusedOffset,
    acknowledge,
    acknowledge_all,
    acknowledge_range,
    change_invisible,
    change_range,
    dead_letter,
)
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery.receives import RECEIVE_READS_MAX
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.receipts import handle_of, handles_of
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, count: int, *, tag: str = "") -> list[str]:
    names = [f"m{number}" for number in range(count)]
    for name in names:
        engine.send(name, tag=tag)
    return names


def test_messages_are_handed_out_once_while_they_are_invisible(engine: Engine) -> None:
    names = sent(engine, 5)
    first = engine.receive()
    assert bodies(first) == names
    assert attempts(first) == [1] * 5
    assert [one.queue_offset for one in first] == list(range(5))
    assert engine.receive() == []
    assert bodies(engine.receive("others")) == names


def test_a_batch_has_no_more_than_was_asked_for(engine: Engine) -> None:
    names = sent(engine, 40)
    assert bodies(engine.receive(count=3)) == names[:3]
    assert bodies(engine.receive(count=100)) == names[3:35]


def test_a_run_is_acknowledged_by_its_receipt_message_by_message(engine: Engine) -> None:
    sent(engine, 6)
    (run,) = engine.receive_runs()
    assert handles_of(run.receipt, run.offsets) == [one.receipt_handle for one in run.messages()]
    change_invisible(engine.delivery, "workers", "orders", handle_of(run.receipt, 1), 500, engine.now_ms)
    args = ("workers", "orders", run.receipt)
    refused = acknowledge_range(engine.delivery, *args, range(5), engine.now_ms)
    assert [(one.offset, one.error.spec) for one in refused] == [(1, errors.RECEIPT_HANDLE_ILLEGAL)]
    assert acknowledge_range(engine.delivery, *args, range(2, 5), engine.now_ms) == [], "once more is fine"
    refused = acknowledge_range(engine.delivery, *args, range(5, 8), engine.now_ms)
    assert [one.offset for one in refused] == [6, 7], "messages that no member received"
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m1"]


@pytest.mark.parametrize(("group", "topic"), [("others", "orders"), ("workers", "other")])
def test_a_receipt_of_another_group_or_topic_settles_nothing(engine: Engine, group: str, topic: str) -> None:
    engine.store.topics.create("other", queue_count=1)
    sent(engine, 1)
    (run,) = engine.receive_runs()
    engine.receive("others")
    engine.receive("workers", "other")
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        acknowledge_range(engine.delivery, group, topic, run.receipt, run.offsets, engine.now_ms)
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        change_range(engine.delivery, group, topic, run.receipt, run.offsets, 0, engine.now_ms)
    assert engine.receive() == []


def test_returned_runs_come_at_once_and_a_suspended_one_counts_no_attempt(engine: Engine) -> None:
    sent(engine, 3)
    (run,) = engine.receive_runs()
    args = ("workers", "orders", run.receipt)
    assert change_range(engine.delivery, *args, range(2), 0, engine.now_ms, suspend=True) == []
    assert change_range(engine.delivery, *args, range(2, 3), 0, engine.now_ms) == []
    assert attempts(engine.receive()) == [1, 1, 2]


@pytest.mark.parametrize("returned", [False, True])
def test_a_member_that_stood_still_settles_late_until_the_next_delivery(
    engine: Engine, returned: bool
) -> None:
    def settle(offset: int, client_id: str = "client") -> list[RefusedOffset]:
        args = ("workers", "orders", run.receipt, range(offset, offset + 1))
        if returned:
            return change_range(
                engine.delivery, *args, 9_000, engine.now_ms, suspend=True, client_id=client_id
            )
        return acknowledge_range(engine.delivery, *args, engine.now_ms, client_id)

    sent(engine, 3)
    (run,) = engine.receive_runs()
    engine.now_ms += 10 * LEASE_MS
    with pytest.raises(TroveError, match="has expired"):  # RocketMQ's calls
        acknowledge(engine.delivery, "workers", "orders", handle_of(run.receipt, 0), engine.now_ms)
    assert [one.offset for one in settle(0, "another")] == [0]
    assert settle(0) == []
    assert bodies(engine.receive(count=1)) == ["m1"]
    (refused,) = settle(1)
    assert "was received again" in refused.error.message
    engine.delivery.reset("workers", "orders", {QueueId(0): 2}, engine.now_ms)
    assert [one.offset for one in settle(2)] == [2], "after a reset"
    engine.now_ms += 9_000
    assert bodies(engine.receive()) == ["m2"]
    engine.delivery.forget_topic("orders", engine.now_ms)
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        settle(2)


@pytest.mark.parametrize("order", ["", "priority"])
def test_messages_returned_late_came_twice_in_one_batch(order: str) -> None:
    """Their leases end a second time before they are received again."""
    engine = Engine()
    if order:
        engine.store.topics.alter("orders", options={"order": order})
    names = sent(engine, 3)
    (run,) = engine.receive_runs()
    engine.now_ms += LEASE_MS
    engine.delivery.due_pairs(engine.now_ms)
    args = ("workers", "orders", run.receipt, range(3), 1_000, engine.now_ms)
    assert change_range(engine.delivery, *args, client_id="client") == []
    engine.now_ms += 1_000
    again = engine.receive()
    assert bodies(again) == names
    assert attempts(again) == [2, 2, 2]
    engine.ack(*again)
    assert engine.committed() == 3


def test_what_is_not_acknowledged_comes_back_when_its_time_is_over(engine: Engine) -> None:
    sent(engine, 3)
    one, two, three = engine.receive()
    engine.ack(two)
    engine.now_ms += LEASE_MS - 1
    assert engine.receive() == []
    engine.now_ms += 1
    again = engine.receive()
    assert bodies(again) == ["m0", "m2"]
    assert attempts(again) == [2, 2]
    assert [again[0].queue_offset, again[1].queue_offset] == [one.queue_offset, three.queue_offset]


def test_the_committed_offset_stops_at_the_first_open_message(engine: Engine) -> None:
    sent(engine, 4)
    one, two, three, four = engine.receive()
    engine.ack(two, four)
    assert engine.committed() == 0
    engine.ack(one)
    assert engine.committed() == 2
    engine.ack(three)
    assert engine.committed() == 4


def test_a_second_acknowledgement_is_fine_while_the_handle_lasts(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    engine.ack(one)
    engine.ack(one)
    engine.now_ms += LEASE_MS
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(one)


def test_a_late_acknowledgement_is_refused_and_the_message_comes_again(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    engine.now_ms += LEASE_MS
    with pytest.raises(TroveError, match="expired"):
        engine.ack(one)
    (again,) = engine.receive()
    with pytest.raises(TroveError, match="replaced"):
        engine.ack(one)
    engine.ack(again)
    assert engine.committed() == 1


@pytest.mark.parametrize(
    "spoil", [lambda h: h + "0", lambda h: h[1:], lambda h: "", lambda h: "é" * 20, lambda h: "." * 6]
)
def test_a_malformed_handle_is_refused(engine: Engine, spoil: object) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    assert callable(spoil)
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        acknowledge(engine.delivery, "workers", "orders", spoil(one.receipt_handle), engine.now_ms)


def test_a_handle_of_another_group_or_topic_is_refused(engine: Engine) -> None:
    engine.store.topics.create("other", queue_count=1)
    sent(engine, 1)
    engine.send("x", "other")
    (mine,) = engine.receive()
    engine.receive("others")
    engine.receive("workers", "other")
    for group, topic in [("others", "orders"), ("workers", "other"), ("nobody", "orders")]:
        with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
            acknowledge(engine.delivery, group, topic, mine.receipt_handle, engine.now_ms)
    engine.ack(mine)


def test_a_changed_time_gives_a_new_handle_and_voids_the_old_one(engine: Engine) -> None:
    sent(engine, 2)
    one, two = engine.receive()
    handle = change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, 60_000, engine.now_ms)
    with pytest.raises(TroveError, match="replaced"):
        engine.ack(one)
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m1"]
    engine.now_ms += 50_000 - LEASE_MS
    acknowledge(engine.delivery, "workers", "orders", handle, engine.now_ms)
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        change_invisible(engine.delivery, "workers", "orders", handle, 1, engine.now_ms)
    assert two.attempt == 1


def test_a_message_returned_at_once_is_there_at_once(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, 0, engine.now_ms)
    assert attempts(engine.receive()) == [2]


def test_a_suspended_message_does_not_count_the_attempt(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, 5, engine.now_ms, suspend=True)
    engine.now_ms += 5
    assert attempts(engine.receive()) == [1]


@pytest.mark.parametrize("duration", [-1, 43_200_001])
def test_a_change_to_an_illegal_time_is_refused(engine: Engine, duration: int) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    with pytest.raises(TroveError, match="INVISIBLE_DURATION_ILLEGAL"):
        change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, duration, engine.now_ms)
    engine.ack(one)


@pytest.mark.parametrize("duration", [0, 9_999, 43_200_001])
def test_a_receive_with_an_illegal_time_is_refused(engine: Engine, duration: int) -> None:
    with pytest.raises(TroveError, match="INVISIBLE_DURATION_ILLEGAL"):
        engine.receive(invisible_ms=duration)
    assert engine.receive(invisible_ms=duration, renewed=True) == []


def test_a_receive_from_what_is_not_there_is_refused(engine: Engine) -> None:
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        engine.receive(topic="nothing")
    with pytest.raises(TroveError, match="QUEUE_NOT_FOUND"):
        engine.receive(queue_id=QueueId(9))
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        engine.receive(count=0)
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        engine.receive(topic="%RETRY%workers_orders")
    assert engine.delivery.pairs() == [("workers", "orders")]


def test_after_the_last_attempt_a_message_becomes_a_dead_letter(engine: Engine) -> None:
    group = SubscriptionGroup("workers", retry_max=1)
    sent(engine, 1, tag="red")
    for attempt in (1, 2):
        assert attempts(engine.receive(group)) == [attempt]
        engine.now_ms += LEASE_MS
    assert engine.receive(group) == []
    (letter,) = engine.messages("%DLQ%workers")
    assert letter.body == b"m0"
    assert letter.tags == "red"
    assert letter.reconsume_times == 2
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == "id-m0"
    assert engine.committed() == 1
    assert engine.delivery.dead_letter_count == 1


def test_a_forwarded_message_is_copied_once(engine: Engine) -> None:
    sent(engine, 1)
    (one,) = engine.receive()
    for _ in range(2):
        dead_letter(engine.delivery, "workers", "orders", one.receipt_handle, engine.now_ms)
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"m0"]
    assert engine.committed() == 1
    engine.now_ms += LEASE_MS
    assert engine.receive() == []
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        dead_letter(engine.delivery, "workers", "orders", one.receipt_handle, engine.now_ms)


def test_what_the_filter_does_not_take_is_consumed(engine: Engine) -> None:
    for number, tag in enumerate(["red", "blue", "red", "", "blue"]):
        engine.send(f"m{number}", tag=tag)
    red = parse_filter("tag", "red")
    got = engine.receive(filter=red)
    assert bodies(got) == ["m0", "m2"]
    engine.ack(*got)
    assert engine.committed() == 5


def test_a_redelivery_is_filtered_again(engine: Engine) -> None:
    engine.send("m0", tag="red")
    engine.receive()
    engine.now_ms += LEASE_MS
    assert engine.receive(filter=parse_filter("tag", "blue")) == []
    assert engine.committed() == 1
    assert engine.receive() == []


def test_queues_take_turns(engine: Engine) -> None:
    engine = Engine(queue_count=4)
    for queue_id in range(4):
        for number in range(10):
            engine.send(f"{queue_id}-{number}", queue_id=QueueId(queue_id))
    seen = [engine.receive(count=5)[0].queue_id for _ in range(8)]
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert bodies(engine.receive(queue_id=QueueId(2))) == []


def test_a_named_queue_alone_is_read(engine: Engine) -> None:
    engine = Engine(queue_count=2)
    engine.send("zero", queue_id=QueueId(0))
    engine.send("one", queue_id=QueueId(1))
    assert bodies(engine.receive(queue_id=QueueId(1))) == ["one"]


def test_too_many_in_flight_give_nothing_new(engine: Engine) -> None:
    engine = Engine(replace(engine.settings, in_flight_max=4))
    sent(engine, 6)
    first = engine.receive()
    assert len(first) == 4
    assert engine.receive() == []
    assert engine.delivery.due_pairs(engine.now_ms) == []
    engine.ack(first[0])
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive()) == ["m4"]
    assert engine.delivery.in_flight_count == 4


def test_due_pairs_names_a_pair_once_a_time_is_over(engine: Engine) -> None:
    sent(engine, 2)
    engine.receive(count=1)
    engine.receive("others", invisible_ms=2 * LEASE_MS, count=1)
    assert engine.delivery.next_visible_ms("workers", "orders") == engine.now_ms + LEASE_MS
    assert engine.delivery.next_due_ms() == engine.now_ms + LEASE_MS
    assert engine.delivery.due_pairs(EpochMs(engine.now_ms + LEASE_MS - 1)) == []
    assert engine.delivery.due_pairs(engine.now_ms + LEASE_MS) == [("workers", "orders")]
    assert engine.delivery.due_pairs(engine.now_ms + LEASE_MS) == []
    assert engine.delivery.next_visible_ms("workers", "orders") is None
    assert engine.delivery.next_visible_ms("strangers", "orders") is None


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", ["m0", "m1", "m2"]),
        ("latest", []),
        ("begin", ["m0", "m1", "m2"]),
        ("end", []),
        ("rocketmq", ["m0", "m1", "m2"]),
    ],
)
def test_a_new_group_starts_where_the_setting_says(start: str, expected: list[str]) -> None:
    engine = Engine(ConsumerSettings(new_group_start=start))  # type: ignore[arg-type]
    sent(engine, 3)
    assert bodies(engine.receive()) == expected
    engine.send("later")
    assert bodies(engine.receive()) == ["later"]


def test_a_new_group_starts_at_the_last_message_of_a_queue_not_recent() -> None:
    engine = Engine(ConsumerSettings(new_group_start="rocketmq", recent_bytes_max=100))
    sent(engine, 3)
    assert bodies(engine.receive()) == ["m2"]


def test_the_default_start_does_not_depend_on_the_age_of_the_messages() -> None:
    engine = Engine(ConsumerSettings(recent_bytes_max=100))
    sent(engine, 3)
    assert bodies(engine.receive()) == ["m0", "m1", "m2"]


def test_a_stored_offset_wins_over_the_setting(engine: Engine) -> None:
    sent(engine, 3)
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(2))
    assert bodies(engine.receive()) == ["m2"]


def test_a_queue_added_later_is_read_from_its_beginning() -> None:
    engine = Engine(ConsumerSettings(new_group_start="end"))
    assert engine.receive() == []
    engine.store.topics.alter("orders", queue_count=2)
    engine.send("x", queue_id=QueueId(1))
    assert bodies(engine.receive()) == ["x"]


@pytest.mark.parametrize("start", ["end", "rocketmq"])
def test_a_queue_later_than_a_stored_offset_is_read_from_its_beginning(
    start: str,
) -> None:
    """Such a group was in the topic before: by a subscription that has ended, a reset, or under RocketMQ."""
    settings = ConsumerSettings(new_group_start=start, recent_bytes_max=0)  # type: ignore[arg-type]
    engine = Engine(settings)
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(0))
    engine.store.topics.alter("orders", queue_count=2)
    for body in ("x", "y"):
        engine.send(body, queue_id=QueueId(1))
    assert bodies(engine.receive()) == ["x", "y"]


def test_acknowledging_many_does_as_one_by_one(engine: Engine) -> None:
    sent(engine, 6)
    got = engine.receive()
    before = engine.events.pending_count
    handles = [one.receipt_handle for one in got[:4]] + ["junk", got[5].receipt_handle, got[0].receipt_handle]
    results = acknowledge_all(engine.delivery, "workers", "orders", handles, engine.now_ms)
    assert [result is None for result in results] == [True] * 4 + [False, True, True]
    assert engine.events.pending_count == before + 2
    assert engine.committed() == 4
    engine.crash(flushed=True)
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m4"]


def test_a_damaged_record_is_skipped_and_counted(engine: Engine) -> None:
    sent(engine, 3)
    engine.crash()  # from now on the records are older than the process: their CRC counts
    at = engine.store.consume_queues.get("orders", QueueId(0)).unit(QueueOffset(1))[0]  # type: ignore[union-attr]
    content = engine.files._files["commitlog/00000000000000000000"]
    content.data[at + 90] ^= 0xFF
    got = engine.receive()
    assert bodies(got) == ["m0", "m2"]
    assert engine.delivery.damaged_count == 1
    engine.ack(*got)
    assert engine.committed() == 3


def test_a_dead_letter_that_is_refused_is_tried_again(engine: Engine) -> None:
    group = SubscriptionGroup("workers", retry_max=0)
    sent(engine, 1)
    engine.receive(group)
    engine.now_ms += LEASE_MS
    engine.store.mark_failed()
    assert engine.receive(group) == []
    assert engine.delivery.dead_letter_failures == 1
    assert engine.delivery.in_flight_count == 1
    engine.store._marked_failed = False
    assert engine.receive(group) == []
    assert len(engine.messages("%DLQ%workers")) == 1


def test_a_filter_that_takes_little_of_a_long_queue_asks_for_another_call() -> None:
    engine = Engine()
    for number in range(RECEIVE_READS_MAX + 1):
        engine.send(f"m{number}")
    engine.send("wanted", tag="red")
    wanted = parse_filter("sql", "TAGS = 'red'")
    assert engine.receive(filter=wanted) == []
    assert engine.delivery.next_visible_ms("workers", "orders") == 0
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive(filter=wanted)) == ["wanted"]
    assert engine.delivery.due_pairs(engine.now_ms) == []
