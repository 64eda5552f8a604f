"""The registry of connected clients: those that have sent their settings (of RocketMQ 5), or have opened a
Consume stream, with their descriptions.

A client is known from that until one of these:
- it unregisters (`terminate`);
- it sent nothing for the expiry time, whatever the state of its stream;
- its last stream closed, and it has sent nothing for RECONNECT_MS since (a client opens another one within 10
  s);
- its last stream broke (its client did not end it), no receive of it is open, and it has sent nothing for
  BROKEN_MS since: its connection is lost, and most likely the client is gone. Then all gone-listeners are
  called, once.

Invariants
- There are at most `clients_max` clients, with STREAMS_MAX streams each; commands go to the stream that was
  opened last. A client that lost its stream and opens another one is still known.
- `_by_topic` and `_by_group` have exactly the clients with that topic or group, `_broken` those whose last
  stream broke and that have no other.
- The records of unknown clients (topics of half messages, last subscriptions, terminations) are bounded: the
  oldest is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from trovemq_broker.server.wire.client_commands import ClientCommand
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

CLIENTS_MAX: Final = 10_000
STREAMS_MAX: Final = 4  # of one client, which has one for each address of this broker that it knows
EXPIRY_MS: Final = 120_000
RECONNECT_MS: Final = 11_000  # longer than two reopening periods of Go's client, and a heartbeat period
BROKEN_MS: Final = 1_500  # Java's client opens a stream again one second after one broke
BROKEN_LATE_MS: Final = 200  # a heartbeat that was sent before the break may be read this much later
HALF_TOPICS_MAX: Final = 1_024  # of one client
SUBSCRIPTIONS_MAX: Final = 65_536
EXPRESSIONS_LENGTH_MAX: Final = 16 << 20  # characters of the stored subscriptions

GoneListener = Callable[[str, EpochMs, EpochMs], None]
JoinedListener = Callable[[str, str, Iterable[str]], None]


class ClientStream(Protocol):
    """An open stream of a client, for the registry and the commands."""

    def send(self, command: ClientCommand) -> None:
        """Sends soon. Raises TroveError LIMIT_EXCEEDED if too much waits already."""
        ...

    def may_be_asked(self, topic: str) -> bool:
        """Whether it may get half messages of the topic."""
        ...

    def close(self) -> None:
        """Ends the stream soon: the client is not known any more, or has opened others."""
        ...


class OpenCall(Protocol):
    """A running receive, for the registry."""

    def done(self) -> bool:
        """Whether it has ended, or its client or connection is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription of a topic. kind: that of filters.parse_filter."""

    kind: str
    expression: str
    updated_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDescription:
    """A client's description of itself, from its metadata and its settings. Times in ms."""

    client_type: ClientType
    group: str = ""
    topics: frozenset[str] = frozenset()  # to which it produces
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    language: str = ""
    version: str = ""
    hostname: str = ""
    peer: str = ""
    request_timeout_ms: int = 0  # 0: not given

    @classmethod
    def of_producer(
        cls, topics: Iterable[str], *, language: str, version: str, peer: str
    ) -> ClientDescription:
        """A producer to these topics, which can be asked about their transactions."""
        return cls(
            client_type=ClientType.PRODUCER,
            topics=frozenset(topics),
            language=language,
            version=version,
            peer=peer,
        )


class Client:
    """One known client; only the registry changes it."""

    def __init__(self, client_id: str, description: ClientDescription, now_ms: EpochMs) -> None:
        self.client_id: Final = client_id
        self.description = description
        self.last_heartbeat_ms = now_ms
        self.streams: list[ClientStream] = []
        self.stream_closed_ms = now_ms
        self.stream_broke = False  # the last one broke, and there is no other
        self.receives: set[OpenCall] = set()

    @property
    def stream(self) -> ClientStream | None:
        """The stream that was opened last, if one is open."""
        return self.streams[-1] if self.streams else None

    @property
    def group(self) -> str:
        return self.description.group

    @property
    def is_producer(self) -> bool:
        return self.description.client_type == ClientType.PRODUCER

    def is_alive(self, now_ms: EpochMs, expiry_ms: int = EXPIRY_MS) -> bool:
        if now_ms - self.last_heartbeat_ms > expiry_ms:
            return False
        late_ms = BROKEN_LATE_MS if self.stream_broke else 0
        if self.streams or self.last_heartbeat_ms > self.stream_closed_ms + late_ms:
            return True
        broken = self.stream_broke and all(call.done() for call in self.receives)
        return now_ms - self.stream_closed_ms <= (BROKEN_MS if broken else RECONNECT_MS)


