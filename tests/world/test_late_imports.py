"""Nothing is imported while a daemon serves: an import opens files, and where no descriptor is free it would
fail a request, or end the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import trovemq
from tests.support.broker_process import ROOT, STOP_TIME_MAX_S
from tests.support.rocketmq_client import RawClient
from trovemq import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.slow

PAGES = ("/", "/metrics", "/healthz", "/readyz", "/absent")


@contextmanager
def refusing(flag: Path, module: str, started: str, *arguments: str) -> Iterator[tuple[str, str]]:
    """The module as a process: its address, and that of its operations port. It imports nothing any more."""
    command = [sys.executable, "-m", "tests.world.late_imports", str(flag), module, "--log-format", "json"]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = (json.loads(line) for line in process.stderr if line.startswith("{"))
            entry = next(line for line in lines if line["event"] == started)
            flag.touch()
            yield entry["listen"], entry["http"]
            process.terminate()
            rest = list(process.stderr)
            assert process.wait(STOP_TIME_MAX_S) == 0, rest
        finally:
            process.kill()


def read_pages(http: str) -> None:
    for page in PAGES:
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(f"http://{http}{page}", timeout=60):
            pass


async def use_natively(address: str) -> None:
    async with trovemq.connect(address) as client:
        await client.admin.create_topic("orders", queue_count=2)
        await client.admin.create_topic("later", queue_count=1, message_type="DELAY")
        receipt = await client.send(
            "orders", b"body", keys=["a", "schlüssel🙂"], tag="täg", properties={"p": "ü"}
        )
        await client.send("orders", "zwei 🙂".encode(), keys=["🙂"], tag="🙂")
        await client.send("later", b"x", deliver_after=0.05)
        await client.get_at("orders", receipt.queue_id, receipt.queue_offset)
        await client.get(receipt.offset_msg_id)
        for key in ("a", "schlüssel🙂", "🙂", "absent"):
            await client.query("orders", key)
        await client.search("orders", tag="täg")
        await client.queue_offsets("orders")
        async with client.subscribe("orders", "workers", start="earliest") as messages:
            async for one in messages:
                await one.ack()
                break
        async with client.transaction() as changes:
            await changes.send("orders", b"both")
        await client.admin.describe_topic("orders")
        await client.admin.alter_topic("orders", queue_count=3)
        await client.admin.list_topics()
        await client.admin.groups.list_all()
        for refused in ("absent", "illegal name 🙂"):
            with pytest.raises(TroveError):
                await client.send(refused, b"x")
        await client.admin.delete_topic("later")


def use_as_rocketmq(address: str) -> None:
    with RawClient(address, "raw-🙂".encode().hex()) as client:
        for tag in ("tag", "täg 🙂"):
            assert client.send("orders", b"raw", tag=tag).status.code == v2.OK
        found = client.receive("workers", "orders", poll_s=5)
        client.acknowledge("workers", found)
        client.send("absent", b"x")


@pytest.mark.asyncio
async def test_a_broker_imported_a_codec_when_a_message_needed_it(tmp_path: Path) -> None:
    flag = tmp_path / "refuse"
    store = ("--store", str(tmp_path / "store"))
    with refusing(flag, "trovemq_broker", "broker.started", *store) as (address, http):
        await use_natively(address)
        use_as_rocketmq(address)
        read_pages(http)
    assert (tmp_path / "refuse.late").read_text() == ""


@pytest.mark.asyncio
async def test_a_nameserver_imports_nothing_while_it_serves(tmp_path: Path) -> None:
    flag = tmp_path / "refuse"
    with refusing(flag, "trovemq_nameserver", "nameserver.started") as (address, http):
        async with trovemq.connect(address) as client:
            with suppress(TroveError):
                await client.admin.list_topics()
        read_pages(http)
    assert (tmp_path / "refuse.late").read_text() == ""
