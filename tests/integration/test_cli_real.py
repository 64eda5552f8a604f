"""The command line as its own process, against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import popen, run
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


class CommandLine:
    """`trovemq --json --server …` as a child process."""

    def __init__(self, server: str) -> None:
        self.server = server

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "trovemq.cli", "--server", self.server, "--json", *arguments]
        return run(command, input=stdin)

    def answer(self, *arguments: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        ran = self.run(*arguments, stdin=stdin)
        assert ran.returncode == 0, ran.stderr.decode()
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def error(self, *arguments: str) -> dict[str, Any]:
        ran = self.run(*arguments)
        assert (ran.returncode, ran.stdout) == (1, b"")
        value = json.loads(ran.stderr)
        assert isinstance(value, dict)
        return value


@pytest.fixture(scope="module")
def trovemq(broker: BrokerProcess) -> CommandLine:
    return CommandLine(broker.address)


def test_a_message_is_found_again_by_everything_that_names_it(trovemq: CommandLine) -> None:
    topic = "found-again"
    (created,) = trovemq.answer("topic", "create", topic, "--queues", "2", "--type", "NORMAL")
    assert (created["topic"], created["queueCount"], created["messageType"]) == (topic, 2, "NORMAL")
    body = bytes(range(256))
    send = (
        "send",
        topic,
        "-",
        "--key",
        "k1",
        "--key",
        "k2",
        "--tag",
        "t",
        "--property",
        "a=b",
        "--queue",
        "1",
    )
    (receipt,) = trovemq.answer(*send, stdin=body)
    assert list(receipt) == [
        "topic",
        "queueId",
        "queueOffset",
        "commitLogOffset",
        "offsetMsgId",
        "messageId",
        "durability",
        "copies",
    ]
    assert (receipt["queueId"], receipt["queueOffset"], receipt["durability"]) == (1, 0, "disk")
    (message,) = trovemq.answer("get", topic, "1", "0")
    assert message["offsetMsgId"] == receipt["offsetMsgId"]
    assert message["keys"] == "k1 k2"
    time_stored = str(message["storeTimestamp"])
    for arguments in (
        ("get", receipt["offsetMsgId"]),
        ("get", receipt["messageId"]),
        ("pull", topic, "--queue", "1", "--offset", "0", "--max", "1"),
        ("query", topic, "k1"),
        ("query", topic, "k2", "--type", "key", "--begin", time_stored, "--end", time_stored),
        ("query", topic, "t", "--type", "tag"),
        ("query", topic, receipt["messageId"], "--type", "message-id"),
    ):
        assert trovemq.answer(*arguments) == [message], arguments
    assert trovemq.answer("offset", topic, "1", "--time", time_stored) == [{"offset": 0}]
    assert trovemq.answer("query", topic, "k1", "--end", str(int(time_stored) - 1)) == []


def test_a_look_up_needs_no_numpy(trovemq: CommandLine) -> None:
    trovemq.answer("topic", "create", "no-numpy")
    (receipt,) = trovemq.answer("send", "no-numpy", "body", "--key", "k")
    hidden = "import sys; sys.modules['numpy'] = None; from trovemq.cli.app import run; "
    for verb in (
        ["get", receipt["offsetMsgId"]],
        ["get", receipt["messageId"], "--json"],
        ["query", "no-numpy", "k"],
        ["search", "no-numpy", "--key", "k", "--json"],
        ["track", receipt["offsetMsgId"], "--json"],
        ["topic", "describe", "no-numpy"],
        ["group", "list", "--json"],
    ):
        arguments = ["--server", trovemq.server, *verb]
        command = [sys.executable, "-c", f"{hidden} sys.exit(run({arguments!r}))"]
        # A separate interpreter: those of the fork server have everything imported.
        ran = subprocess.run(command, capture_output=True, check=False, timeout=240)
        assert ran.returncode == 0, (verb, ran.stderr.decode())


def test_pull_pages_and_ends_at_the_end(trovemq: CommandLine) -> None:
    trovemq.answer("topic", "create", "pages", "--queues", "1")
    trovemq.answer(
        "bench", "produce", "pages", "--messages", "3000", "--size", "4000", "--batch", "500", "--queue", "0"
    )
    pulled = trovemq.answer("pull", "pages", "--queue", "0", "--offset", "100", "--max", "2500")
    assert [message["queueOffset"] for message in pulled] == list(range(100, 2600))
    assert len(trovemq.answer("pull", "pages", "--queue", "0", "--offset", "0", "--max", "100000")) == 3000
    at_end = trovemq.run("pull", "pages", "--queue", "0", "--offset", "3000")
    assert (at_end.returncode, at_end.stdout) == (0, b"")
    error = trovemq.error("pull", "pages", "--queue", "0", "--offset", "3001")
    assert error["error"] == "OFFSET_OUT_OF_RANGE"
    assert error["fields"]["max_offset"] == "3000"
    (rate,) = trovemq.answer("bench", "fetch", "pages")
    assert (rate["messages"], rate["bodyBytes"]) == (3000, 12_000_000)


@pytest.mark.parametrize(("count", "least"), [(12, 3), (1_000, 100)])
def test_the_lines_lay_in_one_queue(trovemq: CommandLine, count: int, least: int) -> None:
    topic = f"spread-{count}"
    trovemq.answer("topic", "create", topic, "--queues", "4")
    lines = b"".join(b"line %d\n" % number for number in range(count))
    trovemq.answer("produce", topic, stdin=lines)
    (described,) = trovemq.answer("topic", "describe", topic)
    counts = [queue["maxOffset"] for queue in described["queues"]]
    assert (sum(counts), min(counts) >= least) == (count, True), counts


def test_query_pages_by_itself_and_by_cursor(trovemq: CommandLine) -> None:
    trovemq.answer("topic", "create", "many", "--queues", "1")
    for _ in range(3):
        trovemq.answer("send", "many", "-", "--key", "k", "--queue", "0", stdin=b"x" * 3_000_000)
    first = trovemq.run("query", "many", "k", "--max", "2")
    note = json.loads(first.stderr)
    assert (len(first.stdout.splitlines()), note["complete"]) == (2, False)
    (rest,) = trovemq.answer("query", "many", "k", "--cursor", note["cursor"])
    assert rest["queueOffset"] == 0
    whole = trovemq.run("query", "many", "k")
    offsets = [json.loads(line)["queueOffset"] for line in whole.stdout.splitlines()]
    assert (offsets, json.loads(whole.stderr)["complete"]) == ([2, 1, 0], True)


def test_errors_of_the_broker_keep_their_symbol(trovemq: CommandLine) -> None:
    assert trovemq.error("send", "absent", "x")["error"] == "TOPIC_NOT_FOUND"
    assert trovemq.error("topic", "create", "../x")["error"] == "TOPIC_ILLEGAL"
    assert trovemq.error("topic", "describe", "absent")["error"] == "TOPIC_NOT_FOUND"
    assert trovemq.error("get", "no-such-key")["error"] in {"MESSAGE_NOT_FOUND", "MESSAGE_ID_ILLEGAL"}
    trovemq.answer("topic", "create", "strict")
    assert trovemq.error("send", "strict", "x", "--key", "a b")["error"] == "KEY_ILLEGAL"
    assert trovemq.error("topic", "create", "strict")["error"] == "TOPIC_EXISTS"
    assert trovemq.error("pull", "strict", "--queue", "99", "--offset", "0")["error"] == "QUEUE_NOT_FOUND"


def test_topics_groups_cluster_and_statistics(trovemq: CommandLine) -> None:
    trovemq.answer("topic", "create", "admin", "--queues", "2")
    assert trovemq.answer("topic", "alter", "admin", "--queues", "3")[0]["queueCount"] == 3
    assert "admin" in {topic["topic"] for topic in trovemq.answer("topic", "list")}
    (described,) = trovemq.answer("topic", "describe", "admin")
    assert [queue["queueId"] for queue in described["queues"]] == [0, 1, 2]
    assert trovemq.answer("group", "offset", "get", "g", "admin", "0")[0]["offset"] is None
    trovemq.answer("group", "offset", "commit", "g", "admin", "0", "0")
    assert trovemq.answer("group", "offset", "get", "g", "admin", "0")[0]["offset"] == 0
    assert len(trovemq.answer("group", "offset", "reset", "g", "admin", "--to-max")) == 3
    (broker,) = trovemq.answer("cluster")
    assert "admin" in broker["topics"]
    (statistics,) = trovemq.answer("stats")
    assert statistics["counters"]
    assert trovemq.answer("topic", "delete", "admin", "--yes")[0]["topic"] == "admin"
    assert trovemq.error("topic", "describe", "admin")["error"] == "TOPIC_NOT_FOUND"


def test_a_topic_that_is_kept_until_it_is_acknowledged_says_for_whom(trovemq: CommandLine) -> None:
    options = ("--queues", "1", "--retention", "until_acknowledged", "--retention-age-max", "30d")
    trovemq.answer("topic", "create", "kept", *options)
    trovemq.answer("send", "kept", "first" * 1_000)
    before = time.time() * 1000
    trovemq.answer("send", "kept", "second")

    def hold() -> Any:
        (described,) = trovemq.answer("topic", "describe", "kept")
        return described["hold"]

    found = hold()
    assert (found["group"], found["queueId"], found["queueOffset"]) == ("", 0, 0)
    whole = found["bytes"]
    trovemq.answer("group", "offset", "commit", "audit", "kept", "0", "1")
    trovemq.answer("group", "offset", "commit", "billing", "kept", "0", "2")
    found = hold()
    assert (found["group"], found["queueOffset"]) == ("audit", 1)
    assert 0 < found["bytes"] < whole
    assert abs(found["until"] - before - 30 * 86_400_000) < 60_000
    command = [sys.executable, "-m", "trovemq.cli", "--server", trovemq.server, "topic", "describe", "kept"]
    shown = run(command, check=True).stdout.decode()
    assert "group audit has not acknowledged queue 0 from offset 1 on" in " ".join(shown.split())
    trovemq.answer("group", "offset", "commit", "audit", "kept", "0", "2")
    assert hold() is None


def test_tail_shows_what_arrives_and_ends_with_ctrl_c(trovemq: CommandLine) -> None:
    trovemq.answer("topic", "create", "live", "--queues", "2")
    command = [
        sys.executable,
        "-m",
        "trovemq.cli",
        "--server",
        trovemq.server,
        "--json",
        "tail",
        "live",
        "--from-start",
    ]
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        try:
            assert tail.stdout is not None
            for body in ("one", "two"):
                trovemq.answer("send", "live", body)
                assert json.loads(tail.stdout.readline())["topic"] == "live"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(20) == 130
            assert tail.stderr is not None
            assert tail.stderr.read() == b""
        finally:
            tail.kill()


def test_an_ambiguous_queue_needs_a_broker(tmp_path: Path) -> None:
    with (
        NameserverProcess() as nameserver,
        BrokerProcess(name="east", nameservers=[nameserver]),
        BrokerProcess(name="west", nameservers=[nameserver]),
    ):
        trovemq = CommandLine(nameserver.address)
        deadline = time.monotonic() + 60
        while len(trovemq.answer("cluster")) < 2:
            assert time.monotonic() < deadline, "the brokers did not register"
        assert {row["broker"] for row in trovemq.answer("topic", "create", "both")} == {"east", "west"}
        for arguments in (
            ("pull", "both", "--queue", "0", "--offset", "0"),
            ("get", "both", "0", "0"),
            ("offset", "both", "0", "--time", "0"),
        ):
            error = trovemq.error(*arguments)
            assert error["error"] == "BROKER_AMBIGUOUS"
            assert "east" in error["message"]
            assert "west" in error["message"]
        trovemq.answer("send", "both", "x", "--key", "k", "--queue", "0", "--broker", "east")
        trovemq.answer("send", "both", "y", "--key", "k", "--queue", "0", "--broker", "west")
        (message,) = trovemq.answer("pull", "both", "--queue", "0", "--offset", "0", "--broker", "west")
        assert message["body"] == "y"
        assert [row["body"] for row in trovemq.answer("query", "both", "k")] == ["y", "x"]
