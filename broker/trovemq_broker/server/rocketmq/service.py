"""The services of RocketMQ's v2 protocol on the broker's port: each call with its handler.

The services have RocketMQ's names on the wire (`apache.rocketmq.v2.…`). Our own compile of the protocol has
another package name, so that a client of RocketMQ can run in the same process. Requests and replies of each
call are those of service.proto and admin.proto.

Not served, so that gRPC answers UNIMPLEMENTED as the reference server does: SyncLiteSubscription (there are
no lite topics, and its clients are refused at telemetry), Admin's DeleteSubscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import grpc

from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.other_brokers import NO_OTHERS, OtherBrokers, no_placement
from trovemq_broker.server.core.receiver import Receiver
from trovemq_broker.server.rocketmq.admin import Admin
from trovemq_broker.server.rocketmq.admin_forwards import FORWARDED as ADMIN_FORWARDED
from trovemq_broker.server.rocketmq.admin_forwards import AdminForwards
from trovemq_broker.server.rocketmq.forwarding_calls import ForwardingCalls
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.group_views import GroupViews
from trovemq_broker.server.rocketmq.key_queries import Limits
from trovemq_broker.server.rocketmq.liveness import Liveness
from trovemq_broker.server.rocketmq.puller import Puller
from trovemq_broker.server.rocketmq.receive_calls import ReceiveCalls
from trovemq_broker.server.rocketmq.routes import Routes
from trovemq_broker.server.rocketmq.sender import Sender
from trovemq_broker.server.rocketmq.telemetry import Telemetry
from trovemq_broker.server.rocketmq.transaction_ends import Ender
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.methods import Method, reply_type, request_type
from trovemq_broker.server.wire.rocketmq_services import ADMIN, ADMIN_SERVICE, MESSAGING, MESSAGING_SERVICE
from trovemq_broker.server.wire.statuses import reader, request_of, with_status
from trovemq_broker.transactions.transactions import TransactionCheck
from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import CallHandler, OnCalls, calls_of
from trovemq_daemon.grpc_services import calls_handler, method_handler
from trovemq_daemon.logging import LogLevel

Handlers: TypeAlias = dict[str, Any]
"""Each is a CallHandler, or grpc's of a stream of requests."""


class _Often(NamedTuple):
    """The parts whose methods are called often."""

    sender: Sender
    receives: ReceiveCalls
    acknowledger: Acknowledger


