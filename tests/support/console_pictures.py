"""Pictures of the console's pages: `python -m tests.support.console_pictures DIRECTORY [NAME …]`.

Starts a broker with users, a console and a headless Chromium, fills the broker with what a shop might send,
and writes `console-NAME.png` of each page, or of those that are named. The pictures of the docs are made so:
`python -m tests.support.console_pictures docs/images overview message group reset`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trovemq
from tests.support.chromium import Page, chromium
from tests.support.console_process import running_console
from trovemq.testing import BrokerProcess
from trovemq_proto.authentication.credentials import Credentials, parse_credentials

SETTINGS = (
    "authenticationEnabled=true",
    "authorizationEnabled=true",
    "autoCreateSubscriptionGroup=true",
)
WAIT_S = 25.0  # two looks of the console at the counters
TOKEN = "pictures"
NARROW = 400

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topic?name=orders",
    "time": "/topic?name=orders&at=1h",
    "groups": "/groups",
    "group": "/group?name=billing",
    "search": "/search?q=order-1*",
    "none": "/search?q=nothing-like-it",
    "dead-letter-groups": "/dead-letters",
    "dead-letters": "/dead-letters?group=shipping",
    "delayed": "/delayed",
    "transactions": "/transactions",
    "storage": "/storage",
    "replicas": "/replicas",
    "access": "/access",
    "error": "/message?id=none",
    "nowhere": "/nowhere",
    "sign-in": "/sign-in",
}
"""By name; `message` and the acts are reached by their pages."""

ACTS = {
    "reset": ("/group?name=billing", "/acts/reset", {"value": "0", "to": "offset"}),
    "delete-topic": ("/topic?name=orders", "/acts/delete-topic", {}),
    "create-user": ("/access", "/acts/create-user", {"user": "carol"}),
}


async def fill(client: trovemq.Client) -> str:
    """The id of a message that was delivered twice."""
    admin = client.admin
    await admin.create_topic("orders", queue_count=4, message_type="MIXED", options={"deduplicate": "1h"})
    await admin.create_topic("payments", queue_count=2, message_type="TRANSACTION")
    await admin.create_topic("stock", queue_count=2, options={"retention": "until_acknowledged"})
    await admin.groups.create("shipping", trovemq.GroupSettings(retry_max=1, backoff_ms=(10,)))
    for number in range(400):
        order = {
            "order": 1_000 + number,
            "customer": f"c-{number % 37}",
            "items": [{"sku": f"A{number % 9}"}],
        }
        body = json.dumps(order).encode()
        await client.send("orders", body, keys=[f"order-{1_000 + number}"], tag=("paid", "new")[number % 2])
    for number in range(40):
        await client.send("stock", b'{"sku": "A%d", "count": 7}' % number, keys=[f"sku-{number}"])
    for number in range(6):
        await client.send(
            "orders", b'{"remind": true}', keys=[f"later-{number}"], deliver_after=3_600 * (number + 1)
        )
    followed = ""
    async with client.subscribe("orders", group="billing", start="earliest") as messages:
        for count in range(401):
            message = await anext(messages)
            if count == 0:
                (followed,) = message.keys
                await message.nack(delay=0.01)
            else:
                await message.ack()
    async with client.subscribe("orders", group="shipping", start="earliest") as messages:
        for _ in range(12):
            message = await anext(messages)
            await message.dead_letter()
    async with client.subscribe("stock", group="billing", start="earliest") as messages:
        await (await anext(messages)).ack()
    await admin.users.create("alice")
    await admin.users.create("bob")
    await admin.users.rotate("bob")
    await admin.rules.allow("alice", "Pub,Sub", "Topic:orders*")
    await admin.rules.deny("bob", "All", "Topic:payments", sources=["10.0.0.0/8"])
    return (await client.query("orders", followed)).messages[0].offset_msg_id


async def filled(address: str, who: Credentials) -> str:
    async with trovemq.connect(address, access_key=who.access_key, secret_key=who.secret_key) as client:
        return await fill(client)


async def later(address: str, who: Credentials) -> None:
    """More orders, for some looks of the console at the counters."""
    async with trovemq.connect(address, access_key=who.access_key, secret_key=who.secret_key) as client:
        for number in range(int(WAIT_S * 4)):
            await client.send("orders", b'{"order": %d}' % number, keys=[f"late-{number}"], tag="new")
            await asyncio.sleep(0.25)
        async with client.producer("payments") as producer:
            transaction = await producer.transaction().__aenter__()  # its end never comes
            await transaction.send(b'{"amount": 12}', keys=["payment-1"])


def main(directory: Path, names: Sequence[str]) -> None:
    """Writes the pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        with BrokerProcess(store=store, arguments=settings, ready_timeout=240) as broker:
            who = parse_credentials(store.with_name("store.admin-credentials").read_text(encoding="utf-8"))
            keys = {
                "TROVEMQ_ACCESS_KEY": who.access_key,
                "TROVEMQ_SECRET_KEY": who.secret_key,
                "TROVEMQ_CONSOLE_TOKEN": TOKEN,
            }
            with (
                running_console(broker.address, "--allow-changes", **keys) as (url, _),
                chromium(Path(scratch) / "profile") as browser,
            ):
                browser.go(url)
                home = url.partition("/sign-in")[0]
                followed = asyncio.run(filled(broker.address, who))
                for path in ("/group?name=billing", "/topic?name=orders"):
                    browser.go(home + path)  # its history begins
                asyncio.run(later(broker.address, who))
                draw(browser, home, followed, directory, names)


def draw(browser: Page, url: str, followed: str, directory: Path, names: Sequence[str]) -> None:
    """Each page, light; some dark and on a narrow screen, too."""
    paths = {**PAGES, "message": f"/message?id={followed}"}
    for name, path in paths.items():
        if not names or name in names:
            browser.go(url + path)
            picture(browser, directory, name)
    for name, (path, action, fields) in ACTS.items():
        if not names or name in names:
            browser.go(url + path)
            for field, value in fields.items():
                browser.run(
                    f"document.querySelector('form[action=\"{action}\"] [name={field}]').value = '{value}'"
                )
            browser.run(f"document.querySelector('form[action=\"{action}\"]').requestSubmit()")
            browser.until("document.querySelector('.ask') !== null")
            picture(browser, directory, name)
    if names:
        return
    for name in ("overview", "topic", "message", "group", "access"):
        browser.go(url + paths[name])
        browser.run("document.documentElement.dataset.theme = 'dark'")
        picture(browser, directory, f"{name}-dark")
        browser.go(url + paths[name])
        picture(browser, directory, f"{name}-narrow", NARROW)


def picture(browser: Page, directory: Path, name: str, width: int = 1280) -> None:
    """`width`: of the screen; a narrow one is as high as three."""
    browser.picture(directory / f"console-{name}.png", width, 900 if width > NARROW else 2700)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
