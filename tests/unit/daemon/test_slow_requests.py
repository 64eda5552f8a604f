"""Slow requests in the log: who, how long and what for; never too many, and nothing of their content."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tests.support.call_forms import guarded as by_guard
from tests.support.logs import logged
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.slow_requests import REFUSAL, SlowRequests, add_wait, measure_waits

NODE = {"cluster": "c", "node_type": "broker", "node_id": "a"}
PEER = "ipv6:%5B::1%5D:5000"
CANARY = "canary-in-no-log"


class Context:
    def peer(self) -> str:
        return PEER

    def add_done_callback(self, _callback: Any) -> None:
        """The call never ends."""


def guarded(behaviour: Any, limit_ms: float) -> tuple[Any, RpcMetrics]:
    metrics = RpcMetrics(CollectorRegistry(), **NODE)
    metrics.slow.limit_ms = limit_ms
    handler = grpc.unary_unary_rpc_method_handler(behaviour, request_deserializer=lambda request: request)
    return by_guard(HandlerGuard(metrics), "Ask", handler).unary_unary, metrics


async def answer(_request: Any, _context: Any) -> bytes:
    return CANARY.encode()


def events(text: str) -> list[str]:
    return [line for line in text.splitlines() if "request.slow" in line]


def test_a_slow_request_is_one_event_without_its_content() -> None:
    ask, metrics = guarded(answer, limit_ms=0.0)
    with logged() as log:
        asyncio.run(ask(SimpleNamespace(body=CANARY), Context()))
    (line,) = events(log.getvalue())
    assert "method=Ask" in line
    assert "response=OK" in line
    assert "[::1]:5000" in line
    assert re.search(r"elapsed_ms=\d+\.\d", line)
    assert CANARY not in log.getvalue()
    assert metrics.slow.counts == {"Ask": 1}
    assert "trovemq_slow_requests" in [family.name for family in metrics.collect()]


def test_a_request_below_the_limit_is_none() -> None:
    ask, metrics = guarded(answer, limit_ms=60_000)
    with logged() as log:
        asyncio.run(ask(SimpleNamespace(), Context()))
    assert events(log.getvalue()) == []
    assert not metrics.slow.counts


def test_a_request_that_waits_for_messages_is_not_slow() -> None:
    ask, metrics = guarded(answer, limit_ms=0.0)
    asyncio.run(ask(SimpleNamespace(wait_ms=20_000), Context()))
    assert not metrics.slow.counts


@pytest.mark.parametrize(("delayed_ms", "slow"), [(60_000.0, False), (0.0, True)])
def test_each_refusal_that_was_delayed_was_logged_as_slow(delayed_ms: float, slow: bool) -> None:
    async def refuse(_request: Any, _context: Any) -> bytes:
        add_wait(REFUSAL, delayed_ms)
        return b""

    ask, metrics = guarded(refuse, limit_ms=0.0)
    asyncio.run(ask(SimpleNamespace(), Context()))
    assert metrics.slow.counts == ({"Ask": 1} if slow else {})


def test_the_event_says_what_it_waited_for() -> None:
    async def wait(_request: Any, _context: Any) -> bytes:
        add_wait("quota", 700.0)
        add_wait("quota", 50.04)
        return b""

    ask, _metrics = guarded(wait, limit_ms=0.0)
    with logged() as log:
        asyncio.run(ask(SimpleNamespace(), Context()))
    assert "'quota': 750.0" in log.getvalue()


def test_waits_of_two_requests_at_once_are_not_mixed() -> None:
    async def one(name: str) -> dict[str, float]:
        waits: dict[str, float] = {}
        measure_waits(waits)
        await asyncio.sleep(0)
        add_wait(name, 1.0)
        return waits

    async def both() -> list[dict[str, float]]:
        return list(await asyncio.gather(one("quota"), one("reply_space")))

    assert asyncio.run(both()) == [{"quota": 1.0}, {"reply_space": 1.0}]


def test_an_append_is_answered_after_its_sync() -> None:
    slow = SlowRequests()
    slow.set_limit(1, BrokerSettings(flush_mode="sync").waits_of_requests())
    with logged() as log:
        slow.note("Append", "OK", 1_500.0, PEER)
        slow.note("Search", "OK", 1_500.0, PEER)
    assert ["waits_for=sync" in line for line in events(log.getvalue())] == [True, False]
    assert BrokerSettings(flush_mode="async").waits_of_requests() == {}


def test_frames_of_a_stream_are_judged_where_the_time_is_the_brokers() -> None:
    traffic = Traffic()
    traffic.slow.limit_ms = 0.0
    with logged() as log:
        traffic.answered("Append", "OK", 0.0, peer=PEER)
        traffic.answered("Fetch", "OK", 0.0, peer=PEER, waited=True)
        traffic.answered("Transact", "OK", 0.0)
    assert traffic.slow.counts == {"Append": 1}
    assert len(events(log.getvalue())) == 1


def test_many_slow_requests_do_not_fill_the_log() -> None:
    slow = SlowRequests()
    with logged() as log:
        for _ in range(1_000):
            slow.note("Send", "OK", 2.0, PEER)
    assert 0 < len(events(log.getvalue())) < 100
    assert slow.counts == {"Send": 1_000}


@pytest.mark.parametrize("peer", ["", "unix:", "ipv4:10.0.0.7:5000", "nonsense"])
def test_any_name_of_a_peer_is_logged(peer: str) -> None:
    with logged() as log:
        SlowRequests().note("Send", "OK", 2.0, peer)
    assert len(events(log.getvalue())) == 1


def test_zero_switches_it_off() -> None:
    slow = SlowRequests()
    slow.set_limit(0)
    assert slow.limit_ms > 1e300
