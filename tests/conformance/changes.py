"""Official clients send and receive while brokers are killed, drained, and join.

The client of each language (`steady` in its folder) is given the address of one broker, which stays, and has
two topics, NORMAL and FIFO, that lie on both brokers. The same changes happen to all clients.
The runner reads at each broker how many messages it stored and delivered.

    make conformance                                  this after the suites
    python -m tests.conformance.changes [LANGUAGE]    this alone; --tls as for the suites

Official clients ask for routes every 30 s: each change has that time, and ROUTES_LATE_S more. The whole
takes about five minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.conformance.cluster import Cluster, await_routes, metric
from tests.conformance.run import (
    ALL_LANGUAGES,
    BUILD,
    HERE,
    Outcome,
    SuiteError,
    install,
    print_table,
    reason_to_skip,
    trovemq,
)
from trovemq.testing import BrokerProcess

REFRESH_S = 30
ROUTES_LATE_S = 10
START_S_MAX = 40
QUIET_S = 5
POLL_S = 0.5
LOST_S_MAX = 120  # a client that waits at brokers without messages receives the last ones late
CONTINUED_MIN = 20
"""Messages of each topic, sent and delivered, while a broker is away: about four seconds of them."""

KEEPS_QUEUES = "its producer keeps the queues that it got at its start"
NOT_APPLICABLE = {
    ("nodejs", case): KEEPS_QUEUES
    for case in (
        "a_broker_that_was_away_is_found",
        "a_drained_broker_gets_no_more_messages",
        "a_broker_that_is_no_longer_drained_is_found",
        "a_killed_broker_is_found_when_it_is_back",
        "a_broker_that_joins_is_found",
    )
} | {
    ("go", "a_drained_broker_gets_no_more_messages"): (
        "its producer also uses queues that may only be read, until the broker refuses"
    ),
    ("go", "a_client_continues_when_a_broker_is_killed"): (
        "its calls to all brokers wait while it connects to one that does not answer, 5 s each time"
    ),
}
"""(language, case): why the client does not do that. It passes the case where it does."""

STEADY = {"python": "steady.py", "java": "Steady", "nodejs": "steady.js"}
OWN_ORDER = ("python", "java")
"""Clients whose message groups stay with their brokers while one is away (docs/rocketmq-protocol.md)."""


class Counts(NamedTuple):
    """Messages of a client's topics that a broker has stored and delivered since its start."""

    normal_in: float
    fifo_in: float
    normal_out: float
    fifo_out: float

    def grown(self, before: Counts) -> list[bool]:
        return [now > then for now, then in zip(self, before, strict=True)]


NOTHING = Counts(0, 0, 0, 0)


@dataclass
class Steady:
    """A client that runs, and the lines that it has printed."""

    language: str
    process: subprocess.Popen[str]
    started: int = 0
    sent: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    received: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    refused: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    said: list[tuple[float, str, str]] = field(default_factory=list)
    """Time by time.monotonic(), first word and topic of each line."""

    @property
    def normal(self) -> str:
        return normal_of(self.language)

    @property
    def fifo(self) -> str:
        return fifo_of(self.language)

    def read(self) -> None:
        """Reads its lines until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, topic, body, *_ = [*line.split(maxsplit=3), "", "", ""]
            self.said.append((time.monotonic(), word, topic))
            if word == "started":
                self.started += 1
            elif word == "sent":
                self.sent[topic].append(body)
            elif word == "received":
                self.received[topic].append(body)
            elif word == "refused":
                self.refused.append(line.strip())
            else:
                self.others.append(line.strip())

    def counts(self, broker: BrokerProcess) -> Counts:
        def at(kind: str, topic: str) -> float:
            return metric(broker, f"rocketmq_messages_{kind}_total", f'topic="{topic}"')

        return Counts(
            at("in", self.normal), at("in", self.fifo), at("out", self.normal), at("out", self.fifo)
        )

    def end(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError), self.process:  # closes its pipes, and waits
            pass

    def silence(self) -> None:
        """It sends no more."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def lost(self) -> set[str]:
        return {f"{topic} {body}" for topic, bodies in self.sent.items() for body in bodies} - {
            f"{topic} {body}" for topic, bodies in self.received.items() for body in bodies
        }

    def disorder(self) -> list[str]:
        """Messages of the FIFO topic that were first received after a later one of their group."""
        last: dict[str, int] = {}
        seen: set[str] = set()
        found = []
        for body in self.received[self.fifo]:
            group, number = body.split("-")
            if body not in seen and int(number) < last.get(group, -1):
                found.append(body)
            seen.add(body)
            last[group] = max(int(number), last.get(group, -1))
        return found


def normal_of(language: str) -> str:
    return f"STEADY_{language}"


def fifo_of(language: str) -> str:
    return f"STEADY_{language}_FIFO"


