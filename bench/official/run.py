"""The official clients' rows: ours, the stub and RocketMQ's proxy alternately; our cost of a SendMessage."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trovemq
from bench import measure as measuring
from bench.official import clients, rocketmq
from bench.official.replies import GROUP_PREFIX, recorded
from bench.processes import ProcessError
from bench.report import Report
from bench.rocketmq_raw import BODY
from trovemq.testing import BrokerProcess, free_port

TOPIC: Final = "official"
STORED: Final = 300_000  # as many as a warm client takes in all its rounds
STORED_BATCH: Final = 500
TURN_S: Final = 2.0
TURNS: Final = 3
PROXY_WARM_S: Final = 6.0
"""Sends to RocketMQ's fresh JVMs before anything is measured: their first seconds are far slower."""
SEND_US_MAX: Final = 80.0
STUB_FOLDER: Final = Path(__file__).resolve().parent / "stub"
BUILD_S_MAX: Final = 300
START_S_MAX: Final = 20.0
OURS, STUB, PROXY = "TroveMQ", "the stub (grpc-go)", "RocketMQ's proxy"
GOALS: Final = {STUB: 0.8, PROXY: 1.0}
WORKS: Final[tuple[clients.Work, ...]] = ("send", "receive")
VERBS: Final = {"send": "send", "receive": "receive and acknowledge"}


class NotShownError(Exception):
    """A server cannot run here; the message says why."""


@dataclass(slots=True)
class Servers:
    """The addresses of those that run, ours first; of the others why they do not."""

    pid: int
    addresses: dict[str, str]
    missing: dict[str, str] = field(default_factory=dict)


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    commands = clients.installed(report)
    with ExitStack() as running:
        store = directory / "official"
        broker = running.enter_context(BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH"))
        await _fill(broker)
        servers = Servers(broker.pid, {OURS: broker.address})
        await _start_stub(servers, running, directory)
        _start_proxy(servers, running, directory, report)
        await _warm_proxy(servers, commands)
        for work in WORKS:  # all sends come first: they are received then
            for language in clients.LANGUAGES:
                name = f"official {language} client, {VERBS[work]}"
                if language not in commands:
                    _not_shown(report, name, work, f"the {language} client is not installed")
                    continue
                try:
                    await _turns(report, name, commands[language], work, language, servers, quick=quick)
                except ProcessError as error:
                    report.notes.append(f"{name}: {error}")
                    _not_shown(report, name, work, "the client failed")


async def _turns(
    report: Report,
    name: str,
    command: list[str],
    work: clients.Work,
    language: str,
    servers: Servers,
    *,
    quick: bool,
) -> None:
    group, turns = f"{GROUP_PREFIX}{language}", 1 if quick else TURNS
    answers = await clients.run(command, work, TOPIC, group, TURN_S, turns, *servers.addresses.values())
    found = dict(zip(servers.addresses, answers, strict=True))
    for server, answer in found.items():
        if answer.failures:
            report.notes.append(f"{name}, {server}: {answer.failures} calls failed")
        report.add(f"{name}: {server}", answer.rate, "msg/s")
    for server, goal in GOALS.items():
        title = f"{name}: ours to {server}"
        if server in servers.missing:
            report.not_shown(title, "x", servers.missing[server], at_least=goal)
        elif ratio := found[OURS].ratio_to(found[server]):
            report.add(title, ratio, "x", at_least=goal)
        else:
            report.not_shown(title, "x", "a server had no message in any turn", at_least=goal)
    goal_us = SEND_US_MAX if work == "send" else None
    title = f"{name}: our broker's processor a message"
    report.add(title, await _cost_us(command, work, group, servers), "us", at_most=goal_us)


async def _cost_us(command: list[str], work: clients.Work, group: str, servers: Servers) -> float:
    """The broker's processor time for a message, while the client works with it alone."""
    before = measuring.scheduled_seconds(servers.pid)
    (answer,) = await clients.run(command, work, TOPIC, group, TURN_S, 1, servers.addresses[OURS])
    return (measuring.scheduled_seconds(servers.pid) - before) / max(answer.count, 1) * 1e6


def _not_shown(report: Report, name: str, work: clients.Work, reason: str) -> None:
    for server, goal in GOALS.items():
        report.not_shown(f"{name}: ours to {server}", "x", reason, at_least=goal)
    if work == "send":
        report.not_shown(f"{name}: our broker's processor a message", "us", reason, at_most=SEND_US_MAX)


async def _fill(broker: BrokerProcess) -> None:
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic(TOPIC, queue_count=measuring.QUEUES)
        async with client.producer(TOPIC) as producer:
            for number in range(STORED // STORED_BATCH):
                queue_id = number % measuring.QUEUES
                await producer.send_batch([BODY] * STORED_BATCH, tags="tag", queue_id=queue_id)


# --- the others -----------------------------------------------------------------------------------------
def _start_proxy(servers: Servers, running: ExitStack, directory: Path, report: Report) -> None:
    if (missing := rocketmq.missing()) is not None:
        servers.missing[PROXY] = f"{missing} is not installed (`bench/peers/setup.sh`)"
        return
    try:
        servers.addresses[PROXY] = running.enter_context(rocketmq.serving(directory / "rocketmq", TOPIC))
    except rocketmq.RocketMqError as error:
        report.notes.append(f"{PROXY}: {error}")
        servers.missing[PROXY] = "it did not start"
    else:
        report.notes.append(f"{PROXY}: {rocketmq.version()}, nameserver, broker and proxy, async flush.")


async def _warm_proxy(servers: Servers, commands: dict[str, list[str]]) -> None:
    if PROXY in servers.addresses and commands:
        language, command = next(iter(commands.items()))
        group = f"{GROUP_PREFIX}{language}"
        await clients.run(command, "send", TOPIC, group, PROXY_WARM_S, 1, servers.addresses[PROXY])


async def _start_stub(servers: Servers, running: ExitStack, directory: Path) -> None:
    try:
        program, port = _built(directory), free_port()
        rules = directory / "replies.json"
        rules.write_text(json.dumps(await recorded(servers.addresses[OURS], TOPIC, port)))
        running.enter_context(_stub(program, rules, port))
        servers.addresses[STUB] = f"127.0.0.1:{port}"
    except NotShownError as error:
        servers.missing[STUB] = str(error)


def _built(directory: Path) -> Path:
    if shutil.which("go") is None:
        raise NotShownError("Go is not installed")
    program = directory.resolve() / "stub"
    build = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(
        build, cwd=STUB_FOLDER, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False
    )
    if done.returncode:
        raise NotShownError(f"the stub cannot be built: {done.stderr.strip()[-300:]}")
    return program


@contextmanager
def _stub(program: Path, rules: Path, port: int) -> Iterator[None]:
    address = f"127.0.0.1:{port}"
    with subprocess.Popen([program, "-address", address, "-replies", rules]) as process:
        try:
            deadline = time.monotonic() + START_S_MAX
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotShownError("the stub did not start")
                time.sleep(0.02)
            yield
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True
