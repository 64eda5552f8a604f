"""The official clients' rows: where a client is missing, the report says so and the others run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench import measure
from bench.official import clients, several
from bench.processes import ProcessError
from bench.report import Report
from tests.conformance.run import SuiteError


def test_a_client_that_is_missing_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "missing_tools", lambda language: ["mvn"] if language == "java" else [])
    monkeypatch.setattr(clients, "_install", lambda language, _folder: [language])
    report = Report("Several brokers", "")
    assert clients.installed(report) == {"python": ["python"]}
    assert report.notes == ["the official java client did not run: no mvn"]

    def fails(_language: str, _folder: Any) -> list[str]:
        raise SuiteError("no network")

    monkeypatch.setattr(clients, "_install", fails)
    assert clients.installed(report) == {}
    assert report.notes[-1] == "the official python client could not be installed: no network"


class Broker:
    """A broker process; its counters are the test's."""

    def __init__(self, name: str, messages: int) -> None:
        self.name = self.address = name
        self.pid = messages


@pytest.mark.asyncio
async def test_each_broker_has_the_cost_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    async def handled(brokers: Any, _work: str) -> Any:
        return Counter({one.name: one.pid if ran else 0 for one in brokers})

    async def run(*_arguments: object) -> list[clients.ClientFigures]:
        ran.append("")
        return [clients.ClientFigures([50.0], [], 40, 1)]

    monkeypatch.setattr(several, "_handled", handled)
    monkeypatch.setattr(clients, "run", run)
    monkeypatch.setattr(measure, "scheduled_seconds", lambda _pid: 0.02 if ran else 0.01)
    report = Report("Several brokers", "")
    brokers: Any = [Broker("a", 10), Broker("b", 30), Broker("c", 0)]
    await several._measure(report, "sends", brokers, [], "send", "t", quick=True)
    shown = {figure.name: figure.value for figure in report.figures}
    assert shown["sends: CPU of a for its message"] == pytest.approx(1_000)
    assert shown["sends: CPU of b for its message"] == pytest.approx(333.3, rel=0.01)
    assert shown["sends: CPU of all brokers for a message"] == pytest.approx(750)
    assert report.notes == ["sends: 1 calls failed", "sends: c had no message"]


@pytest.mark.asyncio
async def test_a_client_that_failed_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_arguments: object, **_more: object) -> None:
        raise ProcessError("it took too long")

    monkeypatch.setattr(several, "_measure", fails)
    monkeypatch.setattr(several, "SETTLED_S", 0.0)
    report = Report("Several brokers", "")
    await several.measure_clients(report, "2 brokers", [], {"java": ["java"]}, quick=True)
    assert report.notes == [
        "2 brokers, official java client, sends: it took too long",
        "2 brokers, official java client, receives: it took too long",
    ]
