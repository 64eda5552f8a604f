"""A message whose last attempt is over is a dead letter when its lease has ended, also without a receive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine
from tests.support.engine import append, record
from tests.support.settling import acknowledge, change_invisible
from tests.unit.delivery.test_delivery_troubles import full_disk
from trovemq_broker.groups.delivery.due_watch import NOW
from trovemq_store.topics.subscription_groups import SubscriptionGroup


def engine_of(*names: str, key: str = "", **group: object) -> Engine:
    engine = Engine()
    engine.groups.create(SubscriptionGroup("workers", **group))  # type: ignore[arg-type]
    for name in names:
        engine.send(name, key=key)
    return engine


def turn(engine: Engine) -> None:
    """What the broker does when leases end."""
    engine.delivery.due_pairs(engine.now_ms)
    engine.delivery.make_dead_letters(engine.now_ms)


def letters(engine: Engine) -> list[bytes]:
    return [one.body for one in engine.messages("%DLQ%workers")]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_last_attempt_returned_with_a_delay_waited_for_the_next_receive(orderly: bool) -> None:
    engine = engine_of("m0", "m1", key="a" if orderly else "", retry_max=0, orderly=orderly)
    group = engine.groups.require("workers")
    first, second = engine.receive(group)
    change_invisible(engine.delivery, "workers", "orders", first.receipt_handle, 5_000, engine.now_ms)
    acknowledge(engine.delivery, "workers", "orders", second.receipt_handle, engine.now_ms)
    engine.now_ms += 4_999
    turn(engine)
    assert letters(engine) == []
    engine.now_ms += 1
    turn(engine)
    assert letters(engine) == [b"m0"]
    assert engine.delivery.in_flight_count == 0
    assert engine.committed() == 2
    assert engine.delivery.next_due_ms() is None
    (letter,) = engine.messages("%DLQ%workers")
    assert (letter.reconsume_times, letter.properties["DLQ_ORIGIN_TOPIC"]) == (1, "orders")
    engine.crash(flushed=True)
    assert engine.receive(group) == []


def test_a_consumer_that_died_at_the_last_attempt_left_no_dead_letter() -> None:
    engine = engine_of("m0", retry_max=1)
    for _ in range(2):
        assert len(engine.receive(engine.groups.require("workers"))) == 1
        turn(engine)
        engine.now_ms += LEASE_MS
    turn(engine)
    assert letters(engine) == [b"m0"]
    assert engine.delivery.due_pairs(engine.now_ms) == []


def test_what_has_attempts_remaining_or_is_settled_is_no_dead_letter() -> None:
    engine = engine_of("m0", "m1", retry_max=0)
    group = engine.groups.require("workers")
    first, _ = engine.receive(group)
    engine.groups.alter("workers", retry_max=1)
    engine.now_ms += LEASE_MS
    turn(engine)
    assert letters(engine) == [], "it may be delivered once more"
    again = engine.receive(engine.groups.require("workers"))
    assert [one.attempt for one in again] == [2, 2]
    engine.now_ms += LEASE_MS - 1
    engine.ack(again[0])
    engine.now_ms += 1
    turn(engine)
    assert letters(engine) == [b"m1"]
    assert first.attempt == 1


def test_on_a_full_disk_it_stays_for_the_next_receive() -> None:
    engine = engine_of("m0", retry_max=0)
    group = engine.groups.require("workers")
    engine.receive(group)
    engine.now_ms += LEASE_MS
    with full_disk(engine):
        turn(engine)
    assert engine.delivery.dead_letter_failures == 1
    assert engine.delivery.next_due_ms() is None, "nobody asks a thousand times a second"
    assert engine.receive(group) == []
    assert letters(engine) == [b"m0"]


def test_a_group_that_was_deleted_gets_no_dead_letters() -> None:
    engine = engine_of("m0", retry_max=0)
    engine.receive(engine.groups.require("workers"))
    engine.now_ms += LEASE_MS
    engine.delivery.due_pairs(engine.now_ms)
    engine.delivery.forget_group("workers", engine.now_ms)
    engine.groups.delete("workers")
    engine.delivery.make_dead_letters(engine.now_ms)
    assert letters(engine) == []


def test_thousands_that_end_together_become_dead_letters_in_steps() -> None:
    engine = Engine(store_settings=replace(ROOMY, commit_log_file_size=4 << 20))
    engine.groups.create(SubscriptionGroup("workers", retry_max=0))
    for begin in range(0, 1_000, 100):
        append(engine.store, *(record(b"x", unique_key=f"U{begin + n}") for n in range(100)))
        engine.store.dispatch()
    while engine.receive(engine.groups.require("workers")):
        pass
    engine.now_ms += LEASE_MS
    engine.delivery.due_pairs(engine.now_ms)
    steps = 0
    while engine.delivery.in_flight_count:
        before = engine.delivery.dead_letter_count
        assert engine.delivery.next_due_ms() == NOW
        engine.delivery.make_dead_letters(engine.now_ms)
        assert 0 < engine.delivery.dead_letter_count - before <= 64
        steps += 1
    assert steps >= 1_000 // 64
    assert engine.delivery.dead_letter_count == 1_000


def test_a_last_attempt_that_a_receive_ended_is_due_at_once() -> None:
    engine = engine_of("m0", "m1", retry_max=0)
    group = engine.groups.require("workers")
    assert len(engine.receive(group)) == 2
    notices: list[str] = []
    engine.now_ms += LEASE_MS
    engine.delivery.due_watch.wait(engine.now_ms, lambda: notices.append("earlier"))
    assert engine.receive(group) == []
    assert notices == ["earlier"]
