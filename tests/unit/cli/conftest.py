"""A client without a network: topics and messages in memory, after the calls that the command line makes."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.support.configs import FakeConfig
from tests.support.fake_groups import FakeGroups
from tests.support.fake_users import FakeRules, FakeUsers
from trovemq.cli import app
from trovemq.fetched import FetchedBatch
from trovemq.models.all_brokers import BrokerAnswers, TopicDeletion
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    LostBroker,
    OffsetReset,
    QueueOffsets,
    TopicDescription,
    TopicHold,
    TopicQueue,
    TopicRoute,
)
from trovemq.receipts import SendReceipt
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import Message, decode_message, encode_offset_msg_id, encode_record, pack_host

STORE_HOST = pack_host("127.0.0.1:8081")
FIRST_TIMESTAMP = 1_700_000_000_000
BROKER_NOW = FIRST_TIMESTAMP + 3_600_000  # the clock of this machine is years ahead of it
BATCH_MESSAGES = 3  # small, so that every answer takes several pages


@dataclass
class Page:
    """An answer of the SDK's query."""

    messages: tuple[Message, ...]
    complete: bool
    cursor: str | None
    index_last_update_timestamp: int = 5
    index_last_update_physical_offset: int = 6
    unreachable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Found:
    """An answer of the SDK's get."""

    kind: str
    messages: tuple[Message, ...]
    unreachable: tuple[str, ...] = ()
    more: bool = False


@dataclass
class FakePool:
    """Nameservers that have lost no broker. `unseen_count`: brokers to which they do not lead."""

    unseen_count: int = 0

    def unasked(self) -> int:
        return self.unseen_count

    async def lost_brokers_of(self, topic: str) -> list[LostBroker]:
        return []


