"""The blocks of docs/operate.md run, in order, against a nameserver and two brokers, as those of the how-tos.

`systemctl start` starts the broker that was stopped.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.integration.test_how_to import Reader, command_line
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/operate.md"
NAMES = ("broker-a", "broker-b")


class Operator(Reader):
    """A reader with a cluster."""

    def use(self, nameserver: NameserverProcess, brokers: dict[str, BrokerProcess]) -> None:
        self.nameserver, self.brokers = nameserver, brokers
        self.stopped = ""

    def command(self, words: list[str]) -> int:
        if words[0] == "systemctl":
            act, unit = words[1:]
            assert (act in ("start", "restart"), unit) == (True, "trovemq-broker")
            broker = self.brokers[self.stopped]
            if act == "restart":
                broker.stop()
            assert broker.wait() == 0
            broker.start()
            asyncio.run(both_known(self.nameserver))
            return 0
        assert words[0] == "trovemq"
        if "--stop" in words:
            self.stopped = words[3]
        return command_line(["--server", self.nameserver.address, *words[1:]])


async def both_known(nameserver: NameserverProcess) -> None:
    async with trovemq.connect(nameserver.address) as client:
        known = client._pool.routes
        assert await known.wait_until(lambda: len(known.state.brokers) == len(NAMES), 20)


def doctor_finds_what_is_broken(
    nameserver: NameserverProcess, broker: BrokerProcess, printed: pytest.CaptureFixture[bytes]
) -> None:
    broker.store.chmod(0o755)
    printed.readouterr()
    assert command_line(["--server", nameserver.address, "--json", "doctor", "--seconds", "0"]) == 1
    found = [json.loads(line) for line in printed.readouterr().out.splitlines()]
    others = ("disks", "interpreters")  # the machine's disk may be full, and its Python not optimised
    (finding, note) = [one for one in found if one["check"] not in others]
    assert (finding["kind"], finding["check"], finding["where"]) == ("problem", "store_mode", "broker-a")
    assert (note["check"], note["where"]) == ("kept_settings", "broker-b"), "it was not restarted"
    broker.store.chmod(0o700)


def test_the_blocks_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    unused: Any = None
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        brokers = {
            name: processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
            for name in NAMES
        }
        asyncio.run(both_known(nameserver))
        operator = Operator(PAGE, unused, tmp_path, unused)
        operator.use(nameserver, brokers)
        operator.follow()
        assert "reserved_time_ms" not in operator.printed, "a restart returns to the configuration"
        doctor_finds_what_is_broken(nameserver, brokers["broker-a"], capsysbinary)
        assert all(broker.running for broker in brokers.values()), "the page leaves the cluster as it was"
