"""Receiving by priority, example by example: order, redelivery, filters, restarts, the bound of
starvation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine, attempts, bodies
from tests.support.engine import flush, send
from tests.support.settling import change_invisible
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery import priority_order
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import decode_message
from trovemq_store.topics.subscription_groups import SubscriptionGroup

BASE = ConsumerSettings(new_group_start="begin")


def engine(starvation_max: int = 0, in_flight_max: int = 10_000) -> Engine:
    made = Engine(replace(BASE, priority_starvation_max=starvation_max, in_flight_max=in_flight_max))
    made.store.topics.alter("orders", options={"order": "priority"})
    return made


def put(target: Engine, body: str, priority: int | str | None, tag: str = "", key: str = "") -> int:
    properties = {} if priority is None else {"_SYS_MSG_PRIORITY_": str(priority)}
    if key:
        properties["__SHARDINGKEY"] = key
    return send(target.store, body.encode(), target.now_ms, tag=tag, properties=properties).first_queue_offset


def all_of(target: Engine, count: int = 1, **fields: object) -> list[str]:
    """Bodies in the order of delivery, each acknowledged."""
    found = []
    while got := target.receive(count=count, **fields):  # type: ignore[arg-type]
        found += bodies(got)
        target.ack(*got)
    return found


@pytest.mark.parametrize("count", [1, 2, 32])
def test_higher_ones_go_first_and_each_priority_in_the_order_of_sending(count: int) -> None:
    target = engine()
    for number, priority in enumerate([0, 9, 4, None, 9, 0, 5]):
        put(target, f"{number}", priority)
    assert all_of(target, count) == ["1", "4", "6", "2", "3", "0", "5"]
    assert target.committed() == 7


def test_a_handle_whose_lease_a_crash_lost_acknowledges_nothing_waiting() -> None:
    target = engine()
    put(target, "low", 1)
    lost = target.receive()
    target.crash()
    put(target, "high", 9)
    assert bodies(target.receive(count=1)) == ["high"]
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        target.ack(*lost)
    assert bodies(target.receive()) == ["low"]


def test_a_high_one_that_comes_late_passes_those_that_wait() -> None:
    target = engine()
    for number in range(5):
        put(target, f"low{number}", 1)
    assert bodies(target.receive(count=1)) == ["low0"]
    put(target, "high", 8)
    assert bodies(target.receive(count=2)) == ["high", "low1"]
    assert target.committed() == 0


def test_a_failed_high_one_goes_before_new_low_ones_when_its_time_is_over() -> None:
    target = engine()
    put(target, "high", 9)
    for number in range(4):
        put(target, f"low{number}", 0)
    (high,) = target.receive(count=1)
    assert bodies(target.receive(count=1)) == ["low0"]
    change_invisible(target.delivery, "workers", "orders", high.receipt_handle, 1_000, target.now_ms)
    assert bodies(target.receive(count=1)) == ["low1"]
    target.now_ms += 1_000
    got = target.receive(count=2)
    assert bodies(got) == ["high", "low2"]
    assert attempts(got) == [2, 1]


def test_a_failed_low_one_waits_for_new_high_ones() -> None:
    target = engine()
    put(target, "low", 0)
    put(target, "low2", 0)
    (low,) = target.receive(count=1)
    change_invisible(target.delivery, "workers", "orders", low.receipt_handle, 0, target.now_ms)
    put(target, "high", 9)
    assert bodies(target.receive(count=3)) == ["high", "low", "low2"]


def test_the_offset_stays_at_the_oldest_waiting_then_skips_what_is_done() -> None:
    target = engine()
    put(target, "low", 0)
    for number in range(3):
        put(target, f"high{number}", 9)
    target.ack(*target.receive(count=3))
    assert target.committed() == 0
    (progress,) = target.delivery.progress("workers", "orders", target.now_ms)
    assert (progress.next_offset, progress.in_flight_count, progress.held_count) == (4, 0, 1)
    target.ack(*target.receive(count=1))
    assert target.committed() == 4


def test_filters_skip_what_they_do_not_take_in_every_priority() -> None:
    target = engine()
    put(target, "a0", 0, tag="a")
    put(target, "b0", 0, tag="b")
    put(target, "a9", 9, tag="a")
    put(target, "b9", 9, tag="b")
    assert all_of(target, filter=parse_filter("tag", "b")) == ["b9", "b0"]
    assert target.committed() == 4
    put(target, "x", 3)
    sql = parse_filter("sql", "amount > 1")
    assert target.receive(filter=sql) == []
    assert target.committed() == 5


@pytest.mark.parametrize("bound", [1, 3, 20])
def test_no_priority_is_skipped_for_longer_than_promised(bound: int) -> None:
    target = engine(bound)
    for priority in range(10):
        for number in range(3):
            put(target, f"{priority}-{number}", priority)
    for number in range(400):
        put(target, f"9-{number + 3}", 9)
    order = all_of(target, 7)
    assert len(order) == 430
    last = dict.fromkeys(range(10), -1)
    for place, body in enumerate(order):
        priority = int(body.split("-")[0])
        assert place - last[priority] - 1 <= bound + 8
        last[priority] = place
    for priority in range(10):
        own = [int(body.split("-")[1]) for body in order if body.startswith(f"{priority}-")]
        assert own == sorted(own)


def test_after_so_many_high_ones_exactly_one_low_one() -> None:
    target = engine(3)
    for number in range(3):
        put(target, f"l{number}", 1)
    for number in range(12):
        put(target, f"h{number}", 7)
    found = all_of(target)
    assert found == [
        "h0",
        "h1",
        "h2",
        "l0",
        "h3",
        "h4",
        "h5",
        "l1",
        "h6",
        "h7",
        "h8",
        "l2",
        "h9",
        "h10",
        "h11",
    ]


@pytest.mark.parametrize("how", ["restart", "crash", "export_to_rocketmq"])
def test_a_start_continues_with_the_same_order_and_repeats_nothing(how: str) -> None:
    target = engine()
    for number in range(12):
        put(target, f"{number}", number % 3)
    target.ack(*target.receive(count=3))  # 2 5 8
    (eleven, one) = target.receive(count=2)
    assert bodies([eleven, one]) == ["11", "1"]
    target.ack(one)
    if how == "crash":
        target.crash(flushed=True)
    else:
        getattr(target, how)()
    assert all_of(target) == ["4", "7", "10", "0", "3", "6", "9"]
    target.now_ms += LEASE_MS
    got = target.receive()
    assert (bodies(got), attempts(got)) == (["11"], [2])
    target.ack(*got)
    assert target.committed() == 12


def test_lost_events_mean_that_messages_come_again_and_none_is_lost() -> None:
    target = engine()
    for number in range(6):
        put(target, f"{number}", number % 2)
    target.receive(count=1)
    target.events.flush(target.now_ms)
    target.ack(*target.receive(count=3))
    target.crash()
    target.now_ms += LEASE_MS
    assert sorted(all_of(target)) == list("012345")


def test_what_other_brokers_have_written_counts_by_the_table() -> None:
    target = engine()
    for body, priority in (("15", 15), ("x", "x"), ("-1", -1), ("3", 3), ("0007", "0007")):
        put(target, body, priority)
    assert all_of(target) == ["15", "0007", "x", "-1", "3"]


def test_a_topic_given_priorities_and_back_loses_and_repeats_nothing() -> None:
    target = Engine(BASE)
    for number in range(8):
        put(target, f"{number}", number % 4)
    target.ack(*target.receive(count=2))
    target.store.topics.alter("orders", options={"order": "priority"})
    got = target.receive(count=3)
    assert bodies(got) == ["3", "7", "2"]
    target.ack(*got[:2])
    target.store.topics.alter("orders", options={"order": "log"})
    target.crash(flushed=True)
    assert all_of(target) == ["4", "5", "6"]
    target.now_ms += LEASE_MS
    assert all_of(target) == ["2"]
    put(target, "8", 0)
    put(target, "9", 9)
    assert all_of(target) == ["8", "9"]
    assert target.committed() == 10


def test_an_orderly_group_keeps_the_order_of_sending() -> None:
    target = engine()
    for number in range(4):
        put(target, f"{number}", number, key="a")
    got = target.receive(count=1)
    assert bodies(got) == ["3"]
    target.ack(*got)
    orderly = SubscriptionGroup("workers", orderly=True)
    found = []
    while got := target.receive(orderly, count=1):
        found += bodies(got)
        target.ack(*got)
    assert found == ["0", "1", "2"]
    assert target.committed() == 4


def test_what_may_not_be_in_flight_waits_without_being_counted() -> None:
    target = engine(2, in_flight_max=3)
    for number in range(6):
        put(target, f"{number}", 9 if number else 0)
    got = target.receive()
    assert bodies(got) == ["1", "2", "0"]
    assert target.receive() == []
    target.ack(*got)
    assert bodies(target.receive()) == ["3", "4", "5"]


def test_a_reset_and_a_deleted_topic_start_over() -> None:
    target = engine()
    for number in range(6):
        put(target, f"{number}", number)
    target.ack(*target.receive(count=3))
    target.delivery.reset("workers", "orders", {QueueId(0): 2}, target.now_ms)
    assert all_of(target) == ["5", "4", "3", "2"]
    target.store.delete_topic("orders", target.now_ms)
    target.delivery.forget_topic("orders", target.now_ms)
    target.store.topics.create("orders", queue_count=1, message_type="PRIORITY")
    put(target, "a", 1)
    put(target, "b", 2)
    assert all_of(target) == ["b", "a"]


def test_a_damaged_message_is_counted_and_skipped() -> None:
    target = engine()
    put(target, "bad", 9)
    put(target, "good", 1)
    target.spoil(0)
    assert all_of(target) == ["good"]
    assert target.delivery.damaged_count == 1
    assert target.committed() == 2


def test_messages_beyond_one_step_are_all_put_in_order() -> None:
    target = engine()
    for number in range(300):
        put(target, f"{number}", number % 10)
    places = target.delivery.context.priority_order
    assert not places.catch_up("orders", QueueId(0), 0, 100)
    assert places.catch_up("orders", QueueId(0), 0, 1_000)
    assert [places.count("orders", QueueId(0), priority, 0, 300) for priority in range(10)] == [30] * 10
    assert places.count("orders", QueueId(0), 3, 100, 200) == 10
    assert places.next_offset("orders", QueueId(0), 3, 104) == 113
    assert places.next_offset("orders", QueueId(0), 3, 299) is None
    assert places.next_offset("nowhere", QueueId(0), 3, 0) is None
    assert places.count("nowhere", QueueId(0), 3, 0, 9) == 0
    assert places.catch_up("nowhere", QueueId(0), 0, 1)


@pytest.fixture
def with_trees(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(priority_order, "CHUNK_MAX", 3)
    made = Engine(
        replace(BASE, priority_starvation_max=0), store_settings=replace(ROOMY, tree_index_enable=True)
    )
    made.store.topics.alter("orders", options={"order": "priority"})
    return made


def places_of(target: Engine) -> priority_order.PriorityQueues:
    places = target.delivery.context.priority_order
    assert isinstance(places, priority_order.PriorityQueues)
    return places


def test_a_start_reads_no_record_that_the_tree_has(with_trees: Engine) -> None:
    target = with_trees
    for number in range(50):
        put(target, f"{number}", number % 10)
    flush(target.store)
    target.store.catch_up_trees()
    target.restart()
    first = target.receive(count=7)
    assert places_of(target).entry_count == 0
    assert bodies(first) == ["9", "19", "29", "39", "49", "8", "18"]
    target.ack(*first)
    put(target, "last", 9)
    assert all_of(target, 5)[:4] == ["last", "28", "38", "48"]
    assert places_of(target).entry_count == 1
    assert target.committed() == 51


def test_memory_goes_when_the_tree_has_it(with_trees: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_order, "_TRIM_MIN", 4)
    target = with_trees
    for number in range(20):
        put(target, f"{number}", number % 2)
    assert bodies(target.receive(count=1)) == ["1"]
    assert places_of(target).entry_count == 20
    flush(target.store)
    target.store.catch_up_trees()
    assert bodies(target.receive(count=1)) == ["3"]
    assert places_of(target).entry_count == 0
    assert places_of(target).count("orders", QueueId(0), 1, 0, 20) == 10
    assert places_of(target).count("orders", QueueId(0), 0, 3, 9) == 3


def test_what_the_tree_lacks_is_read_from_the_queue(with_trees: Engine) -> None:
    """The topic was not of priorities for a while: the tree begins again after that."""
    target = with_trees
    for number in range(6):
        put(target, f"a{number}", number)
    flush(target.store)
    target.store.catch_up_trees()
    target.store.topics.alter("orders", options={"order": "log"})
    put(target, "b", 9)
    flush(target.store)
    target.store.catch_up_trees()
    target.store.topics.alter("orders", options={"order": "priority"})
    put(target, "c", 8)
    flush(target.store)
    target.store.catch_up_trees()
    assert all_of(target) == ["b", "c", "a5", "a4", "a3", "a2", "a1", "a0"]


def test_the_tree_of_a_recreated_topic_has_nothing_of_the_old_one(with_trees: Engine) -> None:
    target = with_trees
    for number in range(4):
        put(target, f"{number}", number)
    flush(target.store)
    target.store.catch_up_trees()
    target.store.delete_topic("orders", target.now_ms)
    target.delivery.forget_topic("orders", target.now_ms)
    target.store.topics.create("orders", queue_count=1, options={"order": "priority"})
    put(target, "new", 1)
    put(target, "high", 2)
    flush(target.store)
    target.store.catch_up_trees()
    target.restart()
    assert all_of(target) == ["high", "new"]
    trees = target.store.trees
    assert trees is not None
    while trees.sweep(10):
        pass
    with trees.trees.read() as reader:
        assert reader.count("order") == 3  # two messages and where they begin


def test_entries_are_those_of_the_layout(with_trees: Engine) -> None:
    """Seven messages: the order of receiving is that of the keys."""
    target = with_trees
    for number, priority in enumerate([4, 9, None, 0, 9, 4, 7]):
        send(
            target.store,
            b"x",
            target.now_ms,
            unique_key=f"ID:host-1-{number}",
            properties={} if priority is None else {"_SYS_MSG_PRIORITY_": str(priority)},
        )
    flush(target.store)
    target.store.catch_up_trees()
    trees = target.store.trees
    assert trees is not None
    with trees.trees.read() as reader:
        (_, begin), *entries = list(reader.items("order", b""))
    assert begin == bytes(8)
    assert [int.from_bytes(key[-8:]) for key, _ in entries] == [1, 4, 6, 0, 2, 5, 3]
    assert [9 - key[8] for key, _ in entries] == [9, 9, 7, 4, 4, 4, 0]
    assert [value[8:].decode() for _, value in entries] == [f"ID:host-1-{n}" for n in (1, 4, 6, 0, 2, 5, 3)]
    for key, value in entries:
        record = target.store.record_at(PhysicalOffset(int.from_bytes(value[:8])))
        assert record is not None
        assert decode_message(record).queue_offset == int.from_bytes(key[-8:])


def test_nothing_is_read_for_the_tree_while_no_topic_is_of_priorities() -> None:
    target = Engine(BASE, store_settings=replace(ROOMY, tree_index_enable=True))
    put(target, "a", 1)
    flush(target.store)
    target.store.catch_up_trees()
    assert target.store.trees is not None
    assert {index.name: index.record_count for index in target.store.trees.indexes}["by-priority"] == 0
    target.store.topics.alter("orders", options={"order": "priority"})
    put(target, "b", 2)
    flush(target.store)
    target.store.catch_up_trees()
    assert all_of(target) == ["b", "a"]
