"""Without --json: tables, cards and errors for people, and nothing that could steer their terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.conftest import FakeClient
from trovemq import BrokerInfo, BrokerRoute, ClusterState, LostBroker, TopicHold
from trovemq.cli.figures import counted
from trovemq.cli.render import body_preview, humane_size, printable


def test_an_error_says_symbol_code_what_happened_and_what_to_do(run: Any) -> None:
    ran = run("pull", "absent", "--queue", "0")
    assert (ran.code, ran.out) == (1, b"")
    assert "✗ TOPIC_NOT_FOUND (E200): no topic absent" in ran.err
    assert "→ See the names: trovemq topic list" in ran.err


def test_every_verb_says_something_to_people(run: Any) -> None:
    assert (
        b"durability" in run("send", "orders", '{"a":1}', "--key", "k1", "--tag", "paid", "--queue", "0").out
    )
    assert b"k1" in run("pull", "orders", "--queue", "0").out
    assert b'{"a":1}' in run("get", "orders", "0", "0").out
    assert b"paid" in run("query", "orders", "k1").out
    assert "no message matches" in run("query", "orders", "k2").err
    assert b"offset" in run("offset", "orders", "0", "--time", "0").out
    assert b"broker-a" in run("cluster").out
    assert b"puts" in run("stats", "--seconds", "0").out
    assert b"max offset" in run("topic", "describe", "orders").out
    assert b"bytes" in run("topic", "describe", "orders", "--sizes").out
    assert b"orders" in run("topic", "list").out
    assert b"DISK_FULL" in run("errors").out
    explained = run("errors", "DISK_FULL").out
    assert b"Free space" in explained
    assert b"E302" in explained, "not a bare number, which can be taken for one of HTTP"
    assert b"billing" in run("group", "offset", "get", "billing", "orders", "0").out
    assert b"before" in run("group", "offset", "reset", "billing", "orders", "--to-earliest").out
    assert b"orders/0@0 [paid]" in run("tail", "orders", "--from-start", "--max", "1").out


@pytest.mark.parametrize(
    "line",
    ["query", "search", "pull", "dlq list", "dlq resend", "dlq show", "group reset", "group offset commit"],
)
def test_the_help_had_the_largest_number_that_a_message_holds(run: Any, line: str) -> None:
    shown = run(*line.split(), "--help").out
    assert b"Usage: " in shown
    assert b"9223372036854775807" not in shown
    assert b"2147483647" not in shown


@pytest.mark.parametrize("number", ["-1", "x", "1.0", "٣", "9223372036854775808", "9" * 5_000])
def test_an_offset_that_is_no_number_of_the_store_is_wrong_usage(run: Any, number: str) -> None:
    ran = run("pull", "orders", "--queue", "0", "--offset", number)
    assert ran.code == 2
    assert "is not a number from 0 to 9223372036854775807" in ran.err


@pytest.mark.parametrize(
    ("draining", "drained", "state"),
    [(False, False, b"serving"), (True, False, b"draining"), (True, True, b"drained")],
)
def test_a_drained_broker_is_not_called_draining(
    run: Any, monkeypatch: pytest.MonkeyPatch, draining: bool, drained: bool, state: bytes
) -> None:
    info = BrokerInfo("c", "broker-a", "127.0.0.1:8081", draining=draining, drained=drained)

    async def cluster(_: FakeClient) -> ClusterState:
        return ClusterState((BrokerRoute(info, ()),))

    monkeypatch.setattr(FakeClient, "cluster", cluster)
    assert state in run("cluster").out
    assert run("--json", "cluster").objects[0]["state"] == state.decode()


def test_a_killed_broker_was_not_shown_at_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cluster(_: FakeClient) -> ClusterState:
        return ClusterState((), 0, (LostBroker("broker-b", "c", "127.0.0.1:8082", 7_200_000, 3, 2),))

    monkeypatch.setattr(FakeClient, "cluster", cluster)
    assert "lost 2 h ago" in run("cluster").out.decode()
    (shown,) = run("--json", "cluster").objects
    assert (shown["broker"], shown["state"], shown["topicsAlone"]) == ("broker-b", "lost", 2)


def test_describe_says_for_whom_a_topic_keeps_the_log(run: Any, client: FakeClient) -> None:
    assert b"keeps" not in run("topic", "describe", "orders").out
    client.topic_options["orders"] = {"retention": "until_acknowledged"}
    assert b"orders keeps nothing of the log on broker-a" in run("topic", "describe", "orders").out
    client.holds["orders"] = TopicHold(12_345, "billing", 0, 7, 1_000)
    shown = run("topic", "describe", "orders").out.decode()
    assert "keeps 12,345 bytes of the log on broker-a: group billing has not acknowledged queue 0" in shown
    assert "offset 7 on; its age lets that go at 1970-01-01 00:00:01.000Z" in " ".join(shown.split())
    client.holds["orders"] = TopicHold(12_345, "", 0, 7, 0)
    shown = run("topic", "describe", "orders").out.decode()
    assert "no group has read queue 0" in shown
    assert "its age" not in shown


def test_an_incomplete_query_says_how_to_continue(run: Any) -> None:
    for _ in range(5):
        run("send", "orders", "x", "--key", "k", "--queue", "0")
    assert "--cursor 2" in run("query", "orders", "k", "--max", "2").err


def test_bodies_and_keys_cannot_steer_the_terminal(run: Any) -> None:
    run("send", "orders", "\x1b[2J\x07[red]bold[/red]", "--key", "\x1b]0;title\x07", "--queue", "0")
    for arguments in (("pull", "orders", "--queue", "0"), ("get", "orders", "0", "0")):
        out = run(*arguments).out
        assert b"\x1b" not in out
        assert b"\x07" not in out
        assert b"[red]" in out


@given(st.text(), st.binary(max_size=400))
def test_shown_text_is_printable(text: str, body: bytes) -> None:
    assert printable(text).isprintable()
    assert body_preview(body).isprintable()
    printable(text).encode()


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_humane_sizes(size: int, expected: str) -> None:
    assert humane_size(size) == expected


def trovemq(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "trovemq.cli", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=240, **options)


def test_help_loads_no_more_than_the_parser() -> None:
    code = (
        "import sys, trovemq, typer; before = set(sys.modules)\n"
        "from trovemq.cli.app import run; run(['--help'])\n"
        "loaded = set(sys.modules) - before\n"
        "print(sorted(loaded & {'rich', 'grpc', 'numpy', 'trovemq.cli.render'}), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=240)
    assert ran.stderr.strip() == b"[]"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_an_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "trovemq.cli", "errors", "--json"]
        ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=240)
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.slow
def test_a_server_that_is_not_there_is_an_error() -> None:
    ran = trovemq("--server", "127.0.0.1:1", "--timeout", "1", "--json", "cluster")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b'"error":"BROKER_UNREACHABLE"' in ran.stderr or b'"error":"REQUEST_TIMEOUT"' in ran.stderr


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ('{"café": 1}'.encode(), '{"café": 1}'),
        (b"\xff", "\\xff"),
        (b"", ""),
        (b"x" * 1_000, None),
    ],
)
def test_only_a_body_that_is_cut_ends_with_an_ellipsis(body: bytes, shown: str | None) -> None:
    preview = body_preview(body)
    assert preview.endswith("…") == (shown is None)
    assert shown is None or preview == shown


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "message", "0 messages"), (1, "message", "1 message"), (2_000, "message", "2,000 messages")],
)
def test_a_count_has_the_right_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert counted(count, "copy", "copies") == text.replace("messages", "copies").replace("message", "copy")
