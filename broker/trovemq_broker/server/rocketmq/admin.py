"""RocketMQ's v2 Admin service, as far as this broker supports it.

| answered by                 | calls                                                                     |
|-----------------------------|---------------------------------------------------------------------------|
| the process                 | ChangeLogLevel, GetProxyRuntimeStats                                      |
| the topics                  | DescribeTopicStatus, GetTopicRoute                                        |
| the connected clients       | ListSubscription, DescribeSubscription, ListConsumerConnection,           |
|                             | GetConsumerRunningInfo                                                    |
| a client, by its telemetry  | PrintThreadStackTrace, VerifyMessage                                      |
| the store                   | QueryMessage, AdminSendMessage                                            |
| group_views.py              | DescribeGroupAccumulation, QueryTimeSpan, ResetGroupOffset                |

DeleteSubscription is not served: clients send their own subscriptions. `deployment_name` and all fields of
lite topics are ignored. Unlike the messaging calls these need no client id.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from trovemq_broker.groups.dead_letters import known_topic
from trovemq_broker.query.get_message import FoundMessages, message_steps
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client, Subscription
from trovemq_broker.server.rocketmq.group_views import GroupViews
from trovemq_broker.server.rocketmq.routes import Routes, require_topic
from trovemq_broker.server.wire.admin_calls import (
    AdminSend,
    Connected,
    GroupAndTopic,
    MemberName,
    MessageQuery,
    QueriedMessages,
    Running,
    RuntimeStats,
    Subscribed,
    Verification,
    admin_send_reply,
    connection_query,
    connections_reply,
    described_reply,
    group_and_topic,
    log_level,
    log_level_reply,
    member_name,
    message_query,
    messages_reply,
    named_topic,
    running_reply,
    stacks_reply,
    stats_reply,
    subscriptions_reply,
    topic_route_reply,
    topic_status_reply,
    verification,
    verified_reply,
)
from trovemq_broker.server.wire.client_commands import Answer as ClientAnswer
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.conversion import converted, nothing
from trovemq_broker.server.wire.send_requests import ReadSend
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.logging import LogLevel
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.topics import TopicConfig

PROPERTY_BYTES_MAX: Final = 1 << 18
"""The most bytes of properties in one answer: their conversion takes some 100 ns a byte, in many steps."""

Send: TypeAlias = Callable[[ReadSend, Context], Awaitable[object]]


@dataclass(slots=True)
class _Rates:
    """The counts of messages in and out at the last call of GetProxyRuntimeStats."""

    at: float = field(default_factory=time.monotonic)
    messages_in: int = 0
    messages_out: int = 0


class Admin:
    """The methods have the names of their calls in snake case; every refusal is a TroveError."""

    def __init__(
        self,
        core: BrokerCore,
        views: GroupViews,
        send: Send,
        routes: Routes,
        set_log_level: Callable[[LogLevel], None],
    ) -> None:
        self._core = core
        self._routes = routes
        self._set_log_level = set_log_level
        self._views = views
        self._send = send
        self._rates = _Rates()

    # --- the process --------------------------------------------------------------------------------
    @converted(log_level, log_level_reply)
    async def change_log_level(self, level: LogLevel, _context: Context) -> None:
        """From now on."""
        self._set_log_level(level)

    @converted(nothing, stats_reply)
    async def get_proxy_runtime_stats(self, _command: None, _context: Context) -> RuntimeStats:
        """The rates are means since the last call, or since the start."""
        core, before = self._core, self._rates
        now = _Rates(messages_in=core.traffic.messages_in, messages_out=core.traffic.messages_out.total())
        self._rates = now
        elapsed_s = max(now.at - before.at, 0.001)
        producers = sum(client.is_producer for client in core.registry)
        return RuntimeStats(
            core.broker,
            core.version,
            (now.messages_in - before.messages_in) / elapsed_s,
            (now.messages_out - before.messages_out) / elapsed_s,
            core.registry.stream_count,
            producers,
            len(core.registry) - producers,
        )

    # --- topics -------------------------------------------------------------------------------------
    @converted(named_topic, topic_status_reply)
    async def describe_topic_status(self, topic: str, _context: Context) -> TopicConfig:
        """Raises TOPIC_NOT_FOUND."""
        return require_topic(self._core.store, topic)

    @converted(named_topic, topic_route_reply)
    async def get_topic_route(self, topic: str, _context: Context) -> str:
        """RocketMQ's TopicRouteData as JSON."""
        return msgspec.json.encode(self._routes.data_of(topic)).decode()

    # --- clients ------------------------------------------------------------------------------------
    @converted(group_and_topic, subscriptions_reply)
    async def list_subscription(self, names: GroupAndTopic, _context: Context) -> list[Subscribed]:
        """The last subscription of each group; `online` while a member of the group subscribes to the
        topic."""
        found = self._core.registry.subscriptions(group=names.group, topic=names.topic)
        return [self._subscribed(*key, value) for key, value in found.items()]

    @converted(group_and_topic, described_reply)
    async def describe_subscription(
        self, names: GroupAndTopic, _context: Context
    ) -> list[tuple[Connected, Subscribed]]:
        """The subscriptions of each connected consumer."""
        group, topic = names
        return [
            (_connected(client), self._subscribed(client.group, name, subscription))
            for client in (self._core.registry.members(group) if group else self._core.registry)
            for name, subscription in client.description.subscriptions.items()
            if not topic or name == topic
        ]

    @converted(connection_query, connections_reply)
    async def list_consumer_connection(self, names: GroupAndTopic, _context: Context) -> list[Connected]:
        """The members of the group, with a topic those that subscribe to it."""
        return [
            _connected(client)
            for client in self._core.registry.members(names.group)
            if not names.topic or names.topic in client.description.subscriptions
        ]

    @converted(member_name, running_reply)
    async def get_consumer_running_info(self, name: MemberName, _context: Context) -> Running:
        """The broker's information about a consumer: only the client itself has its caches and rates."""
        client = self._member(*name)
        description = client.description
        properties = {
            "client_type": description.client_type.name,
            "language": description.language,
            "version": description.version,
            "hostname": description.hostname,
            "address": description.peer,
            "last_heartbeat": str(client.last_heartbeat_ms),
            "messages_held": str(self._core.delivery.held_by(client.client_id)),
        }
        return Running(properties, description.subscriptions, list(self._views.committed(name.group)))

    @converted(member_name, stacks_reply)
    async def print_thread_stack_trace(self, name: MemberName, _context: Context) -> ClientAnswer:
        """The client's answer."""
        return await self._core.commands.print_stack_trace(*name)

    @converted(verification, verified_reply)
    async def verify_message(self, asked: Verification, _context: Context) -> ClientAnswer:
        """Asks a consumer to consume the message now."""
        self._member(asked.client_id, asked.group)
        found = await self._found(asked.message_id, asked.topic)
        stored = decode_stored(found.records[0])
        message = StoredMessage(found.records[0], stored.topic, stored.queue_id, found.queue_offsets[0])
        return await self._core.commands.verify_message(
            asked.client_id, asked.group, message, topic=known_topic(stored)
        )

    # --- messages -----------------------------------------------------------------------------------
    async def _found(self, message_id: str, topic: str) -> FoundMessages:
        return await self._core.turns.run(message_steps(self._core.store, message_id, topic))

    @converted(message_query, messages_reply)
    async def query_message(self, asked: MessageQuery, _context: Context) -> QueriedMessages:
        """Messages by id or key, newest first. The cursor continues an incomplete answer by key."""
        return await self._core.turns.run(self._query_steps(asked))

    @converted(AdminSend, admin_send_reply)
    async def admin_send_message(self, send: AdminSend, context: Context) -> object:
        """Sends a message, with an id that is made here if the request has none."""
        return await self._send(send.reading(self._core.next_message_id), context)

    # --- helpers ------------------------------------------------------------------------------------
    def _query_steps(self, asked: MessageQuery) -> Steps[QueriedMessages]:
        """Converts each message in a separate step: its properties may take milliseconds."""
        store, shown = self._core.store, QueriedMessages()
        count_max = asked.count_max or store.settings.query_messages_max
        if asked.message_id is not None:
            found = yield from message_steps(store, asked.message_id, asked.topic)
            places = zip(found.records, found.queue_offsets, strict=True)
            for record, queue_offset in islice(places, count_max):
                stored = decode_stored(record)
                shown.add(record, stored.topic, stored.queue_id, queue_offset)
                yield
            return shown
        query = KeyQuery(asked.topic, asked.key, KeyType.KEY, asked.begin_ms, asked.end_ms)
        byte_count, property_bytes = 0, 0
        for page in query_pages(store, query, messages_max=count_max, cursor=asked.cursor):
            yield
            for record, queue_offset in zip(page.records, page.queue_offsets, strict=True):
                stored = decode_stored(record)
                shown.add(record, asked.topic, stored.queue_id, queue_offset)
                property_bytes += stored.store_size - len(stored.stored_body)
                byte_count += stored.store_size
                yield
            shown.cursor = page.cursor
            if byte_count > store.settings.query_page_bytes_max or property_bytes > PROPERTY_BYTES_MAX:
                break
        return shown

    def _member(self, client_id: str, group: str) -> Client:
        client = self._core.registry.get(client_id)
        if client is None or client.group != group:
            raise TroveError(
                errors.CONSUMER_NOT_ONLINE, f"group {group} has no member {client_id[:255]!r} here"
            )
        return client

    def _subscribed(self, group: str, topic: str, subscription: Subscription) -> Subscribed:
        subscribed = [
            client.description.subscriptions[topic]
            for client in self._core.registry.members(group)
            if topic in client.description.subscriptions
        ]
        return Subscribed(
            group,
            topic,
            subscription,
            subscription.updated_ms,
            online=bool(subscribed),
            consistent=len({(one.kind, one.expression) for one in subscribed}) <= 1,
        )


def _connected(client: Client) -> Connected:
    description = client.description
    return Connected(
        client.client_id, description.version, description.language, description.hostname, description.peer
    )
