"""The part `replicas`: a replica group of ours beside one broker of ours and replicated brokers of others.

Each section starts its servers with new stores. In each round all do the work, one after the other, so that
all meet the same machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench import limits
from bench.peers import ours
from bench.peers.peer import Peer
from bench.peers.task import Answer, Task
from bench.replicas import catch_up, fail_over
from bench.replicas.groups import Group, our_group
from bench.replicas.peers import KAFKA, NATS, REDIS, peer_group
from bench.report import Report, median_ratio

ROUNDS: Final = 5
SECONDS: Final = 3.0
MESSAGES: Final = 400_000
SINGLE_SECONDS: Final = 1.5
SINGLES: Final = 3_000
IN_FLIGHT: Final = 16_000
"""Of our client, in batches of 1,000; Kafka's has as many as it takes."""
WARM_SECONDS: Final = 1.0
BEFORE_GOAL: Final = 0.98
ABOUT: Final = (
    "A group of 2 or 3 nodes (`ack = replicated`, `in_sync_min = 2`) beside Kafka with as many brokers\n"
    "(replication factor as many, `acks=all`, `min.insync.replicas=2`; KRaft, the first one is the\n"
    "controller, too), NATS JetStream with three servers (R3) and Redis with two replicas (`WAIT 2`).\n"
    "Bodies of 1 KiB. All servers and the client share the machine's processors and its disk: three synced\n"
    "copies are three syncs of one disk. Each broker has its own Python client in a separate process.\n"
    "Medians of rounds; in each round every broker does the work, and each begins with another one; `x` is\n"
    "the median of the rounds' ratios.\n\n"
    "- Batches: ours 16 batches of 1,000 in flight, Kafka's client as many messages as it takes, to one\n"
    "  partition. Async: each broker's default of syncing later. Sync: `flushDiskType=SYNC_FLUSH`; Kafka\n"
    "  with `flush.messages=1`, which syncs each batch of a leader or follower before the acknowledgement.\n"
    "- One send at a time: Redis with `appendfsync always`, NATS with `sync_interval: always` (from 2.10\n"
    "  on). Redis's WAIT counts replicas that have received a message, not those that have synced it.\n"
    "- Processor: of the servers' threads, for a message, with their work within half a second\n"
    "  after the last acknowledgement. Of the nodes that follow, the mean.\n"
    "- Catching up: a node with an empty store joins a leader whose log has 1 GiB, async flush, from its\n"
    "  first record to the leader's end at its start; at the leader's default rate (100 MB/s), and without\n"
    "  a limit. Beside it a client sends 200 messages a second to the leader; the copies that acknowledge\n"
    "  are the two others. Of a copy of as many bytes by a program: pieces of 1 MiB read and written, and\n"
    "  one sync at the end.\n"
    "- Kills and planned switch-overs: a client sends one message after the other, 5 ms after the answer.\n"
    "  Time from the kill to the first acknowledgement of a send that began after the end of the process.\n"
    "  Ours with an etcd of one member and the settings by default; Kafka with three controllers, and its\n"
    "  settings by default. The page of the soak has the p99 of a hundred kills.\n"
    "- The commit before: its tree (`--against`), one broker without copies, by the client of this tree.\n\n"
)

Section = Callable[["Bench"], None]


class Bench(NamedTuple):
    """A run. quick: a tenth of the messages, a third of the time. against: the tree of the commit before."""

    report: Report
    directory: Path
    rounds: int
    quick: bool
    began: float
    against: Path | None = None

    def say(self, text: str) -> None:
        """Progress."""
        print(f"{time.perf_counter() - self.began:4.0f} s  {text}", flush=True)


class Entrant(NamedTuple):
    """A group with the client that measures it."""

    group: Group
    client: str
    in_flight: int


async def measure_replicas(
    report: Report,
    directory: Path,
    *,
    quick: bool,
    only: Sequence[str] = (),
    rounds: int = ROUNDS,
    against: Path | None = None,
) -> None:
    """Everything, or the sections of these names. A section that fails costs its own figures only."""
    bench = Bench(report, directory, rounds, quick, time.perf_counter(), against)
    report.notes.append(f"{rounds} rounds." + (" `--quick`: only ratios count." if quick else ""))
    installed = [peer.version() for peer in (KAFKA, NATS, REDIS) if _missing(bench, peer) is None]
    report.notes.append("Measured: " + ", ".join([ours.PEER.version(), *installed]) + ".")
    report.add("disk: 4 KiB write + fdatasync", limits.fdatasync_seconds(directory) * 1e6, "us")
    for name in chosen(only):
        bench.say(name)
        try:
            await asyncio.to_thread(SECTIONS[name], bench)
        except Exception as error:
            bench.say(f"{name} failed: {error!r}"[:2000])
            report.not_shown(f"{name}: its other rows", "", f"it failed: {error!r}"[:300])
        for left in directory.iterdir():
            shutil.rmtree(left)


