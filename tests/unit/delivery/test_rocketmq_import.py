"""Stores that RocketMQ closed: retry topics, order info and pending check points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.golden import load_manifest, settings_of, unpack
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.state.rocketmq_import import import_from_rocketmq
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


def test_a_store_of_rocketmq_gives_each_group_what_it_has_not_consumed(tmp_path: Path) -> None:
    manifest = load_manifest("small")
    files = RealFileSystem(str(unpack("small", tmp_path)))
    now_ms = max(message["storeTimestamp"] for message in manifest["messages"]) + 1_000
    store = MessageStore.open(files, settings_of(manifest), now_ms)
    try:
        writer = RecordWriter(store, lambda: None)
        groups = SubscriptionGroups.load(files)
        delivery = Delivery(store, writer, EventLog(store, writer), groups, ConsumerSettings())
        import_from_rocketmq(delivery, store, files, (), now_ms)
        delivery.complete_replay()
        got: dict[str, list[tuple[str, int]]] = {}
        for group, topic in [("Alfa-group", "AlfaOrders"), ("Alfa-lite", "Alfa-events_log")]:
            request = ReceiveRequest(
                group=groups.require(group), topic=topic, invisible_ms=LEASE_MS, now_ms=now_ms
            )
            while batch := delivery.receive(request):
                assert {one.topic for one in batch} == {topic}
                got.setdefault(group, []).extend(
                    (decode_message(one.record).message_id, one.attempt) for one in batch
                )
    finally:
        store.close(now_ms)
    retried = [m["uniqKey"] for m in manifest["messages"] if m["topic"] == "%RETRY%Alfa-group"]
    assert len(retried) == 2
    assert got["Alfa-group"] == [(key, 2) for key in retried]  # its topic itself is consumed to the end
    offsets = manifest["consumerOffsets"]["Alfa-events_log@Alfa-lite"]
    rest = [
        message["msgId"]
        for message in manifest["messages"]
        if message["topic"] == "Alfa-events_log"
        and message["queueOffset"] >= offsets[str(message["queueId"])]
    ]
    assert rest
    assert sorted(got["Alfa-lite"]) == sorted((key, 1) for key in rest)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_what_the_order_info_says_to_be_in_flight_waits_for_its_time(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    for number in range(5):
        engine.send(f"m{number}", key="a")
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(1))
    until_ms = engine.now_ms + 5_000
    entry = {"popTime": until_ms - 60_000, "i": 60_000, "o": [1, 1, 2], "oc": {"1": 2}, "cm": 2}
    document = {"table": {"orders@workers": {"0": entry}}}
    engine.files.write_atomic("config/consumerOrderInfo.json", json.dumps(document).encode())
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    engine.crash(flushed=True)
    assert engine.receive() == []
    engine.now_ms = until_ms
    again = engine.receive()
    assert bodies(again) == ["m1", "m3", "m4"]
    assert attempts(again) == [4, 2, 1]


def test_order_info_that_does_not_fit_the_offset_is_skipped(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    for number in range(3):
        engine.send(f"m{number}", key="a")
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(2))
    entry = {"popTime": engine.now_ms, "i": 60_000, "o": [0, 1], "cm": 0}
    document = {"table": {"orders@workers": {"0": entry, "x": entry, "1": []}, "noGroup": {}}}
    engine.files.write_atomic("config/consumerOrderInfo.json", json.dumps(document).encode())
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    assert bodies(engine.receive()) == ["m2"]


def revive_record(engine: Engine, tag: str, **body: object) -> None:
    value = {
        "bn": "broker-a",
        "c": "workers",
        "pt": engine.now_ms - 1_000,
        "q": 0,
        "so": 0,
        "t": "orders",
        **body,
    }
    record = NewRecord(REVIVE_TOPIC, QueueId(0), json.dumps(value).encode(), {"TAGS": tag})
    engine.store.topics.ensure_internal(REVIVE_TOPIC, 8)
    engine.writer.append([record], engine.now_ms)


def test_a_pending_check_point_brings_back_what_was_not_acknowledged(engine: Engine) -> None:
    for number in range(6):
        engine.send(f"m{number}")
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    revive_record(engine, "ck", bm=0b10, d=[0, 1, 3, 4], n=4, it=60_000)
    revive_record(engine, "ack", ao=3)
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    waiting = engine.messages(WHEEL_TOPIC)
    assert [message.body for message in waiting] == [b"m0", b"m4"]
    for message in waiting:
        assert message.properties["REAL_TOPIC"] == "%RETRY%workers_orders"
        assert int(message.properties["TIMER_DELIVER_MS"]) == engine.now_ms + 59_000
        assert message.reconsume_times == 1
    assert engine.receive() == []
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    assert len(engine.messages(WHEEL_TOPIC)) == 2, "once"


def test_a_check_point_that_was_revived_is_not_looked_at(engine: Engine) -> None:
    engine.send("m0")
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(1))
    revive_record(engine, "ck", n=1, it=500)
    engine.store.offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, QueueId(0), QueueOffset(1))
    import_from_rocketmq(engine.delivery, engine.store, engine.files, (), engine.now_ms)
    assert engine.receive() == []


def test_classic_retries_go_to_the_topic_that_they_came_from(engine: Engine) -> None:
    engine.store.topics.create("bills", queue_count=1)
    engine.store.topics.ensure_internal("%RETRY%workers", 1)
    for topic in ("orders", "bills", "orders"):
        record = NewRecord(
            "%RETRY%workers", QueueId(0), topic.encode(), {"RETRY_TOPIC": topic}, reconsume_times=3
        )
        engine.writer.append([record], engine.now_ms)
    orders = engine.receive()
    assert bodies(orders) == ["orders", "orders"]
    assert attempts(orders) == [4, 4]
    assert [one.topic for one in orders] == ["orders", "orders"]
    engine.crash(flushed=True)
    bills = engine.receive(topic="bills")
    assert bodies(bills) == ["bills"]
    engine.ack(*orders)
    engine.ack(*bills, topic="bills")
    assert engine.committed(topic="%RETRY%workers") == 3
