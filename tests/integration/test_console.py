"""A real console of a real broker: as a process, and in a browser where there is one."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

import trovemq
from tests.integration.axe import axe_script, barriers
from tests.support.chromium import Page, chromium
from tests.support.console_cluster import confirmed, values_named
from tests.support.console_process import STOP_SECONDS_MAX, running_console
from trovemq.testing import BrokerProcess
from trovemq_proto.authentication.credentials import parse_credentials

pytestmark = pytest.mark.slow

BODY = b'{"order": 42, "note": "<script>document.title=1</script>"}'
SEND = "document.querySelector('form[action=\"/acts/send\"]')"
GONE = "document.querySelector('.stale') !== null || document.body.innerText.includes('did not answer')"
BACK_SECONDS_MAX = 240
WIDEST_CELL = "Math.max(0, ...[...document.querySelectorAll('.rows td')].map(one => one.offsetWidth))"
CELL_WIDTH_MAX = 460


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
    """Tests add topics and messages to it."""
    with filled(tmp_path_factory.mktemp("console")) as broker:
        yield broker


@contextmanager
def filled(directory: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(store=directory / "store") as broker:
        asyncio.run(fill(broker.address))
        yield broker


async def fill(server: str) -> None:
    async with trovemq.connect(server) as client:
        await client.admin.create_topic("orders", queue_count=1, message_type="MIXED")
        await client.admin.groups.create("billing")
        await client.send("orders", BODY, keys=["order-42"], tag="paid")
        await client.send("orders", b"later", keys=["late"], deliver_after=3_600)
        await client.admin.groups.reset("billing", "orders", to_min=True)


def test_every_page_of_a_real_cluster(tmp_path: Path) -> None:
    with (
        filled(tmp_path) as broker,
        running_console(broker.address, "--allow-changes") as (url, process),
    ):
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
            "/replicas": "No broker is a node of a replica group",
            "/configuration": "share no configuration",
            "/access": "AUTHENTICATION_DISABLED",
        }.items():
            assert words in page(f"{url}{path}"), path
        assert json.loads(page(f"{url}/readyz"))["ready"] is True
        broker_gone(broker, url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0


def test_changes_are_made_at_a_real_broker(tmp_path: Path) -> None:
    """Of topics, groups, users and rules, as `admin` of a broker that asks who calls."""
    settings = [
        word for name in ("authentication", "authorization") for word in ("--set", f"{name}_enable=true")
    ]
    with BrokerProcess(store=tmp_path / "store", arguments=settings) as broker:
        admin = parse_credentials((tmp_path / "store.admin-credentials").read_text(encoding="utf-8"))
        keys = {"TROVEMQ_ACCESS_KEY": admin.access_key, "TROVEMQ_SECRET_KEY": admin.secret_key}
        with running_console(broker.address, "--allow-changes", TROVEMQ_CONSOLE_TOKEN="t", **keys) as (
            sign_in,
            _,
        ):
            url, opener = sign_in.partition("/sign-in")[0], build_opener(HTTPCookieProcessor())
            opener.open(sign_in).close()

            def read(path: str, fields: dict[str, str] | None = None) -> str:
                data = None if fields is None else urlencode(fields).encode()
                with opener.open(url + path, data, timeout=20) as reply:
                    text: str = reply.read().decode()
                    return text

            (token, *_) = values_named(read("/topics"), "token")

            def act(name: str, **fields: str) -> str:
                question = read(f"/acts/{name}", {"token": token, **fields})
                assert "trovemq " in question
                return read(f"/acts/{name}", confirmed(question))

            assert "bills is there on" in act("create-topic", topic="bills", queues="2", type="FIFO")
            act("alter-topic", topic="bills", queues="4", deduplicate="1h")
            assert "<dt>deduplicate</dt><dd>1h</dd>" in read("/topic?name=bills")
            act("create-group", group="payers", order="message group", retry_max="3")
            act("alter-group", group="payers", backoff="1s 1m")
            assert "by message group" in (shown := read("/group?name=payers"))
            assert "1 s, 1 min" in shown
            assert "secret_key" in act("create-user", user="alice")
            act("add-rule", user="alice", decision="allow", actions="Pub", resource="Topic:bills")
            act("disable-user", user="alice")
            assert "disabled" in (shown := read("/access"))
            assert "Topic:bills" in shown
            act("delete-rule", number="1", broker=broker.name)
            act("delete-user", user="alice")
            assert "Topic:bills" not in (shown := read("/access"))
            assert "alice" not in shown
            act("delete-group", group="payers")
            act("delete-topic", topic="bills")
            assert "bills" not in read("/topics")
            assert "payers" not in read("/groups")


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


PAGES = (
    "/",
    "/topics",
    "/topic?name=orders",
    "/groups",
    "/group?name=billing",
    "/dead-letters",
    "/delayed",
    "/storage",
    "/replicas",
    "/configuration",
    "/access",
)
DARK = ("/", "/topic?name=orders", "/group?name=billing", "/search?q=order-42")


@pytest.fixture(scope="module")
def shown(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Page]]:
    """A console's address, and a browser."""
    profile = tmp_path_factory.mktemp("profile")
    with running_console(broker.address, "--allow-changes") as (url, _), chromium(profile) as browser:
        yield url, browser


