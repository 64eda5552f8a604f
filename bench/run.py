"""`make bench`: the broker's figures on this machine, beside the machine's own limits.

    make bench                      every part
    make bench ARGS="store"         the store and the native protocol
    make bench ARGS="rocketmq"      RocketMQ's protocol, with the official clients that this machine can run
    make bench ARGS="recovery"      how soon a killed broker acknowledges again
    make bench ARGS="trees"         the B+trees, beside ActiveMQ with KahaDB where it is installed
    make bench ARGS="rpc"           gRPC: our transport beside grpc.aio and a bare TCP echo; some rows need Go
    make bench ARGS="topics"        10,000 topics: made, idle, scraped, started with
    make bench ARGS="brokers"       several brokers on this machine beside one, with the official clients, too
    make bench ARGS="nameserver"    100 simulated brokers at a nameserver: registered, idle, asked for routes,
                                    one topic changed
    make bench ARGS="users"         asking who calls, TLS, one user's storm beside another's sends
    make bench ARGS="cli"           one call of `trovemq`, in processor time
    make bench ARGS="console"       pages with 10,000 topics, a search, a scrape
    make bench ARGS="tracing"       OpenTelemetry off, and with 1 % sampled
    make bench ARGS="peers"         Redis, NATS, Kafka beside ours, where `bench/peers/setup.sh`
                                    installed them, and goals of ours alone (not among `every part`)
    make bench ARGS="peers --only W4 idle"      one workload and one row
    make bench ARGS="replicas"      a replica group beside one broker, Kafka, NATS and Redis with copies
                                    (not among `every part`); `--rounds 9`, `--only async-3 catch-up`,
                                    `--against TREE`: one broker beside that tree of the commit before
    make bench-pipeline             the data pipeline on Spark (not among `every part`)

Prints a table and writes JSON. A figure with a goal says whether it is reached; nothing here is a test.
Client and broker share the processors. `--quick` sends a tenth of the messages, or measures half as long;
`--messages` says how many the store of the part `trees` has.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import uvloop

import trovemq
from bench import (
    brokers,
    command_line,
    console,
    engine,
    limits,
    measure,
    nameserver,
    recovery,
    rocketmq,
    safety,
    topics,
    tracing,
    users,
)
from bench.peers import run as peers
from bench.replicas import run as replicas
from bench.report import Report, print_table, write_json, write_markdown
from bench.rpc import run as rpc
from bench.trees import run as trees
from trovemq.testing import BrokerProcess

MESSAGES_ASYNC = 1_000_000
MESSAGES_SYNC = 400_000
LATENCY_ROUNDS = 10
LATENCY_ROUND = 200
QUERIES = 2_000
STORES_SIZE = 4 << 30  # bytes of page cache that all stores of the part `store` need
PARTS = {
    "store": "The store and the native protocol",
    "rocketmq": "RocketMQ's protocol",
    "recovery": "Recovery after a kill",
    "trees": "B+trees",
    "rpc": "gRPC, our own beside grpc.aio",
    "topics": "Many topics",
    "brokers": "Several brokers",
    "nameserver": "A nameserver with 100 brokers",
    "users": "Users and TLS",
    "cli": "The command line",
    "console": "The console and a scrape",
    "tracing": "OpenTelemetry",
}
PIPELINE = "pipeline"
PEERS = "peers"
REPLICAS = "replicas"
BROKER_SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


async def measure_machine(report: Report, directory: Path) -> None:
    touch = limits.first_touch_seconds_per_mebibyte(directory)  # first: later parts warm the memory
    report.add("memory: first write into fresh page cache", touch * 1e6 / 1024, "us/KiB")
    report.add("memory: copy", limits.memcpy_bytes_per_second() / 1e9, "GB/s")
    written = limits.sequential_write_bytes_per_second(directory)
    report.add("disk: sequential write + fdatasync", written / 1e6, "MB/s")
    report.add("disk: 4 KiB write + fdatasync", limits.fdatasync_seconds(directory) * 1e3, "ms")
    async with limits.echo_server() as address:
        streamed = await limits.loopback_bytes_per_second(address)
        report.add("loopback: gRPC stream of 1 MiB frames", streamed / 1e6, "MB/s")


async def measure_start(report: Report, store: Path) -> None:
    started = time.perf_counter()
    with BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH", **BROKER_SETTINGS) as broker:
        report.add("start: until ready, empty store", time.perf_counter() - started, "s", at_most=1.5)
        report.add(
            "idle: resident memory", measure.resident_bytes(broker.pid) / (1 << 20), "MiB", at_most=120
        )


async def measure_async(report: Report, store: Path, messages: int) -> None:
    with BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH", **BROKER_SETTINGS) as broker:
        produced = await measure.produce(broker, messages)
        report.add("produce, async flush", produced.per_second, "msg/s", at_least=400_000)
        report.add("produce, async flush: bytes stored", produced.bytes_per_second / 1e6, "MB/s")
        report.add("produce: broker CPU a message", produced.broker_cpu_us, "us", at_most=2.0)
        consumed = await measure.consume(broker)
        assert consumed.messages == messages + 1, (consumed.messages, messages)
        report.add("consume from the start", consumed.per_second, "msg/s", at_least=800_000)
        report.add("consume: broker CPU a message", consumed.broker_cpu_us, "us")
        report.add("consume, each a Message object", await measure.consume_messages(broker), "msg/s")
        os.sync()  # look-ups are not to wait for the unsynced pages of produce
        generator = random.Random(2)
        keys = [f"k{generator.randrange(messages)}" for _ in range(QUERIES)]
        times = await measure.query_latencies(broker, keys)
        report.add_latency(f"key query, {messages:,} keys", times, p99_max_ms=2.0)


async def measure_sync(report: Report, store: Path, messages: int) -> None:
    with BrokerProcess(store=store, flushDiskType="SYNC_FLUSH", **BROKER_SETTINGS) as broker:
        produced = await measure.produce(broker, messages)
        record_size = produced.stored_bytes / messages
        disk = report.value("disk: sequential write + fdatasync") * 1e6
        goal = min(300_000, 0.85 * disk / record_size)
        report.add("produce, sync flush", produced.per_second, "msg/s", at_least=goal)
        report.add("produce, sync flush: bytes stored", produced.bytes_per_second / 1e6, "MB/s")


async def measure_latency(report: Report, directory: Path) -> None:
    """Single sends, to brokers with nothing else to do."""
    os.sync()
    one_sync = report.value("disk: 4 KiB write + fdatasync")
    for mode, allowance in (("async", 0.0), ("sync", one_sync)):
        store = directory / f"latency-{mode}"
        with BrokerProcess(store=store, flushDiskType=f"{mode.upper()}_FLUSH", **BROKER_SETTINGS) as broker:
            await measure_single(report, broker, f"{mode} flush", allowance_ms=allowance)


async def measure_single(report: Report, broker: BrokerProcess, mode: str, *, allowance_ms: float) -> None:
    """Acknowledged sends one at a time, in turn with echoes on an open stream of an empty server."""
    sends: list[float] = []
    echoes: list[float] = []
    async with limits.echo_server() as address, trovemq.connect(broker.address) as client:
        await client.admin.create_topic(measure.TOPIC, queue_count=measure.QUEUES)
        await measure.send_latencies(client, LATENCY_ROUND)
        for _ in range(LATENCY_ROUNDS):
            echoes += await limits.echo_latencies(address, LATENCY_ROUND)
            sends += await measure.send_latencies(client, LATENCY_ROUND)
    report.add_latency(f"empty echo on an open stream ({mode} run)", echoes)
    goal = 1.3 * median(echoes) * 1e3 + allowance_ms
    report.add(f"single send, {mode}: median", median(sends) * 1e3, "ms", at_most=goal)
    report.add(f"single send, {mode}: p99", quantiles(sends, n=100)[98] * 1e3, "ms")
    report.add(f"single send, {mode}: median / echo", median(sends) / median(echoes), "x")


def measure_engine(report: Report, directory: Path) -> None:
    cost = engine.append_cost(directory)
    report.add("append in the engine with the whole record's CRC", cost.with_crc_us, "us/message")
    report.add("append in the engine without it", cost.without_crc_us, "us/message")
    report.add("recovery scan with the CRC, warm", cost.scan_bytes_per_second / 1e6, "MB/s")


async def measure_store(report: Report, directory: Path, *, quick: bool) -> None:
    divisor = 10 if quick else 1
    await measure_machine(report, directory)
    await measure_start(report, directory / "start")
    limits.warm_page_cache(directory, STORES_SIZE // divisor)
    await measure_async(report, directory / "async", MESSAGES_ASYNC // divisor)
    await measure_sync(report, directory / "sync", MESSAGES_SYNC // divisor)
    await measure_latency(report, directory)
    await safety.measure_crc_cost(
        report, directory / "safety", BROKER_SETTINGS, rounds=safety.ROUNDS // (2 if quick else 1)
    )
    measure_engine(report, directory / "engine")


async def measure_pipeline(report: Report, directory: Path, *, quick: bool) -> None:
    """Spark is imported only here; its parts have separate event loops."""
    from bench.pipeline.run import measure_all

    await asyncio.to_thread(measure_all, report, directory, quick=quick)


MEASURED: dict[str, tuple[Callable[..., Awaitable[None]], str]] = {
    "store": (measure_store, ""),
    "rocketmq": (rocketmq.measure_protocol, rocketmq.ABOUT),
    "recovery": (recovery.measure_recovery, recovery.ABOUT),
    "trees": (trees.measure_trees, trees.ABOUT),
    "rpc": (rpc.measure_rpc, rpc.ABOUT),
    "topics": (topics.measure_topics, topics.ABOUT),
    "brokers": (brokers.measure_brokers, brokers.ABOUT),
    "nameserver": (nameserver.measure_nameserver, nameserver.ABOUT),
    "users": (users.measure_users, users.ABOUT),
    "cli": (command_line.measure_command_line, command_line.ABOUT),
    "console": (console.measure_console, console.ABOUT),
    "tracing": (tracing.measure_tracing, tracing.ABOUT),
    PEERS: (peers.measure_peers, peers.ABOUT),
    REPLICAS: (replicas.measure_replicas, replicas.ABOUT),
    PIPELINE: (measure_pipeline, ""),
}
TITLES = PARTS | {
    PEERS: "Other brokers beside ours",
    REPLICAS: "Replica groups",
    PIPELINE: "The data pipeline on Spark",
}
CHOSEN: dict[str, Callable[[Sequence[str]], object]] = {PEERS: peers.chosen, REPLICAS: replicas.chosen}
"""What `--only` names, of the parts that have it; ValueError."""


async def run(arguments: argparse.Namespace) -> list[Report]:
    reports = []
    for part in PARTS if arguments.part is None else (arguments.part,):
        measured, about = MEASURED[part]
        report = Report(TITLES[part], about)
        more: dict[str, Any] = {"messages": arguments.messages} if part == "trees" else {}
        more |= {"only": arguments.only} if part in CHOSEN else {}
        if part == REPLICAS:
            more |= {"rounds": arguments.rounds, "against": arguments.against}
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="trovemq-bench-") as scratch:
            await measured(report, Path(scratch), quick=arguments.quick, **more)
        reports.append(report)
    return reports


def check_only(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends with a message where `--only` does not fit."""
    if not arguments.only:
        return
    if arguments.part not in CHOSEN or arguments.markdown is not None:
        parser.error(f"--only is for the parts {', '.join(CHOSEN)}, and not for a page, which has all rows")
    try:
        CHOSEN[arguments.part](arguments.only)
    except ValueError as error:
        parser.error(str(error))


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=tuple(TITLES), help="one part only")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, half of the time")
    parser.add_argument("--messages", type=int, help="of the part `trees`, instead of 5,000,000")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        help="of the part `peers`: W1 to W7, Single, rows' names; of `replicas`: sections' names",
    )
    parser.add_argument("--rounds", type=int, default=replicas.ROUNDS, help="of the part `replicas`")
    parser.add_argument("--against", type=Path, help="of the part `replicas`: the tree of the commit before")
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench.json"), help="where to write the figures"
    )
    parser.add_argument("--markdown", type=Path, help="also write the tables into this page")
    parser.add_argument("--directory", type=Path, default=Path("."), help="on the disk that is measured")
    arguments = parser.parse_args()
    check_only(parser, arguments)
    reports = uvloop.run(run(arguments))
    print_table(reports)
    write_json(arguments.json, reports)
    if arguments.markdown is not None:
        write_markdown(arguments.markdown, reports)
    missed = [name for report in reports for name in report.missed]
    print(f"{len(missed)} goals missed: {', '.join(missed)}" if missed else "every goal reached")
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()
