"""Retention and pending messages of old segments: rare states of the records, the queues and the retries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine, bodies
from tests.support.engine import flush
from tests.unit.delivery.test_delivery_troubles import full_disk
from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

RETRY = "%RETRY%workers_orders"


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, count: int) -> None:
    for number in range(count):
        engine.send(f"m{number}")


def retries(engine: Engine, *bodies_: str) -> list[int]:
    """Where they lie."""
    engine.store.topics.ensure_internal(RETRY, 1)
    records = [NewRecord(RETRY, QueueId(0), body.encode(), {}, reconsume_times=1) for body in bodies_]
    return [result.physical_offset for result in engine.writer.append(records, engine.now_ms)]


def test_of_what_cannot_be_read_nothing_is_carried_and_the_rest_is(engine: Engine) -> None:
    sent(engine, 3)
    engine.receive()
    engine.spoil(0)
    assert engine.delivery.reappend_live_records_before(engine.store.end_offset, engine.now_ms) == 2
    assert [message.body for message in engine.messages(CARRIED_TOPIC)] == [b"m1", b"m2"]
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m1", "m2"]


def test_a_full_disk_in_the_middle_of_carrying_keeps_what_was_carried(engine: Engine) -> None:
    sent(engine, 3)
    engine.receive()
    end = engine.store.end_offset
    with full_disk(engine), pytest.raises(TroveError, match="DISK_FULL"):
        engine.delivery.reappend_live_records_before(end, engine.now_ms)
    assert engine.delivery.lowest_live_record() == 0
    assert len(list(engine.delivery.live_records_before(end))) == 3
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 3
    assert list(engine.delivery.live_records_before(end)) == []
    assert engine.delivery.lowest_live_record() == end


@pytest.mark.parametrize("orderly", [False, True])
def test_a_record_that_goes_bad_while_its_copy_is_synced_uses_the_copy(orderly: bool) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    engine = Engine(
        files=files,  # type: ignore[arg-type]
        store_settings=replace(ROOMY, flush_mode="sync"),
    )
    engine.groups.create(SubscriptionGroup("workers", orderly=orderly))
    engine.send("m0", key="a")
    engine.send("m1", key="a")
    flush(engine.store)
    engine.store.dispatch()
    assert bodies(engine.receive(count=1)) == ["m0"]
    engine.delivery.reappend_live_records_before(PhysicalOffset(100), engine.now_ms)
    files.unreadable[f"commitlog/{0:020d}"] = (0, 100)
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ([] if orderly else ["m1"]), "the copy is not visible yet"
    assert engine.delivery.damaged_count == 0
    files.unreadable.clear()
    flush(engine.store)
    engine.store.dispatch()
    files.unreadable[f"commitlog/{0:020d}"] = (0, 100)
    assert bodies(engine.receive()) == (["m0", "m1"] if orderly else ["m0"])


def test_unread_retries_are_pending_and_carried_whoever_reads_them(engine: Engine) -> None:
    """By no group since the start, and by a group that is reading."""
    engine.groups.create(SubscriptionGroup("workers"))
    places = retries(engine, "a", "b", "c")
    end = engine.store.end_offset
    assert engine.delivery.lowest_live_record() == places[0]
    assert list(engine.delivery.live_records_before(PhysicalOffset(places[2]))) == places[:2]
    assert engine.delivery.reappend_live_records_before(PhysicalOffset(places[1]), engine.now_ms) == 1
    assert engine.committed(topic=RETRY) == 1
    assert [message.body for message in engine.messages(RETRY)] == [b"a", b"b", b"c", b"a"]
    assert bodies(engine.receive(count=1)) == ["b"]
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 2, (
        "b is handed out, c was not read yet"
    )
    assert engine.delivery.lowest_live_record() is not None
    engine.crash(flushed=True)
    assert bodies(engine.receive()) == ["a", "c"]
    engine.now_ms += LEASE_MS
    assert sorted(bodies(engine.receive())) == ["a", "b", "c"]


def test_retries_that_cannot_be_read_count_as_read(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers"))
    sent(engine, 1)
    (place,) = retries(engine, "a")
    engine.send("behind")
    engine.spoil(place)
    end = engine.store.end_offset
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 0
    assert engine.committed(topic=RETRY) == 1
    assert engine.delivery.lowest_live_record() is None


def test_a_retry_topic_that_is_read_to_its_end_owes_nothing(engine: Engine) -> None:
    retries(engine, "a")
    engine.ack(*engine.receive())
    end = engine.store.end_offset
    assert engine.delivery.lowest_live_record() is None
    assert list(engine.delivery.live_records_before(end)) == []
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 0


def test_units_of_a_retry_queue_that_name_no_record_carry_nothing(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers"))
    places = retries(engine, "a", "b", "c", "d")
    blank = (0).to_bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    engine.files._files[f"consumequeue/{RETRY}/0/{0:020d}"].data[20:40] = blank
    engine.files._files[f"consumequeue/{RETRY}/0/{0:020d}"].data[60:68] = (places[3] + 1).to_bytes(8)
    queue = engine.store.consume_queues.get(RETRY, QueueId(0))
    assert queue is not None
    queue._forget_known()  # the last unit is known without a read of the file
    end = engine.store.end_offset
    assert list(engine.delivery.live_records_before(end)) == [places[0], places[2], places[3] + 1]
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 2


def test_a_queue_whose_records_have_gone_owes_nothing(engine: Engine) -> None:
    sent(engine, 2)
    engine.receive()
    engine.store.delete_topic("orders", now_ms=engine.now_ms)
    assert engine.delivery.lowest_live_record() is None
    assert list(engine.delivery.live_records_before(engine.store.end_offset)) == []
    engine.now_ms += LEASE_MS
    engine.export_to_rocketmq()
    assert engine.messages(RETRY) == [], "nothing remains that could be copied"


def test_a_full_disk_during_a_clean_stop_exports_the_rest_the_next_time(engine: Engine) -> None:
    sent(engine, 2)
    engine.receive()
    with full_disk(engine), pytest.raises(TroveError, match="DISK_FULL"):
        engine.delivery.export_to_rocketmq(engine.now_ms, engine.files)
    assert engine.delivery.in_flight_count == 2
    engine.now_ms += LEASE_MS
    engine.export_to_rocketmq()
    assert sorted(message.body for message in engine.messages(RETRY)) == [b"m0", b"m1"]
    assert engine.committed() == 2
