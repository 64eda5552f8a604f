"""The state over crashes, restarts, resets, deletions, retention and a clean stop."""

from __future__ import annotations

import json

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.engine import flush
from tests.support.settling import acknowledge, change_invisible
from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, count: int) -> None:
    for number in range(count):
        engine.send(f"m{number}")


def test_a_lost_tail_of_events_means_that_messages_come_again(engine: Engine) -> None:
    sent(engine, 3)
    engine.ack(engine.receive(count=1)[0])
    engine.events.flush(engine.now_ms)
    engine.ack(engine.receive(count=1)[0])
    engine.crash()
    assert bodies(engine.receive()) == ["m1", "m2"]


def test_a_stored_offset_that_is_further_than_the_events_wins(engine: Engine) -> None:
    sent(engine, 3)
    got = engine.receive()
    engine.events.flush(engine.now_ms)
    engine.ack(*got[:2])
    flush(engine.store)  # no offset is stored beyond the synced part of the log
    engine.store.offsets.persist()
    engine.crash()
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m2"]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_leases_attempts_and_handles_survive(engine: Engine, how: str) -> None:
    sent(engine, 3)
    got = engine.receive()
    handle = change_invisible(
        engine.delivery, "workers", "orders", got[0].receipt_handle, 30_000, engine.now_ms
    )
    engine.ack(got[2])
    if how == "crash":
        engine.crash(flushed=True)
    else:
        engine.restart()
    assert engine.receive() == []
    acknowledge(engine.delivery, "workers", "orders", handle, engine.now_ms)
    engine.now_ms += LEASE_MS
    again = engine.receive()
    assert bodies(again) == ["m1"]
    assert attempts(again) == [2]
    assert engine.committed() == 1


def test_a_renewed_lease_lasts_while_its_client_lives(engine: Engine) -> None:
    sent(engine, 2)
    one, two = engine.receive(renewed=True)
    assert engine.delivery.held_by("client") == 2
    assert engine.delivery.next_visible_ms("workers", "orders") is None
    for _ in range(10):
        engine.now_ms += 55_000
        engine.delivery.renew(engine.now_ms, lambda client_id: client_id == "client")
        assert engine.receive() == []
    engine.crash(flushed=True)
    engine.ack(one)
    assert engine.delivery.held_by("client") == 1
    engine.now_ms += 55_000
    engine.delivery.renew(engine.now_ms, lambda _: False)
    assert engine.receive() == []
    engine.now_ms += 1_000
    again = engine.receive()
    assert bodies(again) == ["m1"]
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(two)


def test_a_lease_is_not_renewed_for_ever(engine: Engine) -> None:
    sent(engine, 1)
    engine.receive(renewed=True)
    for _ in range(10_800_000 // 50_000 + 1):
        engine.now_ms += 50_000
        engine.delivery.renew(engine.now_ms, lambda _: True)
    engine.now_ms += 1_000
    assert attempts(engine.receive()) == [2]


def test_a_released_client_gives_its_messages_back(engine: Engine) -> None:
    sent(engine, 2)
    engine.receive(count=1, renewed=True, client_id="gone")
    engine.receive(count=1, renewed=True, client_id="here")
    engine.delivery.release_client("gone", engine.now_ms)
    assert engine.delivery.next_visible_ms("workers", "orders") == engine.now_ms + 1_000
    assert engine.delivery.due_pairs(engine.now_ms + 1_000) == [("workers", "orders")]
    engine.now_ms += 1_000
    assert bodies(engine.receive()) == ["m0"]
    assert engine.delivery.held_by("gone") == 0
    assert engine.delivery.held_by("here") == 1


def test_a_reset_forgets_what_is_in_flight(engine: Engine) -> None:
    sent(engine, 4)
    got = engine.receive()
    engine.ack(got[0])
    assert engine.delivery.reset("workers", "orders", {QueueId(0): 2, QueueId(7): 1}, engine.now_ms) == {0: 3}
    engine.store.offsets.commit("workers", "orders", QueueId(0), QueueOffset(2))
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(got[1])
    engine.store.offsets.persist()
    engine.crash()
    assert bodies(engine.receive()) == ["m2", "m3"]


def test_a_deleted_topic_and_a_deleted_group_leave_nothing(engine: Engine) -> None:
    sent(engine, 2)
    old = engine.receive()
    engine.receive("others")
    engine.delivery.forget_group("others", engine.now_ms)
    assert engine.delivery.pairs() == [("workers", "orders")]
    engine.store.delete_topic("orders", engine.now_ms)
    engine.delivery.forget_topic("orders", engine.now_ms)
    assert engine.delivery.pairs() == []
    assert engine.delivery.in_flight_count == 0
    engine.store.topics.create("orders", queue_count=1)
    engine.crash(flushed=True)
    engine.now_ms += LEASE_MS
    engine.send("new")
    assert bodies(engine.receive()) == ["new"]
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(old[1])


def test_messages_of_a_topic_recreated_before_a_kill_were_not_consumed(engine: Engine) -> None:
    sent(engine, 3)
    engine.ack(*engine.receive())
    engine.events.flush(engine.now_ms)
    engine.store.delete_topic("orders", engine.now_ms)
    engine.delivery.forget_topic("orders", engine.now_ms)
    engine.store.topics.create("orders", queue_count=1)
    for number in range(4):
        engine.send(f"new{number}")
    engine.crash()
    assert bodies(engine.receive()) == ["new0", "new1", "new2", "new3"]


def test_what_a_deleted_group_had_consumed_is_delivered_to_its_namesake(engine: Engine) -> None:
    """A kill right after the group was deleted and had received again."""
    sent(engine, 3)
    engine.ack(*engine.receive())
    engine.events.flush(engine.now_ms)
    engine.delivery.forget_group("workers", engine.now_ms)
    engine.store.offsets.delete_group("workers")
    engine.crash()
    assert bodies(engine.receive()) == ["m0", "m1", "m2"]


def test_a_deleted_topic_is_forgotten_even_where_the_log_takes_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(engine, 1)
    engine.receive()
    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "append", _full)
        engine.delivery.forget_topic("orders", engine.now_ms)
    assert engine.delivery.pairs() == []
    assert engine.events.pending_count
    engine.events.flush(engine.now_ms)
    assert not engine.events.pending_count


