"""The cost of one call of `trovemq`: processor time of whole processes, beside that of `import typer`; and of
the pytest fixture.

    help      every verb in a list
    version   one line
    look-up   a message by its offsetMsgId, as JSON and as a person sees it, from a broker that is there
    session   the start of the broker that the tests of a session share
    test      a topic, a message, and the broker emptied: processor time of the broker and of the tests

Each round starts every process once, so that all of them meet the same machine; figures are medians.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

import trovemq
from bench.measure import scheduled_seconds
from bench.report import Report
from trovemq.testing import BrokerProcess

ROUNDS: Final = 21
HELP_MORE_MS: Final = 50.0
LOOK_UP_FACTOR: Final = 2.0
TOPIC: Final = "bench-cli"
TYPER: Final = "import typer"
SESSIONS: Final = 5
TESTS: Final = 20
SESSION_MS: Final = 1_000.0
TEST_MS: Final = 50.0
ABOUT: Final = (
    "Processor time of whole processes, medians of processes started in turn. Goals: `--help` at most 50 ms\n"
    "more than `import typer` alone, a look-up at most twice that; the pytest fixture at most 1 s a\n"
    "session, 50 ms a test (which makes a topic and sends a message).\n\n"
)


async def measure_command_line(report: Report, directory: Path, *, quick: bool) -> None:
    """Starts the processes in turn and compares them."""
    with BrokerProcess(store=directory / "cli") as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(TOPIC)
            receipt = await client.send(TOPIC, b"found again")
        trovemq_command = [sys.executable, "-m", "trovemq.cli"]
        look_up = [*trovemq_command, "--server", broker.address, "get", receipt.offset_msg_id]
        commands = {
            "python alone": [sys.executable, "-c", ""],
            TYPER: [sys.executable, "-c", TYPER],
            "trovemq --version": [*trovemq_command, "--version"],
            "trovemq --help": [*trovemq_command, "--help"],
            "trovemq get ID --json": [*look_up, "--json"],
            "trovemq get ID": look_up,
        }
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS // (3 if quick else 1)):
            for name, command in commands.items():
                spent[name].append(processor_ms(command))
    typer_ms = median(spent[TYPER])
    help_ms = typer_ms + HELP_MORE_MS
    goals = {
        "trovemq --version": help_ms,
        "trovemq --help": help_ms,
        "trovemq get ID --json": LOOK_UP_FACTOR * help_ms,
        "trovemq get ID": LOOK_UP_FACTOR * help_ms,
    }
    for name, times in spent.items():
        goal = {"at_most": goals[name]} if name in goals else {}
        report.add(f"processor time: {name}", median(times), "ms", **goal)
    await asyncio.to_thread(measure_fixture, report, quick=quick)


def measure_fixture(report: Report, *, quick: bool) -> None:
    """One broker for a session of pytest, emptied after each test."""
    sessions, tests, clock = [], [], []
    for _ in range(1 if quick else SESSIONS):
        with BrokerProcess() as broker:
            sessions.append(scheduled_seconds(broker.pid) * 1e3)
            broker.empty()  # its client connects once a session
            for _ in range(TESTS):
                begin, before = time.perf_counter(), time.process_time() + scheduled_seconds(broker.pid)
                broker.client.admin.create_topic(TOPIC)
                broker.client.send(TOPIC, b"12 apples")
                broker.empty()
                spent = time.process_time() + scheduled_seconds(broker.pid) - before
                tests.append(spent * 1e3)
                clock.append((time.perf_counter() - begin) * 1e3)
    report.add("processor time: the fixture's broker, a session", median(sessions), "ms", at_most=SESSION_MS)
    report.add("processor time: a test with the fixture", median(tests), "ms", at_most=TEST_MS)
    report.add("clock: a test with the fixture", median(clock), "ms")


def processor_ms(command: list[str]) -> float:
    """User and system time of one process that must end well."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return (usage.ru_utime + usage.ru_stime) * 1e3
