"""Connected clients: known, alive, gone, reported once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trovemq_broker.server.core import clients
from trovemq_broker.server.core.clients import (
    BROKEN_LATE_MS,
    BROKEN_MS,
    EXPIRY_MS,
    RECONNECT_MS,
    STREAMS_MAX,
    ClientDescription,
    ClientRegistry,
    Subscription,
)
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

NOW_MS = EpochMs(1_700_000_000_000)


class Stream:
    def __init__(self) -> None:
        self.closed = False
        self.sent: list[Any] = []

    def send(self, command: Any) -> None:
        self.sent.append(command)

    def may_be_asked(self, topic: str) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def producer(*topics: str) -> ClientDescription:
    return ClientDescription(client_type=ClientType.PRODUCER, topics=frozenset(topics))


def consumer(group: str = "workers", **filters: str) -> ClientDescription:
    subscriptions = {topic: Subscription("tag", text) for topic, text in filters.items()}
    return ClientDescription(client_type=ClientType.PUSH_CONSUMER, group=group, subscriptions=subscriptions)


def ids(found: list[clients.Client]) -> list[str]:
    return [client.client_id for client in found]


def test_a_client_is_known_by_its_settings() -> None:
    registry = ClientRegistry()
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        registry.heard("c", NOW_MS)
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        registry.terminate("c", NOW_MS)
    registry.settle("c", consumer(orders="a || b"), NOW_MS)
    assert ids(registry.members("workers")) == ["c"]
    assert registry.subscription("workers", "orders") == Subscription("tag", "a || b")
    registry.settle("c", consumer("others", orders="*"), NOW_MS)
    assert registry.members("workers") == []
    assert registry.groups() == ["others"]


def test_a_client_is_gone_after_silence_and_listeners_are_called_once() -> None:
    registry, gone = ClientRegistry(), list[tuple[str, int]]()
    registry.add_gone_listener(lambda client_id, now_ms, _: gone.append((client_id, now_ms)))
    stream = Stream()
    registry.settle("c", consumer(), NOW_MS)
    registry.attach("c", stream)
    registry.heard("c", NOW_MS + 1_000)
    assert registry.expire(NOW_MS + 1_000 + EXPIRY_MS) == []
    assert registry.is_alive("c", NOW_MS + 1_000 + EXPIRY_MS)
    late_ms = NOW_MS + 1_001 + EXPIRY_MS
    assert not registry.is_alive("c", late_ms)
    assert registry.expire(late_ms) == ["c"]
    assert registry.expire(late_ms) == []
    assert gone == [("c", late_ms)]
    assert stream.closed
    assert registry.members("workers") == []


def test_the_expiry_time_is_a_setting() -> None:
    registry = ClientRegistry(expiry_ms=5_000)
    registry.settle("c", consumer(), NOW_MS)
    registry.attach("c", Stream())
    assert registry.expire(NOW_MS + 5_000) == []
    assert not registry.is_alive("c", NOW_MS + 5_001)
    assert registry.expire(NOW_MS + 5_001) == ["c"]


def test_a_closed_stream_that_comes_back_changes_nothing() -> None:
    registry = ClientRegistry()
    first, second = Stream(), Stream()
    registry.settle("c", consumer(orders="*"), NOW_MS)
    registry.attach("c", first)
    registry.detach("c", first, NOW_MS + 5_000)
    assert registry.expire(NOW_MS + 5_000 + RECONNECT_MS) == []
    registry.attach("c", second)
    assert registry.expire(NOW_MS + 6_000 + RECONNECT_MS) == []
    assert ids(registry.members("workers")) == ["c"]


def test_a_closed_stream_that_stays_away_means_gone() -> None:
    registry = ClientRegistry()
    for name in ("silent", "heard"):
        stream = Stream()
        registry.settle(name, consumer(), NOW_MS)
        registry.attach(name, stream)
        registry.detach(name, stream, NOW_MS + 5_000)
    registry.heard("heard", NOW_MS + 6_000)
    assert registry.expire(NOW_MS + 5_001 + RECONNECT_MS) == ["silent"]
    assert registry.expire(NOW_MS + 6_001 + EXPIRY_MS) == ["heard"]


class Receive:
    """A receive under way."""

    over = False

    def done(self) -> bool:
        return self.over


def broken(name: str, registry: ClientRegistry, at_ms: int = NOW_MS) -> None:
    """The client's only stream has broken off."""
    stream = Stream()
    registry.settle(name, consumer(), NOW_MS)
    registry.attach(name, stream)
    registry.detach(name, stream, EpochMs(at_ms), broke=True)