def test_no_page_has_a_barrier_that_axe_knows(shown: tuple[str, Page]) -> None:
    """Light and dark, with every form open, the question of an act, and a page with an error."""
    url, browser = shown
    script = axe_script()
    if script is None:
        pytest.skip("axe-core cannot be had from npm")
    open_all = "document.querySelectorAll('details').forEach(one => { one.open = true })"
    for path in (*PAGES, "/search?q=order-42", "/message?id=none", "/transactions"):
        browser.go(url + path)
        browser.run(open_all)
        assert barriers(browser, script) == [], path
    browser.go(f"{url}/topic?name=orders")
    browser.run("document.querySelector('form[action=\"/acts/delete-topic\"]').requestSubmit()")
    browser.arrive("Delete a topic")
    assert barriers(browser, script) == []
    for path in DARK:
        browser.go(url + path)
        browser.run("document.documentElement.dataset.theme = 'dark'")
        browser.run(open_all)
        assert barriers(browser, script) == [], path
    browser.run("document.querySelector('main').innerHTML = '<img src=/static/icon.svg><input>'")
    assert {found.split()[0] for found in barriers(browser, script)} >= {"image-alt", "label"}  # it looks


def test_long_texts_do_not_widen_a_page(broker: BrokerProcess, shown: tuple[str, Page]) -> None:
    """Names, keys, properties and texts that were typed: a page is as wide as the browser all the
    same, and in a table they do not push the other columns out."""
    url, browser = shown
    text, topic, group = "k" * 300, "t" * 120, "g" * 120
    asyncio.run(send_long(broker.address, text, topic, group))
    paths = (
        "/topics",
        "/groups",
        f"/search?q={text}",  # the message
        f"/search?q=x{text}",
        f"/topics?filter={text}",
        f"/topic?name={topic}",
        f"/topic?name={topic}&at={text}",
        f"/group?name={group}",
        f"/topic?name={text}",
    )
    try:
        for width in (1280, 390):
            browser.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=800,
                deviceScaleFactor=1,
                mobile=False,
            )
            for path in paths:
                browser.go(url + path)
                assert browser.run("document.documentElement.scrollWidth") == width, path
                assert browser.run(WIDEST_CELL) < CELL_WIDTH_MAX, path
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


async def send_long(server: str, text: str, topic: str, group: str) -> None:
    async with trovemq.connect(server) as client:
        await client.admin.create_topic(topic)
        await client.send(topic, text.encode(), keys=[text], tag=text, properties={text: text})
        await client.admin.groups.create(group)
        await client.admin.commit_offset(group, topic, 0, 0)


def test_a_narrow_page_shows_where_one_is_and_no_table_without_rows(shown: tuple[str, Page]) -> None:
    """The mark of the page is within the bar, the buttons of the head are in one line."""
    url, browser = shown
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False
    )
    try:
        browser.go(f"{url}/access")
        browser.until("document.querySelector('[aria-current=page]').getBoundingClientRect().right <= 390")
        tops = "['.brand', '#theme'].map(one => document.querySelector(one).getBoundingClientRect())"
        assert browser.run(f"(([a, b]) => a.top < b.bottom && b.top < a.bottom)({tops})")
        browser.go(f"{url}/topic?name=orders&queue=0&offset=99")
        assert browser.run("document.querySelector('#tailed tbody tr') === null")
        assert browser.run("document.querySelector('#tailed').offsetHeight") == 0
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


WHY = "document.querySelector('td.why')"
REMARK = """(() => {
  const box = document.querySelector("#brokers .scroll");
  const said = `<div class="said">${"a remark ".repeat(20)}</div>`;
  const row = `<tr class="remark"><td colspan="12">${said}</td></tr>`;
  box.querySelector("tbody").insertAdjacentHTML("beforeend", row);
  dispatchEvent(new Event("resize"));
  box.scrollLeft = 300;
  const { left, right } = box.querySelector(".said").getBoundingClientRect();
  const hint = getComputedStyle(box, "::before");
  const columns = getComputedStyle(box).gridTemplateColumns;
  const visible = left >= 0 && right <= innerWidth;
  const { width } = box.querySelector("table").getBoundingClientRect();
  return [box.scrollLeft, visible, hint.position, columns, width];
})()"""


def test_a_remark_scrolled_away_with_its_table(shown: tuple[str, Page]) -> None:
    """On a narrow screen it stays, as does the line that says that the table is wider."""
    url, browser = shown
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False
    )
    try:
        browser.go(f"{url}/")
        scrolled, visible, position, column, width = browser.run(REMARK)
        assert scrolled == 300
        assert visible
        assert position == "sticky"
        assert abs(float(column.removesuffix("px")) - width) < 1, "the line can stay over all of the table"
        browser.go(f"{url}/search?q=order-42")  # the message
        assert browser.run(f"{WHY}.getBoundingClientRect().right") <= 400, "reasons fit"
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_a_person_at_a_browser(broker: BrokerProcess, shown: tuple[str, Page]) -> None:
    """Hostile bodies are text; keys, theme, refreshing and the live tail work; nothing breaks the policy."""
    url, browser = shown
    browser.faults.clear()
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
    browser.run(f"{SEND}.closest('details').open = true")
    browser.run(f"{SEND}.querySelector('textarea').value = '<b>typed</b>'")
    browser.run(f"{SEND}.requestSubmit()")
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
    broker.stop()
    browser.go(f"{url}/topic?name=orders")
    browser.until("document.getElementById('again')?.hidden === false")
    broker.start()
    browser.until(f"{look_again}, document.title.startsWith('orders')")


async def send(server: str) -> None:
    async with trovemq.connect(server) as client:
        for number in range(2):
            await client.send("orders", b"fresh", keys=[f"new-{number}"])
