"""RocketMQ 5's official clients against a broker: the project's own suites, and those beside the project.

Those beside the project run in `make soak` (and by `make conformance ARGS="--shared DIR"`): their cases are
in our own suites, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.conformance.changes import run_changes
from tests.conformance.failover import GIVEN, run_kills
from tests.conformance.run import ALL_LANGUAGES, BUILD, HERE, LANGUAGES, Outcome, print_table, run_all
from tests.support.etcd_process import needs_etcd
from tests.support.trials import SOAK

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "conformance"
CASES_OF_CHANGES = 8
SIDE_BY_SIDE = 2  # suites at a time: most of their time is waiting

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own(testrun_uid: str) -> dict[str, Outcome]:
    """Run once, also where several workers have tests of this file."""
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / "outcomes.json"
    with (BUILD / "outcomes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(file.read_text()) if file.exists() else {}
        if known.get("run") != testrun_uid:
            outcomes = [asdict(one) for one in run(HERE, BUILD / "own").values()]
            known = {"run": testrun_uid, "outcomes": outcomes}
            file.write_text(json.dumps(known))
    return {one["language"]: Outcome(**one) for one in known["outcomes"]}


@pytest.fixture(scope="module")
def shared() -> dict[str, Outcome]:
    if not SOAK:
        pytest.skip("in make soak")
    if not SHARED.is_dir():
        pytest.skip("no folder shared/conformance beside the project")
    return run(SHARED, BUILD / "shared")


def run(source: Path, build: Path) -> dict[str, Outcome]:
    outcomes = run_all(LANGUAGES, source, build, side_by_side=SIDE_BY_SIDE)
    print_table(outcomes)
    return {outcome.language: outcome for outcome in outcomes}


def check(outcome: Outcome, count_min: int = 19) -> None:
    if outcome.skipped:
        pytest.skip(f"the {outcome.language} client: {outcome.skipped}")
    assert outcome.problem == ""
    failed = {name: fault for name, fault in outcome.faults.items() if fault is not None}
    assert failed == {}
    cases = len(outcome.faults) + len(outcome.not_applicable)
    assert cases >= (min(count_min, 16) if outcome.language == "go" else count_min)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_projects_own_suite(own: dict[str, Outcome], language: str) -> None:
    check(own[language])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_suite_beside_the_project(shared: dict[str, Outcome], language: str) -> None:
    check(shared[language])


def test_the_python_client_is_never_skipped(own: dict[str, Outcome]) -> None:
    assert own["python"].skipped == ""


def test_the_official_client_and_our_protocol_live_in_one_process(own: dict[str, Outcome]) -> None:
    """Both have the messages of RocketMQ's protocol; protobuf knows each name once."""
    program = (
        "import rocketmq; from trovemq_proto.rocketmq.v2 import service_pb2; "
        "print(service_pb2.DESCRIPTOR.package)"
    )
    done = subprocess.run(
        [BUILD / "own" / "python" / ".venv" / "bin" / "python", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "proto"), "HOME": str(BUILD)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "trovemq.rocketmq.v2"
    assert own["python"].faults


@pytest.fixture(scope="module")
def secured() -> dict[str, Outcome]:
    outcomes = run_all(ALL_LANGUAGES, HERE, BUILD / "own", tls=True, authentication=True, side_by_side=2)
    return {outcome.language: outcome for outcome in outcomes}


@pytest.mark.skipif(not SOAK, reason="in make soak")
@pytest.mark.parametrize("language", ALL_LANGUAGES)
def test_over_tls_as_a_user_who_may_send_and_consume(secured: dict[str, Outcome], language: str) -> None:
    check(secured[language])


@pytest.fixture(scope="module")
def of_two_brokers() -> dict[str, Outcome]:
    outcomes = run_all(
        ALL_LANGUAGES, HERE, BUILD / "own", tls=True, authentication=True, side_by_side=2, brokers=2
    )
    print_table(outcomes)
    return {outcome.language: outcome for outcome in outcomes}


@pytest.mark.skipif(not SOAK, reason="in make soak")
@pytest.mark.parametrize("language", ALL_LANGUAGES)
def test_with_the_address_of_one_of_two_brokers(of_two_brokers: dict[str, Outcome], language: str) -> None:
    check(of_two_brokers[language])


@pytest.fixture(scope="module")
def during_changes() -> dict[str, Outcome]:
    outcomes = run_changes(ALL_LANGUAGES, BUILD / "own", tls=True)
    print_table(outcomes)
    return {outcome.language: outcome for outcome in outcomes}


@pytest.mark.skipif(not SOAK, reason="in make soak")
@pytest.mark.parametrize("language", ALL_LANGUAGES)
def test_while_brokers_are_killed_drained_and_join(during_changes: dict[str, Outcome], language: str) -> None:
    check(during_changes[language], CASES_OF_CHANGES)


@pytest.fixture(scope="module")
def during_kills() -> dict[str, Outcome]:
    outcomes = run_kills(ALL_LANGUAGES, BUILD / "own", tls=True)
    print_table(outcomes)
    return {outcome.language: outcome for outcome in outcomes}


@needs_etcd
@pytest.mark.skipif(not SOAK, reason="in make soak")
@pytest.mark.parametrize("language", ALL_LANGUAGES)
def test_while_leaders_of_a_replica_group_are_killed(during_kills: dict[str, Outcome], language: str) -> None:
    check(during_kills[language], 3 * (len(GIVEN) - 1))
