"""The rows without peers, and the official clients': the parts that need no daemon."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench import engine
from bench.goals import connections, idle, sync
from bench.official import clients, rocketmq
from bench.official import run as official
from bench.processes import ProcessError
from bench.report import Report


def test_a_hand_over_to_the_thread_is_timed() -> None:
    times_us = asyncio.run(sync.hand_overs(3))
    assert len(times_us) == 3
    assert min(times_us) > 0


def test_the_engines_cost_without_the_write_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ROUNDS", 1)
    monkeypatch.setattr(engine, "SEGMENT_SIZE", 1 << 22)
    cost = engine.append_cost(tmp_path)
    assert 0 < cost.without_write_us < cost.with_crc_us
    assert 1_024 < cost.record_size < 2_048


@pytest.mark.parametrize("module", [idle, connections])
def test_rows_of_many_connections_say_where_they_are_not_allowed(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.measure.allow_open_files", lambda _count: False)
    report = Report("peers")
    asyncio.run(module.measure(report, tmp_path, quick=True))  # type: ignore[attr-defined]
    assert {(figure.value, figure.reason) for figure in report.figures} == {
        (None, "1,200 open files are not allowed here")
    }


def test_a_ratio_leaves_out_turns_without_messages() -> None:
    mine, theirs = (
        clients.ClientFigures(rates, [], 1, 0) for rates in ([90.0, 0.0, 40.0], [30.0, 10.0, 40.0])
    )
    assert mine.ratio_to(theirs) == 2.0
    assert mine.rate == 65.0
    assert mine.ratio_to(clients.ClientFigures([0.0] * 3, [], 0, 0)) is None


def test_without_go_and_rocketmq_the_rows_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    servers, report = official.Servers(1, {official.OURS: "127.0.0.1:1"}), Report("peers")
    with ExitStack() as running:
        asyncio.run(official._start_stub(servers, running, tmp_path))
        official._start_proxy(servers, running, tmp_path, report)
    assert servers.missing[official.STUB] == "Go is not installed"
    assert servers.missing[official.PROXY].startswith("Java is not installed")


def test_a_java_without_rocketmqs_jars_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rocketmq, "JARS", tmp_path / "none")
    assert rocketmq.missing() == "RocketMQ"


def test_a_client_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "client"
    program.write_text("#!/bin/sh\necho no route >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ProcessError, match="no route"):
        asyncio.run(clients.run([str(program)], "send", "t", "g", 1.0, 1, "127.0.0.1:1"))
    program.write_text(
        """#!/bin/sh\necho '[{"rates": [2.0], "times": [0.1], "count": 3, "failures": 0}]'\n"""
    )
    (found,) = asyncio.run(clients.run([str(program)], "send", "t", "g", 1.0, 1, "127.0.0.1:1"))
    assert (found.rate, found.count) == (2.0, 3)
