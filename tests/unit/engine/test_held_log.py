"""Topics of `retention = until_acknowledged`: unacknowledged messages stay, acknowledged ones go early."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.retention import AT_ONCE, HOUR_MS, PRESSED, WORKERS, Broker
from trovemq_broker.state.held_log import held_log, is_own_topic
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.retention import DiskUse
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SEGMENT = 32_768
DAY_MS = 24 * HOUR_MS
OTHERS = SubscriptionGroup("others")
KEPT = {"retention": "until_acknowledged"}
POLICY = replace(AT_ONCE, unacknowledged_max_ms=30 * DAY_MS)


def kept_broker(**changes: str) -> Broker:
    """Topic orders is kept until it is acknowledged; "filler" goes by its age of an hour."""
    broker = Broker(MemoryFileSystem(), policy=POLICY)
    broker.store.topics.alter("orders", options=KEPT | changes)
    return broker


def old(broker: Broker, hours: int = 2) -> Broker:
    broker.now_ms += hours * HOUR_MS
    return broker


def restarted(broker: Broker) -> Broker:
    assert isinstance(broker.files, MemoryFileSystem)
    return Broker(broker.files.after_process_kill(), now_ms=broker.now_ms, policy=POLICY)


def consume(broker: Broker, group: SubscriptionGroup = WORKERS, topic: str = "orders") -> int:
    """Everything that the group can get, acknowledged; how many."""
    count = 0
    while got := broker.receive(group, topic):
        broker.ack(got, group, topic)
        count += len(got)
    return count


def test_unacknowledged_messages_stay_however_old_and_go_once_acknowledged() -> None:
    broker = kept_broker()
    broker.send("first")
    broker.send("second")
    got = broker.receive(count=1)
    broker.ack(got)
    broker.fill(2)
    old(broker)
    assert broker.clean() == 0
    (holder,) = broker.task.counters.held.holders
    assert (holder.topic, holder.group, holder.queue_offset) == ("orders", "workers", 1)
    assert broker.task.counters.held_bytes == broker.store.end_offset - holder.physical_offset
    broker = restarted(broker)
    broker.save_snapshot()
    assert broker.clean() == 0, "after a restart too"
    assert consume(broker) == 1
    assert broker.clean() == 2
    assert broker.task.counters.held.holders == ()


def test_every_group_counts_and_a_deleted_one_counts_no_more() -> None:
    broker = kept_broker()
    broker.send("first")
    consume(broker)
    broker.store.offsets.commit("others", "orders", QueueId(0), QueueOffset(0))
    broker.fill(2)
    old(broker)
    assert broker.clean() == 0
    assert [one.group for one in broker.task.counters.held.holders] == ["others"]
    broker.store.offsets.delete_group("others")
    broker.model.delivery.forget_group("others", broker.now_ms)
    assert broker.clean() == 2


def test_a_group_that_has_only_subscribed_holds() -> None:
    broker = kept_broker()
    broker.send("first")
    consume(broker)
    broker.fill(2)
    old(broker)
    found = held_log(broker.store, broker.model, DAY_MS, lambda topic: [f"{topic}-watchers"], broker.now_ms)
    assert [(one.group, one.queue_offset) for one in found.holders] == [("orders-watchers", 0)]


def test_a_topic_says_which_group_keeps_how_much_log_and_until_when() -> None:
    broker = kept_broker(retention_age_max="2d")
    assert broker.task.topic_hold("orders") is None, "it has nothing"
    broker.send("first")
    stored_ms = broker.now_ms
    broker.now_ms += HOUR_MS
    broker.send("second")
    hold = broker.task.topic_hold("orders")
    assert hold is not None
    assert (hold.holder.group, hold.holder.queue_offset) == ("", 0)
    assert hold.until_ms == stored_ms + 2 * DAY_MS
    broker.ack(broker.receive(count=1))
    broker.store.offsets.commit("others", "orders", QueueId(0), QueueOffset(2))
    broker.fill(1)
    hold = broker.task.topic_hold("orders")
    assert hold is not None
    assert (hold.holder.group, hold.holder.queue_id, hold.holder.queue_offset) == ("workers", 0, 1)
    assert hold.byte_count == broker.store.end_offset - hold.holder.physical_offset > SEGMENT
    assert hold.until_ms == stored_ms + HOUR_MS + 2 * DAY_MS
    broker.now_ms = EpochMs(hold.until_ms - 1)
    assert broker.task.topic_hold("orders") == hold
    broker.now_ms = hold.until_ms
    assert broker.task.topic_hold("orders") is None, "its age has let it go"
    assert broker.task.topic_hold("filler") is None, "kept by its age alone"
    assert broker.task.topic_hold("absent") is None


def test_a_topic_that_no_group_reads_is_kept_until_its_own_age() -> None:
    broker = kept_broker(retention_age_max="2d")
    broker.send("first")
    broker.fill(2)
    old(broker, 47)
    assert broker.clean() == 0
    assert [one.group for one in broker.task.counters.held.holders] == [""]
    old(broker)
    assert broker.clean() == 2


def test_without_an_age_of_its_own_the_brokers_counts() -> None:
    broker = kept_broker()
    broker.send("first")
    broker.fill(2)
    broker.now_ms += 30 * DAY_MS - 1
    assert broker.clean() == 0
    broker.now_ms += 1
    assert broker.clean() == 2


def test_a_group_that_is_set_back_holds_again() -> None:
    broker = kept_broker()
    for number in range(3):
        broker.send(f"m{number}")
    consume(broker)
    broker.fill(2)
    broker.store.offsets.reset("workers", "orders", {QueueId(0): QueueOffset(1)})
    broker.model.delivery.reset("workers", "orders", {QueueId(0): 1}, broker.now_ms)
    old(broker)
    assert broker.clean() == 0
    assert [one.queue_offset for one in broker.task.counters.held.holders] == [1]
    broker.model.delivery.reset("workers", "orders", {QueueId(0): 3}, broker.now_ms)
    broker.store.offsets.reset("workers", "orders", {QueueId(0): QueueOffset(3)})
    assert broker.clean() == 2


def test_a_group_set_back_while_segments_are_about_to_go_keeps_them() -> None:
    broker = kept_broker()
    broker.send("first")
    consume(broker)
    broker.schedule("timer", broker.now_ms + 40 * DAY_MS)  # is carried: there is a wait meanwhile
    broker.fill(2)
    old(broker)

    def set_back() -> None:
        broker.before_durable = lambda: None
        broker.store.offsets.reset("workers", "orders", {QueueId(0): QueueOffset(0)})

    broker.before_durable = set_back
    assert broker.clean() == 0
    assert broker.store.min_offset == 0
    assert broker.task.counters.dropped_unacknowledged == 0


def test_an_option_that_is_switched_off_holds_no_more() -> None:
    broker = kept_broker()
    broker.send("first")
    broker.fill(2)
    old(broker)
    assert broker.clean() == 0
    broker.store.topics.alter("orders", options={"retention": "time"})
    assert broker.clean() == 2
    assert broker.task.counters.held_bytes == 0


def test_what_every_group_acknowledged_goes_early_and_at_any_hour() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(POLICY, hours=frozenset()))
    broker.store.topics.alter("orders", options=KEPT)
    while broker.store.end_offset < 3 * SEGMENT:
        broker.send("x" * 5_000)
    consume(broker)
    broker.store.flush_projections()
    broker.save_snapshot()
    assert broker.clean() == 3, "young, and no hour of deleteWhen"
    assert broker.task.counters.forced_segments == 0
    broker.send("later")
    assert consume(broker) == 1


def test_one_message_of_a_topic_kept_by_time_keeps_what_lies_after_it() -> None:
    broker = kept_broker()
    broker.send("by time", "lines")
    while broker.store.end_offset < 3 * SEGMENT:
        broker.send("x" * 5_000)
    consume(broker)
    broker.store.flush_projections()
    broker.save_snapshot()
    assert broker.clean() == 0
    broker.store.topics.alter("lines", options=KEPT)
    consume(broker, topic="lines")
    assert broker.clean() == 3


def test_without_such_a_topic_nothing_goes_before_its_time() -> None:
    broker = Broker(MemoryFileSystem(), policy=POLICY)
    broker.fill(2)
    assert broker.clean() == 0
    found = held_log(broker.store, broker.model, DAY_MS, lambda _: (), broker.now_ms)
    assert (found.free_to, found.holders) == (0, ())


def test_a_full_disk_takes_what_is_not_acknowledged_and_counts_it() -> None:
    broker = kept_broker()
    for number in range(5):
        broker.send(f"m{number}")
    broker.ack(broker.receive(count=2))
    broker.fill(2)
    logged: list[tuple[str, dict[str, object]]] = []

    class Recorder:
        def warning(self, event: str, **fields: object) -> None:
            logged.append((event, fields))

        info = warning

    with pytest.MonkeyPatch.context() as patch:
        for module in ("retention_task", "retention_report"):
            patch.setattr(f"trovemq_broker.maintenance.{module}.get_logger", Recorder)
        assert broker.clean(DiskUse(PRESSED.total, PRESSED.free)) == 2
    assert broker.task.counters.dropped_unacknowledged == 3
    reported = [fields for event, fields in logged if event == "retention.dropped_unacknowledged"]
    assert reported == [{"topic": "orders", "queue_id": 0, "group": "workers", "messages": 3}]
    assert [event for event, _ in logged if event == "retention.held"] == ["retention.held"]


@pytest.mark.parametrize("seed", range(8))
def test_what_goes_is_what_a_plain_model_lets_go(seed: int) -> None:
    """Random sends, acknowledgements, groups, times and options; the model looks at every record."""
    rng = random.Random(seed)
    broker = kept_broker(retention_age_max="1d")
    records: list[tuple[int, str, int, int]] = []
    """(physical offset, topic, queue offset, stored at)"""
    acked = {"workers": 0, "others": 0}
    reading: set[str] = set()
    is_kept = True
    for _ in range(60):
        what = rng.choice(["send", "send", "send", "ack", "ack", "time", "clean", "clean", "back", "option"])
        if what == "send":
            for _ in range(rng.randrange(1, 8)):
                topic = "filler" if rng.random() < 0.2 and seed % 2 else "orders"
                begin = broker.store.end_offset
                broker.send("x" * rng.choice([100, 3_000, 8_000]), topic)
                queue = broker.store.consume_queues.get(topic, QueueId(0))
                assert queue is not None
                offset = queue.max_offset - 1
                assert queue.unit(QueueOffset(offset))[0] >= begin
                records.append((queue.unit(QueueOffset(offset))[0], topic, offset, broker.now_ms))
        elif what == "ack":
            group = rng.choice(sorted(acked))
            end = broker.store.consume_queues.next_offset("orders", QueueId(0))
            acked[group] = min(end, acked[group] + rng.randrange(12))
            broker.store.offsets.commit(group, "orders", QueueId(0), QueueOffset(acked[group]))
            reading.add(group)
        elif what == "back":
            group = rng.choice(sorted(acked))
            if group in reading:
                acked[group] = rng.randrange(acked[group] + 1)
                broker.store.offsets.commit(group, "orders", QueueId(0), QueueOffset(acked[group]))
        elif what == "time":
            broker.now_ms += rng.randrange(1, 10) * HOUR_MS
        elif what == "option" and rng.random() < 0.3:
            is_kept = not is_kept
            change = (
                KEPT | {"retention_age_max": "1d"}
                if is_kept
                else {"retention": "time", "retention_age_max": "off"}
            )
            broker.store.topics.alter("orders", options=change)
        elif what == "clean":
            broker.store.flush_projections()
            broker.save_snapshot()
            expected = broker.store.min_offset + SEGMENT * allowed(broker, records, acked, reading, is_kept)
            broker.clean()
            assert broker.store.min_offset == expected
            first = broker.task.counters.held.first_of_each_topic(10)
            hold = broker.task.topic_hold("orders")
            assert [hold.holder] == first if hold is not None else not first
    assert broker.task.counters.dropped_unacknowledged == 0


def allowed(
    broker: Broker,
    records: list[tuple[int, str, int, int]],
    acked: dict[str, int],
    reading: set[str],
    is_kept: bool,
) -> int:
    """How many segments may go: from the front, by every record in them."""
    done = min((acked[group] for group in reading), default=0)
    count = 0
    for segment in broker.store.closed_segments()[: POLICY.files_max]:
        mine = [one for one in records if segment.start <= one[0] < segment.end]
        held = [
            one
            for one in mine
            if is_kept and one[1] == "orders" and one[2] >= done and one[3] > broker.now_ms - DAY_MS
        ]
        by_time = [one for one in mine if one[1] == "filler" or not is_kept]
        last_ms = max((one[3] for one in mine), default=0)
        if held or (not (is_kept and not by_time) and last_ms + HOUR_MS > broker.now_ms):
            break
        count += 1
    return count


@pytest.mark.parametrize(
    "options",
    [
        {"retention_age_max": "1d"},
        {"retention": "for_ever"},
        {"retention": "until_acknowledged", "retention_age_max": "500ms"},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str]) -> None:
    broker = Broker(MemoryFileSystem())
    with pytest.raises(TroveError, match="TOPIC_OPTION_ILLEGAL"):
        broker.store.topics.alter("orders", options=options)
    assert not broker.store.topics.options("orders").until_acknowledged


def test_topics_of_the_brokers_own_hold_nothing_by_time() -> None:
    assert is_own_topic("rmq_sys_trovemq_delivery")
    assert is_own_topic("%RETRY%workers_orders")
    assert not is_own_topic("%DLQ%workers")
    assert not is_own_topic("orders")
