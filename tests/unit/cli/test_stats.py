"""stats: counters with their rates, in units that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq.cli.counter_words import WORDS, counter_words
from trovemq.cli.counters import MOMENTS, RATED, value_text
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import BrokerInfo, BrokerStatistics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "statistics.md"


@pytest.fixture(autouse=True)
def counters(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the second call `a` has 500 messages more, `b` was restarted, and `c` is away."""
    values = [{"a": 1_000, "b": 1_000}, {"a": 1_500, "b": 10}]

    async def statistics(**_: object) -> BrokerAnswers[BrokerStatistics]:
        found = values.pop(0)
        return BrokerAnswers(
            (
                BrokerStatistics(
                    BrokerInfo("c", name, "127.0.0.1:1"),
                    {"messages_in": count, "bytes_in": 2_048 * count, "topics": 3, "duplicates": 0},
                )
                for name, count in found.items()
            ),
            missing=["c"],
        )

    async def wait(_seconds: float) -> None:
        return

    monkeypatch.setattr(client, "statistics", statistics)
    monkeypatch.setattr("trovemq.cli.counters.asyncio.sleep", wait)
    times = iter((100.0, 102.0))
    monkeypatch.setattr("trovemq.cli.counters.now_s", lambda: next(times))


def test_counters_have_their_growth_a_second(run: Any) -> None:
    ran = run("--json", "stats", "--seconds", "2")
    first, other = ran.objects
    assert first["counters"] == {"messages_in": 1_500, "bytes_in": 3_072_000, "topics": 3, "duplicates": 0}
    assert (first["seconds"], first["perSecond"]) == (
        2.0,
        {"messages_in": 250.0, "bytes_in": 512_000.0, "duplicates": 0.0},
    )
    assert other["perSecond"] == {"messages_in": None, "bytes_in": None, "duplicates": 0.0}
    assert ran.note == {"missing": ["c"], "complete": False}


def test_counters_that_are_0_are_shown_on_request(run: Any) -> None:
    ran = run("stats")
    lines = [line.split() for line in ran.out.decode().splitlines()]
    assert lines[:4] == [
        ["broker", "figure", "value", "a", "second"],
        ["a", "messages", "stored", "1,500", "250"],
        ["a", "bytes", "stored", "2.9", "MiB", "500.0", "KiB"],
        ["a", "topics", "3"],
    ]
    assert lines[4] == ["b", "messages", "stored", "10", "-"]
    assert "2 that are 0 are not shown: add --all" in ran.err
    assert "c is missing" in ran.err


def test_every_counter_with_all(run: Any) -> None:
    assert b"duplicates" in run("stats", "--all").out


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("messages_in", 1_234_567, "1.23 million"),
        ("log_end_offset", 1_234_567, "1,234,567"),
        ("flush_behind_bytes", 1 << 20, "1.0 MiB"),
        ("disk_used_percent", 41, "41 %"),
        ("timer_behind_ms", 1_999, "1,999 ms"),
        ("timer_behind_ms", 7_200_000, "2 h"),
        ("retention_early_newest_ms", 1_700_000_000_000, "2023-11-14 22:13:20.000Z"),
    ],
)
def test_a_counter_in_its_unit(name: str, value: int, text: str) -> None:
    assert value_text(name, value) == text


def test_every_counter_with_a_rate_is_one_of_the_broker() -> None:
    known = {line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    assert set(RATED) <= known
    assert set(MOMENTS) <= known


def test_every_counter_of_the_page_has_its_words() -> None:
    part = PAGE.read_text().split("## `trovemq stats`", 1)[1].split("\n## ", 1)[0]
    named = {line.split("`")[1] for line in part.splitlines() if line.startswith("| `")}
    assert named == set(WORDS)
    assert [name for name in named if "_" in counter_words(name)] == []
    assert counter_words("newer_counter") == "newer counter"
