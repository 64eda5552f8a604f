"""Runs the suites with the official clients against a real broker, and prints the result of each case.

    make conformance                         every language that this machine has, and then changes.py
    make conformance ARGS="python"           one of them
    make conformance ARGS="--tls --authentication"    over TLS, as a user who may send and consume
    make conformance ARGS="remoting remoting4"    Java's client of the remoting protocol, 5.4.0 and 4.9.8
    make conformance ARGS="remoting_go spring"    Go's client of it, and RocketMQ's Spring Boot starter
    make conformance ARGS="mqadmin mqadmin4"    RocketMQ's command line of 5.4.0, and of 4.9.8
    make conformance ARGS="mqadmin --authentication"    its commands of users and rules
    make conformance ARGS="--brokers 2"      against a cluster, of which the clients get one address
    make conformance ARGS="--brokers 2 --forwarded"    through a forwarded port of one of them
    make conformance ARGS="--brokers 2 --tls --authentication"    all of that together
    make conformance ARGS="--shared DIR"     a folder of suites of the same kind instead of ours

A language needs its tools: Java `java` and `mvn`, Node.js `node` and `npm`, Go `go`; without them it is
skipped and the table says so. So is Go without `--tls`: its client speaks nothing else. The clients are
installed under build/conformance, from their packages.
The exit code is 0 when every case of every suite that ran has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.cluster import Cluster, await_routes
from tests.integration.port_forwarder import PortForwarder

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "conformance"
LANGUAGES = ("python", "java", "nodejs")
BY_TLS_ONLY = ("go",)
ALL_LANGUAGES = (*LANGUAGES, *BY_TLS_ONLY)
REMOTING = "remoting"
CLIENTS = {REMOTING: "5.4.0", "remoting4": "4.9.8"}
"""Java's client of the remoting protocol, by release: against one broker, without TLS and log-ins."""
MQADMIN = {"mqadmin": "5.4.0", "mqadmin4": "4.9.8"}
"""RocketMQ's command line, by release: one suite, as for CLIENTS."""
RELEASES = {**CLIENTS, **MQADMIN}
REMOTING_GO = "remoting_go"
SPRING = "spring"
BY_REMOTING_IN_JAVA = (*RELEASES, SPRING)
BY_REMOTING = (*BY_REMOTING_IN_JAVA, REMOTING_GO)
MOVED = ("org.apache.rocketmq.remoting.protocol.heartbeat", "org.apache.rocketmq.common.protocol.heartbeat")
"""A package of 5.x, and where 4.9 has it."""
USERS = "mqadmin"
"""With --authentication its cases are the commands of users and rules."""
JAVA = ("java", "javac", "mvn")
TOOLS = {
    "python": (),
    "java": JAVA,
    **dict.fromkeys(BY_REMOTING_IN_JAVA, JAVA),
    REMOTING_GO: ("go",),
    "nodejs": ("node", "npm"),
    "go": ("go",),
}
INSTALL_S_MAX = 240
TIME_MAX_S = 100  # of the cases of a suite, for each broker
SUITE_S_MAX = 50  # more than that
CASE = re.compile(r"^(ok|not ok) ([^\s:(]+)(?:: (.*?))?(?: \([\d.]+ ?s\))?$")
LOCK = HERE / "python" / "requirements.lock"


@dataclass
class Outcome:
    """The result of one suite. `faults`: case -> why it failed, None where it passed. `not_applicable`: case
    -> why this client cannot do that."""

    language: str
    faults: dict[str, str | None] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    problem: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.problem) or any(fault is not None for fault in self.faults.values())


class SuiteError(Exception):
    """The suite could not run."""


def missing_tools(language: str) -> list[str]:
    return [tool for tool in TOOLS[language] if shutil.which(tool) is None]


