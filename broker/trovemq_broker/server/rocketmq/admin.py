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

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from trovemq_broker.query.get_message import FoundMessages, message_steps
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client, Subscription
from trovemq_broker.server.rocketmq.group_views import GroupViews
from trovemq_broker.server.rocketmq.routes import require_topic
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.resources import group_name, message_types, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import message_of, timestamp_ms
from trovemq_broker.server.wire.routes import MASTER_ID
from trovemq_broker.server.wire.statuses import OK_STATUS, STATUS_TEXT_SIZE_MAX, Context
from trovemq_daemon.logging import LogLevel
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.message import decode_stored
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.topics.topics import PERM_READ

_LEVELS: Final[dict[int, LogLevel]] = {
    admin_pb2.ChangeLogLevelRequest.TRACE: "debug",
    admin_pb2.ChangeLogLevelRequest.DEBUG: "debug",
    admin_pb2.ChangeLogLevelRequest.INFO: "info",
    admin_pb2.ChangeLogLevelRequest.WARN: "warning",
    admin_pb2.ChangeLogLevelRequest.ERROR: "error",
}

PROPERTY_BYTES_MAX: Final = 1 << 18
"""The most bytes of properties in one answer: protobuf takes 30 ns for each byte, all at once at the end."""

PROPERTY_BYTES_OF_STEP: Final = 1 << 15
"""The most bytes of properties that are read and converted in one step of the loop."""

Send = Callable[[service_pb2.SendMessageRequest, Context], Awaitable[service_pb2.SendMessageResponse]]


@dataclass(slots=True)
class _Rates:
    """The counts of messages in and out at the last call of GetProxyRuntimeStats."""

    at: float = field(default_factory=time.monotonic)
    messages_in: int = 0
    messages_out: int = 0