class Changes:
    """The cases. Each takes all clients through one change, and notes the faults of each."""

    def __init__(self, cluster: Cluster, outcomes: Sequence[Outcome]) -> None:
        self.cluster = cluster
        self.outcomes = {outcome.language: outcome for outcome in outcomes}
        self.clients: list[Steady] = []

    @property
    def stays(self) -> BrokerProcess:
        return self.cluster.brokers[0]

    @property
    def goes(self) -> BrokerProcess:
        return self.cluster.brokers[1]

    def run(self, start: Callable[[str], Steady]) -> None:
        languages = [one.language for one in self.outcomes.values() if not one.skipped and not one.problem]
        self.goes.kill()
        await_routes([self.stays])
        self.clients = [start(language) for language in languages]
        self.a_client_starts_while_a_broker_is_away()
        self.goes.start()
        self.found("a_broker_that_was_away_is_found", self.goes, Counts(1, 1, 1, 1))
        self.a_drained_broker_gets_no_more_messages()
        self.goes.kill()
        self.a_client_continues_when_a_broker_is_killed()
        self.goes.start()
        # Java accepts no route with a new address that does not answer, and connects less and less often.
        case = "a_killed_broker_is_found_when_it_is_back"
        self.found(case, self.goes, Counts(1, 1, 1, 1), 2 * REFRESH_S)
        joined = self.cluster.add("broker-2", config_owner=self.stays.name)
        names = ",".join(one.name for one in self.cluster.brokers)
        spread = [["topic", "spread", client.normal, "--brokers", names] for client in self.clients]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda command: trovemq(self.cluster.address, command, {}), spread))
        self.found("a_broker_that_joins_is_found", joined, Counts(1, 0, 1, 0))
        self.every_message_that_was_sent_is_received()

    def note(self, case: str, client: Steady, fault: str | None) -> None:
        reason = NOT_APPLICABLE.get((client.language, case))
        outcome = self.outcomes[client.language]
        if reason is not None and fault is not None:
            outcome.not_applicable[case] = reason
            return
        outcome.faults[case] = fault

    def watch(
        self,
        case: str,
        within_s: float,
        fault_of: Callable[[Steady], str | None],
    ) -> None:
        """Asks again until no client to which the case is applicable has a fault, or the time is over."""
        began = time.monotonic()
        left = list(self.clients)
        while left:
            awaited = [one for one in left if (one.language, case) not in NOT_APPLICABLE]
            over = not awaited or time.monotonic() - began > within_s
            for client in list(left):
                fault = fault_of(client)
                if fault is None or over:
                    took = f"after {time.monotonic() - began:.0f} s"
                    print(f"{client.language}: {case} {took}: {fault or 'ok'}", flush=True)
                    self.note(case, client, fault)
                    left.remove(client)
            time.sleep(POLL_S)

    def a_client_starts_while_a_broker_is_away(self) -> None:
        def fault_of(client: Steady) -> str | None:
            if client.started < 3:
                return f"{client.started} of a producer and two consumers started: {client.others[-1:]}"
            fault = _missing(client.counts(self.stays), NOTHING, Counts(1, 1, 1, 1))
            return fault and f"{fault}; {client.refused[-1:]} {client.others[-1:]}"

        self.watch("a_client_starts_while_a_broker_is_away", START_S_MAX, fault_of)

    def found(self, case: str, broker: BrokerProcess, wanted: Counts, within_s: float = REFRESH_S) -> None:
        """The clients send to the broker and receive from it, within their refresh."""
        before = {client.language: client.counts(broker) for client in self.clients}

        def fault_of(client: Steady) -> str | None:
            return _missing(client.counts(broker), before[client.language], wanted)

        self.watch(case, within_s + ROUTES_LATE_S, fault_of)

    def a_drained_broker_gets_no_more_messages(self) -> None:
        """They learn of it from the routes: meanwhile it still stores messages."""
        grace = f"{REFRESH_S + ROUTES_LATE_S + 4 * QUIET_S}s"
        command = ["broker", "drain", self.goes.name, "--grace", grace]
        draining = ThreadPoolExecutor(1).submit(trovemq, self.cluster.address, command, {})
        last: dict[str, tuple[float, float]] = {}

        def fault_of(client: Steady) -> str | None:
            """Quiet for QUIET_S. Messages of a FIFO topic wait for the broker: its routes do not change."""
            now = client.counts(self.goes).normal_in
            if now == 0:
                return "it never sent to the broker"
            count, since = last.get(client.language, (-1.0, 0.0))
            if now != count:
                last[client.language] = now, time.monotonic()
                return "the drained broker still gets messages"
            quiet = time.monotonic() - since
            return None if quiet > QUIET_S else "the drained broker still gets messages"

        self.watch("a_drained_broker_gets_no_more_messages", REFRESH_S + ROUTES_LATE_S + QUIET_S, fault_of)
        draining.result()
        trovemq(self.cluster.address, ["broker", "drain", self.goes.name, "--undo"], {})
        self.found("a_broker_that_is_no_longer_drained_is_found", self.goes, Counts(1, 1, 1, 1))

    def a_client_continues_when_a_broker_is_killed(self) -> None:
        """It sends to the other one, and receives from it, also before it asks for routes again."""
        before = {client.language: client.counts(self.stays) for client in self.clients}

        def fault_of(client: Steady) -> str | None:
            most = Counts(*(count + CONTINUED_MIN for count in before[client.language]))
            return _missing(client.counts(self.stays), most, Counts(1, 1, 1, 1))

        self.watch("a_client_continues_when_a_broker_is_killed", REFRESH_S, fault_of)
        time.sleep(REFRESH_S + ROUTES_LATE_S)  # until routes without the broker are known

    def every_message_that_was_sent_is_received(self) -> None:
        for client in self.clients:
            print(
                f"{client.language}: {sum(map(len, client.sent.values()))} sent,"
                f" {len(client.refused)} refused"
            )
            client.silence()

        def fault_of(client: Steady) -> str | None:
            lost = client.lost()
            return f"{len(lost)} lost: {sorted(lost)[:5]}" if lost else None

        self.watch("every_message_that_was_sent_is_received", LOST_S_MAX, fault_of)
        for client in self.clients:
            if client.language in OWN_ORDER:
                found = client.disorder()
                fault = f"{len(found)} after later ones: {found[:5]}" if found else None
                self.note("message_groups_keep_their_order", client, fault)


