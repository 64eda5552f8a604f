"""Why a message is a dead letter stands in the letter, as far as it has space."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.delivery import LEASE_MS, Engine
from tests.support.engine import send
from tests.support.settling import change_invisible
from trovemq_broker.groups.delivery.lease_resolvers import Handles
from trovemq_broker.groups.delivery.settlements import DeadLettered
from trovemq_proto.records.dead_letter_reason import TIMES_MAX, DeadLetterReason, reason_of
from trovemq_proto.records.layout import PROPERTIES_SIZE_MAX
from trovemq_store.topics.subscription_groups import SubscriptionGroup

FAILED = DeadLetterReason("exception", "shop.Declined", "no card " * 100)


def engine_of(retry_max: int) -> Engine:
    engine = Engine()
    engine.groups.create(SubscriptionGroup("workers", retry_max=retry_max))
    return engine


def bury(engine: Engine, reason: DeadLetterReason = FAILED) -> None:
    """Receives the messages, and makes them dead letters."""
    for one in engine.receive(engine.groups.require("workers")):
        named = Handles((one.receipt_handle.encode(),))
        engine.delivery.settle(
            "workers", "orders", named, DeadLettered(reason=reason), engine.now_ms
        ).require()


def letters(engine: Engine) -> list[DeadLetterReason]:
    return [reason_of(one.properties) for one in engine.messages("%DLQ%workers")]


def test_an_exception_stands_in_the_letter_and_is_counted() -> None:
    engine = engine_of(16)
    engine.send("m")
    bury(engine)
    (reason,) = letters(engine)
    assert (reason.kind, reason.error, reason.times) == ("exception", "shop.Declined", (engine.now_ms,))
    assert reason.text.startswith("no card no card")
    assert reason.text.endswith("…")
    assert engine.delivery.dead_letters_by_reason["exception"] == 1


@pytest.mark.parametrize("space", range(0, 700, 33))
def test_a_letter_has_as_much_of_its_reason_as_it_has_space_for(space: int) -> None:
    engine = engine_of(16)
    taken = sum(len(name) + len(value) + 2 for name, value in {"UNIQ_KEY": "U", "p": ""}.items())
    filling = {"p": "x" * (PROPERTIES_SIZE_MAX - taken - space)}
    send(engine.store, b"full", engine.now_ms, unique_key="U", properties=filling)
    bury(engine)
    assert [one.body for one in engine.messages("%DLQ%workers")] == [b"full"], "never refused for its reason"
    (reason,) = letters(engine)
    assert FAILED.bounded().text.startswith(reason.text.rstrip("…"))
    if space > 300:
        assert reason.error == "shop.Declined"


def test_a_reason_that_the_sender_wrote_does_not_count() -> None:
    engine = engine_of(16)
    forged: Mapping[str, str] = {"DLQ_ORIGIN_REASON": "explicit", "DLQ_ORIGIN_TEXT": "forged", "a": "b"}
    send(engine.store, b"m", engine.now_ms, unique_key="U", properties=forged)
    bury(engine, DeadLetterReason("returned"))
    assert letters(engine) == [DeadLetterReason("returned", times=(engine.now_ms,))]


@pytest.mark.parametrize("how", ["runs", "killed", "restarted"])
def test_each_delivery_has_its_time(how: str) -> None:
    engine = engine_of(2)
    engine.send("m")
    times = []
    for _ in range(3):
        times.append(engine.now_ms)
        assert len(engine.receive(engine.groups.require("workers"))) == 1
        if how == "killed":
            engine.crash(flushed=True)
        if how == "restarted":
            engine.restart()
        engine.now_ms += LEASE_MS
    assert engine.receive(engine.groups.require("workers")) == []
    assert letters(engine) == [DeadLetterReason("expired", times=tuple(times))]


def test_a_delivery_that_counts_as_no_attempt_has_no_time() -> None:
    engine = engine_of(0)
    engine.send("m")
    (one,) = engine.receive(engine.groups.require("workers"))
    change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, 0, engine.now_ms, suspend=True)
    engine.now_ms += 5
    bury(engine)
    (reason,) = letters(engine)
    assert reason.times == (engine.now_ms,)


def test_only_the_latest_times_are_kept() -> None:
    engine = engine_of(40)
    engine.send("m")
    for _ in range(41):
        engine.receive(engine.groups.require("workers"))
        engine.now_ms += LEASE_MS
    engine.receive(engine.groups.require("workers"))
    (reason,) = letters(engine)
    assert len(reason.times) == TIMES_MAX
    assert reason.times[-1] == engine.now_ms - LEASE_MS


@pytest.mark.parametrize("killed", [False, True])
def test_a_return_of_the_last_attempt_is_no_expiry(killed: bool) -> None:
    engine = engine_of(0)
    engine.send("m")
    (one,) = engine.receive(engine.groups.require("workers"))
    change_invisible(engine.delivery, "workers", "orders", one.receipt_handle, 5_000, engine.now_ms)
    if killed:
        engine.crash(flushed=True)
    engine.now_ms += 5_000
    engine.delivery.due_pairs(engine.now_ms)
    engine.delivery.make_dead_letters(engine.now_ms)
    engine.receive(engine.groups.require("workers"))
    assert [reason.kind for reason in letters(engine)] == ["returned"]
