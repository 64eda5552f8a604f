"""The v2 handlers on a store in memory, wired as the broker does it, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.support.engine import NOW_MS, SMALL, open_store
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.fetch.pull import Puller as QueuePuller
from trovemq_broker.fetch.pull import PullSettings
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.members.new_messages import NewMessages
from trovemq_broker.groups.members.receive_waits import ReceiveWaits
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, AppendSettings, batch_size_limit
from trovemq_broker.produce.group_commit import FlushSettings, GroupCommit, Grown
from trovemq_broker.produce.outgoing import OutgoingEncoder
from trovemq_broker.query.search_offset import search_offset
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.core.commands import ClientCommands
from trovemq_broker.server.core.group_order import GroupOrder
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.core.receiver import Receiver
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.rocketmq.puller import Puller
from trovemq_broker.server.rocketmq.sender import Sender
from trovemq_broker.server.rocketmq.transaction_ends import Ender
from trovemq_broker.server.wire.statuses import reader
from trovemq_broker.timers.timers import Timers
from trovemq_broker.transactions.transactions import Transactions
from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import AwaitedCall, CallHandler, for_coroutines
from trovemq_daemon.turns import Turns
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import SubscriptionGroups

if TYPE_CHECKING:
    from trovemq_broker.server.monitoring.tracing import BrokerTracing

BROKER = "broker-a"
ROOMY = replace(SMALL, commit_log_file_size=1 << 20, batch_size_max=1 << 19)

TOPICS = {
    "orders": "NORMAL",
    "steps": "FIFO",
    "later": "DELAY",
    "deals": "TRANSACTION",
    "mixed": "MIXED",
}
"""The topics, by name, with their types."""


class Parts:
    """Call inside of a running loop. `now_ms` is the broker's clock."""

    def __init__(
        self,
        settings: StoreSettings = ROOMY,
        *,
        consumers: ConsumerSettings | None = None,
        waiters_max: int = 64,
        auto_create_topic: bool = False,
        tracing: BrokerTracing | None = None,
    ) -> None:
        self.tracing = tracing
        self.now_ms = NOW_MS
        self.store = store = open_store(MemoryFileSystem(), settings, topics=())
        for name, message_type in TOPICS.items():
            store.topics.create(name, 4, message_type)
        self.settings = consumers or ConsumerSettings()
        self.long_polls = LongPolls()
        self.commit = GroupCommit(
            store, FlushSettings(flush_mode=settings.flush_mode), self.on_messages_available
        )
        self.appender = Appender(
            store,
            self.commit,
            AppendSettings(auto_create_topic_enable=auto_create_topic),
            self.clock_ms,
            self.on_messages_available,
            tracer=tracing,
        )
        keys = count()
        encoder = OutgoingEncoder(settings, False, lambda: f"U{next(keys)}")
        self.traffic = Traffic()
        self.accumulator = Accumulator(
            self.appender, encoder, batch_size_limit(settings), self.commit, self.traffic.appended
        )
        self.writer = RecordWriter(store, self._appended)
        self.events = EventLog(store, self.writer)
        self.groups = SubscriptionGroups.load(MemoryFileSystem())
        engine = (store, self.writer, self.events)
        self.delivery = Delivery(*engine, self.groups, self.settings)
        if tracing is not None:
            self.delivery.on_settled = tracing.settled
        self.waits = ReceiveWaits(waiters_max, NewMessages(self.store, self.delivery.next_offset))
        self.timers = Timers(*engine, self.settings)
        self.transactions = Transactions(*engine, self.settings)
        self.clients = ClientRegistry()
        self._build()

    def _build(self) -> None:
        self.rocketmq = RocketmqParts(
            store=self.store,
            groups=self.groups,
            delivery=self.delivery,
            timers=self.timers,
            transactions=self.transactions,
            settings=self.settings,
            appender=self.appender,
            accumulator=self.accumulator,
            group_commit=self.commit,
            puller=QueuePuller(self.store, PullSettings()),
            long_polls=self.long_polls,
            waits=self.waits,
            offsets=OffsetKeeper(self.store, self.commit.durable, self.search, self._moved),
            search=self.search,
            registry=self.clients,
            commands=ClientCommands(self.clients, lambda: "nonce"),
            traffic=self.traffic,
            turns=Turns(),
            broker=BROKER,
            advertised=Address("10.0.0.1", 8_081),
            version="1.2.3",
            clock_ms=self.clock_ms,
            next_message_id=lambda: "ID",
            set_log_level=lambda _level: None,
            tracing=self.tracing,
        )
        order = GroupOrder(
            self.store.topics,
            self.groups,
            auto_create=self.settings.auto_create_group,
            fifo_orderly=self.settings.fifo_group_orderly,
        )
        self.sender = Sender(self.rocketmq)
        self.receiver = Receiver(self.rocketmq, order)
        self.acknowledger = Acknowledger(self.rocketmq)
        self.ender = Ender(self.rocketmq)
        self.puller = Puller(self.rocketmq)

    def search(self, topic: str, queue_id: QueueId, timestamp: EpochMs) -> QueueOffset:
        return search_offset(self.store, topic, queue_id, timestamp)

    def _moved(self, group: str, topic: str, offsets: Mapping[QueueId, QueueOffset]) -> Mapping[QueueId, int]:
        return self.delivery.reset(group, topic, offsets, self.now_ms)

    def clock_ms(self) -> EpochMs:
        return self.now_ms

    def on_messages_available(self, queues: Grown) -> None:
        self.waits.on_messages_available(queues)
        self.long_polls.wake(queues)

    def _appended(self) -> None:
        self.commit.appended()
        if self.store.settings.flush_mode == "async":
            asyncio.get_running_loop().call_soon(lambda: self.on_messages_available(self.store.dispatch()))

    # --- common calls -------------------------------------------------------------------------------
    async def send(self, *messages: v2.Message, context: RpcContext | None = None) -> Any:
        request = service.SendMessageRequest(messages=messages)
        return await self.sender.send(request, context or RpcContext())

    async def receive(
        self, topic: str = "orders", *, context: RpcContext | None = None, **fields: Any
    ) -> list[service.ReceiveMessageResponse]:
        """The whole stream."""
        request = receive_request(topic, **fields)
        context = context or RpcContext()
        context.write = context.write_now  # type: ignore[method-assign]
        handler = CallHandler(on_calls=self.receiver.on_calls, streams=True)
        await for_coroutines(handler).unary_stream(request, context)
        return [service.ReceiveMessageResponse.FromString(element) for element in context.written]

    async def messages(self, topic: str = "orders", **fields: Any) -> list[v2.Message]:
        """The received messages; [] for MESSAGE_NOT_FOUND."""
        replies = await self.receive(topic, **fields)
        return [reply.message for reply in replies if reply.HasField("message")]

    async def acknowledge(self, *handles: str, topic: str = "orders", group: str = "g") -> Any:
        entries = [
            service.AckMessageEntry(message_id=f"M{number}", receipt_handle=handle)
            for number, handle in enumerate(handles)
        ]
        request = service.AckMessageRequest(
            group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries
        )
        return await self.acknowledged(request)

    async def acknowledged(self, request: service.AckMessageRequest) -> service.AckMessageResponse:
        """The reply to a call that comes alone."""
        call = AwaitedCall(RpcContext(), reader(service.AckMessageRequest), request.SerializeToString())
        self.acknowledger.on_calls([call])
        reply = await call.ending
        return service.AckMessageResponse.FromString(reply) if isinstance(reply, bytes) else reply


