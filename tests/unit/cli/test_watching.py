"""group lag --all, and --watch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq import BrokerAnswers
from trovemq.models.group import GroupSettings, QueueLag


@pytest.fixture(autouse=True)
def groups(client: FakeClient) -> None:
    for name in ("billing", "audit"):
        client.groups.groups["broker-a", name] = GroupSettings()
    client.groups.lags = [
        QueueLag("orders", 0, 0, 10, 4, 6, 2, 4, 1_500, False, "broker-a"),
        QueueLag("orders", 1, 0, 10, 9, 10, 0, 1, 2_500, True, "broker-a"),
    ]


def test_the_lag_of_every_group(run: Any) -> None:
    found = run("--json", "group", "lag", "--all").objects
    assert [(one["group"], one["topic"], one["queues"]) for one in found] == [
        ("audit", "orders", 2),
        ("billing", "orders", 2),
    ]
    assert found[0] | {"lag": 5, "inFlight": 2, "lagMillis": 2_500, "estimated": True} == found[0]
    shown = run("group", "lag", "--all").out.decode().splitlines()
    assert shown[1].split() == ["audit", "orders", "2", "2", "≈5", "2.5"]


def test_one_group_or_all(run: Any) -> None:
    assert run("group", "lag").code == 2
    assert run("group", "lag", "billing", "--all").code == 2
    assert len(run("--json", "group", "lag", "billing").objects) == 2


@pytest.mark.parametrize("verb", [("group", "lag", "--all"), ("group", "list"), ("group", "lag", "billing")])
def test_watching_shows_it_again_until_it_is_stopped(
    run: Any, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    once = run("--json", *verb).out
    monkeypatch.setattr("trovemq.cli.watching.asyncio.sleep", wait)
    ran = run("--json", *verb, "--watch", "--every", "500ms")
    assert (ran.code, ran.out, waits) == (130, once * 3, [0.5] * 3)


def test_only_the_first_answer_named_the_broker_that_is_away(
    run: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    list_all = client.groups.list_all

    async def without_one(**arguments: Any) -> Any:
        return BrokerAnswers(await list_all(**arguments), missing=("broker-b",))

    monkeypatch.setattr(client.groups, "list_all", without_one)
    monkeypatch.setattr("trovemq.cli.watching.asyncio.sleep", wait)
    ran = run("group", "list", "--watch")
    assert ran.err.count("broker-b is missing") == 3


def test_a_shorter_interval_is_wrong_usage(run: Any) -> None:
    assert run("group", "list", "--watch", "--every", "10ms").code == 2