def reason_to_skip(language: str, *, tls: bool, authentication: bool = False) -> str:
    """Why no suite of it can run here; "" where one can."""
    if missing := missing_tools(language):
        return f"no {', '.join(missing)} on this machine"
    if language in BY_REMOTING and tls:
        return "remoting callers cannot log in yet"
    if language in BY_REMOTING and language != USERS and authentication:
        return "its cases give no credentials"
    if language in BY_TLS_ONLY and not tls:
        return "its client speaks TLS only (--tls)"
    return ""


def run_command(command: Sequence[str | Path], folder: Path, seconds: int, **environment: str) -> str:
    """Its output. Raises SuiteError where it fails or takes too long."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SuiteError(f"{command[0]} took more than {seconds} s") from error
    if done.returncode != 0:
        raise SuiteError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def install(language: str, folder: Path) -> list[str]:
    """Makes the suite in `folder` ready; the command that runs it."""
    if language == "python":
        return install_python(folder)
    if language == "nodejs":
        if not (folder / "node_modules").is_dir():
            run_command(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder, INSTALL_S_MAX)
        return ["node", "suite.js"]
    if language in ("go", REMOTING_GO):
        run_command(["go", "build", "-o", "suite", "."], folder, INSTALL_S_MAX)
        return ["./suite"]
    library = folder / "target" / "lib"
    if not list(library.glob("*.jar")):
        target = f"-DoutputDirectory={library}"
        release = [f"-Drocketmq.version={RELEASES[language]}"] if language in RELEASES else []
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", target, *release]
        run_command(command, folder, INSTALL_S_MAX)
    classes = folder / "target" / "classes"
    sources = sorted((folder / "src").rglob("*.java"))
    options = ["-encoding", "UTF-8", "-proc:none", "-nowarn", "-cp", f"{library}/*", "-d", str(classes)]
    classes.mkdir(parents=True, exist_ok=True)
    run_command(["javac", *options, *sources], folder, INSTALL_S_MAX)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own = [f"-Duser.home={home}", f"-Drocketmq.log.root={home}", f"-Drocketmq.home.dir={home}"]
    if language in MQADMIN:
        (home / "conf").mkdir(exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9.8 asks for it
    return ["java", "-Xmx768m", "-XX:+UseSerialGC", *own, "-cp", f"{classes}:{library}/*", "Suite"]


def install_python(folder: Path) -> list[str]:
    """The official client in a separate environment, by hashes where the suite is ours."""
    python = folder / ".venv" / "bin" / "python"
    stamp = folder / ".venv" / "installed"
    if not stamp.exists():
        uv = Path(sys.executable).parent / "uv"
        run_command(
            [uv, "venv", "--clear", "--quiet", "--python", sys.executable, ".venv"], folder, INSTALL_S_MAX
        )
        wanted = ["--require-hashes", "-r", "requirements.lock"]
        if not (folder / "requirements.lock").exists():
            wanted = ["-r", "requirements.txt"]
        run_command([uv, "pip", "install", "--quiet", "--python", python, *wanted], folder, INSTALL_S_MAX)
        stamp.touch()
    return [str(python), "-u", "suite.py"]


def suite_of(language: str) -> str:
    """The folder of its suite."""
    return "mqadmin" if language in MQADMIN else REMOTING if language in CLIENTS else language


def add_harness(language: str, source: Path, folder: Path) -> None:
    """The suites of one programming language share it."""
    if language in BY_REMOTING_IN_JAVA:
        shutil.copy(source / "java" / "src" / "Harness.java", folder / "src")
    elif language == REMOTING_GO:
        shutil.copy(source / "go" / "harness.go", folder)
    if language in CLIENTS and CLIENTS[language].startswith("4."):
        suite = folder / "src" / "Suite.java"
        suite.write_text(suite.read_text().replace(*MOVED))


def run_suite(
    language: str, source: Path, build: Path, endpoints: str, cases: Sequence[str] = (), **environment: str
) -> Outcome:
    """Installs and runs the suite of one language, or only these cases of it; never raises."""
    outcome = Outcome(language)
    outcome.skipped = reason_to_skip(
        language, tls=environment.get("SSL") == "true", authentication="ACCESS_KEY" in environment
    )
    if outcome.skipped:
        return outcome
    suite = source / suite_of(language)
    if not suite.is_dir():
        outcome.skipped = f"no suite in {source}"
        return outcome
    folder = build / language
    started = time.monotonic()
    try:
        shutil.copytree(suite, folder, dirs_exist_ok=True)
        add_harness(language, source, folder)
        command = [*install(language, folder), *cases]
        home = folder / "home"
        home.mkdir(exist_ok=True)
        started = time.monotonic()
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "ENDPOINTS": endpoints, "HOME": str(home), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SUITE_S_MAX + int(environment.get("TIME_MAX_S", TIME_MAX_S)),
            check=False,
        )
    except (SuiteError, subprocess.TimeoutExpired, OSError) as error:
        outcome.problem = str(error)
        return outcome
    outcome.seconds = time.monotonic() - started
    for line in done.stdout.splitlines():
        if found := CASE.match(line):
            outcome.faults[found[2]] = None if found[1] == "ok" else found[3] or "failed"
    if not outcome.faults or (done.returncode != 0 and not outcome.failed):
        outcome.problem = f"ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
    return outcome


def try_again(outcome: Outcome, source: Path, build: Path, endpoints: str, **environment: str) -> None:
    """Cases that failed run once more, with the machine to themselves: clients have time-outs that twenty of
    them at a time may miss. The first failures are printed; the second ones count."""
    failed = [name for name, fault in outcome.faults.items() if fault is not None]
    if outcome.problem or not failed:
        return
    for name in failed:
        print(f"{outcome.language}: {name} failed and runs again: {outcome.faults[name]}")
    again = run_suite(outcome.language, source, build, endpoints, failed, **environment)
    outcome.problem = again.problem
    outcome.faults.update(again.faults)


def print_table(outcomes: Sequence[Outcome]) -> None:
    """One line a case, one column a language; then the failures, and why."""
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.faults))
    width = max((len(name) for name in names), default=4)
    print(f"{'case':{width}}  " + "".join(f"{outcome.language:>10}" for outcome in outcomes))
    for name in names:
        marks = []
        for outcome in outcomes:
            mark = "-" if name not in outcome.faults else "ok" if outcome.faults[name] is None else "FAILED"
            marks.append(f"{mark:>10}")
        print(f"{name:{width}}  " + "".join(marks))
    totals = []
    for outcome in outcomes:
        passed = sum(fault is None for fault in outcome.faults.values())
        totals.append(f"{f'{passed} of {len(outcome.faults)}':>10}" if outcome.faults else f"{'-':>10}")
    print(f"{'total':{width}}  " + "".join(totals))
    for outcome in outcomes:
        if outcome.skipped:
            print(f"{outcome.language}: skipped, {outcome.skipped}")
        if outcome.problem:
            print(f"{outcome.language}: {outcome.problem}")
        for name, fault in outcome.faults.items():
            if fault is not None:
                print(f"{outcome.language}: {name}: {fault}")
        for name, reason in outcome.not_applicable.items():
            print(f"{outcome.language}: {name} is not applicable: {reason}")


def trovemq(address: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as an operator gives it; its answer. SuiteError."""
    command = [sys.executable, "-m", "trovemq.cli", "--json", "--server", address, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env={**os.environ, **environment}
    )
    if done.returncode != 0:
        raise SuiteError(f"trovemq {arguments[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def apply_topics(file: Path, address: str, environment: Mapping[str, str]) -> None:
    """Makes the topics and groups that the suites use."""
    trovemq(address, ["apply", str(file)], environment)


def make_user(addresses: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """A user who may send and consume, and nothing else, with one secret at all brokers; as variables for
    the suites."""
    secret = secrets.token_urlsafe()
    file = folder / "suite.secret"
    file.write_text(secret)
    file.chmod(0o600)
    for address in addresses:
        trovemq(address, ["user", "create", "suite", "--secret-file", str(file)], environment)
        for resource in ("Topic:*", "Group:*"):
            trovemq(address, ["acl", "allow", "suite", "Pub,Sub", resource], environment)
    return {"ACCESS_KEY": "suite", "SECRET_KEY": secret}


def run_all(
    languages: Sequence[str],
    source: Path,
    build: Path,
    *,
    tls: bool = False,
    authentication: bool = False,
    side_by_side: int = 1,
    brokers: int = 1,
    forwarded: bool = False,
) -> list[Outcome]:
    """Every suite, with the address of one broker, of which the routes name the others; `forwarded`: with a
    port that is forwarded to it, and leads to no other. Raises SuiteError where a broker cannot be
    prepared."""
    environment = {"BROKERS": str(brokers), "TIME_MAX_S": str(TIME_MAX_S * brokers)}
    build.mkdir(parents=True, exist_ok=True)
    with ExitStack() as processes:
        cluster = Cluster(processes, build, several=brokers > 1, tls=tls, authentication=authentication)
        for number in range(brokers):
            cluster.add(f"broker-{number}")
        for each in cluster.brokers:
            apply_topics(source / "topics.json", each.address, cluster.admin)
        if authentication:
            addresses = [each.address for each in cluster.brokers]
            environment |= make_user(addresses, build, cluster.admin)
            environment["ADMIN_SECRET_KEY"] = cluster.admin["TROVEMQ_SECRET_KEY"]
        environment |= cluster.trusted
        if brokers > 1:
            await_routes(cluster.brokers)
        endpoints = cluster.endpoints[0]
        if forwarded:
            endpoints = processes.enter_context(PortForwarder(endpoints)).address
        with ThreadPoolExecutor(side_by_side) as pool:
            running = [
                pool.submit(run_suite, language, source, build, endpoints, **environment)
                for language in languages
            ]
            outcomes = [future.result() for future in running]
        for outcome in outcomes:
            try_again(outcome, source, build, endpoints, **environment)
        for each in cluster.brokers:
            if any(outcome.failed for outcome in outcomes) and each.log():
                print(f"--- the log of {each.name}\n{each.log()[-4000:]}\n---")
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Conformance with the official RocketMQ 5 clients.")
    parser.add_argument(
        "languages",
        nargs="*",
        default=[],
        metavar="LANGUAGE",
        help=", ".join((*ALL_LANGUAGES, *BY_REMOTING)),
    )
    parser.add_argument("--shared", type=Path, help="a folder of suites of the same kind")
    parser.add_argument("--tls", action="store_true", help="over TLS")
    parser.add_argument("--authentication", action="store_true", help="as a user who may send and consume")
    parser.add_argument("--brokers", type=int, default=1, help="brokers of the cluster (1)")
    parser.add_argument("--forwarded", action="store_true", help="through a forwarded port of one broker")
    parser.add_argument("--side-by-side", type=int, default=2, help="suites at a time (2)")
    parser.add_argument("--json", type=Path, help="also write the outcome to this file")
    options = parser.parse_args()
    known = (*ALL_LANGUAGES, *BY_REMOTING)
    languages = options.languages or list(known if options.brokers == 1 else ALL_LANGUAGES)
    if unknown := set(languages) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    source = options.shared or HERE
    build = BUILD / ("shared" if options.shared else "own")
    outcomes = run_all(
        languages,
        source,
        build,
        tls=options.tls,
        authentication=options.authentication,
        side_by_side=options.side_by_side,
        brokers=options.brokers,
        forwarded=options.forwarded,
    )
    print_table(outcomes)
    if options.json:
        rows = {outcome.language: outcome.faults for outcome in outcomes if not outcome.skipped}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
