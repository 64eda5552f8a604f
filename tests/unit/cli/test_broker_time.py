"""Relative times count by the broker's clock: this machine's was ahead, and `1h` found nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.cli.conftest import BROKER_NOW, FIRST_TIMESTAMP
from trovemq.models.search import SearchAnswer

HOUR_MS = 3_600_000


def calls(run: Any, name: str) -> list[dict[str, Any]]:
    return [dict(call) for called, call in run.client.calls if called == name]


def test_tail_since_an_hour_ago(run: Any) -> None:
    run("send", "orders", "one", "--queue", "0")
    shown = run("tail", "orders", "--since", "1h", "--no-follow", "-o", "body")
    assert shown.out == b"one\n"
    assert {call["timestamp"] for call in calls(run, "search_offset")} == {FIRST_TIMESTAMP}


def test_a_query_of_the_last_hour(run: Any) -> None:
    run("send", "orders", "one", "--key", "k")
    assert len(run("--json", "query", "orders", "k", "--begin", "1h", "--end", "now").objects) == 1
    assert run("--json", "query", "orders", "k", "--begin", "59m").objects == []
    assert calls(run, "query")[0]["begin"] == BROKER_NOW - HOUR_MS


def test_a_search_of_the_last_hour(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def search(self: Any, topic: str, where: object, **options: Any) -> SearchAnswer:
        self.calls.append(("search", options))
        return SearchAnswer((), True, None)

    monkeypatch.setattr(type(run.client), "search", search, raising=False)
    run("search", "orders", "--key", "k", "--begin", "1h", "--end", "+1h")
    (call,) = calls(run, "search")
    assert (call["begin"], call["end"]) == (BROKER_NOW - HOUR_MS, BROKER_NOW + HOUR_MS)


def test_the_offset_of_an_hour_ago(run: Any) -> None:
    run("offset", "orders", "0", "--time", "1h")
    assert calls(run, "search_offset")[0]["timestamp"] == BROKER_NOW - HOUR_MS


def test_a_reset_to_an_hour_ago(run: Any) -> None:
    assert run("group", "reset", "billing", "orders", "--to-time", "1h").code == 0
    assert run("group", "offset", "reset", "billing", "orders", "--to-time", "1h").code == 0
    assert calls(run, "reset_offset")[0]["timestamp"] == BROKER_NOW - HOUR_MS
    ((_, options),) = [call for call in run.client.groups.calls if call[0] == "reset"]
    assert options["timestamp"] == BROKER_NOW - HOUR_MS


def test_consume_from_an_hour_ago(run: Any) -> None:
    run("consume", "orders", "--group", "g", "--start", "1h", "--wait", "1ms")
    (call,) = calls(run, "subscribe")
    assert call["start"] == datetime.fromtimestamp((BROKER_NOW - HOUR_MS) / 1000, UTC)


def test_deliver_at_in_ten_minutes(run: Any) -> None:
    run("send", "orders", "body", "--deliver-at", "10m")
    (call,) = calls(run, "send")
    assert call["deliver_at"] == datetime.fromtimestamp(BROKER_NOW / 1000 + 600, UTC)


@pytest.mark.parametrize("time", ["2020-01-01", "1577836800000"])
def test_a_fixed_time_asks_for_no_clock(run: Any, monkeypatch: pytest.MonkeyPatch, time: str) -> None:
    monkeypatch.delattr(type(run.client), "broker_time")
    assert run("query", "orders", "k", "--begin", time).code == 0
