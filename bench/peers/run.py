"""The part `peers`: all servers run at once, and each workload goes through them in turn: all meet the same
machine. Then the rows without peers (`bench.goals`), and the official clients (`bench.official`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, Protocol

from bench import limits
from bench.goals import connections, engine, growth, idle, lookups, sync, topics
from bench.official import run as official
from bench.peers import jetstream, kafka, ours, redis_streams
from bench.peers.peer import Peer
from bench.peers.servers import Server, serving
from bench.peers.task import Answer, Task
from bench.peers.workloads import W1_SYNCED, WORKLOADS, Goal, Value, Workload
from bench.report import Report

PEERS: Final[tuple[Peer, ...]] = (redis_streams.PEER, jetstream.PEER, kafka.PEER)
ROUNDS: Final = 3
MESSAGES: Final = 300_000
MESSAGES_ONE_AT_A_TIME: Final = 3_000
SECONDS: Final = 6.0
OVER_THE_SYNC_US: Final = 150.0
ABOUT: Final = (
    "Bodies of 1 KiB, one server without replicas, loopback, each broker's own Python client in a separate\n"
    "process; server and client share the processors. Medians of rounds; in each round every workload\n"
    "goes through all brokers in turn, and each round begins with another one. `x` is ours to the best of\n"
    "the peers that the goal names. The server's processor time is that of a message. Before each run a\n"
    "file of 1 GiB is written and deleted, so that a broker writes into memory that was used before, as one\n"
    "does that has run for a day: the host of this machine reclaims free memory, and writing a MiB into\n"
    "the page cache takes 2.4 ms in memory that was reclaimed, and 0.2 otherwise. Without it, the rows\n"
    "with many writes depend on who ran before. Our broker and all Python clients run on one\n"
    "interpreter: Debian's, which is built with profile-guided optimisation, as those of the official\n"
    "images are. On a plain build (pyenv's default), alternately, W1 takes 1.15 times as long, and the\n"
    "broker's processor works 1.2 times as long.\n\n"
    "- W1: single calls. W2: the client's own batching; ours 16 batches of 1,000 in flight.\n"
    "- W1, W4: while it waits for the answer to a lone message, our client's event loop does not sleep, for\n"
    "  300 us at most (`busy_poll_us`, on by default); of `sleeping` it sleeps, as the other clients' do.\n"
    "- W3: ours as batches, each body taken as bytes (batch), and as Message objects (single).\n"
    "- W4: from just before the send to the reader's hand; the sender never waits for answers.\n"
    "  At 20,000/s it never sleeps, because its event loop rounds a wait to whole milliseconds: broker\n"
    "  and reader share the other processor.\n"
    "- W5: synced before the answer; ours by `send_batch` of 64 (as Redis's pipeline) and by single sends.\n"
    "- W7: each message is acknowledged; ours has 1,000 prefetched, and acknowledges one at a time\n"
    "  (group) and in lists of 500 (group-batch), as Redis's client does. Kafka, which commits a cursor,\n"
    "  is left out.\n"
    "- Look-ups by the SDK, one at a time, and for the goal when the trees have caught up. The clients that\n"
    "  long-poll have a connection each, an open Telemetry stream and a ReceiveMessage of 20 s.\n"
    "- Topics: every one has a queue; calls go to one topic, to 64, and to 10,000, on three brokers that\n"
    "  take turns. With 64 in flight, sends that come together are one append; 64 topics have 64 consume\n"
    "  queues to write. The cost has all that follows a message: also its entries in the trees, and the\n"
    "  syncs of its consume queue.\n"
    "- A large store and many groups: as the topics, with one topic; the groups have each consumed a\n"
    "  message, and have all others to consume.\n"
    "- Official clients: 64 sends in flight; 8 receivers of 32 messages, an acknowledgement a message.\n"
    "  One process goes through all servers for 2 s each, when it has warmed up for 6 s with each (Java)\n"
    "  or 1 s (Python); each round begins with another server. The stub is a grpc-go server that gives the\n"
    "  replies that our broker once gave. The broker's processor: while the client works with it alone.\n\n"
)


class Measured(Protocol):
    async def __call__(self, report: Report, directory: Path, /, *, quick: bool) -> None: ...


ROWS: Final[dict[str, Measured]] = {
    "engine": engine.measure,
    "lookups": lookups.measure,
    "idle": idle.measure,
    "topics": topics.measure,
    "growth": growth.measure,
    "connections": connections.measure,
    "sync": sync.measure,
    "official": official.measure,
}
"""The rows beside the workloads, by the name for `--only`."""
LABELS: Final[dict[Value, tuple[str, str]]] = {
    "rate": ("", "msg/s"),
    "p50_us": (", p50", "us"),
    "p99_us": (", p99", "us"),
    "server_us": (", server's processor", "us"),
}
Found = dict[tuple[str, str, str], list[Answer]]
"""By workload, peer and client: an answer a round."""


async def measure_peers(report: Report, directory: Path, *, quick: bool, only: Sequence[str] = ()) -> None:
    """Everything, or the parts of these names."""
    workloads, rows = chosen(only)
    if quick:
        report.notes.append("`--quick`: one round, a tenth of the messages. Only ratios count.")
    if workloads:
        _measure_workloads(report, directory, workloads, quick=quick)
    for name in rows:
        try:
            await ROWS[name](report, directory, quick=quick)
        except Exception as error:  # a row that fails costs its own figures only
            report.not_shown(f"{name}: its other rows", "", f"it failed: {error!r}"[:300])


def chosen(only: Sequence[str]) -> tuple[list[Workload], list[str]]:
    """The workloads whose names begin so, and the other rows of these names; all where none is named.

    ValueError: there is nothing of that name.
    """
    if not only:
        return list(WORKLOADS), list(ROWS)
    found: dict[str, list[Workload]] = {}
    for name in map(str.casefold, only):
        found[name] = [one for one in WORKLOADS if one.name.casefold().startswith(name)]
        if name not in ROWS and not found[name]:
            known = dict.fromkeys(one.name.split()[0] for one in WORKLOADS)
            raise ValueError(f"{name!r} is none of {', '.join([*known, *ROWS])}")
    workloads = [one for one in WORKLOADS if any(one in group for group in found.values())]
    return workloads, [name for name in ROWS if name in found]


def _measure_workloads(report: Report, directory: Path, workloads: list[Workload], *, quick: bool) -> None:
    """With the peers that are installed; the others are named."""
    installed: list[Peer] = [ours.PEER]
    for peer in PEERS:
        if (missing := peer.missing()) is None:
            installed.append(peer)
        else:
            report.notes.append(
                f"{peer.name}: left out, {missing} is not installed (`bench/peers/setup.sh`)."
            )
    report.notes.append("Measured: " + ", ".join(peer.version() for peer in installed) + ".")
    report.add("python: a method call", limits.method_call_seconds() * 1e9, "ns")
    fdatasync_us = limits.fdatasync_seconds(directory) * 1e6
    report.add("disk: 4 KiB write + fdatasync", fdatasync_us, "us")
    found: Found = {}
    for synced in sorted({workload.synced for workload in workloads}):
        alike = [workload for workload in workloads if workload.synced == synced]
        _measure_all(found, installed, alike, directory, synced=synced, quick=quick)
    for peer in installed:
        if not peer.syncs:
            report.notes.append(f"{peer.version()} cannot sync before it acknowledges: not among the synced.")
    for workload in workloads:
        _report(report, workload, found, fdatasync_us)


def _measure_all(
    found: Found,
    peers: list[Peer],
    workloads: list[Workload],
    directory: Path,
    *,
    synced: bool,
    quick: bool,
) -> None:
    """`workloads` are synced, or are not."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(peer, directory / f"{peer.module}-{synced}", synced=synced))
            for peer in peers
            if peer.syncs or not synced
        ]
        for number in range(1 if quick else ROUNDS):
            first = number % len(servers)
            for workload in workloads:
                for server in servers[first:] + servers[:first]:
                    _measure(found, server, workload, number, directory, quick=quick)


