"""Kills a broker with SIGKILL while RocketMQ's Java client has 64 sends in flight, by remoting.

    python -m tests.conformance.kills          two kills

The client writes each acknowledged message to a ledger. In the end all of them are read, queue by queue: none
is lost. A message may be stored twice: the client repeats a send whose answer was lost. Without Java and
Maven it does nothing, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.run import (
    BUILD,
    HERE,
    REMOTING,
    Outcome,
    SuiteError,
    add_harness,
    install,
    missing_tools,
    print_table,
    trovemq,
)
from tests.support.remoting_client import remoting_client
from trovemq.testing import BrokerProcess
from trovemq_proto.remoting.codes import ResponseCode

TOPIC = "ledger"
QUEUES = 4
BETWEEN = 2_000
"""Acknowledged messages before each kill, and after the last one."""
WAIT_S_MAX = 240
READY_S_MAX = 180.0


class Sender:
    """The Java program. SuiteError: it does not get on."""

    def __init__(self, command: Sequence[str], address: str, folder: Path, ledger: Path) -> None:
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [*command, "ledger", TOPIC, str(ledger)],
            cwd=folder,
            env={"ENDPOINTS": address, "HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.strip())

    @property
    def acknowledged(self) -> int:
        counts = [int(line.split()[1]) for line in self._lines if line.startswith("acknowledged ")]
        return counts[-1] if counts else 0

    def await_more(self, count: int) -> None:
        """Returns when this number of further messages is acknowledged."""
        wanted, end = self.acknowledged + count, time.monotonic() + WAIT_S_MAX
        while self.acknowledged < wanted:
            if time.monotonic() > end or self._process.poll() is not None:
                raise SuiteError(f"{self.acknowledged} of {wanted} are acknowledged: {self._lines[-3:]}")
            time.sleep(0.02)

    def end(self) -> str:
        """Its last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S_MAX)
        self._reading.join(WAIT_S_MAX)
        return self._lines[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def stored(address: str) -> Counter[str]:
    """The bodies of all messages, read from the queues."""
    found: Counter[str] = Counter()
    async with remoting_client(address) as client:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                answer = await client.pull(TOPIC, offset, queue_id)
                if answer.code == ResponseCode.SUCCESS:
                    found.update(body.decode() for body in answer.bodies)
                elif answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                    break
                offset = int(answer.fields["nextBeginOffset"])
    return found


def run_kills(build: Path, kills: int) -> Outcome:
    """One case; never raises."""
    outcome = Outcome(REMOTING)
    if missing := missing_tools(REMOTING):
        outcome.skipped = f"no {', '.join(missing)} on this machine"
        return outcome
    try:
        text = _kill(build / REMOTING, kills)
        outcome.faults["nothing_acknowledged_is_lost"] = None
        print(text)
    except SuiteError as error:
        outcome.faults["nothing_acknowledged_is_lost"] = str(error)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        outcome.problem = str(error)
    return outcome


def _kill(folder: Path, kills: int) -> str:
    shutil.copytree(HERE / REMOTING, folder, dirs_exist_ok=True)
    add_harness(REMOTING, HERE, folder)
    command = [*install(REMOTING, folder)[:-1], "Pipelined"]
    ledger = folder / "ledger.txt"
    broker = BrokerProcess(name="killed", remoting_enable=True, ready_timeout=READY_S_MAX)
    with broker:
        trovemq(broker.address, ["topic", "create", TOPIC, "--queues", str(QUEUES)], {})
        sender = Sender(command, broker.address, folder, ledger)
        try:
            for _ in range(kills):
                sender.await_more(BETWEEN)
                broker.kill()
                broker.start()
            sender.await_more(BETWEEN)
            said = sender.end()
        finally:
            sender.kill()
        acknowledged = set(ledger.read_text().split())
        found = asyncio.run(stored(broker.address))
    lost = sorted(acknowledged - set(found), key=int)
    if lost:
        raise SuiteError(f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost: {lost[:5]}")
    twice = sum(count > 1 for count in found.values())
    return f"{kills} kills: {said}; {found.total()} stored, {twice} twice, none lost"


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills a broker while RocketMQ's Java client sends.")
    parser.add_argument("--kills", type=int, default=2)
    outcome = run_kills(BUILD / "own", parser.parse_args().kills)
    print_table([outcome])
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