def _missing(now: Counts, before: Counts, wanted: Counts) -> str | None:
    grown = now.grown(before)
    missing = [
        name for name, has, needs in zip(Counts._fields, grown, wanted, strict=True) if needs and not has
    ]
    return f"not there: {', '.join(missing)}" if missing else None


def run_changes(languages: Sequence[str], build: Path, *, tls: bool) -> list[Outcome]:
    """Raises SuiteError where the brokers cannot be prepared."""
    outcomes = [Outcome(language) for language in languages]
    commands = {one.language: command for one in outcomes if (command := steady_command(one, build, tls=tls))}
    with ExitStack() as processes:
        cluster = Cluster(processes, build / "changes", several=True, tls=tls)
        for number in range(2):
            cluster.add(f"broker-{number}", config_owner="broker-0" if number else "")
        await_routes(cluster.brokers)
        for language in commands:
            for topic, kind in ((normal_of(language), "normal"), (fifo_of(language), "fifo")):
                create = ["topic", "create", topic, "--queues", "4", "--type", kind]
                trovemq(cluster.address, [*create, "--brokers", "broker-0,broker-1"], {})

        def start(language: str) -> Steady:
            environment = {**cluster.trusted, "ENDPOINTS": cluster.endpoints[0]}
            return start_steady(processes, language, commands[language], build, environment)

        Changes(cluster, outcomes).run(start)
    return outcomes


def start_steady(
    processes: ExitStack,
    language: str,
    command: Sequence[str],
    build: Path,
    environment: Mapping[str, str],
) -> Steady:
    """The client by its command, with a thread that reads its lines. It ends with `processes`."""
    given = {
        **os.environ,
        **environment,
        "HOME": str(build / language / "home"),
        "TOPIC": normal_of(language),
        "FIFO_TOPIC": fifo_of(language),
    }
    pipe, folder = subprocess.PIPE, build / language
    process = subprocess.Popen(
        command, cwd=folder, env=given, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    client = Steady(language, process)
    processes.callback(client.end)
    threading.Thread(target=client.read, daemon=True).start()
    return client


def steady_command(outcome: Outcome, build: Path, *, tls: bool) -> list[str] | None:
    """The command that runs the client; None where it cannot, as the outcome says then."""
    language = outcome.language
    outcome.skipped = reason_to_skip(language, tls=tls)
    if outcome.skipped:
        return None
    folder = build / language
    shutil.copytree(HERE / language, folder, dirs_exist_ok=True)
    try:
        *command, suite = install(language, folder)
    except SuiteError as error:
        outcome.problem = str(error)
        return None
    (folder / "home").mkdir(exist_ok=True)
    return [*command, suite, "steady"] if language == "go" else [*command, STEADY[language]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Official clients while brokers go and come.")
    parser.add_argument("languages", nargs="*", default=[], metavar="LANGUAGE", help=", ".join(ALL_LANGUAGES))
    parser.add_argument("--tls", action="store_true", help="over TLS")
    options = parser.parse_args()
    outcomes = run_changes(options.languages or list(ALL_LANGUAGES), BUILD / "own", tls=options.tls)
    print_table(outcomes)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
