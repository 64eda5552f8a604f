"""Former faults: full disks, full property blocks, full windows. Each test has its symptom's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.engine import send
from tests.support.settling import acknowledge, change_invisible
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.layout import PROPERTIES_SIZE_MAX
from trovemq_store.events import event_log
from trovemq_store.topics.subscription_groups import SubscriptionGroup


@contextmanager
def full_disk(engine: Engine) -> Iterator[list[int]]:
    """Appends of the broker's own are refused meanwhile; their times."""
    refused: list[int] = []
    append = engine.writer.append

    def refuse(_records: Any, now_ms: EpochMs) -> Any:
        refused.append(now_ms)
        raise TroveError(errors.DISK_FULL)

    engine.writer.append = refuse  # type: ignore[method-assign, assignment]
    try:
        yield refused
    finally:
        engine.writer.append = append  # type: ignore[method-assign]


def send_full(engine: Engine, body: str) -> None:
    """A message whose properties leave no space for another one."""
    names = len("UNIQ_KEY") + len(body) + 2 + len("p") + 2
    send(
        engine.store,
        body.encode(),
        engine.now_ms,
        unique_key=body,
        properties={"p": "x" * (PROPERTIES_SIZE_MAX - names)},
    )


def test_a_message_with_full_properties_never_became_a_dead_letter() -> None:
    engine = Engine()
    engine.groups.create(SubscriptionGroup("workers", retry_max=0))
    send_full(engine, "large")
    engine.send("small")
    engine.receive()
    engine.now_ms += LEASE_MS
    assert engine.receive() == []
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"large", b"small"]
    assert engine.committed() == 2


def test_a_forged_origin_sent_a_dead_letter_to_another_topic() -> None:
    """A record of the native protocol may say it, and where its properties are full the copy kept it."""
    engine = Engine()
    engine.groups.create(SubscriptionGroup("workers", retry_max=0))
    forged = {"DLQ_ORIGIN_TOPIC": "victim", "DLQ_ORIGIN_MESSAGE_ID": "x", "RETRY_TOPIC": "victim"}
    taken = sum(len(name) + len(value) + 2 for name, value in {**forged, "UNIQ_KEY": "U", "p": ""}.items())
    for spare in (100, 0):
        filling = "x" * (PROPERTIES_SIZE_MAX - taken - spare)
        send(engine.store, b"forged", engine.now_ms, unique_key="U", properties={**forged, "p": filling})
    engine.receive()
    engine.now_ms += LEASE_MS
    assert engine.receive() == []
    letters = engine.messages("%DLQ%workers")
    assert [letter.properties.get("DLQ_ORIGIN_TOPIC") for letter in letters] == ["orders", "orders"]
    assert not any("victim" in letter.properties.values() for letter in letters)


def test_a_message_with_full_properties_made_every_clean_stop_fail() -> None:
    engine = Engine()
    send_full(engine, "large")
    engine.send("small")
    assert len(engine.receive()) == 2
    engine.export_to_rocketmq()
    assert engine.committed() == 2
    assert [one.body for one in engine.messages("%RETRY%workers_orders")] == [b"large"]
    assert [one.body for one in engine.messages("rmq_sys_wheel_timer")] == [b"small"]


def test_an_orderly_group_stood_still_after_a_dead_letter_was_refused() -> None:
    engine = Engine()
    group = engine.groups.create(SubscriptionGroup("workers", orderly=True, retry_max=0))
    engine.send("a0", key="a")
    engine.send("a1", key="a")
    assert bodies(engine.receive(group, count=1)) == ["a0"]
    engine.now_ms += LEASE_MS
    with full_disk(engine):
        assert engine.receive(group) == [], "a1 waits behind a0, which is not lost"
    assert bodies(engine.receive(group)) == ["a1"]
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"a0"]


def test_a_refused_dead_letter_held_up_every_other_message_that_came_back() -> None:
    engine = Engine()
    group = engine.groups.create(SubscriptionGroup("workers", retry_max=1))
    for body in ("old", "older"):
        engine.send(body)
    engine.receive(group)
    engine.now_ms += LEASE_MS
    engine.receive(group)
    engine.send("young")
    assert bodies(engine.receive(group)) == ["young"]
    engine.now_ms += LEASE_MS
    with full_disk(engine) as refused:
        again = engine.receive(group)
        assert (bodies(again), attempts(again)) == (["young"], [2])
        assert len(refused) == 1, "one try a receive"
    assert engine.receive(group) == []
    assert [letter.body for letter in engine.messages("%DLQ%workers")] == [b"old", b"older"]


def test_waiters_of_an_orderly_group_slept_on_when_its_full_window_moved() -> None:
    engine = Engine(replace(Engine().settings, ordered_window_max=4))
    group = SubscriptionGroup("workers", orderly=True)
    for name in "abcdef":
        engine.send(name, key=name)
    first, *_ = engine.receive(group)
    assert engine.receive(group) == []
    engine.ack(first)
    assert engine.delivery.next_visible_ms("workers", "orders") == 0
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    assert bodies(engine.receive(group)) == ["e"]


def test_events_piled_up_without_end_while_the_disk_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PENDING_MAX", 20)
    engine = Engine()
    engine.send("m")
    handle = engine.receive()[0].receipt_handle

    def change() -> str:
        return change_invisible(engine.delivery, "workers", "orders", handle, 1_000, engine.now_ms)

    with full_disk(engine):
        while engine.events.pending_count < 20:
            handle = change()
        with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
            change()
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        engine.receive()
    assert engine.events.pending_count == 20
    acknowledge(engine.delivery, "workers", "orders", handle, engine.now_ms)
    engine.events.flush(engine.now_ms)
    assert engine.receive() == []
