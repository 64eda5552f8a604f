"""Golden stores served by a real broker, asked by `trovemq --json`: the answers are the manifests'.

Each store is a copy, opened with the very settings that its manifest names. The command line runs in this
process (a start of Python for each of some hundred questions would be most of the test's time).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from tests.support.fork_server import popen, run
from tests.support.golden import GOLDEN_NAMES, Manifest, as_manifest, load_manifest, unpack
from tests.support.trials import SOAK
from trovemq.testing import BrokerProcess
from trovemq_store.events.codec import EVENTS_TOPIC
from trovemq_store.topics.table_records import META_TOPIC

pytestmark = pytest.mark.slow

QUERIES_MAX = 60 if SOAK else 25  # of each kind and store; the engine's own test asks all of them
Message = dict[str, Any]


class CommandLine:
    """`trovemq --json --server …`, run in this process."""

    def __init__(self, server: str) -> None:
        self._server = server

    def run(self, *arguments: str) -> tuple[int, list[Message], str]:
        """Exit code, the objects of standard output, and standard error."""
        code, out, err = run_here(self._server, *arguments, encoding="ascii")
        return code, [as_manifest(json.loads(line)) for line in out.splitlines()], err

    def answer(self, *arguments: str) -> list[Message]:
        """The objects of an answer."""
        code, objects, err = self.run(*arguments)
        assert code == 0, err
        return objects

    def error(self, *arguments: str) -> str:
        """The symbol of a refusal."""
        code, objects, err = self.run(*arguments)
        assert (code, objects) == (1, []), arguments
        symbol = json.loads(err)["error"]
        assert isinstance(symbol, str)
        return symbol


@dataclass(frozen=True)
class Served:
    """One golden store after a broker, and the truth about it."""

    name: str
    manifest: Manifest
    ask: CommandLine

    @property
    def messages(self) -> list[Message]:
        messages: list[Message] = self.manifest["messages"]
        return messages

    def sample(self, member: str) -> list[dict[str, Any]]:
        """Some queries of one kind, spread over all of them."""
        queries: list[dict[str, Any]] = self.manifest[member]
        return queries[:: max(1, len(queries) // QUERIES_MAX)]


@pytest.fixture(scope="module", params=GOLDEN_NAMES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name: str = request.param
    manifest = load_manifest(name)
    store = unpack(name, tmp_path_factory.mktemp(name))
    config = {**manifest["brokerConfig"], "timerStopDequeue": True}  # else old ones come now
    with BrokerProcess(store=store, name="broker-a", **config) as broker:
        yield Served(name, manifest, CommandLine(broker.address))
        assert broker.stop() == 0, broker.log()


def test_every_message_of_every_queue(served: Served) -> None:
    expected: dict[tuple[str, int], list[Message]] = defaultdict(list)
    for message in served.messages:
        expected[message["topic"], message["queueId"]].append(message)
    for queue in served.manifest["queues"]:
        place = queue["topic"], queue["queueId"]
        arguments = ("--queue", str(place[1]), "--offset", str(queue["minOffset"]), "--max", "100000")
        pulled = served.ask.answer("pull", place[0], *arguments)
        assert pulled == sorted(expected.pop(place), key=lambda message: int(message["queueOffset"]))
        assert served.ask.answer("pull", place[0], arguments[0], arguments[1], "--max", "1") == pulled[:1]
        end = ("pull", place[0], "--queue", str(place[1]), "--offset")
        assert served.ask.run(*end, str(queue["maxOffset"])) == (0, [], "")
        assert served.ask.error(*end, str(queue["maxOffset"] + 1)) == "OFFSET_OUT_OF_RANGE"
    assert not expected


def test_identifiers(served: Served) -> None:
    for message in served.messages[:: max(1, len(served.messages) // QUERIES_MAX)]:
        assert served.ask.answer("get", message["offsetMsgId"]) == [message]
        place = message["topic"], str(message["queueId"]), str(message["queueOffset"])
        assert served.ask.answer("get", *place) == [message]
        if message["uniqKey"]:
            same = [m for m in served.messages if m["uniqKey"] == message["uniqKey"]]
            assert served.ask.answer("get", message["uniqKey"]) == same[::-1]
    for query in served.sample("offsetMsgIdQueries"):
        if not query["found"]:
            assert served.ask.error("get", query["offsetMsgId"]) == "MESSAGE_NOT_FOUND"


def scan(served: Served, query: dict[str, Any]) -> list[Message]:
    """The right answer of a query: the manifest's messages, compared one by one, newest first."""

    def matches(message: Message) -> bool:
        if message["topic"] != query["topic"]:
            return False
        if not query["begin"] <= message["storeTimestamp"] <= query["end"]:
            return False
        if query["mode"] == "tag":
            return bool(message["tags"] == query["key"])
        unique = bool(message["uniqKey"] == query["key"])
        return (
            unique if query["mode"] == "unique" else unique or query["key"] in (message["keys"] or "").split()
        )

    return [message for message in reversed(served.messages) if query["key"] and matches(message)]


