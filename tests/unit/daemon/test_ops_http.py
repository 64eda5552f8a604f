"""Operations HTTP: metrics, health, readiness, in the test's own loop."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from prometheus_client import Counter

from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import AddressInUseError
from trovemq_daemon.metrics import new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def served(readiness: Readiness) -> AsyncIterator[tuple[httpx.AsyncClient, Address]]:
    registry = new_registry("1.2.3")
    Counter("some_messages", "For the test.", registry=registry).inc(3)
    http = OpsHttp(registry, readiness)
    address = await http.start(Address("127.0.0.1", 0))
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            yield client, address
    finally:
        await http.stop()


async def test_readiness_names_what_is_wrong() -> None:
    detail = "index is behind"
    readiness = Readiness()
    readiness.add("store", lambda: "")
    readiness.add("index", lambda: detail)
    async with served(readiness) as (client, _):
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["index"] == {"ok": False, "detail": "index is behind"}
        assert answer.json()["checks"]["store"] == {"ok": True, "detail": ""}
        detail = ""
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405


async def test_metrics_have_no_created_series() -> None:
    async with served(Readiness()) as (client, _):
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "some_messages_total 3.0" in answer.text
        assert 'trovemq_build_info{version="1.2.3"} 1.0' in answer.text
        assert "_created" not in answer.text


async def test_signal_handlers_stay_as_they_are() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with served(Readiness()) as (client, _):
        await client.get("/healthz")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_an_address_in_use_is_said_at_once() -> None:
    async with served(Readiness()) as (_, address):
        with pytest.raises(AddressInUseError, match=str(address)):
            await OpsHttp(new_registry("x"), Readiness()).start(address)


async def test_stopping_what_never_started_is_not_an_error() -> None:
    await OpsHttp(new_registry("x"), Readiness()).stop()
