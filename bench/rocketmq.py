"""RocketMQ's v2 protocol as the broker serves it: raw calls beside empty ones, official clients beside ours.

Everything is measured in one run. The official clients are those of tests/conformance, installed under
build/bench; a language without its tools is left out. Whatever could not be measured is a note of the report.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import trovemq
from bench import limits, measure
from bench.official import clients
from bench.processes import ROOT, ProcessError, last_line
from bench.report import Report
from bench.rocketmq_raw import (
    BATCH,
    BODY,
    CALLS_IN_FLIGHT,
    DELAY_TOPIC,
    DUE_A_SECOND,
    IDLE_TOPIC,
    RECEIVE_TOPIC,
    RECEIVES_IN_FLIGHT,
    SEND_TOPIC,
    Turns,
)
from trovemq.testing import BrokerProcess

SETTINGS: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000}
TURNS_S = 5.0  # a comparison by raw calls, both sides
CLIENT_S = 3.0  # a client's sends, and its receives
RECEIVE_S_MORE = 10.0
IDLE_S = 6.0
DUE_S = 4.0
POLLS = 1_000
PROCESS_S_MAX = 40
STORED_RAW, STORED_FOR_CLIENT, STORED_FOR_OURS = 100_000, 200_000, 1_000_000
STORED_BATCH = 500

RATIO_MIN = 0.8
IDLE_PERCENT_MAX = 2.0
LATENESS_MS_MAX = 50.0
OFFICIAL_GOALS = {"java": (8_200.0, 2_600.0), "python": (3_200.0, 2_600.0)}
"""Sends and receives a second: twice the rate of RocketMQ's own proxy with this client on two processors."""


ABOUT = f"""\
The variants are measured alternately in the same process: `x` is the median of the rounds' ratios, and says
more than the rates do where the machine is not alone. The raw client is `bench/rocketmq_raw.py`:

- {CALLS_IN_FLIGHT} sends of 1 KiB in flight, beside the health service's `Check` on the same broker;
- {RECEIVES_IN_FLIGHT} receives in flight, {BATCH} messages each, acknowledged by one call, beside a server
  stream of as many frames of the same sizes.

The official clients have {CALLS_IN_FLIGHT} asynchronous sends in flight, and receive with a simple consumer
in 8 threads; their goals are twice the rate of RocketMQ's own proxy. The times are those of a send,
and of an acknowledgement. Delayed messages are late by the time at which the consumer has them. A broker at
rest is measured by the time that its threads ran.

"""


class BenchError(Exception):
    """A process of the benchmark failed; the message says how."""


async def measure_protocol(report: Report, directory: Path, *, quick: bool) -> None:
    """All of it; `quick` measures half as long."""
    factor = 0.5 if quick else 1.0
    commands = clients.installed(report)
    with BrokerProcess(store=directory / "idle", **SETTINGS) as idle:  # at rest when it is measured
        await prepare(idle, {IDLE_TOPIC: 0})
        with BrokerProcess(store=directory / "async", flushDiskType="ASYNC_FLUSH", **SETTINGS) as broker:
            await prepare(broker, {SEND_TOPIC: 0})
            await noted(report, compare_send(report, broker, "async flush", TURNS_S * factor))
        with BrokerProcess(store=directory / "sync", flushDiskType="SYNC_FLUSH", **SETTINGS) as broker:
            await prepare(broker, {SEND_TOPIC: 0, RECEIVE_TOPIC: STORED_RAW})
            await noted(report, compare_send(report, broker, "sync flush", TURNS_S * factor))
            await noted(report, compare_receive(report, broker, TURNS_S * factor))
            stored = {"trovemq": STORED_FOR_OURS} | dict.fromkeys(commands, STORED_FOR_CLIENT)
            for name, count in stored.items():
                await prepare(broker, {f"send-{name}": 0, f"receive-{name}": count})
            for language, command in commands.items():
                await noted(report, measure_official(report, broker, language, command, CLIENT_S * factor))
            await noted(report, measure_own(report, broker, CLIENT_S * factor))
            await noted(report, measure_delayed(report, broker, DUE_S * factor))
        await noted(report, measure_idle(report, idle, IDLE_S * factor))


async def noted(report: Report, step: Coroutine[Any, Any, None]) -> None:
    """A step that fails costs its own figures only."""
    try:
        await step
    except (BenchError, ProcessError) as error:
        report.notes.append(f"not measured: {error}")