@pytest.mark.parametrize("member", ["keyQueries", "uniqueKeyQueries"])
def test_key_queries(served: Served, member: str) -> None:
    for query in served.sample(member):
        expected = scan(served, query)
        bounds = ("--begin", str(query["begin"]), "--end", str(query["end"]), "--max", str(query["maxNum"]))
        asked = ("query", query["topic"], "--type", query["mode"], *bounds, "--", query["key"])
        code, answers, err = served.ask.run(*asked)
        # waiting messages are named too
        found = [message for message in answers if message.get("state") != "PENDING"]
        assert (code, found) == (0, expected[: query["maxNum"]]), query
        assert json.loads(err)["complete"] or len(found) == query["maxNum"]


def test_search_by_time(served: Served) -> None:
    for query in served.sample("searchOffsetQueries"):
        upper = ["--upper"] if query["boundary"] == "UPPER" else []
        place = query["topic"], str(query["queueId"]), "--time", str(query["timestamp"])
        assert served.ask.answer("offset", *place, *upper) == [{"offset": query["offset"]}], query


def test_topics(served: Served) -> None:
    listed = served.ask.answer("topic", "list", "--system")
    configs = served.manifest["topicConfigs"]
    counts = {topic["topic"]: topic["queueCount"] for topic in listed}
    counts.pop(EVENTS_TOPIC, None)  # ours: imported state is written down
    counts.pop(META_TOPIC, None)  # and the tables
    assert counts == {name: config["readQueueNums"] for name, config in configs.items()}


def run_tool(verb: str, store: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """`trovemq store VERB` on a stopped store; its files are the same before and after."""
    before = digests(store)
    command = [sys.executable, "-m", "trovemq_broker.tools", verb, "--store", str(store), *arguments]
    ran = run(command)
    assert digests(store) == before, "a tool wrote to the store"
    return ran


def digests(store: Path) -> dict[str, tuple[int, str]]:
    """Time of change and content of every file."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in store.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kill", [False, True], ids=["clean", "killed"])
def test_the_offline_tools_agree_with_the_running_broker(tmp_path: Path, kill: bool) -> None:
    """A store of RocketMQ's with messages of ours after them, stopped cleanly or killed."""
    manifest = load_manifest("crashed")
    store = unpack("crashed", tmp_path)
    with BrokerProcess(store=store, name="broker-a", **manifest["brokerConfig"]) as broker:
        ask = CommandLine(broker.address)
        for body in ("one", "two"):
            ask.answer("send", "CrashAlpha", body, "--key", "ours", "--tag", "t", "--queue", "0")
        ours = ask.answer("query", "CrashAlpha", "ours")
        if kill:
            broker.kill()
        else:
            assert broker.stop() == 0, broker.log()
    messages = [*manifest["messages"], *reversed(ours)]
    lines = run_tool("export", store).stdout.splitlines()
    exported = [as_manifest(json.loads(line)) for line in lines]
    assert [one for one in exported if one["topic"] != META_TOPIC] == messages
    document = json.loads(run_tool("export", store, "--manifest", "--set", "brokerName=broker-a").stdout)
    assert [one for one in document["messages"] if one["topic"] != META_TOPIC] == messages
    assert document["shutdown"] == ("killed" if kill else "clean")
    assert set(document["brokerConfig"]) <= set(manifest["brokerConfig"])
    assert sum(len(queue["cqPhysicalOffsets"]) for queue in document["queues"]) == len(exported)
    for part in (("records",), ("consumequeue", "CrashAlpha", "0"), ("index",), ("checkpoint",)):
        shown = run_tool("dump", store, *part)
        assert (shown.returncode, shown.stderr) == (0, b""), part
    verified = run_tool("verify", store)
    assert verified.returncode == 0, verified.stdout


def test_a_reader_that_stops_reading_is_not_a_fault_of_a_tool(tmp_path: Path) -> None:
    """`… export | head -1`"""
    store = unpack("rollover", tmp_path)
    command = [sys.executable, "-m", "trovemq_broker.tools", "export", "--store", str(store)]
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["commitLogOffset"] == 0
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