@dataclass
class FakeClient:
    """One broker's topics; every call is recorded in `calls`."""

    topics: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    group_offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    brokers: tuple[str, ...] = ("broker-a",)
    unreachable: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    """Brokers that answer no administration."""
    existing: tuple[str, ...] = ()
    """Brokers that have every topic that is created."""
    physical_offset: int = 0
    stored: int = 0
    send_status: str = "PUT_OK"
    groups: FakeGroups = field(default_factory=FakeGroups)
    message_types: dict[str, str] = field(default_factory=dict)
    topic_options: dict[str, dict[str, str]] = field(default_factory=dict)
    holds: dict[str, TopicHold] = field(default_factory=dict)
    refused_body: bytes = b"refused"
    """What `send_batch` takes no batch with."""
    users: Any = field(default_factory=lambda: FakeUsers(errors.AUTHENTICATION_DISABLED))
    rules: Any = field(default_factory=FakeRules)
    config: FakeConfig = field(default_factory=FakeConfig)
    subscription: FakeSubscription = field(default_factory=lambda: FakeSubscription([]))

    _pool: Any = field(default_factory=FakePool)

    @property
    def admin(self) -> FakeClient:
        return self

    async def close(self) -> None:
        self.calls.append(("close", {}))

    def _queue(self, topic: str, queue_id: int, broker: str | None) -> list[bytes]:
        if topic not in self.topics:
            raise TroveError(errors.TOPIC_NOT_FOUND, f"no topic {topic}", topic=topic)
        if broker is None and len(self.brokers) > 1:
            raise TroveError(errors.BROKER_AMBIGUOUS, f"{topic}/{queue_id} is on {', '.join(self.brokers)}")
        if queue_id >= self.topics[topic]:
            raise TroveError(errors.QUEUE_NOT_FOUND, f"{topic} has {self.topics[topic]} queues")
        return self.records.setdefault((topic, queue_id), [])

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Sequence[str] = (),
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        **extras: Any,
    ) -> SendReceipt:
        named = {"topic": topic, "body": body, "keys": keys, "tag": tag, "properties": properties, **extras}
        self.calls.append(("send", named))
        if {"deliver_at", "deliver_after"} & set(extras):
            return SendReceipt(
                topic, -1, -1, -1, "", "KEY", "disk", FIRST_TIMESTAMP, self.brokers[0], "PUT_OK", "HANDLE"
            )
        queue = self._queue(topic, queue_id or 0, broker)
        key = message_id or f"UNIQUE{self.stored:028}"
        block = {"UNIQ_KEY": key, **(properties or {})}
        block |= {"KEYS": " ".join(keys)} if keys else {}
        block |= {"TAGS": tag} if tag else {}
        record = encode_record(
            topic,
            body,
            queue_id=queue_id or 0,
            properties=block,
            queue_offset=len(queue),
            physical_offset=self.physical_offset,
            store_timestamp=FIRST_TIMESTAMP + self.stored,
            store_host=STORE_HOST,
        )
        receipt = SendReceipt(
            topic=topic,
            queue_id=queue_id or 0,
            queue_offset=len(queue),
            physical_offset=self.physical_offset,
            offset_msg_id=encode_offset_msg_id(STORE_HOST, PhysicalOffset(self.physical_offset)),
            message_id=key,
            durability="disk",
            store_timestamp=FIRST_TIMESTAMP + self.stored,
            broker=self.brokers[0],
            status=self.send_status,
        )
        queue.append(record)
        self.stored += 1
        self.physical_offset += len(record)
        return receipt

    async def pull_batches(
        self,
        topic: str,
        *,
        queue_id: int,
        offset: int,
        tags: Sequence[str] | None = None,
        broker: str | None = None,
        end: int | None = None,
        **_: object,
    ) -> AsyncIterator[FetchedBatch]:
        queue = self._queue(topic, queue_id, broker)[:end]
        if offset > len(queue):
            raise TroveError(errors.OFFSET_OUT_OF_RANGE, "above the end", min_offset=0, max_offset=len(queue))
        for first in range(offset, len(queue), BATCH_MESSAGES):
            part = queue[first : first + BATCH_MESSAGES]
            wanted = [record for record in part if not tags or decode_message(record).tags in tags]
            yield FetchedBatch(b"".join(wanted), first + len(part), 0, len(queue))

    def _all(self) -> list[Message]:
        messages = [decode_message(record) for queue in self.records.values() for record in queue]
        return sorted(messages, key=lambda message: -message.physical_offset)

    async def get(self, identifier: str, *, topic: str | None = None, broker: str | None = None) -> Found:
        for kind, name in (("offset_msg_id", "offset_msg_id"), ("message_id", "message_id")):
            found = [message for message in self._all() if getattr(message, name) == identifier]
            if found:
                return Found(kind, tuple(found))
        raise TroveError(errors.MESSAGE_NOT_FOUND, f"no message {identifier}", id=identifier)

    def producer(self, topic: str, **_: object) -> Any:
        return FakeProducer(self, topic)

    def subscribe(self, topic: str, group: str, **options: Any) -> FakeSubscription:
        self.calls.append(("subscribe", {"topic": topic, "group": group, **options}))
        self._queue(topic, 0, "broker-a")
        return self.subscription

    async def recall(self, topic: str, handle: str) -> str:
        if handle != "good":
            raise TroveError(errors.RECALL_HANDLE_ILLEGAL, "the recall handle is unreadable")
        return f"{topic}-message"

    async def get_at(self, topic: str, queue_id: int, offset: int, *, broker: str | None = None) -> Message:
        queue = self._queue(topic, queue_id, broker)
        if offset >= len(queue):
            raise TroveError(errors.MESSAGE_NOT_FOUND, f"no offset {offset}")
        return decode_message(queue[offset])

    async def query(self, topic: str, key: str, **options: Any) -> Page:
        self.calls.append(("query", options))
        names = {"key": "keys", "message_id": "message_id", "tag": "tags"}
        matching = []
        for message in self._all():
            value = getattr(message, names[options["type"]])
            inside = options["begin"] <= message.store_timestamp <= options["end"]
            if (
                message.topic == topic
                and inside
                and (key == value or (options["type"] == "key" and key in value))
            ):
                matching.append(message)
        first = int(options["cursor"] or 0)
        last = first + min(options["max"], BATCH_MESSAGES)
        complete = last >= len(matching)
        return Page(
            tuple(matching[first:last]),
            complete,
            None if complete else str(last),
            unreachable=self.unreachable,
        )

    async def search_offset(
        self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False, broker: str | None = None
    ) -> int:
        self.calls.append(("search_offset", {"timestamp": timestamp, "upper": upper}))
        times = [decode_message(record).store_timestamp for record in self._queue(topic, queue_id, broker)]
        return sum(time < timestamp for time in times)

    async def broker_time(self, topic: str, *, broker: str | None = None) -> int:
        self._queue(topic, 0, "broker-a")
        return BROKER_NOW

    async def queue_offsets(
        self, topic: str, *, queue_ids: Sequence[int] | None = None, broker: str | None = None
    ) -> list[QueueOffsets]:
        wanted = range(self.topics.get(topic, 1)) if queue_ids is None else queue_ids
        return [QueueOffsets("broker-a", q, 0, len(self._queue(topic, q, broker))) for q in wanted]

    def _description(self, topic: str, queues: bool = False, with_sizes: bool = False) -> TopicDescription:
        records = [self.records.get((topic, q), []) for q in range(self.topics[topic])]
        found = tuple(
            TopicQueue(q, 0, len(one), 0, sum(map(len, one)) if with_sizes else None)
            for q, one in enumerate(records if queues else ())
        )
        message_type = self.message_types.get(topic, "NORMAL")
        options, hold = self.topic_options.get(topic, {}), self.holds.get(topic) if queues else None
        count = self.topics[topic]
        return TopicDescription(topic, count, message_type, False, found, "broker-a", options, hold)

    async def create_topic(self, name: str, **options: Any) -> BrokerAnswers[TopicDescription]:
        self.calls.append(("create_topic", options))
        if name in self.topics and options.get("exist_ok"):
            return BrokerAnswers([self._description(name)])
        if name in self.topics:
            raise TroveError(errors.TOPIC_EXISTS, f"{name} exists", topic=name)
        self.topics[name] = options["queue_count"]
        self.message_types[name] = options.get("message_type", "NORMAL")
        return BrokerAnswers([self._description(name)], pending=self.away, existing=self.existing)

    async def alter_topic(self, name: str, **options: Any) -> BrokerAnswers[TopicDescription]:
        self.calls.append(("alter_topic", {"name": name, **options}))
        self.topics[name] = options["queue_count"] or self.topics[name]
        self.message_types[name] = options["message_type"] or self.message_types.get(name, "NORMAL")
        return BrokerAnswers([self._description(name)], pending=self.away)

    async def list_topics(self, **_: object) -> BrokerAnswers[TopicDescription]:
        return BrokerAnswers((self._description(name) for name in self.topics), missing=self.away)

    async def describe_topic(
        self, name: str, *, with_sizes: bool = False, **_: object
    ) -> list[TopicDescription]:
        self._queue(name, 0, "broker-a")
        return [self._description(name, queues=True, with_sizes=with_sizes)]

    async def delete_topic(self, name: str, **_: object) -> TopicDeletion:
        self._queue(name, 0, "broker-a")
        del self.topics[name]
        return TopicDeletion({"broker-a": self.physical_offset}, pending=self.away)

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int, **_: object) -> None:
        self.group_offsets[group, topic, queue_id] = offset

    async def get_offset(self, group: str, topic: str, queue_id: int, **_: object) -> int | None:
        return self.group_offsets.get((group, topic, queue_id))

    async def reset_offset(self, group: str, topic: str, **options: Any) -> list[OffsetReset]:
        self.calls.append(("reset_offset", options))
        return [OffsetReset("broker-a", q, None, 0) for q in range(self.topics[topic])]

    async def cluster(self) -> ClusterState:
        topics = tuple(TopicRoute(name, count) for name, count in self.topics.items())
        infos = [
            BrokerInfo("DefaultCluster", name, "127.0.0.1:8081", flush_mode="sync") for name in self.brokers
        ]
        return ClusterState(tuple(BrokerRoute(info, topics) for info in infos))

    async def statistics(self, **_: object) -> list[BrokerStatistics]:
        return [BrokerStatistics(BrokerInfo("DefaultCluster", "broker-a", "127.0.0.1:8081"), {"puts": 7})]


