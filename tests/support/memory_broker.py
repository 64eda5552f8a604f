"""The core of a broker on a store in memory, with a clock that the test moves, and the handlers of both
protocols on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.support.engine import NOW_MS, SMALL, open_store
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings, ReplicatedCommit
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import Receiver
from trovemq_broker.server.core.settings import CoreSettings
from trovemq_broker.server.native.consume_stream import ConsumerService
from trovemq_broker.server.rocketmq.puller import Puller
from trovemq_broker.server.rocketmq.receive_calls import ReceiveCalls
from trovemq_broker.server.rocketmq.sender import Sender
from trovemq_broker.server.rocketmq.transaction_ends import Ender
from trovemq_broker.server.wire.send_requests import reading
from trovemq_broker.server.wire.statuses import reader
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import AwaitedCall, CallHandler, for_coroutines
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

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


def open_both(settings: StoreSettings, consumers: ConsumerSettings) -> tuple[MessageStore, ConsumerState]:
    """A new store that has the TOPICS, and its consumer state."""
    store = open_store(MemoryFileSystem(), settings, topics=())
    for name, message_type in TOPICS.items():
        store.topics.create(name, 4, message_type)
    return store, ConsumerState.open(store, store.files, consumers, NOW_MS)


class TestBroker(BrokerCore):
    """Call inside of a running loop. `now_ms` is the broker's clock, until `follow_loop`. `settings`: those
    of the core. `opened`: a store and its consumer state, instead of new ones in memory."""

    __test__ = False

    def __init__(
        self,
        store_settings: StoreSettings = ROOMY,
        *,
        opened: tuple[MessageStore, ConsumerState] | None = None,
        consumers: ConsumerSettings | None = None,
        replies: ReplyBudget | None = None,
        tracing: BrokerTracing | None = None,
        replicated: ReplicatedCommit | None = None,
        replica_acks: ReplicaAckSettings | None = None,
        **settings: Any,
    ) -> None:
        self.now_ms = NOW_MS
        store, model = opened or open_both(store_settings, consumers or ConsumerSettings())
        self.clock: Callable[[], EpochMs] = lambda: self.now_ms
        made: dict[str, Any] = {
            **vars(model.settings),
            "flush_mode": store.settings.flush_mode,
            "flush_in_kernel_enable": False,
            "receive_polls_max": 64,
            **settings,
        }
        ids, nonces = count(), count()
        super().__init__(
            store,
            model,
            CoreSettings(**made),
            Address("10.0.0.1", 8_081),
            "1.2.3",
            clock_ms=self._time_ms,
            wall_ms=self._time_ms,
            next_message_id=lambda: f"ID{next(ids):032}",
            next_nonce=lambda: f"nonce-{next(nonces)}",
            replies=replies,
            tracing=tracing,
            replicated=replicated,
            replica_acks=replica_acks,
        )
        self.events = model.events
        self.sender = Sender(self)
        self.receiver = Receiver(self)
        self.receives = ReceiveCalls(self, self.receiver)
        self.acknowledger = Acknowledger(self)
        self.consumers = ConsumerService(self, self.receiver, self.acknowledger)
        self.ender = Ender(self)
        self.pulls = Puller(self)

    def _time_ms(self) -> EpochMs:
        return self.clock()

    def follow_loop(self) -> None:
        """From now on the clock goes as the loop's does."""
        loop = asyncio.get_running_loop()
        began = self.now_ms - round(loop.time() * 1_000)
        self.clock = lambda: EpochMs(began + round(loop.time() * 1_000))

    def sync_by(self, durable: Callable[[int], Awaitable[None]]) -> None:
        """`durable` waits for the disk instead of the group commit, which does not run here."""
        some: Any = self
        commit = some.group_commit
        commit.durable = commit.committed = some.offsets._sync_log = durable

    def with_replies(self, replies: ReplyBudget) -> TestBroker:
        """The same broker with another budget of replies."""
        other = copy(self)
        object.__setattr__(other, "replies", replies)
        other.consumers = ConsumerService(other, self.receiver, self.acknowledger)
        return other

    # --- common calls -------------------------------------------------------------------------------
    async def send(self, *messages: v2.Message, context: RpcContext | None = None) -> Any:
        request = service.SendMessageRequest(messages=messages)
        reply = await self.sender.send(reading(request), context or RpcContext())
        return service.SendMessageResponse.FromString(reply) if isinstance(reply, bytes) else reply

    async def receive(
        self, topic: str = "orders", *, context: RpcContext | None = None, **fields: Any
    ) -> list[service.ReceiveMessageResponse]:
        """The whole stream."""
        request = receive_request(topic, **fields)
        context = context or RpcContext()
        context.write = context.write_now  # type: ignore[method-assign]
        handler = CallHandler(on_calls=self.receives.on_calls, streams=True)
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
