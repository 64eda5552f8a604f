"""Orderly groups: one client at a time has messages of a message group, and other message groups continue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.settling import change_invisible
from trovemq_broker.filters.filter import parse_filter
from trovemq_proto.errors import TroveError
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.groups.create(SubscriptionGroup("workers", orderly=True))
    return engine


def test_later_messages_of_a_message_group_are_held_and_others_continue(engine: Engine) -> None:
    for body in ("a1", "b1", "a2", "b2", "c1"):
        engine.send(body, key=body[0])
    (a1,) = engine.receive(count=1)
    assert bodies(engine.receive()) == ["b1", "b2", "c1"]
    assert engine.receive() == []
    engine.ack(a1)
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive()) == ["a2"]


def test_messages_without_a_message_group_are_one_group_of_their_queue(engine: Engine) -> None:
    for body in ("m1", "m2"):
        engine.send(body)
    first = engine.receive(count=1)
    assert engine.receive() == []
    engine.ack(*first)
    assert bodies(engine.receive()) == ["m2"]


def test_a_batch_has_several_messages_of_a_group_in_order(engine: Engine) -> None:
    for number in range(4):
        engine.send(f"a{number}", key="a")
    got = engine.receive(count=3)
    assert bodies(got) == ["a0", "a1", "a2"]
    engine.ack(got[0], got[2])
    assert engine.receive() == []
    engine.ack(got[1])
    assert bodies(engine.receive()) == ["a3"]


def test_what_came_back_goes_before_later_messages_of_its_group(engine: Engine) -> None:
    engine.send("a0", key="a")
    engine.receive()
    engine.send("a1", key="a")
    engine.send("b0", key="b")
    assert bodies(engine.receive()) == ["b0"]
    engine.now_ms += LEASE_MS
    again = engine.receive()
    assert bodies(again) == ["a0", "a1", "b0"]
    assert attempts(again) == [2, 1, 2]


def test_a_returned_message_waits_for_the_later_ones_that_are_still_out(engine: Engine) -> None:
    engine.send("a0", key="a")
    engine.send("a1", key="a")
    a0, a1 = engine.receive()
    change_invisible(engine.delivery, "workers", "orders", a0.receipt_handle, 0, engine.now_ms)
    assert engine.receive() == []
    engine.ack(a1)
    assert bodies(engine.receive()) == ["a0"]


def test_the_same_attempt_id_gets_the_same_messages_again(engine: Engine) -> None:
    for body in ("a0", "a1"):
        engine.send(body, key="a")
    first = engine.receive(attempt_id="x")
    again = engine.receive(attempt_id="x")
    assert bodies(again) == ["a0", "a1"]
    assert attempts(again) == [1, 1]
    with pytest.raises(TroveError, match="replaced"):
        engine.ack(*first)
    assert engine.receive(attempt_id="y") == []
    engine.ack(*again)
    assert engine.committed() == 2


def test_the_last_attempt_makes_space_for_the_next_message(engine: Engine) -> None:
    group = engine.groups.alter("workers", retry_max=0)
    engine.send("a0", key="a")
    engine.send("a1", key="a")
    assert bodies(engine.receive(group, count=1)) == ["a0"]
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive(group)) == ["a1"]
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"a0"]


def test_the_window_bounds_how_far_a_group_looks_past_its_first_open_one() -> None:
    base = Engine()
    engine = Engine(replace(base.settings, ordered_window_max=4))
    group = SubscriptionGroup("workers", orderly=True)
    for number in range(6):
        engine.send(f"a{number}", key="a")
    engine.send("b0", key="b")
    (a0,) = engine.receive(group, count=1)
    assert engine.receive(group) == []
    engine.ack(a0)
    assert bodies(engine.receive(group)) == ["a1", "a2", "a3", "a4"]


def test_a_filter_that_takes_nothing_of_a_window_lets_it_slide() -> None:
    base = Engine()
    engine = Engine(replace(base.settings, ordered_window_max=4))
    group = SubscriptionGroup("workers", orderly=True)
    for number in range(9):
        engine.send(f"a{number}", key="a", tag="no")
    engine.send("yes", key="a", tag="yes")
    wanted = parse_filter("tag", "yes")
    got = []
    for _ in range(5):
        got += bodies(engine.receive(group, filter=wanted))
        if not engine.delivery.due_pairs(engine.now_ms):
            break
    assert got == ["yes"]


def test_held_messages_and_locks_survive_a_crash(engine: Engine) -> None:
    for body in ("a0", "a1", "b0"):
        engine.send(body, key=body[0])
    (a0,) = engine.receive(count=1)
    assert bodies(engine.receive()) == ["b0"]
    engine.crash(flushed=True)
    assert engine.receive() == []
    engine.ack(a0)
    assert bodies(engine.receive()) == ["a1"]


def test_a_group_that_is_orderly_no_more_gets_what_was_held(engine: Engine) -> None:
    for body in ("a0", "a1"):
        engine.send(body, key="a")
    engine.receive(count=1)
    engine.receive()
    plain = engine.groups.alter("workers", orderly=False)
    assert bodies(engine.receive(plain)) == ["a1"]
    engine.now_ms += LEASE_MS
    assert sorted(bodies(engine.receive(plain))) == ["a0", "a1"]
