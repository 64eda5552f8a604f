"""The benchmark of other brokers: who does what in it, and how its ratios are judged."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.peers import ours, run
from bench.peers.workloads import WORKLOADS, Goal, Workload
from bench.report import Report

MODULES = ("ours", "redis_streams", "jetstream", "kafka")


def test_every_client_of_a_workload_has_its_methods() -> None:
    for workload in WORKLOADS:
        clients = {name: one for module in MODULES for name, one in _module(module).CLIENTS.items()}
        assert set(workload.clients) <= set(clients)
        works = ["live_send", "live_read"] if workload.work == "live" else [workload.work]
        for name in workload.clients:
            assert all(hasattr(clients[name], work) for work in ["make_topic", *works]), (workload.name, name)
        assert {goal.client for goal in workload.goals} <= set(workload.clients)


def _module(name: str) -> Any:
    return import_module(f"bench.peers.{name}")


@pytest.mark.slow
def test_clients_of_peers_need_nothing_of_this_project() -> None:
    """They run in a separate environment."""
    modules = "".join(f", bench.peers.{name}" for name in ("redis_streams", "jetstream", "kafka"))
    code = (
        f"import sys; sys.path.insert(0, '.'); import bench.peers.client{modules};"
        " assert not [name for name in sys.modules if name.startswith('trovemq')]"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_a_workload_and_a_row_are_chosen_by_name() -> None:
    workloads, rows = run.chosen(["w4", "official", "engine", "W4 live"])
    assert [workload.name for workload in workloads] == ["W4 live, 1,000/s", "W4 live, 20,000/s"]
    assert rows == ["engine", "official"]
    assert run.chosen([]) == (list(WORKLOADS), list(run.ROWS))
    with pytest.raises(ValueError, match=r"'w9' is none of W1, W2, .*official"):
        run.chosen(["W1", "W9"])


def test_a_row_that_fails_costs_its_own_figures_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(report: Report, _directory: Path, *, quick: bool) -> None:
        report.add("one", 1.0, "us")
        raise RuntimeError(f"no daemon, quick {quick}")

    async def works(report: Report, _directory: Path, *, quick: bool) -> None:
        report.add("two", 2.0 + quick, "us")

    monkeypatch.setitem(run.ROWS, "engine", fails)
    monkeypatch.setitem(run.ROWS, "sync", works)
    report = Report("peers")
    asyncio.run(run.measure_peers(report, tmp_path, quick=False, only=["sync", "engine"]))
    one, failed, two = report.figures
    assert (one.value, failed.value, two.value) == (1.0, None, 2.0)
    assert "no daemon, quick False" in failed.reason


def test_a_ratio_is_to_the_best_of_the_peers_that_were_measured() -> None:
    goals = (Goal("single", "rate", 2.0), Goal("single", "p50_us", 1.5), Goal("single", "rate", 50.0, ()))
    workload = Workload("W", "produce", {"single": 1}, ("rate", "p50_us"), goals)
    found: run.Found = {
        ("W", ours.PEER.name, "single"): [{"rate": 90.0, "p50_us": 30.0}],
        ("W", "Redis streams", "redis-py"): [{"rate": 30.0, "p50_us": 10.0}],
        ("W", "Kafka", "confluent-kafka"): [{"rate": 45.0, "p50_us": 15.0}],
        ("other", "Kafka", "confluent-kafka"): [{"rate": 1e9, "p50_us": 0.1}],
    }
    report = Report("peers")
    run._report(report, workload, found, 1.0)
    assert report.value("W: ours (single) to Kafka") == 2.0
    assert report.value("W: ours (single), p50 to Redis streams") == 3.0
    assert report.missed == ["W: ours (single), p50 to Redis streams"]


def test_a_goal_without_any_peer_has_no_row() -> None:
    workload = Workload("W", "produce", {"single": 1}, ("rate",), (Goal("single", "rate", 2.0),))
    report = Report("peers")
    run._report(report, workload, {("W", ours.PEER.name, "single"): [{"rate": 90.0}]}, 1.0)
    assert [figure.name for figure in report.figures] == ["W: TroveMQ (single)"]
