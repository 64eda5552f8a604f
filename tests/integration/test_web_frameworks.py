"""Misuse of docs/how-to/fastapi-and-django.md: each program ends with one error, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import trovemq
from tests.integration.test_how_to import ADDRESS, PAGES, blocks
from trovemq.testing import BrokerProcess, free_port

pytestmark = pytest.mark.slow

WAIT_SECONDS = 240
TIMES = "call_timeout_ms=2000&connect_timeout_ms=2000"
(PAGE,) = (page for page in PAGES if page.stem == "fastapi-and-django")
FASTAPI, DJANGO = (block.text for block in blocks(PAGE) if block.kind == "python")
WRONG = [
    ("trovemq://{broker}?colour=red", "a URL has no option 'colour'; it may have"),
    ("{nothing}", "BROKER_UNREACHABLE"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


def application(address: str) -> dict[str, Any]:
    """The names of the page's application for FastAPI, without the request that follows it."""
    names: dict[str, Any] = {}
    program = FASTAPI.partition("\nimport httpx")[0].replace(ADDRESS, address)
    exec(compile(program, "fastapi", "exec", dont_inherit=True), names)
    return names


async def sign_up(names: dict[str, Any]) -> httpx.Response:
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as browser:
        return await browser.post("/sign-ups", params={"address": "ann@example.org"}, timeout=WAIT_SECONDS)


@pytest.mark.asyncio
@pytest.mark.parametrize(("address", "said"), WRONG, ids=["wrong URL", "no broker"])
async def test_fastapi_does_not_start_and_says_why(address: str, said: str, broker: BrokerProcess) -> None:
    names = application(address.format(broker=broker.address, nothing=f"127.0.0.1:{free_port()}"))
    with pytest.raises(trovemq.TroveError, match=said):
        async with names["lifespan"](names["app"]):
            raise AssertionError


@pytest.mark.asyncio
async def test_a_request_for_a_missing_topic_says_how_to_create_it(broker: BrokerProcess) -> None:
    names = application(broker.address)
    async with names["lifespan"](names["app"]):
        await names["app"].state.client.admin.delete_topic("sign-ups")
        answer = await sign_up(names)
    assert answer.status_code == 500
    assert "trovemq topic create sign-ups" in answer.json()["detail"]


@pytest.mark.asyncio
async def test_a_broker_that_is_away_is_a_503_for_that_time(broker: BrokerProcess) -> None:
    names = application(f"trovemq://{broker.address}?{TIMES}")
    async with names["lifespan"](names["app"]):
        stored = await sign_up(names)
        broker.kill()
        away = await sign_up(names)
        broker.start()
        again = await sign_up(names)
        found = await names["app"].state.client.query("sign-ups", "ann@example.org")
    assert (stored.status_code, away.status_code, again.status_code) == (202, 503, 202)
    assert "BROKER_UNREACHABLE" in away.json()["detail"]
    assert {one.message_id for one in found.messages} >= {stored.json()["id"], again.json()["id"]}


@pytest.mark.parametrize(
    ("address", "said"),
    [*WRONG, ("{broker}", "trovemq topic create nothing")],
    ids=["wrong URL", "no broker", "missing topic"],
)
def test_a_view_of_django_names_the_fault(address: str, said: str, broker: BrokerProcess) -> None:
    place = address.format(broker=broker.address, nothing=f"127.0.0.1:{free_port()}")
    program = DJANGO.replace(ADDRESS, place).replace('"sign-ups"', '"nothing"')
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in ran.stderr.splitlines()[-1]
