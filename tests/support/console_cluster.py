"""A cluster in memory behind the SDK's client, and a browser for the console's pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx

from tests.unit.cli.conftest import FIRST_TIMESTAMP, FakeClient, Page
from trovemq import (
    AccessRule,
    BrokerAnswers,
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    GroupDescription,
    LostBroker,
    MessageTrack,
    ReplicaGroup,
    SearchAnswer,
    SettingDescription,
    TopicDescription,
    TopicRoute,
    TroveError,
    UserCredentials,
    UserDescription,
    Where,
    errors,
)
from trovemq.cli.doctor_evidence import Finding
from trovemq_console.app import make_app
from trovemq_console.settings import ConsoleSettings
from trovemq_proto.positions import QueueId
from trovemq_proto.records import Message, decode_message

HOST = "127.0.0.1:8090"
ORIGIN = f"http://{HOST}"
COUNTERS = {"messages_in": 40, "log_min_offset": 0, "log_end_offset": 4_096, "disk_used_percent": 20}


@dataclass
class Listed:
    """The users or the rules; or the refusal to list them."""

    rows: list[Any] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    refusal: TroveError | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def list_all(self, *_: object, **__: object) -> BrokerAnswers[Any]:
        if self.refusal is not None:
            raise self.refusal
        return BrokerAnswers(self.rows, missing=self.missing)

    def _record(self, name: str, subject: object, options: dict[str, Any]) -> None:
        self.calls.append((name, {"subject": subject, **options}))

    async def create(self, access_key: str, **options: Any) -> UserCredentials:
        self._record("create", access_key, options)
        return UserCredentials(access_key, "made-secret", (user(access_key),))

    async def rotate(self, access_key: str, **options: Any) -> UserCredentials:
        self._record("rotate", access_key, options)
        return UserCredentials(access_key, "made-secret", (user(access_key),))

    async def drop_old_secret(self, access_key: str) -> BrokerAnswers[UserDescription]:
        self._record("drop_old_secret", access_key, {})
        return BrokerAnswers([user(access_key)])

    async def enable(self, access_key: str, *, enabled: bool = True) -> BrokerAnswers[UserDescription]:
        self._record("enable", access_key, {"enabled": enabled})
        return BrokerAnswers([user(access_key)])

    async def delete(self, subject: str | int, **options: Any) -> BrokerAnswers[str]:
        self._record("delete", subject, options)
        return BrokerAnswers(["broker-a"])

    async def allow(
        self, access_key: str, actions: str, resource: str, **options: Any
    ) -> BrokerAnswers[AccessRule]:
        self._record("allow", access_key, {"actions": actions, "resource": resource, **options})
        return BrokerAnswers([rule(access_key)])

    async def deny(
        self, access_key: str, actions: str, resource: str, **options: Any
    ) -> BrokerAnswers[AccessRule]:
        self._record("deny", access_key, {"actions": actions, "resource": resource, **options})
        return BrokerAnswers([rule(access_key)])


@dataclass
class FakeBrokers:
    """The settings of all brokers, as TOML; or the refusal to list them."""

    values: dict[str, str] = field(
        default_factory=lambda: {
            "reserved_time_ms": "259200000",
            "disk_used_percent_max": "75",
            "disk_warning_percent": "90",
            "clean_forcibly_enable": "false",
            "disk_forcible_percent": "85",
        }
    )
    refusal: TroveError | None = None

    async def settings(self, *names: str, broker: str) -> list[SettingDescription]:
        if self.refusal is not None:
            raise self.refusal
        return [
            SettingDescription(name, self.values[name], "default", False, self.values[name], "", "", broker)
            for name in names
        ]


@dataclass
class FakeReplicas:
    """The replica groups; or the refusal to show them."""

    known: list[ReplicaGroup] = field(default_factory=list)
    refusal: TroveError | None = None

    async def groups(self) -> list[ReplicaGroup]:
        if self.refusal is not None:
            raise self.refusal
        return self.known


class FakeAdmin:
    """The cluster's own calls, beside those about brokers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.brokers = cluster.settings
        self.config = cluster.config
        self.replicas = cluster.replicas

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