class ClientRegistry:
    """The known clients. For use on the event loop only; callers pass the time."""

    def __init__(self, clients_max: int = CLIENTS_MAX, expiry_ms: int = EXPIRY_MS) -> None:
        self.clients_max: Final = clients_max
        self._expiry_ms = expiry_ms
        self._clients: dict[str, Client] = {}
        self._by_group: dict[str, dict[str, None]] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        self._half_topics: OrderedDict[str, dict[str, None]] = OrderedDict()  # client id -> topics
        self._subscriptions: OrderedDict[tuple[str, str], Subscription] = OrderedDict()
        self._expressions_length = 0
        self._terminated: OrderedDict[str, None] = OrderedDict()
        self._broken: dict[str, None] = {}
        self._gone_listeners: list[GoneListener] = []
        self._joined_listeners: list[JoinedListener] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    @property
    def stream_count(self) -> int:
        return sum(len(client.streams) for client in self._clients.values())

    def add_gone_listener(self, listener: GoneListener) -> None:
        """`listener(client_id, now_ms, gone_ms)` is called when a client is no longer known. gone_ms: when
        its stream broke, which may be earlier than now_ms."""
        self._gone_listeners.append(listener)

    def add_joined_listener(self, listener: JoinedListener) -> None:
        """`listener(client_id, group, topics)` is called when a client subscribes to topics as a member of a
        group. One that is known, and only opens a stream again, does not join again."""
        self._joined_listeners.append(listener)

    # --- look-ups -----------------------------------------------------------------------------------
    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def is_alive(self, client_id: str, now_ms: EpochMs) -> bool:
        client = self._clients.get(client_id)
        return client is not None and client.is_alive(now_ms, self._expiry_ms)

    def has_unregistered(self, client_id: str) -> bool:
        """Whether the client has unregistered and sent no settings since: its requests are obsolete."""
        return client_id in self._terminated

    def request_timeout_ms(self, client_id: str) -> int:
        """The client's own time limit for a request; 0 if it is unknown."""
        client = self._clients.get(client_id)
        return client.description.request_timeout_ms if client is not None else 0

    def members(self, group: str) -> list[Client]:
        """The group's consumers, in the order of their first settings."""
        return [self._clients[client_id] for client_id in self._by_group.get(group, ())]

    def groups(self) -> list[str]:
        """The groups that have members."""
        return sorted(self._by_group)

    def producers_of(self, topic: str) -> list[Client]:
        """The producers with an open stream that declared the topic or sent a half message to it."""
        clients = (self._clients[client_id] for client_id in self._by_topic.get(topic, ()))
        return [client for client in clients if client.streams]

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """The group's last subscription, even if its members are gone."""
        return self._subscriptions.get((group, topic))

    def subscriptions(self, *, group: str = "", topic: str = "") -> dict[tuple[str, str], Subscription]:
        """The subscriptions by (group, topic), of this group and this topic if one is given."""
        return {
            key: value
            for key, value in self._subscriptions.items()
            if (not group or key[0] == group) and (not topic or key[1] == topic)
        }

    # --- events of clients --------------------------------------------------------------------------
    def settle(self, client_id: str, description: ClientDescription, now_ms: EpochMs) -> Client:
        """Stores the settings of a client, which may be known. Raises TroveError LIMIT_EXCEEDED."""
        client = self._clients.get(client_id)
        self._terminated.pop(client_id, None)
        joined = set(description.subscriptions)
        if client is None:
            if len(self._clients) >= self.clients_max:
                raise TroveError(
                    errors.LIMIT_EXCEEDED, f"{self.clients_max} clients are connected (clients_max)"
                )
            client = self._clients[client_id] = Client(client_id, description, now_ms)
        else:
            self._unindex(client)
            if client.group == description.group:
                joined -= client.description.subscriptions.keys()
            client.description = description
            client.last_heartbeat_ms = now_ms
        self._index(client)
        for topic, subscription in description.subscriptions.items():
            self.subscribed(description.group, topic, subscription)
        if joined:
            for listener in self._joined_listeners:
                listener(client_id, description.group, joined)
        return client

    def heard(self, client_id: str, now_ms: EpochMs) -> Client:
        """Notes a heartbeat, or another sign of life. Raises TroveError CLIENT_UNKNOWN."""
        client = self._clients.get(client_id)
        if client is None:
            raise TroveError(errors.CLIENT_UNKNOWN)
        client.last_heartbeat_ms = max(client.last_heartbeat_ms, now_ms)
        return client

    def subscribed(self, group: str, topic: str, subscription: Subscription) -> None:
        """Stores the filter with which the group received from the topic."""
        self._drop_subscription((group, topic))
        self._subscriptions[group, topic] = subscription
        self._expressions_length += len(subscription.expression)
        while (
            len(self._subscriptions) > SUBSCRIPTIONS_MAX or self._expressions_length > EXPRESSIONS_LENGTH_MAX
        ):
            self._drop_subscription(next(iter(self._subscriptions)))

    def _drop_subscription(self, key: tuple[str, str]) -> None:
        dropped = self._subscriptions.pop(key, None)
        if dropped is not None:
            self._expressions_length -= len(dropped.expression)

    def sent_half(self, client_id: str, topic: str) -> None:
        """Notes that the client sent a half message to the topic: it can be asked about the topic's
        transactions, even if it did not declare the topic, or has not sent its settings yet."""
        topics = self._half_topics.setdefault(client_id, {})
        self._half_topics.move_to_end(client_id)
        topics.pop(topic, None)
        topics[topic] = None
        if len(topics) > HALF_TOPICS_MAX:
            dropped = next(iter(topics))
            del topics[dropped]
            self._drop_from_topic(client_id, dropped)
        if len(self._half_topics) > self.clients_max:
            oldest, forgotten = self._half_topics.popitem(last=False)
            for dropped in forgotten:
                self._drop_from_topic(oldest, dropped)
        if client_id in self._clients:
            self._by_topic.setdefault(topic, {})[client_id] = None

    def attach(self, client_id: str, stream: ClientStream) -> None:
        """Adds a stream of a known client: commands are sent on it from now on."""
        client = self._clients[client_id]
        streams, client.stream_broke = client.streams, False
        self._broken.pop(client_id, None)
        assert stream not in streams, "a stream is attached once"
        streams.append(stream)
        if len(streams) > STREAMS_MAX:
            streams.pop(0).close()

    def detach(self, client_id: str, stream: ClientStream, now_ms: EpochMs, *, broke: bool = False) -> None:
        """Removes a stream that has ended; `broke`: not by the client. The client stays known for a while."""
        client = self._clients.get(client_id)
        streams = client.streams if client is not None else []
        if client is not None and stream in streams:
            streams.remove(stream)
            client.stream_closed_ms = now_ms
            if broke and not streams:
                client.stream_broke = True
                self._broken[client_id] = None

    @contextmanager
    def receiving(self, client_id: str, call: OpenCall) -> Iterator[None]:
        """A receive of the client runs during the block: so its connection is open."""
        client = self.begin_receive(client_id, call)
        try:
            yield
        finally:
            self.end_receive(client, call)

    def begin_receive(self, client_id: str, call: OpenCall) -> Client | None:
        """A receive of the client begins: so its connection is open. `end_receive` is to be called at its end
        with the client that this returns."""
        client = self._clients.get(client_id)
        if client is not None:
            client.receives.add(call)
        return client

    @staticmethod
    def end_receive(client: Client | None, call: OpenCall) -> None:
        if client is not None:
            client.receives.discard(call)

    def terminate(self, client_id: str, now_ms: EpochMs) -> None:
        """The client unregisters. Raises TroveError CLIENT_UNKNOWN."""
        if client_id not in self._clients:
            raise TroveError(errors.CLIENT_UNKNOWN)
        self._forget(client_id, now_ms, now_ms)
        self._terminated[client_id] = None
        if len(self._terminated) > self.clients_max:
            self._terminated.popitem(last=False)

    def expire(self, now_ms: EpochMs) -> list[str]:
        """Forgets the clients that are gone, and returns their ids; to be called about every second."""
        return self._expire(self._clients, now_ms)

    @property
    def has_broken(self) -> bool:
        """Whether expire_broken() has clients to look at."""
        return bool(self._broken)

    def expire_broken(self, now_ms: EpochMs) -> list[str]:
        """Forgets those clients that are gone and whose stream broke, and returns their ids; to be called
        several times per second."""
        return self._expire(self._broken, now_ms)

    def _expire(self, client_ids: Iterable[str], now_ms: EpochMs) -> list[str]:
        gone = [name for name in client_ids if not self._clients[name].is_alive(now_ms, self._expiry_ms)]
        for client_id in gone:
            client = self._clients[client_id]
            self._forget(client_id, now_ms, client.stream_closed_ms if client.stream_broke else now_ms)
        return gone

    def forget_group(self, group: str) -> None:
        """Forgets the subscriptions of a deleted group. Its members stay until they leave."""
        for key in [key for key in self._subscriptions if key[0] == group]:
            self._drop_subscription(key)

    # --- helpers ------------------------------------------------------------------------------------
    def _forget(self, client_id: str, now_ms: EpochMs, gone_ms: EpochMs) -> None:
        client = self._clients[client_id]
        self._unindex(client)
        self._broken.pop(client_id, None)
        del self._clients[client_id]
        self._half_topics.pop(client_id, None)
        streams, client.streams = client.streams, []
        for stream in streams:
            stream.close()
        for listener in self._gone_listeners:
            listener(client_id, now_ms, gone_ms)

    def _topics_of(self, client: Client) -> set[str]:
        return {*client.description.topics, *self._half_topics.get(client.client_id, ())}

    def _index(self, client: Client) -> None:
        if client.group:
            self._by_group.setdefault(client.group, {})[client.client_id] = None
        for topic in self._topics_of(client):
            self._by_topic.setdefault(topic, {})[client.client_id] = None

    def _unindex(self, client: Client) -> None:
        _drop(self._by_group, client.group, client.client_id)
        for topic in self._topics_of(client):
            _drop(self._by_topic, topic, client.client_id)

    def _drop_from_topic(self, client_id: str, topic: str) -> None:
        client = self._clients.get(client_id)
        if client is not None and topic not in client.description.topics:
            _drop(self._by_topic, topic, client_id)


def _drop(table: dict[str, dict[str, None]], key: str, client_id: str) -> None:
    entries = table.get(key)
    if entries is not None:
        entries.pop(client_id, None)
        if not entries:
            del table[key]