@dataclass
class FakeProducer:
    """Sends batches to queue 0."""

    client: FakeClient
    topic: str

    async def __aenter__(self) -> FakeProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def ready(self, size: int = 1) -> None:
        return

    def send_nowait(self, body: bytes, *, message_group: str | None = None, **arguments: Any) -> Any:
        if message_group is not None:
            own = arguments.pop("properties") or {}
            arguments["properties"] = {**own, "__SHARDINGKEY": message_group}
        return asyncio.ensure_future(self.client.send(self.topic, body, **arguments))

    async def send_batch(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Sequence[str]] | None = None,
        tags: Sequence[str | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        message_ids: Sequence[str],
        **place: Any,
    ) -> list[SendReceipt]:
        if self.client.refused_body in bodies:
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, "a body is too large")
        return [
            await self.client.send(
                self.topic,
                body,
                keys=keys[i] if keys else (),
                tag=tags[i] if tags else None,
                properties=properties[i] if properties else None,
                message_id=message_ids[i],
                **place,
            )
            for i, body in enumerate(bodies)
        ]


class FakeSubscription:
    """Gives these messages, then none for ever; records the end of each in `settled`."""

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.settled: list[tuple[str, int]] = []
        self._messages = list(messages)
        for message in self._messages:
            message.settlement = self

    async def __aenter__(self) -> FakeSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.settled.append(("left", 0))

    async def __anext__(self) -> ReceivedMessage:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    def check_loop(self) -> None:
        """It has one loop."""

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        return self._settle("acknowledged", message)

    def return_message(
        self,
        message: ReceivedMessage,
        delay_ms: int | None,
        *,
        tried: bool,
        failure: BaseException | None = None,
    ) -> asyncio.Future[None]:
        return self._settle("failed" if tried else "returned", message)

    def release(self, message: ReceivedMessage) -> None:
        self._settle("returned", message)

    def dead_letter(
        self, message: ReceivedMessage, *, reason: str = "", failure: BaseException | None = None
    ) -> asyncio.Future[None]:
        return self._settle("dead", message)

    def _settle(self, what: str, message: ReceivedMessage) -> asyncio.Future[None]:
        self.settled.append((what, message.queue_offset))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        return

    def consumed(self, message: ReceivedMessage) -> bool:
        self._settle("acknowledged", message)
        return False

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self.consumed(message)

    @property
    def at_capacity(self) -> bool:
        return False

    async def wait_for_capacity(self) -> None:
        return

    @property
    def group(self) -> str:
        return "billing"

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        return