@dataclass
class FakeCluster(FakeClient):
    """The command line's fake client, with the calls that the console makes beside them."""

    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    lost: tuple[LostBroker, ...] = ()
    tracks: dict[str, MessageTrack] = field(default_factory=dict)
    users: Listed = field(default_factory=Listed)
    rules: Listed = field(default_factory=Listed)
    known_groups: list[GroupDescription] = field(default_factory=list)
    counts_sizes_for_ever: bool = False
    settings: FakeBrokers = field(default_factory=FakeBrokers)
    replicas: FakeReplicas = field(default_factory=FakeReplicas)

    @property
    def admin(self) -> Any:
        return FakeAdmin(self)

    async def cluster(self) -> ClusterState:
        topics = tuple(
            TopicRoute(name, count, self.message_types.get(name, "NORMAL"))
            for name, count in self.topics.items()
        )
        infos = [
            BrokerInfo(
                "DefaultCluster",
                name,
                f"{name}:8081",
                flush_mode="sync",
                draining=name in self.draining | self.drained,
                drained=name in self.drained,
            )
            for name in self.brokers
        ]
        return ClusterState(tuple(BrokerRoute(info, topics) for info in infos), lost=self.lost)

    async def statistics(self, **asked: object) -> list[BrokerStatistics]:
        broker = str(asked.get("broker"))
        self.calls.append(("statistics", asked))
        if broker in self.down:
            raise TroveError(errors.BROKER_UNREACHABLE, f"{broker}: connection refused")
        info = BrokerInfo("DefaultCluster", broker, f"{broker}:8081")
        return [BrokerStatistics(info, self.counters.get(broker, COUNTERS))]

    async def describe_topic(
        self, name: str, *, with_sizes: bool = False, **options: object
    ) -> list[TopicDescription]:
        self.calls.append(("describe_topic", {"name": name}))
        if with_sizes and self.counts_sizes_for_ever:
            await asyncio.Event().wait()
        return await super().describe_topic(name, with_sizes=with_sizes, **options)

    async def search(
        self,
        topic: str,
        where: Where | None = None,
        *,
        begin: int = 0,
        newest_first: bool = True,
        max: int = 64,  # noqa: A002  as the SDK
        cursor: str | None = None,
    ) -> SearchAnswer:
        self.calls.append(("search", {"topic": topic, "begin": begin, "max": max}))
        if topic not in self.topics:
            raise TroveError(errors.TOPIC_NOT_FOUND, f"no topic {topic}")
        found = [
            message
            for message in self._all()
            if message.topic == topic and message.store_timestamp >= begin and matches(where, message)
        ]
        found.sort(key=lambda message: message.store_timestamp, reverse=newest_first)
        first = int(cursor or 0)
        last = first + max
        return SearchAnswer(
            tuple(found[first:last]), last >= len(found), str(last) if last < len(found) else None
        )

    async def query(self, topic: str, key: str, **options: Any) -> Page:
        return await super().query(
            topic, key, **{"type": "key", "begin": 0, "end": 1 << 62, "cursor": None, **options}
        )

    async def track(self, identifier: str, *_: object) -> MessageTrack:
        return self.tracks.get(identifier, MessageTrack((), (), (), True))

    async def pull(
        self, topic: str, *, queue_id: QueueId, offset: int, broker: str | None = None
    ) -> AsyncIterator[Message]:
        for record in self._queue(topic, queue_id, broker)[offset:]:
            yield decode_message(record)


