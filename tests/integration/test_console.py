"""A real console of a real broker: as a process, and in a browser where there is one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

import trovemq
from tests.support.chromium import PROGRAM, chromium
from tests.support.fork_server import popen
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

BODY = b'{"order": 42, "note": "<script>document.title=1</script>"}'
GONE = "document.querySelector('.stale') !== null || document.body.innerText.includes('did not answer')"
STOP_SECONDS_MAX = 20
BACK_SECONDS_MAX = 30


@contextmanager
def running_console(
    server: str, *arguments: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, with the token where there is one; and the process."""
    command = [
        sys.executable,
        "-m",
        "trovemq_console.command",
        "--listen",
        "127.0.0.1:0",
        "--nameserver",
        server,
    ]
    process = popen(
        [*command, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        match = re.search(r"https?://\S+", line)
        assert match is not None, line + process.stderr.read()
        yield match[0].rstrip("/"), process
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)
        process.stderr.close()


def page(url: str, fields: dict[str, str] | None = None, cookie: str = "") -> str:
    data = None if fields is None else urlencode(fields).encode()
    try:
        reply = urlopen(Request(url, data, {"cookie": cookie} if cookie else {}), timeout=20)
    except HTTPError as error:
        reply = error
    with reply:
        text: str = reply.read().decode()
        return text


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=tmp_path_factory.mktemp("console") / "store") as broker:
        asyncio.run(fill(broker.address))
        yield broker


async def fill(server: str) -> None:
    async with trovemq.connect(server) as client:
        await client.admin.create_topic("orders", queue_count=1, message_type="MIXED")
        await client.admin.groups.create("billing")
        await client.send("orders", BODY, keys=["order-42"], tag="paid")
        await client.send("orders", b"later", keys=["late"], deliver_after=3_600)
        await client.admin.groups.reset("billing", "orders", to_min=True)


def test_every_page_of_a_real_cluster(broker: BrokerProcess) -> None:
    with running_console(broker.address, "--allow-changes") as (url, process):
        found = page(f"{url}/search?q=order-42")  # redirected to the message
        for words in ("not reached yet", "stored", "&#34;order&#34;: 42", "billing"):
            assert words in found
        for path, words in {
            "/": "127.0.0.1",
            "/topics": "1 of 1 topics",
            "/topic?name=orders": "order-42",
            "/groups": "billing",
            "/group?name=billing": "Committed",
            "/dead-letters": "No group has dead letters",
            "/dead-letters?group=billing": "no dead letters",
            "/delayed": "late",
            "/delayed?topic=orders&key=late": "Recall",
            "/transactions": "None is in doubt",
            "/storage": "Segments</dt><dd>1<",
            "/access": "AUTHENTICATION_DISABLED",
        }.items():
            assert words in page(f"{url}{path}"), path
        assert json.loads(page(f"{url}/readyz"))["ready"] is True
        broker_gone(broker, url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0


def broker_gone(broker: BrokerProcess, url: str) -> None:
    """The page says so, and is right again when the broker is back."""
    broker.stop()
    try:
        assert re.search("did not answer|BROKER_UNREACHABLE", page(f"{url}/"))
        assert "BROKER_UNREACHABLE" in json.loads(page(f"{url}/readyz"))["reasons"][0]
    finally:
        broker.start()
    give_up = time.monotonic() + BACK_SECONDS_MAX  # the client waits between its tries
    while "Live tail" not in page(f"{url}/topic?name=orders"):
        assert time.monotonic() < give_up
        time.sleep(0.2)


def test_whoever_has_no_token_is_asked_for_it(broker: BrokerProcess) -> None:
    with running_console(broker.address, TROVEMQ_CONSOLE_TOKEN="secret") as (url, _):
        assert url.endswith("/sign-in?token=secret")
        assert "Sign in" in page(url.partition("/sign-in")[0])


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
def test_a_person_at_a_browser(broker: BrokerProcess, tmp_path: Path) -> None:
    """Hostile bodies are text; keys, theme, refreshing and the live tail work; nothing breaks the policy."""
    with running_console(broker.address, "--allow-changes") as (url, _), chromium(tmp_path) as browser:
        browser.go(f"{url}/")
        browser.press("/")
        assert browser.run("document.activeElement.id") == "search"
        browser.call("Input.insertText", text="order-42")
        browser.press("Enter")
        browser.arrive("Message ")
        assert "<script>document.title=1</script>" in browser.run("document.querySelector('#body').innerText")
        browser.press("t")
        assert browser.run("document.documentElement.dataset.theme") in ("dark", "light")
        browser.go(f"{url}/topics")
        browser.press("ArrowDown")
        browser.press("Enter")
        browser.arrive("orders")
        assert browser.run("document.documentElement.dataset.theme") in ("dark", "light")
        browser.run("document.getElementById('tail').click()")
        asyncio.run(send(broker.address))
        browser.until("document.querySelectorAll('#tailed tr.fresh').length == 2")
        browser.run("document.querySelector('.act').open = true")
        browser.run("document.querySelector('.act textarea').value = '<b>typed</b>'")
        browser.run("document.querySelector('.act form').requestSubmit()")
        browser.arrive("Send a test message")
        assert "<b>typed</b>" in browser.run("document.querySelector('.ask').innerText")
        browser.run("document.querySelector('button.danger').click()")
        browser.until("document.querySelector('.notice.good') !== null")
        assert browser.faults == []
        browser.go(f"{url}/")
        look_again = "document.dispatchEvent(new Event('visibilitychange'))"
        broker.stop()
        browser.until(f"{look_again}, {GONE}")
        assert "Brokers" in browser.run("document.body.innerText")
        broker.start()
        browser.until(f"{look_again}, !({GONE})")


async def send(server: str) -> None:
    async with trovemq.connect(server) as client:
        for number in range(2):
            await client.send("orders", b"fresh", keys=[f"new-{number}"])
