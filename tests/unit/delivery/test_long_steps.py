"""However many messages came back at once, or a client had: one call of the engine does a bounded part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine
from tests.support.engine import append, record
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery import group_topic
from trovemq_broker.groups.delivery.delivery import RENEWED_STEP
from trovemq_store.topics.subscription_groups import SubscriptionGroup

COUNT = 3_000
STORE = replace(ROOMY, commit_log_file_size=4 << 20, consume_queue_file_size=20 * 4_096)


def engine_of(count: int = COUNT, *, key: str = "", size: int = 1, **group: object) -> Engine:
    """Its group `workers` has had all these messages, and their leases have ended."""
    engine = Engine(
        ConsumerSettings(new_group_start="begin", receive_count_max=count, ordered_window_max=count),
        store_settings=STORE,
    )
    engine.groups.create(SubscriptionGroup("workers", **group))  # type: ignore[arg-type]
    properties = {"__SHARDINGKEY": key} if key else {}
    for begin in range(0, count, 100):
        numbers = range(begin, min(begin + 100, count))
        append(
            engine.store,
            *(record(bytes(size), unique_key=f"U{number}", properties=properties) for number in numbers),
        )
        engine.store.dispatch()
    while engine.receive(engine.groups.require("workers"), count=count):
        pass
    assert engine.delivery.in_flight_count == count
    engine.now_ms += LEASE_MS
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
def test_one_receive_made_dead_letters_of_thousands_of_messages(orderly: bool) -> None:
    """Eighty thousand in one step, where consumers had died on each message as often as allowed."""
    engine = engine_of(2_000 if orderly else COUNT, key="a" if orderly else "", retry_max=0, orderly=orderly)
    group = engine.groups.require("workers")
    count = engine.delivery.in_flight_count
    receives = 0
    while engine.delivery.in_flight_count:
        before = engine.delivery.dead_letter_count
        assert engine.receive(group) == []
        assert 0 < engine.delivery.dead_letter_count - before <= 128
        receives += 1
        if engine.delivery.in_flight_count:
            assert engine.delivery.next_visible_ms("workers", "orders") == 0, "whoever waits looks again"
    assert engine.delivery.dead_letter_count == count
    assert receives >= count // 128


def test_one_receive_copied_megabytes_of_dead_letters() -> None:
    engine = engine_of(500, size=8_000, retry_max=0)
    assert engine.receive(engine.groups.require("workers")) == []
    assert engine.delivery.dead_letter_count <= 2_048 // (16 + 8_000 // 4_096)


def test_one_receive_dropped_all_that_its_new_filter_does_not_take() -> None:
    engine = engine_of()
    receives = 0
    while engine.delivery.in_flight_count:
        before = engine.delivery.in_flight_count
        assert engine.receive(filter=parse_filter("tag", "other")) == []
        assert 0 < before - engine.delivery.in_flight_count <= 1_024
        receives += 1
    assert receives == 3


def leased(count: int) -> Engine:
    """A lease for each message, renewed."""
    engine = Engine(store_settings=STORE)
    for begin in range(0, count, 100):
        append(engine.store, *(record(b"x", unique_key=f"U{begin + number}") for number in range(100)))
        engine.store.dispatch()
    for _ in range(count):
        engine.receive(count=1, renewed=True, client_id="busy")
    assert engine.delivery.in_flight_count == count
    return engine


def test_renewing_the_leases_of_a_client_with_many_stopped_everybody() -> None:
    engine = leased(COUNT)
    engine.events.flush(engine.now_ms)
    engine.now_ms += 55_000
    calls, written = 0, 0
    while True:
        more = engine.delivery.renew(engine.now_ms, lambda _client: True)
        assert 0 < engine.events.pending_count <= RENEWED_STEP
        written += engine.events.pending_count
        engine.events.flush(engine.now_ms)
        calls += 1
        if not more:
            break
    assert (calls, written) == (3, COUNT)


def test_the_end_of_a_client_with_many_leases_stopped_everybody() -> None:
    engine = leased(COUNT)
    engine.events.flush(engine.now_ms)
    engine.delivery.release_client("busy", engine.now_ms)
    assert engine.events.pending_count == RENEWED_STEP
    assert engine.delivery.is_releasing
    gone_ms, engine.now_ms = engine.now_ms, engine.now_ms + 100
    while engine.delivery.renew(engine.now_ms, lambda _client: True):
        pass
    engine.now_ms = gone_ms + engine.settings.released_after_ms
    again = 0
    while found := engine.receive(count=32):
        again += len(found)
    assert again == COUNT, "all of them as long after its end"


def test_a_lease_shorter_than_its_renewal_is_renewed_once_a_turn() -> None:
    engine = Engine(ConsumerSettings(new_group_start="begin", renewed_lease_ms=1_008))
    for number in range(3):
        engine.send(f"m{number}")
        engine.receive(count=1, renewed=True, client_id="c")
    engine.now_ms += 900
    assert not engine.delivery.renew(engine.now_ms, lambda _client: True)


def test_leases_that_end_together_were_all_ended_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_topic, "ENDED_STEP", 100)
    engine = Engine(store_settings=STORE)
    for number in range(250):
        engine.send(f"m{number}")
        engine.receive(count=1)
    engine.now_ms += LEASE_MS
    assert engine.delivery.due_pairs(engine.now_ms) == [("workers", "orders")]
    (state,) = engine.delivery.group_topics.states()
    assert len(state.ready) == 100
    assert engine.delivery.next_due_ms() is not None
    assert len(engine.receive(count=250)) == 32
    assert engine.delivery.next_visible_ms("workers", "orders") is not None
    total = 32
    while found := engine.receive():
        total += len(found)
    assert total == 250