def _full(*_: object, **__: object) -> None:
    raise TroveError(errors.DISK_FULL)


def test_a_clean_stop_makes_retry_messages_of_what_is_in_flight(engine: Engine) -> None:
    sent(engine, 3)
    got = engine.receive()
    engine.ack(got[0])
    change_invisible(engine.delivery, "workers", "orders", got[1].receipt_handle, 0, engine.now_ms)
    engine.now_ms += 1
    engine.export_to_rocketmq()
    assert engine.committed() == 3
    (visible,) = engine.messages("%RETRY%workers_orders")
    assert (visible.body, visible.reconsume_times) == (b"m1", 1)
    (waiting,) = engine.messages(WHEEL_TOPIC)
    assert waiting.properties["REAL_TOPIC"] == "%RETRY%workers_orders"
    assert waiting.properties["REAL_QID"] == "0"
    assert int(waiting.properties["TIMER_DELIVER_MS"]) == got[2].until_ms
    assert waiting.reconsume_times == 1
    with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
        engine.ack(got[2])
    (again,) = engine.receive()
    assert (again.topic, again.attempt, again.queue_offset) == ("orders", 2, 0)
    engine.ack(again)
    assert engine.committed(topic="%RETRY%workers_orders") == 1
    engine.now_ms += LEASE_MS
    assert engine.receive() == []


def test_a_clean_stop_of_an_orderly_group_says_what_is_in_flight(engine: Engine) -> None:
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    for body in ("a0", "a1", "b0"):
        engine.send(body, key=body[0])
    got = engine.receive(count=1)
    got += engine.receive()
    engine.ack(got[1])
    engine.export_to_rocketmq()
    document = json.loads(engine.files.read_bytes("config/consumerOrderInfo.json"))
    entry = document["table"]["orders@workers"]["0"]
    assert entry["o"] == [0, 1, 2]
    assert entry["cm"] == 0b100
    assert entry["ot"] == {"0": got[0].until_ms}
    assert engine.committed() == 0
    assert engine.receive() == []
    engine.ack(got[0])
    assert bodies(engine.receive()) == ["a1"]


def test_pending_records_are_carried_before_their_segment_goes(engine: Engine) -> None:
    sent(engine, 4)
    got = engine.receive(count=3)
    engine.ack(got[1])
    lowest = engine.delivery.lowest_live_record()
    assert lowest == 0
    end = engine.store.end_offset
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 2
    assert engine.delivery.reappend_live_records_before(end, engine.now_ms) == 0
    assert engine.delivery.lowest_live_record() == end
    assert [message.body for message in engine.messages(CARRIED_TOPIC)] == [b"m0", b"m2"]
    engine.ack(got[0])
    engine.crash(flushed=True)
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m2", "m3"]
    assert engine.delivery.in_flight_count == 2
