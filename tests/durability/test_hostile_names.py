"""Names as an attacker chooses them: none leads out of its place, forges a line, or comes back as another."""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.durability.hostile_names import COUNT, hostile_names
from tests.support.fake_loop import run
from tests.support.fuzz_ledger import MESSAGING, NATIVE
from tests.support.logs import logged
from tests.support.memory_broker import message
from tests.support.rocketmq_service import consumer_settings
from tests.support.services_here import (
    BrokerServices,
    NameserverServices,
    Outcome,
    in_process,
    small_broker_settings,
)
from tests.support.trials import Trials
from trovemq.cli.options import Format
from trovemq.cli.output import Output
from trovemq.cli.render import messages_table
from trovemq_proto.errors import from_wire
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.message import Message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, common_pb2, group_pb2, message_pb2, query_pb2, route_pb2, store_pb2
from trovemq_store.files.real import RealFileSystem

ADMIN, GROUP, QUERY = f"{NATIVE}AdminService.", f"{NATIVE}GroupService.", f"{NATIVE}QueryService."
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal or an editor acts on, but the end of a line."""
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (debug|info|warning|error) +[a-z_.]+( |$)")
SAFE_FILE_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")


class Named:
    """A broker on a real file system that gets every name for everything."""

    def __init__(self, root: Path) -> None:
        (root / "backups").mkdir()
        settings = small_broker_settings(root / "store", backup_root=str(root / "backups"))
        self.root = root
        self.broker = BrokerServices(RealFileSystem(root / "store"), settings)
        self.nameserver = NameserverServices()
        self.accepted: dict[str, int] = {}
        self.shown = Output(Format.TABLE, stdout=io.BytesIO(), stderr=io.StringIO(), terminal=False)
        self.errors = io.StringIO()

    async def ask(self, name: str, request: Any, client: str = "client-1") -> tuple[Outcome, list[Any]]:
        calls = self.nameserver if "Registration" in name else self.broker
        outcome = await calls.call(name, [request.SerializeToString()], (("x-mq-client-id", client),))
        assert outcome.code not in ("UNKNOWN", "INTERNAL"), (name, outcome)
        if outcome.code not in ("OK", "UNPARSED"):
            self._show_error(from_wire(outcome.symbol or "REQUEST_ILLEGAL", outcome.details))
        return outcome, [calls.parse(name, reply) for reply in outcome.replies]

    def _show_error(self, error: Any) -> None:
        output = Output(Format.TABLE, stdout=io.BytesIO(), stderr=self.errors, terminal=True)
        output.fail(error)
        output.close()

    async def works(self, kind: str, name: str, request: Any) -> bool:
        outcome, _ = await self.ask(name, request)
        fine = outcome.code == "OK"
        self.accepted[kind] = self.accepted.get(kind, 0) + fine
        return fine

    async def try_name(self, name: str) -> None:
        await self.as_topic(name)
        await self.as_group(name)
        for kind in ("tag", "key"):
            await self.as_property(kind, name)
        await self.as_message_id(name)
        await self.as_client(name)
        cursor = query_pb2.QueryByKeyRequest(topic="orders", key="k", cursor=name)
        await self.works("cursor", f"{QUERY}QueryByKey", cursor)
        for directory in (name, f"{self.root}/backups/{name}"):
            if directory == name or len(name) % 7 == 0 or "." in name or "\u2066" in name:  # each is a copy
                backup = store_pb2.BackupRequest(directory=directory)
                await self.works("backup", f"{NATIVE}StoreService.Backup", backup)
        await self.as_broker(name)

    async def as_topic(self, name: str) -> None:
        wanted = admin_pb2.CreateTopicRequest(topic=name, queue_count=1)
        if not await self.works("topic", f"{ADMIN}CreateTopic", wanted):
            return
        send = message_pb2.SendRequest(topic=name, messages=[message_pb2.OutgoingMessage(body=b"x")])
        outcome, _ = await self.ask(f"{NATIVE}MessageService.Send", send)
        assert outcome.code == "OK", outcome
        _, (described,) = await self.ask(f"{ADMIN}DescribeTopic", admin_pb2.DescribeTopicRequest(topic=name))
        assert (described.topic, described.queues[0].max_offset) == (name, 1)
        _, (listed,) = await self.ask(f"{ADMIN}ListTopics", admin_pb2.ListTopicsRequest())
        assert [topic.topic for topic in listed.topics].count(name) == 1

    async def as_group(self, name: str) -> None:
        if await self.works("group", f"{GROUP}CreateGroup", group_pb2.CreateGroupRequest(group=name)):
            _, (listed,) = await self.ask(f"{GROUP}ListGroups", group_pb2.ListGroupsRequest())
            assert [group.group for group in listed.groups].count(name) == 1
        offset = admin_pb2.CommitOffsetRequest(group=name, topic="orders", offset=1)
        if await self.works("offset", f"{ADMIN}CommitOffset", offset):
            read = admin_pb2.GetOffsetRequest(group=name, topic="orders")
            assert (await self.ask(f"{ADMIN}GetOffset", read))[1][0].offset == 1

    async def as_property(self, kind: str, name: str) -> None:
        one = message_pb2.OutgoingMessage(body=b"x", **({"tag": name} if kind == "tag" else {"keys": [name]}))
        send = message_pb2.SendRequest(topic="orders", messages=[one])
        if not await self.works(kind, f"{NATIVE}MessageService.Send", send) or not name:
            return
        key_type = query_pb2.TAG if kind == "tag" else query_pb2.KEY
        found = await self.found(
            f"{QUERY}QueryByKey", query_pb2.QueryByKeyRequest(topic="orders", key=name, type=key_type)
        )
        assert found, f"a message with the {kind} {name[:80]!r} is not found"
        for each in found:
            assert name in ((each.tags,) if kind == "tag" else each.keys), (kind, name[:80])
        self.shown.show(messages_table(found))

    async def as_message_id(self, name: str) -> None:
        send = service_pb2.SendMessageRequest(messages=[message(b"x", "orders", message_id=name)])
        _, (reply,) = await self.ask(f"{MESSAGING}SendMessage", send)
        if reply.status.code == v2.OK and name:
            self.accepted["message id"] = self.accepted.get("message id", 0) + 1
            assert reply.entries[0].message_id == name
            found = await self.found(f"{QUERY}GetMessage", query_pb2.GetMessageRequest(id=name))
            assert [each.unique_key for each in found] == [name]

    async def found(self, method: str, request: Any) -> list[Message]:
        outcome, pages = await self.ask(method, request)
        assert outcome.code == "OK", (method, outcome)
        return [each for page in pages for each in RecordBatch.split(page.records).messages()]

    async def as_client(self, name: str) -> None:
        heartbeat = service_pb2.HeartbeatRequest(group=v2.Resource(name="g"), client_type=v2.PUSH_CONSUMER)
        await self.ask(f"{MESSAGING}Heartbeat", heartbeat, name)
        settings = consumer_settings(group=name or "g", topic=name or "orders", expression=name or "*")
        settings.user_agent.hostname = name
        await self.ask(f"{MESSAGING}Telemetry", service_pb2.TelemetryCommand(settings=settings), name)

    async def as_broker(self, name: str) -> None:
        info = common_pb2.BrokerInfo(cluster=name or "c", name=name or "b", address="10.0.0.1:8081")
        topics = [common_pb2.TopicRoute(topic=name, queue_count=1)]
        for broker in (info, common_pb2.BrokerInfo(cluster="c", name="b", address=name)):
            beat = route_pb2.Heartbeat(broker=broker, topics=topics, data_version=1)
            await self.ask(f"{NATIVE}RegistrationService.Register", beat)


@contextmanager
def all_logged() -> Iterator[io.StringIO]:
    """Every line that the daemons log in the block: by this clock none is one too many in its time."""
    ticks = iter(range(0, 1 << 40, 100))
    with logged("debug", clock=lambda: float(next(ticks))) as stream:
        yield stream


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


async def try_names(root: Path, names: list[str], source: random.Random) -> Named:
    with in_process():
        named = Named(root)
        async with named.broker.working():
            wanted = admin_pb2.CreateTopicRequest(topic="orders", queue_count=1)
            await named.ask(f"{ADMIN}CreateTopic", wanted)
            source.shuffle(names)
            for name in names:
                await named.try_name(name)
        return named


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_no_name_leaves_its_place_or_forges_a_line(
    part: int, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, outside = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    outside.mkdir()
    monkeypatch.chdir(outside)
    around = set(os.listdir(tmp_path.parent)), set(os.listdir("/tmp"))
    everything = hostile_names()
    names = [everything[number] for number in trials.numbers(COUNT, default=COUNT // 4, part=part, parts=2)]
    with all_logged() as log:
        named = run(try_names(home, list(names), random.Random(part)))
    assert tree(outside) == set()
    assert set(os.listdir(home)) == {"store", "backups"}
    assert set(os.listdir(tmp_path)) == {"home", "work"}
    assert set(os.listdir(tmp_path.parent)) == around[0]
    assert "x" not in set(os.listdir("/tmp")) - around[1], "`../../tmp/x` was made"
    for path in tree(home):
        if path.startswith("store"):
            assert all(SAFE_FILE_NAME.fullmatch(name) for name in Path(path).parts), path
    check_lines(log.getvalue())
    shown = io.BytesIO()
    named.shown._stdout = shown
    named.shown.finish()
    named.shown.close()
    for text in (named.errors.getvalue(), shown.getvalue().decode()):
        found = STEERING.search(re.sub("\x1b\\[[0-9;]*m", "", text))
        assert found is None, f"{found}: in the command line's output"
    assert all(named.accepted.get(kind) for kind in ("topic", "group", "tag", "key", "message id")), (
        named.accepted
    )
    trials.count("S4", "hostile names", len(names))


def check_lines(text: str) -> None:
    lines = text.splitlines() if "\x85" not in text else text.split("\n")
    assert lines, "something was logged"
    for line in lines:
        assert LINE.match(line), f"a forged line: {line[:200]!r}"
        assert not STEERING.search(line), f"a control character in {line[:200]!r}"
        assert "rpc.unexpected_error" not in line, line[:2_000]
