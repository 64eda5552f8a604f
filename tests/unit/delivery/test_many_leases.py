"""Leases beyond counting: those that are over are forgotten, and nothing of a client that has something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.delivery import LEASE_MS, Engine, bodies
from trovemq_broker.groups.delivery.leases import Lease, LeaseHeap
from trovemq_proto.positions import EpochMs


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, count: int) -> None:
    for number in range(count):
        engine.send(f"m{number}")


def test_leases_that_ended_or_moved_do_not_fill_the_memory() -> None:
    heap: LeaseHeap[str] = LeaseHeap()
    lasting = Lease(0, 1, 0, 1, EpochMs(50), EpochMs(0), "c", renewed=False)
    lasting.live = 1
    heap.push(lasting, "lasting")
    moving = Lease(1, 1, 1, 2, EpochMs(0), EpochMs(0), "c", renewed=True)
    moving.live = 1
    for until_ms in range(100_000):
        moving.until_ms = EpochMs(until_ms)
        heap.push(moving, "moving")
    assert len(heap) < 10_000
    assert heap.earliest_ms() == 50
    assert [owner for _, owner in heap.pop_until(EpochMs(200_000), 10)] == ["lasting", "moving"]


def test_expired_renewed_leases_and_idle_clients_are_forgotten(engine: Engine) -> None:
    for number in range(400):
        engine.send(f"m{number}")
        engine.ack(*engine.receive(renewed=True, client_id=f"client {number % 300}"))
    (kept,) = [engine.send("kept")]
    engine.receive(renewed=True, client_id="busy")
    engine.delivery.renew(engine.now_ms, lambda _: True)
    clients = engine.delivery.context.renewals._clients
    assert list(clients) == ["busy"]
    for number in range(200):
        engine.send(f"n{number}")
        engine.ack(*engine.receive(renewed=True, client_id="busy"))
    assert len(clients["busy"]) <= 65
    assert engine.delivery.held_by("busy") == 1
    engine.delivery.release_client("busy", engine.now_ms)
    engine.now_ms += LEASE_MS
    assert [one.queue_offset for one in engine.receive()] == [kept]
    assert not engine.delivery.is_releasing


def test_a_client_that_leaves_frees_only_what_it_still_has() -> None:
    engine = Engine(replace(Engine().settings, released_after_ms=1))
    sent(engine, 2)
    first = engine.receive(count=1, renewed=True)
    engine.receive(count=1, renewed=True)
    engine.ack(*first)
    engine.delivery.release_client("client", engine.now_ms)
    engine.now_ms += 1
    assert bodies(engine.receive()) == ["m1"]