@dataclass
class Ran:
    """The result of one run of the command line."""

    code: int
    out: bytes
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output, one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def note(self) -> dict[str, Any]:
        """Standard error as the one JSON object that it must be."""
        value = json.loads(self.err)
        assert isinstance(value, dict)
        return value


class _Stream(io.TextIOWrapper):
    """A standard stream in memory."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", write_through=True)

    def content(self) -> bytes:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue()


@dataclass
class CommandLine:
    """Runs command lines in this process against the fake client."""

    client: FakeClient
    monkeypatch: pytest.MonkeyPatch
    servers: list[str] = field(default_factory=list)
    options: list[trovemq.ClientOptions | None] = field(default_factory=list)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ran:
        out, err = _Stream(), _Stream()
        with self.monkeypatch.context() as patch:
            patch.setattr("sys.stdout", out)
            patch.setattr("sys.stderr", err)
            patch.setattr("sys.stdin", _Stream(stdin))
            code = app.run(arguments)
        return Ran(code, out.content(), err.content().decode())

    async def connect(self, server: str, *, options: trovemq.ClientOptions | None = None) -> FakeClient:
        self.servers.append(server)
        self.options.append(options)
        return self.client


@pytest.fixture
def client() -> FakeClient:
    """A broker with one empty topic `orders` of 2 queues."""
    return FakeClient(topics={"orders": 2})


@pytest.fixture
def run(client: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandLine:
    """The command line in this process; it connects to `client`."""
    monkeypatch.delenv("TROVEMQ_SERVER", raising=False)
    monkeypatch.delenv("TROVEMQ_CONTEXT", raising=False)
    monkeypatch.setenv("TROVEMQ_CONFIG", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("COLUMNS", raising=False)
    command_line = CommandLine(client, monkeypatch)
    monkeypatch.setattr(trovemq, "connect", command_line.connect, raising=False)
    return command_line
