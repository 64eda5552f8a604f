"""Official clients send and receive while leaders of a replica group are killed.

Three nodes with etcd and a nameserver; the client of each language (`steady` in its folder) has two topics,
NORMAL and FIFO. All clients of a run see the same kills. They were given

| run        | addresses                                     |
|------------|-----------------------------------------------|
| `all`      | of the three nodes                            |
| `follower` | of one node; it follows when a leader is killed |
| `leader`   | of one node: the one that is killed           |

    python -m tests.conformance.failover [LANGUAGE]    --tls as for the suites; --given all; --kills 3

A killed node is started again once another one leads. For each client the runner prints the longest
pause of its sends and of its receives after each kill, the sends that ended with an error, and the numbers of
messages that were lost, stored twice, delivered again, and out of order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.changes import (
    LOST_S_MAX,
    OWN_ORDER,
    POLL_S,
    REFRESH_S,
    ROUTES_LATE_S,
    Steady,
    fifo_of,
    normal_of,
    start_steady,
    steady_command,
)
from tests.conformance.cluster import make_certificates
from tests.conformance.run import ALL_LANGUAGES, BUILD, Outcome, SuiteError, print_table, trovemq
from tests.integration.elected_nodes import ElectedNodes, Node, elected_nodes
from trovemq import sync
from trovemq.testing import NameserverProcess, free_port

GIVEN = ("all", "follower", "leader")
TAKE_ONE = {False: ("nodejs",), True: ("nodejs", "python")}
"""Clients that take several addresses for one name, without TLS and with it: they do not start with them."""
GROUP = "solo"
QUEUES = 4
KILLS = 2
START_S = 120
AGAIN_S_MAX = REFRESH_S + ROUTES_LATE_S
STEADY_S = 3.0
"""Between a start or a failover and the next kill."""


@dataclass
class Figures:
    """Of one client in a run: pauses in seconds, one for each kill."""

    language: str
    sends_s: list[float] = field(default_factory=list)
    receives_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    lost: int = 0
    stored_twice: int = 0
    delivered_again: int = 0
    disorder: int = 0

    def row(self) -> str:
        pauses = [" ".join(f"{one:.1f}" for one in found) or "-" for found in (self.sends_s, self.receives_s)]
        counts = self.sent, sum(self.errors.values()), self.lost, self.stored_twice, self.delivered_again
        return " | ".join((self.language, *pauses, *map(str, counts), str(self.disorder)))


HEADING = "client | sends pause s | receives pause s | sent | failed | lost | stored twice | again | disorder"


class Kills:
    """One run: `given` is a row of the table above."""

    def __init__(self, group: ElectedNodes, given: str, outcomes: Sequence[Outcome], *, tls: bool) -> None:
        self._group = group
        self._given = given
        self._outcomes = {one.language: one for one in outcomes}
        self._nodes = list(group.nodes.values())
        leader = group.leader()
        first = leader if given == "leader" else next(one for one in self._nodes if one is not leader)
        self._addressed = first
        chosen = self._nodes if given == "all" else [first]
        self.endpoints = ";".join(one.tls_address if tls else one.address for one in chosen)
        self.clients: list[Steady] = []
        self.figures: dict[str, Figures] = {}

    def run(self, clients: Sequence[Steady], kills: int) -> None:
        self.clients = list(clients)
        self.figures = {one.language: Figures(one.language) for one in clients}
        self._all_within("starts", START_S, lambda one: one.started >= 3 and _has_done(one, 0.0))
        for _ in range(kills):
            self._kill()
        self._end()

    def _kill(self) -> None:
        former = self._leader_to_kill()
        time.sleep(STEADY_S)
        began = time.monotonic()
        former.kill()
        self._group.next_leader(former, f"kill, given {self._given}")
        self._group.start(former)
        self._all_within("continues", AGAIN_S_MAX, lambda one: _has_done(one, began + STEADY_S))
        self._group.leader()
        for one in self.clients:
            figures = self.figures[one.language]
            figures.sends_s.append(_pause(one, "sent", began))
            figures.receives_s.append(_pause(one, "received", began))

    def _leader_to_kill(self) -> Node:
        leader = self._group.leader()
        if self._given == "all" or (leader is self._addressed) == (self._given == "leader"):
            return leader
        wanted = self._addressed
        if self._given == "follower":
            wanted = next(one for one in self._nodes if one is not leader)
        with sync.connect(leader.address) as client:
            client.admin.replicas.switch_over(GROUP, to=wanted.name)
        self._group.next_leader(leader, "switch-over")
        return self._group.leader()

    def _all_within(self, what: str, seconds: float, done: Callable[[Steady], bool]) -> None:
        ends = time.monotonic() + seconds
        while (left := [one for one in self.clients if not done(one)]) and time.monotonic() < ends:
            time.sleep(POLL_S)
        for client in self.clients:
            fault = f"not in {seconds:.0f} s: {client.refused[-1:]} {client.others[-1:]}"
            self._note(client, what, fault if client in left else None)

    def _note(self, client: Steady, what: str, fault: str | None) -> None:
        """The first fault of a case stays."""
        case = f"given_{self._given}_{what}"
        faults = self._outcomes[client.language].faults
        if faults.get(case) is None:
            faults[case] = fault

    def _end(self) -> None:
        for client in self.clients:
            client.silence()
        self._all_within("loses_nothing", LOST_S_MAX, lambda one: not one.lost())
        time.sleep(STEADY_S)  # for further deliveries
        for client in self.clients:
            figures = self.figures[client.language]
            figures.errors.update(" ".join(line.split()[3:])[:160] for line in client.refused)
            figures.sent = sum(map(len, client.sent.values()))
            figures.lost = len(client.lost())
            received = {topic: set(found) for topic, found in client.received.items()}
            stored = sum(self._stored(topic) for topic in (client.normal, client.fifo))
            figures.stored_twice = stored - sum(map(len, received.values()))
            deliveries = sum(map(len, client.received.values()))
            figures.delivered_again = deliveries - stored
            figures.disorder = len(client.disorder())
            if client.language in OWN_ORDER:
                fault = f"{figures.disorder} after later ones: {client.disorder()[:5]}"
                self._note(client, "keeps_the_order", fault if figures.disorder else None)

    def _stored(self, topic: str) -> int:
        with sync.connect(self._group.leader().address) as client:
            return sum(one.max_offset - one.min_offset for one in client.queue_offsets(topic))


def _has_done(client: Steady, after: float) -> bool:
    """Sent and received, in both topics, after that time."""
    wanted = {(word, topic) for word in ("sent", "received") for topic in (client.normal, client.fifo)}
    for at, word, topic in reversed(client.said):
        if at < after:
            break
        wanted.discard((word, topic))
    return not wanted


def _pause(client: Steady, word: str, began: float) -> float:
    """The longest time without that word about a topic, from one second before the kill on."""
    longest = 0.0
    for topic in (client.normal, client.fifo):
        last = began - 1
        for at, said, about in [*client.said]:
            if said == word and about == topic and at > last:
                longest = max(longest, at - last)
                last = at
        longest = max(longest, time.monotonic() - last)
    return longest


def run_kills(
    languages: Sequence[str],
    build: Path,
    *,
    tls: bool,
    given: Sequence[str] = GIVEN,
    kills: int = KILLS,
) -> list[Outcome]:
    """SuiteError where the nodes cannot be prepared. Prints the figures."""
    outcomes = [Outcome(language) for language in languages]
    commands = {one.language: found for one in outcomes if (found := steady_command(one, build, tls=tls))}
    for each in given if commands else ():
        left_out = TAKE_ONE[tls] if each == "all" else ()
        chosen = {name: one for name, one in commands.items() if name not in left_out}
        for outcome in outcomes:
            if outcome.language in commands.keys() - chosen.keys():
                outcome.not_applicable[f"given_{each}_starts"] = "it takes several addresses for one name"
        if chosen:
            _run_one(each, chosen, outcomes, build, kills, tls=tls)
    return outcomes


def _run_one(
    given: str,
    commands: Mapping[str, Sequence[str]],
    outcomes: Sequence[Outcome],
    build: Path,
    kills: int,
    *,
    tls: bool,
) -> None:
    """A new group, and all these clients."""
    with ExitStack() as processes:
        directory = Path(processes.enter_context(TemporaryDirectory(dir=build)))
        settings, trusted = _prepared(directory, processes, tls=tls)
        group = processes.enter_context(elected_nodes(directory, settings, by_links=False))
        leader = group.leader().address
        for language in commands:
            for topic, kind in ((normal_of(language), "normal"), (fifo_of(language), "fifo")):
                create = ["topic", "create", topic, "--queues", str(QUEUES), "--type", kind]
                trovemq(leader, create, {})
        run = Kills(group, given, outcomes, tls=tls)
        environment = {**trusted, "ENDPOINTS": run.endpoints}
        with ThreadPoolExecutor() as pool:
            clients = pool.map(
                lambda one: start_steady(processes, one[0], one[1], build, environment),
                commands.items(),
            )
        run.run(list(clients), kills)
        print(f"given {given}: leaders after {[f'{took_s:.2f} s' for _, took_s in group.took_s]}")
        print(HEADING)
        for figures in run.figures.values():
            print(figures.row())
            for error, count in figures.errors.items():
                print(f"  {count} x {error}")
        sys.stdout.flush()


def _prepared(directory: Path, processes: ExitStack, *, tls: bool) -> tuple[list[str], dict[str, str]]:
    """The settings of each node, and variables for the clients; with a nameserver that runs."""
    if not tls:
        nameserver = processes.enter_context(NameserverProcess(ready_timeout=START_S))
        return [f"nameserver={nameserver.address}"], {}
    at = f"127.0.0.1:{free_port()}"
    files, trusted = make_certificates(directory / "certificates")
    processes.enter_context(NameserverProcess(arguments=["--tls-listen", at, *files], ready_timeout=START_S))
    ca = trusted["NODE_EXTRA_CA_CERTS"]
    certificate, key = files[1], files[3]
    settings = [f"nameserver={at}", "nameserver_tls=true", f"nameserver_tls_ca={ca}"]
    return [*settings, f"tls_certificate={certificate}", f"tls_key={key}"], trusted


def main() -> int:
    parser = argparse.ArgumentParser(description="Official clients while leaders are killed.")
    parser.add_argument("languages", nargs="*", default=[], metavar="LANGUAGE", help=", ".join(ALL_LANGUAGES))
    parser.add_argument("--tls", action="store_true", help="over TLS")
    parser.add_argument("--given", choices=GIVEN, action="append", help="this run alone")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"of each run ({KILLS})")
    options = parser.parse_args()
    languages = options.languages or list(ALL_LANGUAGES)
    try:
        outcomes = run_kills(
            languages, BUILD / "own", tls=options.tls, given=options.given or GIVEN, kills=options.kills
        )
    except SuiteError as error:
        print(error)
        return 1
    print_table(outcomes)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