def test_messages_of_a_killed_consumer_came_back_after_12_seconds() -> None:
    registry = ClientRegistry()
    gone = []
    registry.add_gone_listener(lambda *values: gone.append(values))
    broken("killed", registry)
    assert registry.expire_broken(NOW_MS + BROKEN_MS) == []
    assert registry.expire_broken(NOW_MS + BROKEN_MS + 1) == ["killed"]
    assert gone == [("killed", NOW_MS + BROKEN_MS + 1, NOW_MS)]
    assert BROKEN_MS + 100 < 2_000


def test_a_client_whose_stream_alone_broke_off_is_not_a_killed_one() -> None:
    registry = ClientRegistry()
    call, ended = Receive(), Receive()
    ended.over = True
    for name in ("receives", "comes-back", "heard", "half-read"):
        broken(name, registry)
    registry.attach("comes-back", Stream())
    registry.heard("heard", NOW_MS + BROKEN_LATE_MS + 1)
    registry.heard("half-read", NOW_MS + BROKEN_LATE_MS)  # it was sent before
    with registry.receiving("receives", call), registry.receiving("half-read", ended):
        assert registry.expire_broken(NOW_MS + BROKEN_MS + 1) == ["half-read"]
    assert registry.expire_broken(NOW_MS + BROKEN_MS + 1) == ["receives"]
    assert registry.expire(NOW_MS + EXPIRY_MS) == []


def test_a_termination_is_remembered_until_the_client_returns() -> None:
    registry = ClientRegistry(clients_max=2)
    for name in ("a", "b", "c"):
        registry.settle(name, consumer(), NOW_MS)
        registry.terminate(name, NOW_MS)
    assert [registry.has_unregistered(name) for name in ("a", "b", "c")] == [False, True, True], "bounded"
    registry.settle("b", consumer(), NOW_MS)
    assert not registry.has_unregistered("b")


def test_a_new_stream_takes_over_and_the_number_of_old_ones_is_bounded() -> None:
    registry = ClientRegistry()
    registry.settle("c", consumer(), NOW_MS)
    streams = [Stream() for _ in range(STREAMS_MAX + 1)]
    for stream in streams:
        registry.attach("c", stream)
    client = registry.get("c")
    assert client is not None
    assert client.stream is streams[-1]
    assert [stream.closed for stream in streams] == [True, *[False] * STREAMS_MAX]
    registry.detach("c", streams[-1], NOW_MS)
    assert client.stream is streams[-2], "a client that is connected twice keeps its other stream"
    registry.detach("c", streams[0], NOW_MS)
    assert len(client.streams) == STREAMS_MAX - 1


def test_a_termination_closes_the_streams() -> None:
    registry, stream = ClientRegistry(), Stream()
    registry.settle("c", producer("orders"), NOW_MS)
    registry.attach("c", stream)
    registry.terminate("c", NOW_MS)
    assert stream.closed
    assert registry.producers_of("orders") == []
    registry.detach("c", stream, NOW_MS)  # the stream's own end comes later


def test_producers_are_those_that_declared_a_topic_or_sent_a_half_message() -> None:
    registry = ClientRegistry()
    registry.sent_half("early", "orders")  # before its settings
    for name in ("early", "declared", "other", "offline"):
        topics = ("orders",) if name in ("declared", "offline") else ()
        registry.settle(name, producer(*topics), NOW_MS)
        if name != "offline":
            registry.attach(name, Stream())
    assert sorted(ids(registry.producers_of("orders"))) == ["declared", "early"]
    registry.sent_half("other", "orders")
    assert len(registry.producers_of("orders")) == 3
    registry.settle("declared", producer("payments"), NOW_MS)  # it now declares its topics
    assert sorted(ids(registry.producers_of("orders"))) == ["early", "other"]


def test_the_number_of_clients_is_bounded() -> None:
    registry = ClientRegistry(clients_max=2)
    for name in ("a", "b"):
        registry.settle(name, producer(), NOW_MS)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        registry.settle("c", producer(), NOW_MS)
    registry.settle("a", producer("orders"), NOW_MS)  # who is known may always say more
    registry.terminate("b", NOW_MS)
    registry.settle("c", producer(), NOW_MS)


