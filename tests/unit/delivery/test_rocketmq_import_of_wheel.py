"""Check points of RocketMQ that still wait in its timer wheel: their messages are in flight once."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.delivery import ROOMY
from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.settling import acknowledge
from tests.unit.timers.rocketmq import RocketMqTimers
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC, delayed_record
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

SETTINGS = ConsumerSettings(new_group_start="begin", timer_log_file_size=1_000)
STORE_SETTINGS = replace(ROOMY, flush_mode="async")
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
RETRY_TOPIC = "%RETRY%workers_orders"
DUE_MS = EpochMs(NOW_MS + 59_000)
DAY_MS = 86_400_000


def wait_for_revival(store: MessageStore, tag: str, **body: object) -> None:
    """As RocketMQ's pop puts it into the wheel."""
    value = {"bn": "broker-a", "c": "workers", "pt": NOW_MS - 1_000, "q": 0, "so": 0, "t": "orders", **body}
    record = NewRecord(
        REVIVE_TOPIC, QueueId(0), json.dumps(value).encode(), {"TAGS": tag, "UNIQ_KEY": f"{tag}{body}"}
    )
    RecordWriter(store, lambda: None).append([delayed_record(record, DUE_MS, NOW_MS)], NOW_MS)


def store_of_rocketmq() -> MemoryFileSystem:
    """The group popped four messages a second ago, for a minute, and acknowledged the third."""
    files = MemoryFileSystem()
    store = MessageStore.open(files, STORE_SETTINGS, NOW_MS, process_id=7)
    store.topics.create("orders", 1)
    store.topics.ensure_internal(WHEEL_TOPIC, 1)
    store.topics.ensure_internal(REVIVE_TOPIC, 8)
    for number in range(4):
        record = NewRecord("orders", QueueId(0), b"m%d" % number, {"UNIQ_KEY": f"U{number}"})
        RecordWriter(store, lambda: None).append([record], NOW_MS)
    store.dispatch()
    store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(4))
    wait_for_revival(store, "ck", n=4, bm=0, d=[0, 1, 2, 3], it=60_000)
    wait_for_revival(store, "ack", ao=2)
    flush(store)
    store.close(NOW_MS)
    return files


class Run:
    """One run of our broker."""

    def __init__(self, files: MemoryFileSystem, now_ms: EpochMs) -> None:
        self.files, self.now_ms = files, now_ms
        self.store = MessageStore.open(files, STORE_SETTINGS, now_ms, process_id=7)
        self.model = ConsumerState.open(self.store, files, SETTINGS, now_ms)

    def deliver_timers(self, now_ms: EpochMs) -> None:
        self.now_ms = now_ms
        while self.model.timers.deliver_due(now_ms):
            self.store.dispatch()
            self.model.timers.catch_up()

    def receive(self) -> list[Delivered]:
        group = self.model.groups.get("workers") or SubscriptionGroup("workers")
        request = ReceiveRequest(group=group, topic="orders", invisible_ms=30_000, now_ms=self.now_ms)
        return self.model.delivery.receive(request)

    def bodies(self) -> list[bytes]:
        return [decode_message(one.record).body for one in self.receive()]

    def waiting(self) -> dict[str, int]:
        return {topic: count for topic, count in self.model.timers.pending_by_topic().items() if count}

    def stop(self) -> None:
        self.model.export_to_rocketmq(self.now_ms)
        self.store.close(self.now_ms)


def test_a_check_point_of_the_wheel_comes_back_once_and_at_its_time() -> None:
    run = Run(store_of_rocketmq(), NOW_MS)
    assert run.waiting() == {RETRY_TOPIC: 3}, "neither the check point nor the acknowledgement"
    run.deliver_timers(EpochMs(DUE_MS - 1))
    assert run.bodies() == []
    run.deliver_timers(DUE_MS)
    got = run.receive()
    assert [decode_message(one.record).body for one in got] == [b"m0", b"m1", b"m3"]
    assert {one.attempt for one in got} == {2}
    assert run.model.delivery.in_flight_count == 3
    assert run.store.consume_queues.queues(REVIVE_TOPIC) == [], "no timer brought it there"
    run.deliver_timers(DUE_MS + DAY_MS)
    assert run.bodies() == [b"m0", b"m1", b"m3"], "the same three, whose leases are over"
    assert run.waiting() == {}


def test_rocketmq_gets_the_messages_back_once_and_no_check_point() -> None:
    run = Run(store_of_rocketmq(), NOW_MS)
    run.model.export_to_rocketmq(NOW_MS + 5_000)
    found = RocketMqTimers(run.store, run.files, NOW_MS + 5_000).run(NOW_MS + 5_000, NOW_MS + DAY_MS)
    wheel = read_queue(run.store, WHEEL_TOPIC)
    assert [wheel[offset].properties["REAL_TOPIC"] for offset, _ in found] == [RETRY_TOPIC] * 3
    assert [wheel[offset].body for offset, _ in found] == [b"m0", b"m1", b"m3"]
    run.store.close(NOW_MS + 5_000)


def test_a_check_point_that_was_taken_over_is_not_taken_over_again() -> None:
    """RocketMQ had the store again before the check point's time, and did no more than grow the log."""
    files = store_of_rocketmq()
    run = Run(files, NOW_MS)
    run.now_ms = NOW_MS + 2_000
    run.stop()
    store = MessageStore.open(files, STORE_SETTINGS, NOW_MS + 3_000, process_id=7)
    RecordWriter(store, lambda: None).append([NewRecord("orders", QueueId(0), b"new")], NOW_MS + 3_000)
    flush(store)
    store.close(NOW_MS + 3_000)
    run = Run(files, NOW_MS + 4_000)
    assert run.waiting() == {RETRY_TOPIC: 3}
    (new,) = run.receive()
    acknowledge(run.model.delivery, "workers", "orders", new.receipt_handle, run.now_ms)
    run.deliver_timers(DUE_MS)
    assert run.bodies() == [b"m0", b"m1", b"m3"]
    run.stop()
