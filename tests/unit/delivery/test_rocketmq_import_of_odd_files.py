"""Order info and revive logs in forms that should not occur: usable parts are imported, nothing else."""

from __future__ import annotations

import json

import pytest

from tests.support.delivery import Engine, attempts, bodies
from tests.unit.delivery.test_rocketmq_import import REVIVE_TOPIC, revive_record
from trovemq_broker.state.rocketmq_import import import_from_rocketmq
from trovemq_broker.timers.wheel_records import WHEEL_QUEUE_ID, WHEEL_TOPIC
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    for number in range(6):
        engine.send(f"m{number}", key="a")
    return engine


def take(engine: Engine, *, waiting: tuple[int, ...] = ()) -> None:
    import_from_rocketmq(engine.delivery, engine.store, engine.files, waiting, engine.now_ms)


def write_order_info(engine: Engine, **queues: object) -> None:
    """By topic@group."""
    table = {name.replace("_at_", "@"): queue for name, queue in queues.items()}
    engine.files.write_atomic("config/consumerOrderInfo.json", json.dumps({"table": table}).encode())


def entry(engine: Engine, offsets: list[int], **more: object) -> dict[str, object]:
    return {"popTime": engine.now_ms, "i": 60_000, "o": offsets, **more}


# --- order info ---------------------------------------------------------------------------------------
def test_order_info_of_a_group_without_order_does_not_hold_anything_back(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers"))
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(1))
    write_order_info(engine, orders_at_workers={"0": entry(engine, [1])})
    take(engine)
    assert bodies(engine.receive()) == ["m1", "m2", "m3", "m4", "m5"]


@pytest.mark.parametrize(
    ("topic", "offsets", "stored"),
    [
        ("orders", [], 1),
        ("orders", [1], None),
        ("bills", [0], 0),
        ("orders", [1, 9], 1),
        ("orders", [1, 900, 2], 1),
        ("orders", [1, -1, 2], 1),
    ],
    ids=["no offsets", "no stored offset", "no such queue", "beyond the queue", "to and fro", "backwards"],
)
def test_order_info_that_says_of_nothing_there_is_skipped(
    engine: Engine, topic: str, offsets: list[int], stored: int | None
) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    if stored is not None:
        engine.store.offsets.commit("workers", topic, QueueId(0), QueueOffset(stored))
    write_order_info(engine, **{f"{topic}_at_workers": {"0": entry(engine, offsets)}})
    take(engine)
    got = engine.receive()
    begin = stored if stored is not None else 0
    assert bodies(got) == [f"m{number}" for number in range(begin, 6)]
    assert set(attempts(got)) == {1}


@pytest.mark.parametrize(
    "more",
    [
        {"popTime": 1 << 63},
        {"ot": {"1": -1}},
        {"ot": {"1": 1 << 70}},
        {"oc": {"1": -5}},
        {"oc": {"1": 1 << 40}},
    ],
)
def test_an_order_info_number_no_event_can_say_kept_the_broker_from_start(
    engine: Engine, more: dict[str, object]
) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(1))
    write_order_info(engine, orders_at_workers={"0": entry(engine, [1]) | more})
    take(engine)
    engine.events.flush(engine.now_ms)
    assert bodies(engine.receive()) == ["m1", "m2", "m3", "m4", "m5"]


def test_consumed_messages_at_the_end_of_an_entry_do_not_come_again(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(1))
    write_order_info(engine, orders_at_workers={"0": entry(engine, [1, 1, 2, 3], cm=0b1100)})
    take(engine)
    engine.crash(flushed=True)
    assert engine.receive() == [], "m1 and m2 are in flight, and m5 is of their message group"
    engine.now_ms += 60_000
    assert bodies(engine.receive()) == ["m1", "m2", "m5"]


# --- the revive log -----------------------------------------------------------------------------------
def raw_revive(engine: Engine, tag: str, body: bytes, topic: str = REVIVE_TOPIC) -> int:
    engine.store.topics.ensure_internal(topic, 1)
    (result,) = engine.writer.append([NewRecord(topic, QueueId(0), body, {"TAGS": tag})], engine.now_ms)
    return result.physical_offset


