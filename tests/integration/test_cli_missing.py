"""One of two brokers was killed: every answer that may lack something of it says so, and names it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow
ANSWERED = (
    "query orders k",
    "query orders absent",
    "search orders --key k",
    "search orders --key k --explain",
    "track {id}",
    "get {id}",
    "get orders 0 0",
    "pull orders --queue 0 --offset 0",
    "offset orders 0 --time 1h",
    "tail orders --last 5 --no-follow",
    "group list",
    "group describe billing",
    "group lag billing",
    "group lag --all",
    "group members billing",
    "dlq list billing",
    "topic list",
    "topic describe orders",
    "stats --seconds 0",
)


def ask(server: str, line: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Exit code, the objects of the answer, and the object on standard error."""
    code, out, err = run_here(server, "--timeout", "20", *line.split())
    return code, [json.loads(one) for one in out.splitlines()], json.loads(err or "{}")


def until_lost(server: str) -> None:
    """Until the nameserver has noticed that a broker is gone; before that a queue's broker is ambiguous."""
    deadline = time.monotonic() + 60
    while not any(one.get("state") == "lost" for one in ask(server, "cluster")[1]):
        assert time.monotonic() < deadline, "the nameserver has not lost it"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The nameserver's address and the id of the message on the broker that lives."""
    path: Path = tmp_path_factory.mktemp("brokers")
    with (
        NameserverProcess() as nameserver,
        BrokerProcess(store=path / "a", name="a", nameserver=nameserver.address),
        BrokerProcess(store=path / "b", name="b", nameserver=nameserver.address) as other,
    ):
        server = nameserver.address
        assert ask(server, "topic create orders --queues 1")[0] == 0
        assert ask(server, "group create billing")[0] == 0
        ids = [ask(server, f"send orders x --key k --broker {name}")[1][0]["messageId"] for name in "ab"]
        _, both, note = ask(server, "query orders k")
        assert (len(both), note["complete"], note["missing"]) == (2, True, [])
        other.kill()
        until_lost(server)
        yield server, ids[0]


@pytest.mark.parametrize("line", ANSWERED)
def test_an_answer_was_silently_less(killed: tuple[str, str], line: str) -> None:
    server, message_id = killed
    code, _, note = ask(server, line.format(id=message_id))
    assert (code, note["complete"], note["missing"]) == (0, False, ["b"])


@pytest.mark.parametrize("verb", ["get", "track"])
def test_an_id_that_the_killed_broker_may_have_is_not_called_unknown(
    killed: tuple[str, str], verb: str
) -> None:
    code, found, note = ask(killed[0], f"{verb} {'AB' * 16}")
    assert (code, found, note["error"]) == (1, [], "BROKER_UNREACHABLE")
    assert "b" in note["fields"]["brokers"]


def test_without_json_a_line_names_the_broker(
    killed: tuple[str, str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    from trovemq.cli import app

    for line in ("query orders k", "group lag billing", "offset orders 0 --time 1h"):
        assert app.run(["--server", killed[0], *line.split()]) == 0
        err = capsysbinary.readouterr().err.decode()
        assert "broker b did not answer" in err or "b is missing" in err, line