def message(
    body: bytes = b"hello",
    topic: str = "orders",
    *,
    message_id: str = "01AA",
    properties: dict[str, str] | None = None,
    keys: Sequence[str] = (),
    deliver_ms: EpochMs | None = None,
    **system: Any,
) -> v2.Message:
    """A message as an official client sends it."""
    made = v2.Message(
        topic=v2.Resource(name=topic),
        body=body,
        user_properties=properties or {},
        system_properties=v2.SystemProperties(
            message_id=message_id, keys=keys, body_encoding=v2.IDENTITY, **system
        ),
    )
    if deliver_ms is not None:
        made.system_properties.delivery_timestamp.FromMilliseconds(deliver_ms)
    return made


def receive_request(
    topic: str = "orders",
    *,
    group: str = "g",
    invisible_ms: int = 30_000,
    batch_size: int = 32,
    polling_ms: int | None = 5_000,
    expression: str = "*",
    kind: int = v2.TAG,
    **fields: Any,
) -> service.ReceiveMessageRequest:
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic)),
        batch_size=batch_size,
        **fields,
    )
    request.filter_expression.type = kind  # type: ignore[assignment]
    request.filter_expression.expression = expression
    if invisible_ms >= 0:
        request.invisible_duration.FromMilliseconds(invisible_ms)
    if polling_ms is not None:
        request.long_polling_timeout.FromMilliseconds(polling_ms)
    return request