class RocketmqService:
    """`add_to` a server, before it starts; `end_streams` before it stops.

    `offers_writes`: whether routes may offer queues of this broker for writing. `others`: the cluster's other
    brokers. `tls_address`: the one that this broker advertises, None without TLS. `placement_of`:
    the queues of a topic by broker. `forwards`: forwards the calls that belong to other brokers; None: all
    calls are handled here. `nodes`: the addresses of the other nodes of its replica group, by TLS or without.
    """

    def __init__(
        self,
        core: BrokerCore,
        offers_writes: Callable[[], bool] = lambda: True,
        set_log_level: Callable[[LogLevel], None] = lambda _level: None,
        *,
        others: OtherBrokers = NO_OTHERS,
        tls_address: Address | None = None,
        placement_of: Callable[[str], Mapping[str, int]] = no_placement,
        forwards: Forwards | None = None,
        nodes: Callable[[bool], Sequence[Address]] = lambda _by_tls: (),
    ) -> None:
        self._core = core
        self._forwards = forwards
        self.routes = Routes(core, offers_writes, others, tls_address, placement_of, forwards, nodes)
        mirrors = None if forwards is None else forwards.mirrors
        self.liveness = Liveness(core.registry, core.clock_ms, mirrors)
        note = None if forwards is None else forwards.note
        self.telemetry = Telemetry(core, mirrors=mirrors, note=note)
        self.sender = Sender(core)
        self.receiver = Receiver(core)
        self.receives = ReceiveCalls(core, self.receiver)
        self.acknowledger = Acknowledger(core, others)
        self._own = _Often(self.sender, self.receives, self.acknowledger)
        self._often = self._own if forwards is None else _forwarding(core, self._own, others, forwards)
        self.ender = Ender(core)
        self.puller = Puller(core)
        self.views = GroupViews(core)
        self.admin = Admin(core, self.views, self.sender.send, self.routes, set_log_level)

    # --- for the daemon -----------------------------------------------------------------------------
    def add_to(self, server: grpc.aio.Server) -> None:
        for name, handlers in (
            (MESSAGING_SERVICE, self.messaging_handlers()),
            (ADMIN_SERVICE, self.admin_handlers()),
        ):
            server.add_registered_method_handlers(name, handlers)

    async def end_streams(self, timeout_s: float) -> None:
        """Ends the telemetry streams, because the broker is stopping, and accepts no others."""
        await self.telemetry.end_all(timeout_s)

    def may_ask_about_transaction(self, client_id: str, topic: str) -> bool:
        """Whether a producer is connected that can be asked about the client's transaction of the topic."""
        return self._core.commands.has_producer(client_id, topic)

    async def check_transaction(self, transaction: TransactionCheck) -> None:
        """Asks a producer about an open transaction; if none is connected, nothing happens until
        the next round."""
        half = transaction.message
        message = StoredMessage(half.record, transaction.topic, half.queue_id, half.queue_offset)
        self._core.commands.recover_orphaned_transaction(
            transaction.client_id, transaction.topic, message, transaction.transaction_id
        )

    # --- the calls ----------------------------------------------------------------------------------
    def messaging_handlers(self) -> Handlers:
        """The handler of each call, by name."""
        calls = self._calls()
        if self._forwards is not None:
            forwarding = ForwardingCalls(self._forwards)
            calls |= forwarding.around(calls)
        method = MESSAGING.methods_by_name["Telemetry"]
        read = reader(request_type(method))
        telemetry = method_handler(method, self.telemetry.telemetry, read)
        return {
            **{name: status_handler(MESSAGING.methods_by_name[name], call) for name, call in calls.items()},
            **self._often_called(self._often),
            "Telemetry": telemetry,
        }

    def forwarded_handlers(self) -> Handlers:
        """The handlers of the methods with one request, for calls that another broker has forwarded: they are
        handled here."""
        return {
            **{
                name: status_handler(MESSAGING.methods_by_name[name], call)
                for name, call in self._calls().items()
            },
            **{
                name: status_handler(ADMIN.methods_by_name[name], call, anonymous=True)
                for name, call in self._admin_calls().items()
                if name in ADMIN_FORWARDED
            },
            **self._often_called(self._own),
        }

    def _calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "QueryRoute": self.routes.query_route,
            "QueryAssignment": self.routes.query_assignment,
            "Heartbeat": self.liveness.heartbeat,
            "NotifyClientTermination": self.liveness.notify_client_termination,
            "ChangeInvisibleDuration": self.acknowledger.change_invisible,
            "ForwardMessageToDeadLetterQueue": self.acknowledger.dead_letter,
            "EndTransaction": self.ender.end_transaction,
            "RecallMessage": self.ender.recall,
            "PullMessage": self.puller.pull,
            "UpdateOffset": self.puller.update_offset,
            "GetOffset": self.puller.get_offset,
            "QueryOffset": self.puller.query_offset,
        }

    def _often_called(self, often: _Often) -> Handlers:
        """The methods whose calls are handled together if they arrived together."""
        return {
            "SendMessage": _turn_handler("SendMessage", often.sender.on_calls, self._core.traffic.refused),
            "ReceiveMessage": _turn_handler("ReceiveMessage", often.receives.on_calls),
            "AckMessage": _turn_handler("AckMessage", often.acknowledger.on_calls),
        }

    def admin_handlers(self) -> Handlers:
        """The handler of each call, by name. They need no client id."""
        calls = self._admin_calls()
        if self._forwards is not None:
            topics, settings = self._core.store.topics, self._core.store.settings
            limits = Limits(settings.query_messages_max, settings.query_page_bytes_max)
            forwards = AdminForwards(self._forwards, lambda topic: topics.get(topic) is not None, limits)
            calls |= forwards.around(calls)
        return {
            name: status_handler(ADMIN.methods_by_name[name], call, anonymous=True)
            for name, call in calls.items()
        }

    def _admin_calls(self) -> dict[str, Callable[..., Any]]:
        admin, views = self.admin, self.views
        return {
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


def _forwarding(core: BrokerCore, own: _Often, others: OtherBrokers, forwards: Forwards) -> _Often:
    """The parts that forward calls to other brokers."""
    acknowledge = ForwardingCalls(forwards).acknowledge
    return _Often(
        Sender(core, forwards),
        own.receives.forwarding(forwards),
        Acknowledger(core, others, acknowledge),
    )


def status_handler(method: Method, call: Callable[..., Any], *, anonymous: bool = False) -> CallHandler:
    """The coroutine or generator with its errors inside of the reply, and with the types that the protocol
    gives it."""
    handler = method_handler(method, call, reader(request_type(method)))
    calls = calls_of(handler, partial(request_of, anonymous=anonymous))
    return with_status(method.name, calls, _reply_type(method))


def _turn_handler(name: str, on_calls: OnCalls, refused: Callable[[str], None] | None = None) -> CallHandler:
    """The same of a method that takes calls that arrived together."""
    method = MESSAGING.methods_by_name[name]
    read = reader(request_type(method))
    handler = calls_handler(method, on_calls, read, small=not method.server_streaming)
    return with_status(name, handler, _reply_type(method), refused)


def _reply_type(method: Method) -> Callable[..., Any]:
    """The function that makes a reply from a status."""
    reply = reply_type(method)
    if "status" not in reply.DESCRIPTOR.fields_by_name:  # ChangeLogLevel
        return lambda status: reply(remark=status.message)
    return reply
