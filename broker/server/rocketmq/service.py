"""RocketMQ's v2 protocol on the broker's port: both services, each call with its handler.

The services go by RocketMQ's names on the wire (`apache.rocketmq.v2.…`); our own compile of the protocol has
another package name, so that a client of RocketMQ's can live in the same process. Requests and replies of
each call are those of service.proto and admin.proto.

Not served, so that gRPC answers UNIMPLEMENTED as the reference server does: SyncLiteSubscription (there are
no lite topics, and its clients are refused at telemetry), Admin's DeleteSubscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from broker.fetch.long_poll import LongPolls
from broker.fetch.offsets import OffsetKeeper
from broker.fetch.pull import Puller as QueuePuller
from broker.groups.consumer_settings import ConsumerSettings
from broker.groups.delivery.delivery import Delivery
from broker.groups.receive_waits import ReceiveWaits
from broker.groups.timers.timers import Timers
from broker.groups.transactions.transactions import OpenTransaction, Transactions
from broker.produce.append import Appender
from broker.produce.coalesce import Coalescer
from broker.produce.group_commit import GroupCommit
from broker.server.monitoring.traffic import Traffic
from broker.server.rocketmq.acknowledging import Acknowledger, AckParts
from broker.server.rocketmq.admin import Admin, AdminParts
from broker.server.rocketmq.client_settings import SettingsRules
from broker.server.rocketmq.clients import ClientRegistry
from broker.server.rocketmq.commands import ClientCommands
from broker.server.rocketmq.ending import Ender, EndParts
from broker.server.rocketmq.group_order import GroupOrder
from broker.server.rocketmq.group_views import GroupViewParts, GroupViews
from broker.server.rocketmq.liveness import Liveness
from broker.server.rocketmq.messages import message_of
from broker.server.rocketmq.pulling import Puller, PullParts
from broker.server.rocketmq.receiving import ReceiveParts, Receiver
from broker.server.rocketmq.routes import RouteParts, Routes
from broker.server.rocketmq.sending import Sender, SendParts
from broker.server.rocketmq.status import reader, stream, unary, write_reply
from broker.server.rocketmq.telemetry import Telemetry, TelemetryParts
from broker.server.turns import Turns
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import LogLevel
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

MESSAGING_SERVICE: Final = "apache.rocketmq.v2.MessagingService"
ADMIN_SERVICE: Final = "apache.rocketmq.v2.Admin"

_MESSAGING: Final = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
_ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"]

Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqParts:
    """What the two services work on. All of it is used on the event loop only.

    `search` is (topic, queue id, epoch ms) -> queue offset; `offsets` must tell delivery of the offsets that
    it sets (its `moved`); `next_message_id` makes the id of a message that was sent without one. `registry`
    and `commands` are shared with the native group service, `waits` with whoever wakes the receivers.
    """

    store: MessageStore
    groups: SubscriptionGroups
    delivery: Delivery
    timers: Timers
    transactions: Transactions
    settings: ConsumerSettings
    appender: Appender
    coalescer: Coalescer
    group_commit: GroupCommit
    puller: QueuePuller
    long_polls: LongPolls
    waits: ReceiveWaits
    offsets: OffsetKeeper
    search: Callable[[str, int, int], int]
    registry: ClientRegistry
    commands: ClientCommands
    traffic: Traffic
    turns: Turns
    broker: str
    advertised: Address
    version: str
    clock_ms: Callable[[], int]
    next_message_id: Callable[[], str]
    set_log_level: Callable[[LogLevel], None]


class RocketmqService:
    """`add_to` a server, before it starts; `end_streams` before it stops."""

    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts
        store, clock_ms = parts.store, parts.clock_ms
        self._order = GroupOrder(
            store.topics,
            parts.groups,
            auto_create=parts.settings.auto_create_group,
            fifo_orderly=parts.settings.fifo_group_orderly,
        )
        self.routes = Routes(RouteParts(store, self._group_for_use, parts.broker, parts.advertised))
        self.liveness = Liveness(parts.registry, clock_ms)
        self.telemetry = Telemetry(
            TelemetryParts(
                parts.registry,
                parts.commands,
                SettingsRules(self._group_for_use, store.settings.body_size_max),
                clock_ms,
            )
        )
        self.sender = _sender(parts)
        self.receiver = _receiver(parts, self._order)
        self.acknowledger = _acknowledger(parts)
        self.ender = _ender(parts)
        self.puller = _puller(parts)
        self.views = _views(parts)
        self.admin = _admin(parts, self.views, self.sender.send)

    def _group_for_use(self, name: str, topics: Iterable[str]) -> SubscriptionGroup:
        return self._order.for_use(name, topics, self._parts.clock_ms())

    # --- for the daemon -----------------------------------------------------------------------------
    def add_to(self, server: grpc.aio.Server) -> None:
        for name, handlers in (
            (MESSAGING_SERVICE, self.messaging_handlers()),
            (ADMIN_SERVICE, self.admin_handlers()),
        ):
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    async def end_streams(self, timeout_s: float) -> None:
        """The broker stops: the telemetry streams end, and no others begin."""
        await self.telemetry.end_all(timeout_s)

    async def check_transaction(self, transaction: OpenTransaction) -> None:
        """Asks a producer about a transaction that was left open; where none is connected, nothing happens
        until the next round."""
        half = transaction.message
        message = message_of(half.record, transaction.topic, half.queue_id, half.queue_offset)
        self._parts.commands.recover_orphaned_transaction(
            transaction.client_id, transaction.topic, message, transaction.transaction_id
        )

    # --- the calls ----------------------------------------------------------------------------------
    def messaging_handlers(self) -> Handlers:
        """The handler of each call, by name."""
        calls: dict[str, Callable[..., Any]] = {
            "QueryRoute": self.routes.query_route,
            "QueryAssignment": self.routes.query_assignment,
            "Heartbeat": self.liveness.heartbeat,
            "NotifyClientTermination": self.liveness.notify_client_termination,
            "SendMessage": self.sender.send,
            "ReceiveMessage": self.receiver.receive,
            "AckMessage": self.acknowledger.acknowledge,
            "ChangeInvisibleDuration": self.acknowledger.change_invisible,
            "ForwardMessageToDeadLetterQueue": self.acknowledger.dead_letter,
            "EndTransaction": self.ender.end_transaction,
            "RecallMessage": self.ender.recall,
            "PullMessage": self.puller.pull,
            "UpdateOffset": self.puller.update_offset,
            "GetOffset": self.puller.get_offset,
            "QueryOffset": self.puller.query_offset,
        }
        refused = {"SendMessage": self._parts.traffic.refused}
        handlers = {
            name: _handler(_MESSAGING.methods_by_name[name], call, refused=refused.get(name))
            for name, call in calls.items()
        }
        telemetry = grpc.stream_stream_rpc_method_handler(
            self.telemetry.telemetry,
            request_deserializer=reader(service_pb2.TelemetryCommand),
            response_serializer=write_reply,
        )
        return {**handlers, "Telemetry": telemetry}

    def admin_handlers(self) -> Handlers:
        """The handler of each call, by name. They need no client id."""
        admin, views = self.admin, self.views
        calls: dict[str, Callable[..., Any]] = {
            "ChangeLogLevel": admin.change_log_level,
            "DescribeTopicStatus": admin.describe_topic_status,
            "ListSubscription": admin.list_subscription,
            "DescribeSubscription": admin.describe_subscription,
            "DescribeGroupAccumulation": views.describe_accumulation,
            "ListConsumerConnection": admin.list_consumer_connection,
            "ResetGroupOffset": views.reset_offset,
            "QueryMessage": admin.query_message,
            "PrintThreadStackTrace": admin.print_thread_stack_trace,
            "VerifyMessage": admin.verify_message,
            "AdminSendMessage": admin.admin_send_message,
            "GetConsumerRunningInfo": admin.get_consumer_running_info,
            "GetTopicRoute": admin.get_topic_route,
            "QueryTimeSpan": views.query_time_span,
            "GetProxyRuntimeStats": admin.get_proxy_runtime_stats,
        }
        return {
            name: _handler(_ADMIN.methods_by_name[name], call, anonymous=True) for name, call in calls.items()
        }


def _handler(
    method: MethodDescriptor,
    call: Callable[..., Any],
    *,
    anonymous: bool = False,
    refused: Callable[[str], None] | None = None,
) -> grpc.RpcMethodHandler[Any, Any]:
    """The call with its errors inside of the reply, and with the types that the protocol gives it."""
    read = reader(GetMessageClass(method.input_type))
    reply_type = _reply_type(method)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            stream(method.name, call, reply_type),
            request_deserializer=read,
            response_serializer=write_reply,
        )
    return grpc.unary_unary_rpc_method_handler(
        unary(method.name, call, reply_type, anonymous=anonymous, refused=refused),
        request_deserializer=read,
        response_serializer=write_reply,
    )


def _reply_type(method: MethodDescriptor) -> Callable[..., Any]:
    """What makes a reply of a status."""
    reply_type = GetMessageClass(method.output_type)
    if "status" not in method.output_type.fields_by_name:  # ChangeLogLevel
        return lambda status: reply_type(remark=status.message)
    return reply_type


def _sender(parts: RocketmqParts) -> Sender:
    return Sender(
        SendParts(
            store=parts.store,
            appender=parts.appender,
            coalescer=parts.coalescer,
            group_commit=parts.group_commit,
            timers=parts.timers,
            transactions=parts.transactions,
            clients=parts.registry,
            traffic=parts.traffic,
            broker=parts.broker,
            delivery_delay_max_ms=parts.settings.delivery_delay_max_ms,
            clock_ms=parts.clock_ms,
        )
    )


def _receiver(parts: RocketmqParts, order: GroupOrder) -> Receiver:
    return Receiver(
        ReceiveParts(
            store=parts.store,
            delivery=parts.delivery,
            groups=parts.groups,
            order=order,
            waits=parts.waits,
            clients=parts.registry,
            traffic=parts.traffic,
            settings=parts.settings,
            clock_ms=parts.clock_ms,
        )
    )


def _acknowledger(parts: RocketmqParts) -> Acknowledger:
    return Acknowledger(
        AckParts(
            store=parts.store,
            delivery=parts.delivery,
            waits=parts.waits,
            group_commit=parts.group_commit,
            settings=parts.settings,
            clock_ms=parts.clock_ms,
        )
    )


def _ender(parts: RocketmqParts) -> Ender:
    return Ender(
        EndParts(
            store=parts.store,
            appender=parts.appender,
            group_commit=parts.group_commit,
            timers=parts.timers,
            transactions=parts.transactions,
            broker=parts.broker,
            clock_ms=parts.clock_ms,
        )
    )


def _puller(parts: RocketmqParts) -> Puller:
    return Puller(
        PullParts(
            store=parts.store,
            puller=parts.puller,
            long_polls=parts.long_polls,
            offsets=parts.offsets,
            groups=parts.groups,
            traffic=parts.traffic,
            settings=parts.settings,
            search=parts.search,
            clock_ms=parts.clock_ms,
        )
    )


def _views(parts: RocketmqParts) -> GroupViews:
    return GroupViews(
        GroupViewParts(
            store=parts.store,
            delivery=parts.delivery,
            registry=parts.registry,
            offsets=parts.offsets,
            turns=parts.turns,
            clock_ms=parts.clock_ms,
            delayed=parts.timers.pending_of,
        )
    )


def _admin(parts: RocketmqParts, views: GroupViews, send: Any) -> Admin:
    return Admin(
        AdminParts(
            store=parts.store,
            registry=parts.registry,
            commands=parts.commands,
            views=views,
            traffic=parts.traffic,
            turns=parts.turns,
            send=send,
            next_message_id=parts.next_message_id,
            set_log_level=parts.set_log_level,
            held_by=parts.delivery.held_by,
            broker=parts.broker,
            advertised=str(parts.advertised),
            version=parts.version,
        )
    )