def matches(where: Where | None, message: Message) -> bool:
    """Whether it meets the condition (of keys and unique keys, as the console asks)."""
    if where is None:
        return True
    if where.kind in ("all", "any"):
        return (all if where.kind == "all" else any)(matches(part, message) for part in where.parts)
    values: Sequence[str] = message.keys if where.kind == "key" else (message.message_id or "",)
    return any(value.startswith(where.value) if where.is_prefix else value == where.value for value in values)


class Clocks:
    """The console's times: seconds that only grow, and epoch seconds."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def epoch(self) -> float:
        return FIRST_TIMESTAMP / 1000 + self.passed


class Http:
    """Requests to an ASGI application, each in the loop of the test, with the cookies of those before."""

    def __init__(self, app: Any, runner: asyncio.Runner) -> None:
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN)
        self._runner = runner

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    def close(self) -> None:
        self._runner.run(self._client.aclose())


class Browser:
    """A browser with one console open."""

    def __init__(self, client: Http, cluster: FakeCluster, clocks: Clocks) -> None:
        self.http = client
        self.cluster = cluster
        self.clocks = clocks

    def get(self, path: str, **parameters: Any) -> str:
        """The text of a page that must be there."""
        reply = self.http.get(path, params=parameters or None)
        assert reply.status_code == 200, f"{reply.status_code}: {reply.text}"
        return reply.text

    def status(self, path: str, **parameters: Any) -> int:
        return self.http.get(path, params=parameters).status_code

    def form_token(self) -> str:
        """Of a form that the console made for this browser."""
        (first, *_) = values_named(self.get("/topic", name=next(iter(self.cluster.topics))), "token")
        return first

    def post(self, path: str, fields: Mapping[str, str], origin: str | None = ORIGIN) -> tuple[int, str]:
        headers = {} if origin is None else {"origin": origin}
        reply = self.http.post(path, data=dict(fields), headers=headers)
        return reply.status_code, reply.text


@contextmanager
def console(
    cluster: FakeCluster | None = None, connect: Any = None, found: Sequence[Finding] = (), **settings: Any
) -> Iterator[Browser]:
    """A browser on a console of this cluster; nothing is looked at while no page is open. `found`: by
    doctor."""
    fake = cluster or FakeCluster(topics={"orders": 2})
    clocks = Clocks()

    async def connected() -> Any:
        return fake

    async def look() -> Sequence[Finding]:
        return found

    app = make_app(
        ConsoleSettings("127.0.0.1:9", **settings),
        connect or connected,
        monotonic=clocks.monotonic,
        clock=clocks.epoch,
        sampling=False,
        look=look,
    )
    with asyncio.Runner() as runner, closing(Http(app, runner)) as http:
        yield Browser(http, fake, clocks)


class _Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """The page's elements with their attributes."""
    parser = _Markup()
    parser.feed(page)
    parser.close()
    return parser.elements


def structure(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """The page's elements with the names of their attributes: its markup without its text."""
    return [(tag, tuple(attributes)) for tag, attributes in elements(page)]


def values_named(page: str, name: str) -> list[str]:
    """The values of the form's fields of that name."""
    return [
        str(attributes.get("value")) for _, attributes in elements(page) if attributes.get("name") == name
    ]


def confirmed(page: str) -> dict[str, str]:
    """The fields of the page's form as a browser would send them: a text area drops its first line's end."""
    form = page.split('action="/acts/')[1]
    fields = {
        str(attributes["name"]): str(attributes["value"])
        for tag, attributes in elements(form)
        if tag == "input" and "name" in attributes
    }
    for part in form.split('<textarea name="')[1:]:
        name, _, rest = part.partition('" hidden>')
        text = rest.partition("</textarea>")[0].removeprefix("\n")
        fields[name] = unescape(text)
    return fields


def user(access_key: str) -> UserDescription:
    return UserDescription(access_key, "Normal", True, FIRST_TIMESTAMP, (FIRST_TIMESTAMP,), "broker-a")


def rule(access_key: str) -> AccessRule:
    return AccessRule(1, access_key, True, "Pub", "Topic:orders", (), "broker-a")