def _measure(
    found: Found, server: Server, workload: Workload, number: int, directory: Path, *, quick: bool
) -> None:
    """The workload with each client of this broker that does it, each with a separate topic."""
    divisor, seconds = 10 if quick else 1, SECONDS / (3 if quick else 1)
    count = int(workload.rate * seconds) or MESSAGES // divisor
    if workload.work == "one_at_a_time":
        count = MESSAGES_ONE_AT_A_TIME // divisor
    for client in server.peer.clients:
        in_flight = workload.clients.get(client)
        if in_flight is None:
            continue
        topic = f"t{WORKLOADS.index(workload)}-{client}-{number}"
        task = Task(server.address, topic, count, seconds, in_flight, workload.rate)
        limits.warm_page_cache(directory)
        server.run(client, "make_topic", Task(server.address, topic, 1, 1.0, in_flight=int(workload.synced)))
        if workload.filled:
            filler = "batch" if server.peer is ours.PEER else client
            written = server.run(filler, "produce", task)["count"]
            task = Task(server.address, topic, written, seconds, in_flight)
        os.sync()  # the unwritten pages of the one before are not to delay this one
        answer = server.run(client, workload.work, task)
        found.setdefault((workload.name, server.peer.name, client), []).append(answer)


def _report(report: Report, workload: Workload, found: Found, fdatasync_us: float) -> None:
    """A row for each value of each client, with its goal; then the ratios."""
    figures = {(goal.client, goal.value): goal.bound for goal in workload.goals if not goal.peers}
    if workload.name == W1_SYNCED:
        figures["single", "p50_us"] = fdatasync_us + OVER_THE_SYNC_US
    for (name, peer, client), answers in found.items():
        for value in workload.shown if name == workload.name else ():
            bound = figures.get((client, value))
            label, unit = LABELS[value]
            report.add(
                f"{name}: {peer} ({client}){label}", _median(answers, value), unit, **_bound(value, bound)
            )
    for goal in workload.goals:
        _report_ratio(report, workload, goal, found)


def _report_ratio(report: Report, workload: Workload, goal: Goal, found: Found) -> None:
    theirs = {
        peer: _median(answers, goal.value)
        for (name, peer, _), answers in found.items()
        if name == workload.name and peer in goal.peers
    }
    if not theirs:
        return
    best = (max if goal.value == "rate" else min)(theirs, key=lambda peer: theirs[peer])
    mine = _median(found[workload.name, ours.PEER.name, goal.client], goal.value)
    name = f"{workload.name}: ours ({goal.client}){LABELS[goal.value][0]} to {best}"
    report.add(name, mine / theirs[best], "x", **_bound(goal.value, goal.bound))


def _bound(value: Value, bound: float | None) -> dict[str, float]:
    if bound is None:
        return {}
    return {"at_least" if value == "rate" else "at_most": bound}


def _median(answers: list[Answer], value: Value) -> float:
    return float(median(answer[value] for answer in answers))
