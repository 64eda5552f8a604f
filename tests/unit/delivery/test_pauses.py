"""The broker itself stands still (SIGSTOP, a laptop that sleeps): leases that could not be renewed last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.delivery import LEASE_MS, Engine, attempts, bodies
from tests.support.engine import NOW_MS
from tests.support.settling import acknowledge, change_invisible
from trovemq_broker.groups.delivery.lease_time import GRACE_MAX_MS, PAUSE_MIN_MS, LeaseTime
from trovemq_proto.errors import TroveError

PAUSE_MS = 12_000


def run(engine: Engine, ms: int) -> None:
    """The process works for this time, and ticks."""
    for _ in range(ms // 100):
        engine.now_ms += 100
        engine.delivery.lease_time.tick(engine.now_ms, engine.now_ms)


@pytest.fixture
def engine() -> Engine:
    """It has been at work for a while."""
    made = Engine()
    run(made, 1_000)
    return made


def test_after_a_pause_of_its_own_leases_had_ended_that_nobody_could_renew(engine: Engine) -> None:
    engine.send("m0")
    (one,) = engine.receive()
    run(engine, 1_000)
    engine.now_ms += PAUSE_MS
    assert engine.receive() == [], "the first receive after the pause gets no message in flight"
    assert engine.delivery.due_pairs(engine.now_ms) == []
    engine.ack(one)
    run(engine, 2 * LEASE_MS)
    assert engine.receive() == []


def test_a_lease_can_be_extended_after_a_pause(engine: Engine) -> None:
    engine.send("m0")
    (one,) = engine.receive()
    engine.now_ms += PAUSE_MS
    handle = change_invisible(
        engine.delivery, "workers", "orders", one.receipt_handle, LEASE_MS, engine.now_ms
    )
    run(engine, LEASE_MS - 100)
    assert engine.receive() == []
    acknowledge(engine.delivery, "workers", "orders", handle, engine.now_ms)


def test_what_nobody_renews_comes_back_when_as_long_again_has_passed(engine: Engine) -> None:
    engine.send("m0")
    (one,) = engine.receive()
    engine.now_ms += PAUSE_MS
    engine.delivery.lease_time.tick(engine.now_ms, engine.now_ms)
    run(engine, PAUSE_MS - 100)
    assert engine.receive() == []
    run(engine, 100)
    again = engine.receive()
    assert (bodies(again), attempts(again)) == (["m0"], [2])
    with pytest.raises(TroveError, match="replaced"):
        engine.ack(one)


def test_a_second_pause_before_everybody_could_renew_is_one_with_the_first(engine: Engine) -> None:
    engine.send("m0")
    (one,) = engine.receive()
    for _ in range(3):
        engine.now_ms += PAUSE_MS
        engine.delivery.lease_time.tick(engine.now_ms, engine.now_ms)
        run(engine, 1_000)
        assert engine.receive() == []
    engine.ack(one)
    assert engine.delivery.lease_time.pause_count == 3


def test_a_clock_set_forward_was_logged_as_a_pause_of_the_broker(engine: Engine) -> None:
    engine.send("m0")
    (one,) = engine.receive()
    boot_ms = engine.now_ms + 100
    engine.now_ms += 2 * 3_600_000
    engine.delivery.lease_time.tick(engine.now_ms, boot_ms)
    assert engine.delivery.lease_time.pause_count == 0
    assert engine.receive() == [], "its client can still acknowledge"
    engine.ack(one)


def test_who_drives_the_engine_without_ticks_has_no_pauses() -> None:
    engine = Engine()
    engine.send("m0")
    engine.receive()
    engine.now_ms += LEASE_MS
    assert bodies(engine.receive()) == ["m0"]


@given(st.lists(st.integers(-5_000, 200_000), max_size=30))
def test_lease_time_is_the_clock_but_for_a_bounded_while_after_a_pause(steps: list[int]) -> None:
    time, now, pause_until = LeaseTime(), NOW_MS, 0
    time.tick(now, now)
    for step in steps:
        now += step
        if step > PAUSE_MIN_MS:
            pause_until = now + min(step, GRACE_MAX_MS)
        at = time.at(now)
        assert at <= now
        assert at == now or now < pause_until
