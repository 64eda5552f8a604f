"""The demo as `make run` starts it: load, resume, look-ups, Ctrl-C, kill -9, and errors.

`make soak` does it with all flights, `make test` with the first ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest

import trovemq
from deploy.demo import flights
from tests.integration.small_demo import FLIGHTS
from tests.support.fork_server import run
from tests.support.trials import SOAK
from trovemq.testing import BrokerProcess, free_port

pytestmark = pytest.mark.slow

STEP_TIMEOUT_S = 120.0
MODULE = "deploy.demo" if SOAK else "tests.integration.small_demo"
COUNT = flights.FLIGHT_COUNT if SOAK else FLIGHTS
KEYS = 200 if SOAK else 50


class DemoProcess:
    """The demo on free ports with its store in a temporary directory."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.listen = f"127.0.0.1:{free_port()}"
        addresses = {
            name: f"127.0.0.1:{free_port()}"
            for name in ("--http", "--nameserver", "--nameserver-http", "--console")
        }
        self.arguments = ["--store", str(store), "--listen", self.listen]
        self.arguments += [part for option in addresses.items() for part in option]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts it; at the end it is killed if it still runs."""
        command = [sys.executable, "-u", "-m", MODULE, *self.arguments, *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def until(self, process: subprocess.Popen[str], text: str) -> str:
        """Its output up to a line with `text`."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return "".join(lines)
        raise AssertionError("".join(lines))

    def run(self, *arguments: str) -> tuple[int, str]:
        """Runs it to its end; exit code and output."""
        with self.running(*arguments) as process:
            output, _ = process.communicate(timeout=STEP_TIMEOUT_S)
        return process.returncode, output


def port_is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def wait_until_closed(address: str) -> None:
    deadline = time.monotonic() + 60
    while port_is_open(address):
        assert time.monotonic() < deadline, f"{address} is still served"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(flights.data_file(), nrows=COUNT)


@pytest.fixture(scope="module")
def loaded_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a demo loaded in three goes: killed with kill -9, ended with SIGINT, and whole."""
    store = tmp_path_factory.mktemp("demo") / "data"
    demo = DemoProcess(store)
    with demo.running("--once") as process:
        demo.until(process, "loading flights")
        process.kill()
    with demo.running("--once") as process:
        demo.until(process, "loading flights")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STEP_TIMEOUT_S)
        assert process.returncode == 0
    code, output = demo.run("--once")
    assert code == 0, output
    assert "every one on disk" in output or "found all" in output
    wait_until_closed(demo.listen)
    return store


def test_a_second_start_finds_everything_and_shows_five_look_ups(loaded_store: Path) -> None:
    demo = DemoProcess(loaded_store)
    with demo.running() as process:
        output = demo.until(process, "Serving")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=STEP_TIMEOUT_S)
    assert (process.returncode, "Stopped cleanly" in rest) == (0, True), rest
    assert f"found all {COUNT:,} flights" in output
    for number, command in enumerate(
        ("query flights N14228", "query flights B6371", "--type tag", "get ", "offset flights"), 1
    ):
        assert f"{number}. " in output
        assert command in output
    wait_until_closed(demo.listen)


def test_counts_by_tag_key_and_queue_equal_those_of_pandas(loaded_store: Path, table: pd.DataFrame) -> None:
    flight_keys = table["carrier"] + table["flight"].astype(str)
    keys = pd.concat([table["tailnum"].dropna(), flight_keys]).value_counts()
    tags = table["carrier"].value_counts()
    chosen = random.Random(13).sample(sorted(keys.index), KEYS)

    async def scenario(address: str) -> None:
        async with trovemq.connect(address) as client:
            offsets = await client.queue_offsets(flights.TOPIC)
            assert sum(queue.max_offset for queue in offsets) == len(table) == COUNT
            await check_rows(client)
            for key in chosen:
                assert await count(client, key, "key") == keys[key], key
            for tag, expected in tags.items():
                assert await count(client, str(tag), "tag") == expected, tag

    with BrokerProcess(
        name="broker-a",
        store=loaded_store,
        mappedFileSizeCommitLog=64 << 20,
        maxHashSlotNum=500_000,
        maxIndexNum=2_000_000,
    ) as broker:
        asyncio.run(scenario(broker.address))


async def check_rows(client: trovemq.Client) -> None:
    """Every row once, on its queue, and with its keys, tag and body."""
    rows = Counter[str]()
    expected = {message.message_id: message for message in islice(flights.flight_messages(), COUNT)}
    for queue_id in range(flights.QUEUE_COUNT):
        async for batch in client.pull_batches(flights.TOPIC, queue_id=queue_id, offset=0):
            for message in batch.messages():
                row = expected[message.unique_key or ""]
                rows[row.message_id] += 1
                assert (message.queue_id, message.body) == (row.queue_id, row.body)
                assert (message.keys, message.tags) == (row.keys, row.tag)
                assert message.properties["origin"] == row.properties["origin"]
    assert len(rows) == COUNT
    assert max(rows.values()) == 1


async def count(client: trovemq.Client, key: str, key_type: str) -> int:
    found = 0
    async for _ in client.query_all(flights.TOPIC, key, type=key_type, page_size=4000):
        found += 1
    return found


def test_the_printed_commands_give_the_printed_answers(loaded_store: Path, table: pd.DataFrame) -> None:
    with BrokerProcess(
        name="broker-a",
        store=loaded_store,
        mappedFileSizeCommitLog=64 << 20,
        maxHashSlotNum=500_000,
        maxIndexNum=2_000_000,
    ) as broker:
        command = [sys.executable, "-m", "trovemq.cli", "--server", broker.address, "--json"]
        command += ["query", "flights", "N14228", "--max", "1000"]
        ran = run(command, check=True)
    assert len(ran.stdout.splitlines()) == int((table["tailnum"] == "N14228").sum())
    assert json.loads(ran.stderr)["complete"] is True


def test_a_taken_port_is_said_and_nothing_is_left_running(tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path / "data")
    with socket.socket() as holder:
        host, _, port = demo.listen.rpartition(":")
        holder.bind((host, int(port)))
        holder.listen()
        code, output = demo.run()
    assert code == 1
    assert f"{demo.listen} is in use" in output
    assert "make run ARGS=--help" in output  # not a Python that the user has to find
    assert "Traceback" not in output
    assert not (tmp_path / "data").exists()


def test_a_locked_store_is_said_and_nothing_is_left_running(tmp_path: Path) -> None:
    with BrokerProcess(store=tmp_path / "data"):
        demo = DemoProcess(tmp_path / "data")
        code, output = demo.run()
    assert code == 1
    assert "locked by another broker" in output
    assert "Traceback" not in output
    assert not port_is_open(demo.arguments[demo.arguments.index("--nameserver") + 1])


def test_a_broker_that_dies_ends_the_demo(loaded_store: Path) -> None:
    demo = DemoProcess(loaded_store)
    with demo.running() as process:
        demo.until(process, "Serving")
        os.kill(child_of(process.pid, "trovemq_broker"), signal.SIGKILL)
        output, _ = process.communicate(timeout=STEP_TIMEOUT_S)
    assert process.returncode == 1
    assert "broker was ended by SIGKILL" in output
    assert not port_is_open(demo.arguments[demo.arguments.index("--nameserver") + 1])


def child_of(pid: int, module: str) -> int:
    """The process id of the demo's child that runs a module."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        if Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[2] == module.encode():
            return child
    raise AssertionError(f"no {module} among {children}")
