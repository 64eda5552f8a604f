"""The benchmark of replica groups: the sections that run, and how figures are judged."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bench.peers.peer import Peer
from bench.peers.task import Answer
from bench.replicas import run
from bench.replicas.catch_up import _p99
from bench.replicas.fail_over import Change, Sends
from bench.replicas.peers import KAFKA, NATS, REDIS
from bench.report import Report


def test_sections_are_chosen_by_name() -> None:
    assert run.chosen([]) == list(run.SECTIONS)
    assert run.chosen(["catch-up", "async-3"]) == ["async-3", "catch-up"]
    with pytest.raises(ValueError, match=r"'async-4' is none of async-2, .*catch-up"):
        run.chosen(["async-4"])


def test_a_section_that_fails_costs_its_own_figures_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(bench: run.Bench) -> None:
        (bench.directory / "store").mkdir()
        raise RuntimeError(f"no daemon, {bench.rounds} rounds")

    def works(bench: run.Bench) -> None:
        assert not (bench.directory / "store").exists(), "stores do not fill the disk"
        bench.report.add("two", 2.0, "us")

    monkeypatch.setitem(run.SECTIONS, "async-2", fails)
    monkeypatch.setitem(run.SECTIONS, "async-3", works)
    report = Report("replicas")
    only = ["async-2", "async-3"]
    asyncio.run(run.measure_replicas(report, tmp_path, quick=False, only=only, rounds=7))
    _, failed, two = report.figures
    assert (failed.value, two.value) == (None, 2.0)
    assert "no daemon, 7 rounds" in failed.reason


def test_a_ratio_to_a_broker_that_is_not_installed_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: Answer = {"rate": 90.0, "leader_us": 10.0, "follower_us": 6.0, "servers_us": 22.0}
    for peer in (KAFKA, NATS, REDIS):
        monkeypatch.setattr(type(peer), "missing", lambda _self: "its program")
    monkeypatch.setattr(run, "our_group", lambda *_arguments, **_keywords: _Nothing())
    monkeypatch.setattr(run, "_measure_all", lambda *_arguments, **_keywords: {"ours": [answer] * 5})
    report = Report("replicas")
    run._batches(run.Bench(report, tmp_path, 5, quick=True, began=time.perf_counter()), 3, synced=False)
    reasons = {figure.name: figure.reason for figure in report.figures if figure.value is None}
    assert reasons == {"3 nodes, async: ours to Kafka, 3 brokers": "its program is not installed"}
    assert report.value("3 nodes, async: processor, follower to leader") == pytest.approx(0.6)


def test_a_peer_without_syncs_is_not_among_the_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(Peer):
        name, module, clients, syncs = "Old", "old", (), False

        def missing(self) -> str | None:
            return None

        def version(self) -> str:
            return "Old 2.9"

        def command(self, directory: Path, port: int, *, synced: bool) -> list[str]:
            return []

    assert run._unfit(Old(), synced=False) == ""
    assert run._unfit(Old(), synced=True) == "Old 2.9 cannot sync before it acknowledges"


def test_sends_count_by_when_they_were_due() -> None:
    times = [(at, 1.0) for at in range(100)] + [(at, 3.0) for at in range(100, 200)]
    assert _p99(times, 0, 100) == 1.0
    assert _p99(times, 100, 200) == 3.0
    with pytest.raises(RuntimeError, match="too few"):
        _p99(times, 500, 600)


def test_a_kill_lasts_until_a_send_that_began_after_it_is_acknowledged() -> None:
    """The old leader may have answered one that began before."""
    sends = Sends([(9.9, 10.1, ""), (10.2, 10.9, "NOT_LEADER"), (11.0, 12.5, ""), (12.6, 12.7, "")])
    assert sends.resumed_s(Change(10.0, 10.05)) == pytest.approx(2.5)
    assert sends.failed == 1
    assert sends.longest_s(Change(10.0, 10.05), 13.0) == pytest.approx(1.5)
    with pytest.raises(RuntimeError, match="no send was acknowledged"):
        sends.resumed_s(Change(13.0, 13.1))


def test_a_broker_without_a_tree_to_compare_says_so(tmp_path: Path) -> None:
    report = Report("replicas")
    run._before(run.Bench(report, tmp_path, 5, quick=True, began=time.perf_counter()), synced=False)
    (figure,) = report.figures
    assert "--against TREE" in figure.reason


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