async def prepare(broker: BrokerProcess, topics: Mapping[str, int]) -> None:
    """Makes topics of 8 queues, with this many messages of 1 KiB in each."""
    async with trovemq.connect(broker.address) as client:
        for topic, count in topics.items():
            await client.admin.create_topic(topic, queue_count=measure.QUEUES)
            async with client.producer(topic) as producer:
                for number in range(count // STORED_BATCH):
                    await producer.send_batch(
                        [BODY] * STORED_BATCH,
                        keys=["key"] * STORED_BATCH,
                        tags="tag",
                        queue_id=number % measure.QUEUES,
                    )


async def output(*command: str) -> dict[str, Any]:
    """The JSON object that a command prints last. Raises ProcessError."""
    answer: dict[str, Any] = json.loads(await last_line(*command, timeout_s=PROCESS_S_MAX))
    return answer


async def raw(command: str, *arguments: object) -> dict[str, Any]:
    return await output(sys.executable, "-m", "bench.rocketmq_raw", command, *map(str, arguments))


# --- raw calls beside empty ones ------------------------------------------------------------------------
async def compare_send(report: Report, broker: BrokerProcess, mode: str, seconds: float) -> None:
    cpu = measure.cpu_seconds(broker.pid)
    found = await raw("send", broker.address, seconds)
    busy = (measure.cpu_seconds(broker.pid) - cpu) / seconds
    name = f"raw SendMessage, {CALLS_IN_FLIGHT} in flight, {mode}"
    report.add(f"empty unary call beside it ({mode})", found["other"], "calls/s")
    report.add(name, found["ours"], "calls/s")
    report.add_latency(name, found["times"])
    report.add(f"{name}: of the empty call's rate", found["ratio"], "x", at_least=RATIO_MIN)
    report.add(f"{name}: processors that the broker used", busy, "")


async def compare_receive(report: Report, broker: BrokerProcess, seconds: float) -> None:
    async with limits.echo_server("guarded") as echo:
        found = await raw("receive", broker.address, echo, seconds)
    name = f"raw ReceiveMessage of {BATCH}, acknowledged, {RECEIVES_IN_FLIGHT} in flight"
    report.add("empty stream of such frames beside it", found["other"], "frames/s")
    report.add(name, found["ours"], "msg/s")
    report.add_latency(f"{name}, a batch", found["times"])
    report.add(f"{name}: of the empty stream's rate", found["ratio"], "x", at_least=RATIO_MIN)


# --- clients --------------------------------------------------------------------------------------------
async def measure_official(
    report: Report, broker: BrokerProcess, language: str, command: Sequence[str], seconds: float
) -> None:
    works: tuple[clients.Work, ...] = ("send", "receive")
    for work, goal in zip(works, OFFICIAL_GOALS[language], strict=True):
        name, group = f"official {language} client, {work}", f"group-{language}"
        (found,) = await clients.run(command, work, f"{work}-{language}", group, seconds, 1, broker.address)
        report_client(report, name, found.rate, found.times, goal)
        if found.failures:
            report.notes.append(f"{name}: {found.failures} calls failed")


async def measure_own(report: Report, broker: BrokerProcess, seconds: float) -> None:
    sent, received = Turns(), Turns()
    acknowledged: list[float] = []
    async with trovemq.connect(broker.address) as client:

        async def send() -> int:
            await client.send("send-trovemq", BODY, keys="key", tag="tag")
            return 1

        await Turns().run(send, 0.5, CALLS_IN_FLIGHT)
        await sent.run(send, seconds, CALLS_IN_FLIGHT)
        async with client.subscribe("receive-trovemq", "group-trovemq") as messages:

            async def receive() -> int:
                message = await anext(messages)
                started = time.perf_counter()
                await message.ack()
                acknowledged.append(time.perf_counter() - started)
                return 1

            try:
                async with asyncio.timeout(seconds + RECEIVE_S_MORE):
                    await Turns().run(receive, 0.5, CALLS_IN_FLIGHT)
                    acknowledged.clear()
                    await received.run(receive, seconds, CALLS_IN_FLIGHT)
            except TimeoutError:
                raise BenchError(f"fewer than {STORED_FOR_OURS:,} messages came, or all too soon") from None
    report_client(report, "trovemq, client.send", sent.rates[0], sent.times)
    report_client(report, "trovemq, client.subscribe", received.rates[0], acknowledged)


def report_client(
    report: Report, name: str, rate: float, times: Sequence[float], goal: float | None = None
) -> None:
    """`times`: from a send to its receipt, or of an acknowledgement."""
    if goal is None:
        report.add(name, rate, "msg/s")
    else:
        report.add(name, rate, "msg/s", at_least=goal)
    if len(times) > 1:
        report.add_latency(name, times)


# --- waiting --------------------------------------------------------------------------------------------
async def measure_idle(report: Report, broker: BrokerProcess, seconds: float) -> None:
    """The idle cost of the broker's process: first without, then with the long polls."""
    without = await cpu_percent(broker.pid, seconds / 2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.rocketmq_raw", "idle", broker.address, str(POLLS)),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PROCESS_S_MAX)
        if json.loads(line or b"{}").get("waiting") != POLLS:
            raise BenchError(f"not all of {POLLS} long polls wait: {line!r}")
        with_polls = await cpu_percent(broker.pid, seconds)
    finally:
        process.stdin.close()
        await process.wait()
    report.add("idle broker", without, "% of a processor")
    report.add(f"idle broker, {POLLS:,} long polls waiting", with_polls, "% of a processor")
    cost = max(0.0, with_polls - without)
    report.add(f"{POLLS:,} long polls: their part", cost, "% of a processor", at_most=IDLE_PERCENT_MAX)


async def cpu_percent(pid: int, seconds: float) -> float:
    cpu, started = measure.scheduled_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (measure.scheduled_seconds(pid) - cpu) / (time.perf_counter() - started) * 100


async def measure_delayed(report: Report, broker: BrokerProcess, seconds: float) -> None:
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic(DELAY_TOPIC, queue_count=measure.QUEUES, message_type="DELAY")
    found = await raw("delayed", broker.address, seconds)
    if found["came"] != found["count"]:
        raise BenchError(f"{found['came']} of {found['count']} delayed messages came")
    name = f"delayed, {DUE_A_SECOND:,} due a second: lateness at the consumer"
    report.add_latency(name, found["times"], p99_max_ms=LATENESS_MS_MAX)