def test_what_is_kept_of_strangers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SUBSCRIPTIONS_MAX", 3)
    monkeypatch.setattr(clients, "HALF_TOPICS_MAX", 2)
    registry = ClientRegistry(clients_max=2)
    for number in range(5):
        registry.subscribed("group", f"topic-{number}", Subscription("tag", "*"))
    assert [topic for _, topic in registry.subscriptions()] == ["topic-2", "topic-3", "topic-4"]
    registry.settle("c", producer(), NOW_MS)
    registry.attach("c", Stream())
    for number in range(4):
        registry.sent_half("c", f"topic-{number}")
    assert [bool(registry.producers_of(f"topic-{number}")) for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    for name in ("x", "y"):  # others push it out
        registry.sent_half(name, "orders")
    assert registry.producers_of("topic-3") == []


class Lives(RuleBasedStateMachine):
    """Clients come, talk and go in any order; the indexes always agree with the clients."""

    names = st.sampled_from(["a", "b", "c", "d"])
    topics = st.frozensets(st.sampled_from(["t1", "t2", "t3"]))

    @initialize()
    def start(self) -> None:
        self.registry = ClientRegistry(clients_max=3)
        self.now_ms = NOW_MS
        self.known: set[str] = set()
        self.gone: list[str] = []
        self.registry.add_gone_listener(lambda client_id, *_: self.gone.append(client_id))
        self.streams: dict[str, list[Stream]] = {}
        self.half: dict[str, set[str]] = {}

    @rule(name=names, topics=topics, group=st.sampled_from(["", "g1", "g2"]))
    def settle(self, name: str, topics: frozenset[str], group: str) -> None:
        description = ClientDescription(client_type=ClientType.PRODUCER, topics=topics, group=group)
        if name not in self.known and len(self.known) == 3:
            with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
                self.registry.settle(name, description, self.now_ms)
            return
        self.registry.settle(name, description, self.now_ms)
        self.known.add(name)

    @rule(name=names)
    def attach(self, name: str) -> None:
        if name in self.known:
            self.registry.attach(name, Stream())

    @rule(name=names, broke=st.booleans())
    def detach(self, name: str, broke: bool) -> None:
        client = self.registry.get(name)
        if client is not None and client.streams:
            self.registry.detach(name, client.streams[0], self.now_ms, broke=broke)

    @rule()
    def expire_broken(self) -> None:
        self.now_ms += BROKEN_MS + 1
        had_broken = self.registry.has_broken
        found = self.registry.expire_broken(self.now_ms)
        assert had_broken or not found
        assert all(not self.registry.is_alive(name, self.now_ms) for name in found)
        assert self.gone == found
        self.gone.clear()
        self.known.difference_update(found)

    @rule(name=names, topic=st.sampled_from(["t1", "t2", "t3"]))
    def sent_half(self, name: str, topic: str) -> None:
        self.registry.sent_half(name, topic)

    @rule(name=names)
    def heard(self, name: str) -> None:
        if name in self.known:
            self.registry.heard(name, self.now_ms)

    @rule(name=names)
    def terminate(self, name: str) -> None:
        if name in self.known:
            self.registry.terminate(name, self.now_ms)
            self.known.discard(name)
            assert self.gone.pop() == name

    @rule(step_ms=st.sampled_from([1_000, RECONNECT_MS + 1, EXPIRY_MS + 1]))
    def expire(self, step_ms: int) -> None:
        self.now_ms += step_ms
        dead = sorted(name for name in self.known if not self.registry.is_alive(name, self.now_ms))
        assert sorted(self.registry.expire(self.now_ms)) == dead
        assert sorted(self.gone) == dead
        self.gone.clear()
        self.known.difference_update(dead)

    @invariant()
    def indexes_agree(self) -> None:
        registry = self.registry
        broken = {client.client_id for client in registry if client.stream_broke}
        assert set(registry._broken) == broken
        assert not any(client.streams for client in registry if client.stream_broke)
        assert {client.client_id for client in registry} == self.known
        for topic in ("t1", "t2", "t3"):
            indexed = set(registry._by_topic.get(topic, ()))
            assert indexed == {
                client.client_id for client in registry if topic in registry._topics_of(client)
            }
        for group in ("g1", "g2"):
            assert {client.client_id for client in registry.members(group)} == {
                client.client_id for client in registry if client.group == group
            }
        assert len(registry._half_topics) <= 3
        assert not self.gone


TestLives = Lives.TestCase
TestLives.settings = hypothesis_settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_long_expressions_filled_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "EXPRESSIONS_LENGTH_MAX", 1_000)
    registry = ClientRegistry()
    for number in range(50):
        registry.subscribed("workers", f"t{number}", Subscription("tag", "x" * 100))
    assert sorted(topic for _, topic in registry.subscriptions()) == [
        f"t{number}" for number in range(40, 50)
    ]
    for _ in range(50):
        registry.subscribed("workers", "t49", Subscription("tag", "y" * 100))
    assert len(registry.subscriptions()) == 10, "one that is replaced counts once"
    registry.forget_group("workers")
    registry.subscribed("others", "t", Subscription("tag", "z" * 1_000))
    assert list(registry.subscriptions()) == [("others", "t")]