def test_records_of_the_revive_log_that_say_nothing_are_skipped(engine: Engine) -> None:
    raw_revive(engine, "ck", b"{")
    raw_revive(engine, "ack", b"[]")
    raw_revive(engine, "other", b"{}")
    raw_revive(engine, "Aa", b"{}")
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    revive_record(engine, "ck", so=2, n=1, it=500)
    take(engine)
    got = engine.receive()
    assert (bodies(got), attempts(got)) == (["m2"], [2])
    assert engine.committed("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC) == 5


@pytest.mark.parametrize("body", [{"n": 1 << 40}, {"c": "../../etc", "n": 1}, {"c": "g" * 300, "n": 1}])
def test_a_check_point_that_rocketmq_cannot_have_written_is_skipped(
    engine: Engine, body: dict[str, object]
) -> None:
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    revive_record(engine, "ck", it=500, **body)
    take(engine)
    assert engine.receive() == []
    assert [name for name in engine.store.topics.names() if name.startswith("%RETRY%")] == []


def test_a_tag_with_the_hash_of_a_check_points_is_none(engine: Engine) -> None:
    """Java's hash of "dL" is that of "ck", and queues know tags by their hashes."""
    body = {"c": "workers", "t": "orders", "q": 0, "so": 0, "pt": 1, "it": 1, "n": 1}
    raw_revive(engine, "dL", json.dumps(body).encode())
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    take(engine)
    assert engine.receive() == []


def test_a_damaged_check_point_and_a_damaged_message_are_skipped(engine: Engine) -> None:
    size = engine.store.end_offset // 6
    bad = raw_revive(engine, "ck", b"{}")
    revive_record(engine, "ck", so=0, n=3, it=500)
    engine.send("behind")
    engine.spoil(bad)
    engine.spoil(size)
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(7))
    take(engine)
    assert bodies(engine.receive()) == ["m0", "m2"]
    assert engine.delivery.damaged_count == 1


def test_a_check_point_of_what_is_not_there_brings_nothing_back(engine: Engine) -> None:
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    revive_record(engine, "ck", so=40, n=2, it=500)
    revive_record(engine, "ck", t="gone", n=2, it=500)
    revive_record(engine, "ck", so=5, n=1, pt=engine.now_ms, it=500)
    revive_record(engine, "bAck", so=5, pt=engine.now_ms, aol=[5])
    take(engine)
    assert engine.receive() == []
    assert engine.delivery.damaged_count == 0


def test_units_of_the_revive_log_that_name_no_record_are_nothing(engine: Engine) -> None:
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    for offset in (0, 1, 2):
        revive_record(engine, "ck", so=offset, n=1, it=500)
    path = f"consumequeue/{REVIVE_TOPIC}/0/{0:020d}"
    data = engine.files._files[path].data
    data[8:12] = b"\x7f\xff\xff\xff"  # a blank
    data[40:48] = (1 << 40).to_bytes(8)
    take(engine)
    assert bodies(engine.receive()) == ["m1"]


def wheel_record(engine: Engine, tag: str, **body: object) -> int:
    """A record of the revive log that waits in the wheel's queue; its queue offset."""
    value = {"c": "workers", "t": "orders", "q": 0, "pt": engine.now_ms, **body}
    engine.store.topics.ensure_internal(WHEEL_TOPIC, 1)
    record = NewRecord(
        WHEEL_TOPIC,
        WHEEL_QUEUE_ID,
        json.dumps(value).encode(),
        {"TAGS": tag, "REAL_TOPIC": REVIVE_TOPIC, "REAL_QID": "0"},
    )
    return engine.writer.append([record], engine.now_ms)[0].first_queue_offset


def test_of_the_wheel_only_what_still_waits_is_pending(engine: Engine) -> None:
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    wheel_record(engine, "ck", so=0, n=1, it=1)
    waits = wheel_record(engine, "ck", so=1, n=2, it=1)
    wheel_record(engine, "ack", so=1, ao=2)
    foreign = NewRecord(WHEEL_TOPIC, WHEEL_QUEUE_ID, b"{}", {"TAGS": "ck", "REAL_TOPIC": "orders"})
    engine.writer.append([foreign], engine.now_ms)
    take(engine, waiting=(waits,))
    engine.now_ms += 10
    (copy,) = engine.messages(WHEEL_TOPIC)[4:]
    assert (copy.body, copy.properties["REAL_TOPIC"]) == (b"m1", "%RETRY%workers_orders")


def test_a_passed_check_point_from_the_timing_wheel_is_not_revived(engine: Engine) -> None:
    """It waits in the wheel as far as we know, and RocketMQ has read it from the revive topic."""
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(6))
    waits = wheel_record(engine, "ck", so=0, n=1, it=1)
    revive_record(engine, "ck", so=0, n=1, it=1, pt=engine.now_ms)
    engine.store.offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC, QueueId(0), QueueOffset(1))
    take(engine, waiting=(waits,))
    engine.now_ms += 10
    assert engine.receive() == []
    assert len(engine.messages(WHEEL_TOPIC)) == 1
