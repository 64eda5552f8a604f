"""From the version before: its store opens with all that was in it, and both versions work together.

tests/integration/earlier_version.py says which version that is, and has made the store.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.earlier_version import ARCHIVE, EarlierBroker, check_out, run_earlier
from tests.integration.test_wheels import run
from trovemq import sync
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

READY_SECONDS = 240

WORK = """
import asyncio, sys, trovemq

async def main(address):
    async with trovemq.connect(address) as client:
        await client.admin.create_topic("orders", queue_count=2)
        receipt = await client.send("orders", b"one", keys=["k1"], tag="paid")
        async with client.producer("orders") as producer:
            await producer.send_batch([b"body %d" % i for i in range(50)], keys=[f"b{i}" for i in range(50)])
        assert (await client.query("orders", "b7")).messages[0].body == b"body 7"
        assert (await client.get(receipt.offset_msg_id)).messages[0].body == b"one"
        async with client.transaction() as transaction:
            await transaction.send("orders", b"together", keys=["t"])
        got, returned, dead = set(), False, False
        async with client.subscribe("orders", group="billing", start="earliest") as messages:
            while len(got) < 51:
                message = await anext(messages)
                if not returned:
                    returned = True
                    await message.nack(delay=0)
                elif not dead:
                    dead = True
                    await message.dead_letter()
                else:
                    await message.ack()
                    got.update(message.keys)
        assert [group.group for group in await client.admin.groups.list_all()] == ["billing"]
        track = await client.track(receipt.offset_msg_id)
        assert track.copies[0].topic == "orders"
        async with client.subscribe("%DLQ%billing", group="readers", start="earliest") as letters:
            await (await anext(letters)).ack()
        print("done", trovemq.__file__)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which a Python imports the earlier version."""
    return check_out(tmp_path_factory.mktemp("earlier"))


@pytest.fixture
def old(tmp_path: Path) -> Iterator[tuple[BrokerProcess, dict[str, Any]]]:
    """A broker of this version on the earlier store, and its contents."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    contents = json.loads((tmp_path / "contents.json").read_text())
    with BrokerProcess(store=tmp_path / "store", ready_timeout=READY_SECONDS) as broker:
        yield broker, contents


def test_a_store_of_the_version_before_opens(old: tuple[BrokerProcess, dict[str, Any]]) -> None:
    broker, contents = old
    client = broker.client
    for key, name in contents["ids"].items():
        (found,) = client.query("orders", key).messages
        assert (found.offset_msg_id, found.body) == (name, key.replace("-", " ").encode())
    assert len(client.query("orders", "together-2").messages) == 1
    counters = client.admin.statistics()[0].counters
    assert counters["timers_pending"] + len(client.query("reminders", "later").messages) == 1
    letters = client.admin.groups.dead_letters("billing")
    assert {key for letter in letters for key in letter.message.keys} == set(contents["dead"])
    every = {*contents["ids"], *(f"together-{number}" for number in range(3))}
    waiting = every - set(contents["acknowledged"]) - set(contents["dead"])
    received: set[str] = set()
    with client.subscribe("orders", group="billing") as messages:
        for message in messages:
            received.update(message.keys)
            message.ack()
            if received >= waiting:
                break
    assert received == waiting
    assert client.send("orders", b"new", keys=["new"]).offset_msg_id
    broker.stop()
    verified = run([*broker.command()[:1], "-m", "trovemq.cli", "store", "verify", "--store", broker.store])
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_client_of_the_version_before_works_with_this_broker(earlier: dict[str, str]) -> None:
    with BrokerProcess(ready_timeout=READY_SECONDS) as broker:
        said = run_earlier(WORK, broker.address, earlier)
    assert said.startswith("done ")
    assert said.split()[1].startswith(earlier["PYTHONPATH"].rpartition(":")[2])


def test_the_version_before_opens_a_store_that_this_one_closed(
    earlier: dict[str, str], tmp_path: Path
) -> None:
    """Back again, after a clean stop."""
    before = BrokerProcess(store=tmp_path / "store", ready_timeout=READY_SECONDS)
    with before as broker, sync.connect(broker.address) as client:
        client.admin.create_topic("orders", queue_count=1)
        client.send("orders", b"one", keys=["k1"])
    with (
        EarlierBroker(store=tmp_path / "store", environment=earlier, ready_timeout=READY_SECONDS) as broker,
        sync.connect(broker.address) as client,
    ):
        assert client.query("orders", "k1").messages[0].body == b"one"