def chosen(only: Sequence[str]) -> list[str]:
    """The sections of these names; all where none is named. ValueError: there is nothing of that name."""
    for name in only:
        if name not in SECTIONS:
            raise ValueError(f"{name!r} is none of {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if not only or name in only]


def _missing(bench: Bench, peer: Peer) -> str | None:
    """The part that is not installed, which is noted."""
    missing = peer.missing()
    if missing is not None:
        bench.report.notes.append(
            f"{peer.name}: left out, {missing} is not installed (`bench/peers/setup.sh`)."
        )
    return missing


# --- batches ------------------------------------------------------------------------------------------------
def _batches(bench: Bench, count: int, *, synced: bool) -> None:
    case, directory = f"{count} nodes, {_flush(synced)}", bench.directory
    with ExitStack() as stack:
        group = stack.enter_context(our_group(directory / "ours", count, synced=synced))
        entrants = {"ours": Entrant(group, "batch", IN_FLIGHT)}
        if synced:
            single = stack.enter_context(our_group(directory / "single", 1, synced=True))
            entrants["single"] = Entrant(single, "batch", IN_FLIGHT)
        if (missing := KAFKA.missing()) is None:
            theirs = stack.enter_context(peer_group(KAFKA, directory / "kafka", count, synced=synced))
            entrants["Kafka"] = Entrant(theirs, "confluent-kafka", 0)
        seconds = SECONDS / (3 if bench.quick else 1)
        found = _measure_all(bench, case, entrants, "produce", MESSAGES, seconds, synced=synced)
    report, mine = bench.report, found["ours"]
    report.add(f"{case}: ours", _median(mine, "rate"), "msg/s")
    name, goal = f"{case}: ours to Kafka, {count} brokers", 2.0 if synced else 0.9
    if missing is None:
        report.add(f"{case}: Kafka", _median(found["Kafka"], "rate"), "msg/s")
        report.add(name, _ratio(mine, found["Kafka"], "rate"), "x", at_least=goal)
    else:
        report.not_shown(name, "x", f"{missing} is not installed", at_least=goal)
    if synced:
        report.add(f"{case}: our broker without copies", _median(found["single"], "rate"), "msg/s")
        name = f"{case}: ours to our broker without copies"
        report.add(name, _ratio(mine, found["single"], "rate"), "x", at_least=0.33)
    _report_processor(report, case, found)


def _report_processor(report: Report, case: str, found: dict[str, list[Answer]]) -> None:
    for name, answers in found.items():
        who = "our broker without copies" if name == "single" else name
        report.add(f"{case}: processor of all servers, {who}", _median(answers, "servers_us"), "us")
    mine = found["ours"]
    report.add(f"{case}: processor of the leader", _median(mine, "leader_us"), "us")
    report.add(f"{case}: processor of a follower", _median(mine, "follower_us"), "us")
    ratio = median_ratio([one["follower_us"] for one in mine], [one["leader_us"] for one in mine])
    report.add(f"{case}: processor, follower to leader", ratio, "x", at_most=0.7)


# --- one send at a time -------------------------------------------------------------------------------------
def _singles(bench: Bench, *, synced: bool) -> None:
    case, directory = f"one send at a time, 3 nodes, {_flush(synced)}", bench.directory
    goals = {REDIS: 1.5, NATS: 1.0} if synced else {NATS: 1.0}
    clients = {REDIS: "redis-py-wait", NATS: "nats-py"}
    reasons = {peer: _unfit(peer, synced=synced) for peer in goals}
    with ExitStack() as stack:
        group = stack.enter_context(our_group(directory / "ours", 3, synced=synced))
        single = stack.enter_context(our_group(directory / "single", 1, synced=synced))
        entrants = {"ours": Entrant(group, "single", 1), "single": Entrant(single, "single", 1)}
        for peer in (peer for peer in goals if not reasons[peer]):
            theirs = stack.enter_context(peer_group(peer, directory / peer.module, 3, synced=synced))
            entrants[peer.name] = Entrant(theirs, clients[peer], 1)
        seconds = SINGLE_SECONDS / (3 if bench.quick else 1)
        found = _measure_all(bench, case, entrants, "one_at_a_time", SINGLES, seconds, synced=synced)
    report, mine = bench.report, found["ours"]
    for name, answers in found.items():
        who = "our broker without copies" if name == "single" else name
        report.add(f"{case}: {who}, p50", _median(answers, "p50_us"), "us")
        report.add(f"{case}: {who}, p99", _median(answers, "p99_us"), "us")
    ratio = _ratio(mine, found["single"], "p50_us")
    goal = {"at_most": 2.2} if synced else {}
    report.add(f"{case}: p50, ours to our broker without copies", ratio, "x", **goal)
    for peer, bound in goals.items():
        name = f"{case}: p50, ours to {peer.name}"
        if reasons[peer]:
            report.not_shown(name, "x", reasons[peer], at_most=bound)
        else:
            report.add(name, _ratio(mine, found[peer.name], "p50_us"), "x", at_most=bound)


# --- one broker beside the commit before --------------------------------------------------------------------
def _before(bench: Bench, *, synced: bool) -> None:
    """The price of the seams."""
    case = f"one broker without copies, {_flush(synced)}"
    name = f"{case}: rate to that of the commit before"
    if bench.against is None:
        reason = "no tree of that commit was named: --against TREE"
        bench.report.not_shown(name, "x", reason, at_least=BEFORE_GOAL)
        return
    with ExitStack() as stack:
        entrants = {}
        for place, tree in (("now", None), ("before", bench.against.resolve())):
            group = our_group(bench.directory / place, 1, synced=synced, tree=tree)
            entrants[place] = Entrant(stack.enter_context(group), "batch", IN_FLIGHT)
        seconds = SECONDS / (3 if bench.quick else 1)
        found = _measure_all(bench, case, entrants, "produce", MESSAGES, seconds, synced=synced)
    bench.report.add(name, _ratio(found["now"], found["before"], "rate"), "x", at_least=BEFORE_GOAL)
    ratio = _ratio(found["now"], found["before"], "servers_us")
    bench.report.add(f"{case}: processor to that of the commit before", ratio, "x")


def _unfit(peer: Peer, *, synced: bool) -> str:
    """Why it cannot be measured; empty if it can."""
    if missing := peer.missing():
        return f"{missing} is not installed"
    return "" if peer.syncs or not synced else f"{peer.version()} cannot sync before it acknowledges"


# --- rounds -------------------------------------------------------------------------------------------------
def _measure_all(
    bench: Bench,
    case: str,
    entrants: dict[str, Entrant],
    work: str,
    count: int,
    seconds: float,
    *,
    synced: bool,
) -> dict[str, list[Answer]]:
    """The answers of all rounds. One before the first warms all up, and does not count."""
    found: dict[str, list[Answer]] = {name: [] for name in entrants}
    for number in range(-1, bench.rounds):
        names = list(entrants)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            group, client, in_flight = entrants[name]
            limits.warm_page_cache(bench.directory)
            task = Task(
                group.server.address,
                f"round-{number + 1}",
                count // (10 if bench.quick else 1),
                seconds if number >= 0 else min(seconds, WARM_SECONDS),
                in_flight,
                copies=group.copies,
            )
            made = Task(task.address, task.topic, 1, 1.0, in_flight=int(synced), copies=group.copies)
            group.server.run(client, "make_topic", made)
            os.sync()  # the unwritten pages of the one before are not to delay this one
            answer = group.run(client, work, task)
            if number >= 0:
                found[name].append(answer)
                bench.say(f"{case}, {number + 1} of {bench.rounds}, {name}: {answer['rate']:,.0f} msg/s")
    return found


def _flush(synced: bool) -> str:
    return "sync" if synced else "async"


def _median(answers: Iterable[Answer], value: str) -> float:
    return float(median(answer[value] for answer in answers))


def _ratio(ours: Sequence[Answer], theirs: Sequence[Answer], value: str) -> float:
    return median_ratio([one[value] for one in ours], [one[value] for one in theirs])


def _catch_up(bench: Bench) -> None:
    catch_up.measure(bench.report, bench.directory, bench.say, rounds=bench.rounds, quick=bench.quick)


def _fail_over(bench: Bench) -> None:
    fail_over.measure(bench.report, bench.directory, bench.say, quick=bench.quick)


SECTIONS: Final[dict[str, Section]] = {
    "async-2": lambda bench: _batches(bench, 2, synced=False),
    "async-3": lambda bench: _batches(bench, 3, synced=False),
    "sync-2": lambda bench: _batches(bench, 2, synced=True),
    "sync-3": lambda bench: _batches(bench, 3, synced=True),
    "single-sync": lambda bench: _singles(bench, synced=True),
    "single-async": lambda bench: _singles(bench, synced=False),
    "catch-up": _catch_up,
    "fail-over": _fail_over,
    "before-async": lambda bench: _before(bench, synced=False),
    "before-sync": lambda bench: _before(bench, synced=True),
}
"""By the name for `--only`."""