class Admin:
    """The methods have the names of their calls in snake case; every refusal is a TroveError.

    `offers_writes`: whether routes may offer queues for writing.
    """

    def __init__(
        self,
        parts: BrokerCore,
        views: GroupViews,
        send: Send,
        offers_writes: Callable[[], bool],
        set_log_level: Callable[[LogLevel], None],
    ) -> None:
        self._parts = parts
        self._offers_writes = offers_writes
        self._set_log_level = set_log_level
        self._views = views
        self._send = send
        self._rates = _Rates()

    # --- the process --------------------------------------------------------------------------------
    async def change_log_level(
        self, request: admin_pb2.ChangeLogLevelRequest, _context: Context
    ) -> admin_pb2.ChangeLogLevelResponse:
        level = _LEVELS.get(request.level)
        if level is None:
            raise TroveError(errors.REQUEST_ILLEGAL, f"level {request.level} is unknown", field="level")
        self._set_log_level(level)
        return admin_pb2.ChangeLogLevelResponse(remark=f"the log level is {level}")

    async def get_proxy_runtime_stats(
        self, _request: admin_pb2.GetProxyRuntimeStatsRequest, _context: Context
    ) -> admin_pb2.GetProxyRuntimeStatsResponse:
        """The rates are means since the last call, or since the start."""
        parts, before = self._parts, self._rates
        now = _Rates(messages_in=parts.traffic.messages_in, messages_out=parts.traffic.messages_out.total())
        self._rates = now
        elapsed_s = max(now.at - before.at, 0.001)
        producers = sum(client.is_producer for client in parts.registry)
        return admin_pb2.GetProxyRuntimeStatsResponse(
            status=OK_STATUS,
            proxy_name=parts.broker,
            version=parts.version,
            in_tps=(now.messages_in - before.messages_in) / elapsed_s,
            out_tps=(now.messages_out - before.messages_out) / elapsed_s,
            connections=parts.registry.stream_count,
            producers=producers,
            consumers=len(parts.registry) - producers,
        )

    # --- topics -------------------------------------------------------------------------------------
    async def describe_topic_status(
        self, request: admin_pb2.DescribeTopicStatusRequest, _context: Context
    ) -> admin_pb2.DescribeTopicStatusResponse:
        """A topic for messages of all types has MESSAGE_TYPE_UNSPECIFIED, and a tag that says so."""
        config = require_topic(self._parts.store, topic_to_read(request.topic))
        types = message_types(config)
        return admin_pb2.DescribeTopicStatusResponse(
            status=OK_STATUS,
            topic_message_type=types[0] if len(types) == 1 else v2.MESSAGE_TYPE_UNSPECIFIED,
            tags={
                "message_type": config.message_type,
                "queue_count": str(config.queue_count),
                "write_queue_count": str(config.write_queue_count),
                "perm": str(config.perm),
            },
        )

    async def get_topic_route(
        self, request: admin_pb2.GetTopicRouteRequest, _context: Context
    ) -> admin_pb2.GetTopicRouteResponse:
        """RocketMQ's TopicRouteData as JSON."""
        config = require_topic(self._parts.store, topic_to_read(request.topic))
        broker = self._parts.broker
        route = {
            "brokerDatas": [
                {
                    "brokerAddrs": {str(MASTER_ID): str(self._parts.advertised)},
                    "brokerName": broker,
                    "cluster": self._parts.store.settings.cluster,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": broker,
                    "perm": config.perm if self._offers_writes() else config.perm & PERM_READ,
                    "readQueueNums": config.queue_count,
                    "topicSysFlag": config.topic_sys_flag,
                    "writeQueueNums": config.write_queue_count,
                }
            ],
        }
        return admin_pb2.GetTopicRouteResponse(
            status=OK_STATUS, topic_route_data=msgspec.json.encode(route).decode()
        )

    # --- clients ------------------------------------------------------------------------------------
    async def list_subscription(
        self, request: admin_pb2.ListSubscriptionRequest, _context: Context
    ) -> admin_pb2.ListSubscriptionResponse:
        """The last subscription of each group; `online` while a member of the group subscribes to the
        topic."""
        group, topic = _group_and_topic(request)
        found = self._parts.registry.subscriptions(group=group, topic=topic)
        return admin_pb2.ListSubscriptionResponse(
            status=OK_STATUS,
            subscription_info=[self._subscription_info(*key, value) for key, value in found.items()],
        )

    async def describe_subscription(
        self, request: admin_pb2.DescribeSubscriptionRequest, _context: Context
    ) -> admin_pb2.DescribeSubscriptionResponse:
        """The subscriptions of each connected consumer."""
        group, topic = _group_and_topic(request)
        entry = admin_pb2.DescribeSubscriptionResponse.ClientSubscriptionInfo
        return admin_pb2.DescribeSubscriptionResponse(
            status=OK_STATUS,
            client_subscription_info=[
                entry(
                    client_info=_client_info(client),
                    subscription_info=self._subscription_info(client.group, name, subscription),
                )
                for client in (self._parts.registry.members(group) if group else self._parts.registry)
                for name, subscription in client.description.subscriptions.items()
                if not topic or name == topic
            ],
        )

    async def list_consumer_connection(
        self, request: admin_pb2.ListConsumerConnectionRequest, _context: Context
    ) -> admin_pb2.ListConsumerConnectionResponse:
        topic = topic_to_read(request.topic) if request.HasField("topic") else ""
        members = self._parts.registry.members(group_name(request.group))
        return admin_pb2.ListConsumerConnectionResponse(
            status=OK_STATUS,
            client_info=[
                _client_info(client)
                for client in members
                if not topic or topic in client.description.subscriptions
            ],
        )

    async def get_consumer_running_info(
        self, request: admin_pb2.GetConsumerRunningInfoRequest, _context: Context
    ) -> admin_pb2.GetConsumerRunningInfoResponse:
        """The broker's information about a consumer: only the client itself has its caches and rates."""
        group = group_name(request.group)
        client = self._member(request.client_id, group)
        description = client.description
        info = admin_pb2.ConsumerRunningInfo(
            properties={
                "client_type": v2.ClientType.Name(description.client_type),
                "language": description.language,
                "version": description.version,
                "hostname": description.hostname,
                "address": description.peer,
                "last_heartbeat": str(client.last_heartbeat_ms),
                "messages_held": str(self._parts.delivery.held_by(client.client_id)),
            }
        )
        for topic, subscription in description.subscriptions.items():
            info.subscriptions[topic].CopyFrom(_filter(subscription))
        for topic, queue_id, committed in self._views.committed(group):
            item = info.message_queue_table.add()
            item.message_queue.topic.name = topic
            item.message_queue.id = queue_id
            item.process_queue_info.commit_offset = committed
        return admin_pb2.GetConsumerRunningInfoResponse(status=OK_STATUS, consumer_running_info=info)

    async def print_thread_stack_trace(
        self, request: admin_pb2.PrintThreadStackTraceRequest, _context: Context
    ) -> admin_pb2.PrintThreadStackTraceResponse:
        answer = await self._parts.commands.print_stack_trace(request.client_id, group_name(request.group))
        return admin_pb2.PrintThreadStackTraceResponse(
            status=v2.Status(code=answer.code), thread_stack_trace=answer.text
        )

    async def verify_message(
        self, request: admin_pb2.VerifyMessageRequest, _context: Context
    ) -> admin_pb2.VerifyMessageResponse:
        """Asks a consumer to consume the message now; the status is the result of its listener."""
        group = group_name(request.group)
        self._member(request.client_id, group)
        found = await self._found(request.message_id, topic_to_read(request.topic))
        stored = decode_stored(found.records[0])
        message = StoredMessage(found.records[0], stored.topic, stored.queue_id, found.queue_offsets[0])
        answer = await self._parts.commands.verify_message(request.client_id, group, message)
        text = answer.text[:STATUS_TEXT_SIZE_MAX]
        return admin_pb2.VerifyMessageResponse(status=v2.Status(code=answer.code, message=text))

    # --- messages -----------------------------------------------------------------------------------
    async def _found(self, message_id: str, topic: str) -> FoundMessages:
        return await self._parts.turns.run(message_steps(self._parts.store, message_id, topic))

    async def query_message(
        self, request: admin_pb2.ListMessageRequest, _context: Context
    ) -> admin_pb2.ListMessageResponse:
        """Messages by id or key, newest first. `scroll_id` continues an incomplete answer by key."""
        topic = topic_to_read(request.topic)
        kind = request.WhichOneof("search_key")
        count_max = request.max_message_nums or self._parts.store.settings.query_messages_max
        if count_max < 0:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{count_max} messages", field="max_message_nums")
        if kind == "message_id":
            found = await self._found(request.message_id, topic)
            return admin_pb2.ListMessageResponse(status=OK_STATUS, messages=_messages(found, count_max))
        if kind != "message_key":
            raise TroveError(errors.NOT_IMPLEMENTED, "messages are looked up by message_id or message_key")
        begin = timestamp_ms(request.begin_timestamp)
        end = timestamp_ms(request.end_timestamp) if request.HasField("end_timestamp") else TIME_MAX
        query = KeyQuery(topic, request.message_key, KeyType.KEY, begin, end)
        store = self._parts.store
        pages = query_pages(store, query, messages_max=count_max, cursor=request.scroll_id)
        messages: list[v2.Message] = []
        cursor, byte_count, property_bytes, yielded_at = "", 0, 0, 0
        async for page in self._parts.turns.each(pages):
            for record, queue_offset in zip(page.records, page.queue_offsets, strict=True):
                stored = decode_stored(record)
                messages.append(message_of(record, topic, stored.queue_id, queue_offset))
                property_bytes += stored.store_size - len(stored.stored_body)
                byte_count += stored.store_size
                if property_bytes - yielded_at > PROPERTY_BYTES_OF_STEP:
                    yielded_at = property_bytes
                    await asyncio.sleep(0)
            cursor = page.cursor
            if byte_count > store.settings.query_page_bytes_max or property_bytes > PROPERTY_BYTES_MAX:
                break
        return admin_pb2.ListMessageResponse(status=OK_STATUS, messages=messages, scroll_id=cursor)

    async def admin_send_message(
        self, request: admin_pb2.AdminSendMessageRequest, context: Context
    ) -> admin_pb2.AdminSendMessageResponse:
        """As SendMessage, with an id that is made here if the request has none."""
        message = v2.Message(topic=request.topic, body=request.body, user_properties=request.user_properties)
        system = message.system_properties
        system.CopyFrom(request.system_properties)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        system.message_id = system.message_id or self._parts.next_message_id()
        reply = await self._send(service_pb2.SendMessageRequest(messages=[message]), context)
        entry = reply.entries[0]
        return admin_pb2.AdminSendMessageResponse(status=entry.status, message_id=entry.message_id)

    # --- helpers ------------------------------------------------------------------------------------
    def _member(self, client_id: str, group: str) -> Client:
        client = self._parts.registry.get(client_id)
        if client is None or client.group != group:
            raise TroveError(
                errors.CONSUMER_NOT_ONLINE, f"group {group} has no member {client_id[:255]!r} here"
            )
        return client

    def _subscription_info(
        self, group: str, topic: str, subscription: Subscription
    ) -> admin_pb2.SubscriptionInfo:
        subscribed = [
            client.description.subscriptions[topic]
            for client in self._parts.registry.members(group)
            if topic in client.description.subscriptions
        ]
        info = admin_pb2.SubscriptionInfo(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            expression=_filter(subscription),
            online=bool(subscribed),
            message_model=admin_pb2.CLUSTERING,
            subscription_consistency=len({(one.kind, one.expression) for one in subscribed}) <= 1,
        )
        info.last_update_timestamp.FromMilliseconds(subscription.updated_ms)
        return info


def _group_and_topic(
    request: admin_pb2.ListSubscriptionRequest | admin_pb2.DescribeSubscriptionRequest,
) -> tuple[str, str]:
    """(group, topic) of the request; "" for a name that it omits."""
    group = group_name(request.group) if request.HasField("group") else ""
    topic = topic_to_read(request.topic) if request.HasField("topic") else ""
    return group, topic


def _filter(subscription: Subscription) -> v2.FilterExpression:
    kind = v2.SQL if subscription.kind == "sql" else v2.TAG
    return v2.FilterExpression(type=kind, expression=subscription.expression)


def _client_info(client: Client) -> admin_pb2.ClientInfo:
    description = client.description
    return admin_pb2.ClientInfo(
        client_id=client.client_id,
        version=description.version,
        language=description.language,
        hostname=description.hostname,
        egress_ip=description.peer,
        message_model=admin_pb2.CLUSTERING,
    )


def _messages(found: FoundMessages, count_max: int) -> list[v2.Message]:
    shown = []
    for record, queue_offset in list(zip(found.records, found.queue_offsets, strict=True))[:count_max]:
        message = decode_stored(record)
        shown.append(message_of(record, message.topic, message.queue_id, queue_offset))
    return shown
