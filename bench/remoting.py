"""RocketMQ's Java client by remoting: our broker beside RocketMQ's own, alternately.

    python -m bench.remoting                  about 6 minutes
    python -m bench.remoting --flush sync     with sync flush

Each run has a new store and a new topic of 8 queues. The client is that of tests/conformance/remoting: 64
asynchronous sends of 1 KiB in flight, batches of 64, and a push consumer with that backlog. The two brokers
never run side by side. The table has the median of the rates, and that of the ratios of each round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from tests.conformance.rocketmq_peer import create_topic, rocketmq, why_missing
from tests.conformance.run import BUILD, HERE, REMOTING, add_harness, install
from trovemq.testing import BrokerProcess

TOPIC: Final = "bench"
QUEUES: Final = 8
SIZE: Final = 1024
SECONDS_MORE: Final = 90
CASES: Final = ("send", "batch", "receive")
NAMES: Final = {
    "send": "64 sends in flight",
    "batch": "batches of 64",
    "receive": "push consumer, backlog",
}
TARGETS: Final = {
    "async": {"send": ">= 15,000/s, >= 0.6", "batch": ">= 100,000/s", "receive": ">= 60,000/s, >= 0.8"},
    "sync": {"send": ">= 1.0"},
}


@contextmanager
def ours(folder: Path, flush: str) -> Iterator[tuple[str, str]]:
    """The address for clients, and the broker's."""
    broker = BrokerProcess(
        name="ours",
        store=folder / "ours",
        remoting_enable=True,
        flush_mode=flush,
        mappedFileSizeCommitLog=1 << 30,
        ready_timeout=180,
    )
    with broker:
        yield broker.address, broker.address


@contextmanager
def theirs(folder: Path, flush: str) -> Iterator[tuple[str, str]]:
    with rocketmq(folder / "home") as real:
        settings = {"flushDiskType": f"{flush.upper()}_FLUSH", "sendMessageThreadPoolNums": 4}
        yield real.nameserver, real.start_broker("theirs", folder / "theirs", settings)


SIDES: Final = {"ours": ours, "RocketMQ": theirs}


def run(side: str, command: Sequence[str], flush: str, seconds: int) -> dict[str, float]:
    """Messages a second of each case."""
    found: dict[str, float] = {}
    count = 0
    with (
        TemporaryDirectory(prefix="bench-remoting-") as name,
        SIDES[side](Path(name), flush) as (nameserver, broker),
    ):
        create_topic(broker, TOPIC, QUEUES)
        for case in CASES:
            words = [str(count)] if case == "receive" else [str(seconds), str(SIZE)]
            figures = program(command, nameserver, case, words, seconds)
            found[case], count = figures["rate"], count + int(figures["count"])
    return found


def program(
    command: Sequence[str], nameserver: str, case: str, words: Sequence[str], seconds: int
) -> dict[str, float]:
    """Its figures. CalledProcessError, TimeoutExpired."""
    done = subprocess.run(
        [*command, case, TOPIC, *words],
        env={**os.environ, "ENDPOINTS": nameserver},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds + SECONDS_MORE,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2}


def main() -> int:
    parser = argparse.ArgumentParser(description="Java's client by remoting, with both brokers alternately.")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of each case that sends (8)")
    options = parser.parse_args()
    if missing := why_missing():
        print(f"skipped: {missing}")
        return 0
    folder = BUILD / "own" / REMOTING
    shutil.copytree(HERE / REMOTING, folder, dirs_exist_ok=True)
    add_harness(REMOTING, HERE, folder)
    command = [*install(REMOTING, folder)[:-1], "Pipelined"]
    rates: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            rates[side].append(run(side, command, options.flush, options.seconds))
            shown = " ".join(f"{case} {rate:,.0f}" for case, rate in rates[side][-1].items())
            print(f"round {number + 1} {side}: {shown}", flush=True)
    print_table(rates, options.flush)
    return 0


def print_table(rates: dict[str, list[dict[str, float]]], flush: str) -> None:
    print(f"| {flush} flush | ours/s | RocketMQ/s | ratio | target |\n| --- | --- | --- | --- | --- |")
    for case in CASES:
        mine, other = ([one[case] for one in rates[side]] for side in SIDES)
        ratio = median(a / b for a, b in zip(mine, other, strict=True))
        target = TARGETS[flush].get(case, "")
        print(f"| {NAMES[case]} | {median(mine):,.0f} | {median(other):,.0f} | {ratio:.2f} | {target} |")


if __name__ == "__main__":
    sys.exit(main())
