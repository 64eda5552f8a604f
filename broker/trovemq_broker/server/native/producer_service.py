"""ProducerService: delayed messages, and half messages with their ends and checks.

A message is answered when it is as durable as the flush mode promises. Every refusal is a TroveError.
"""

from __future__ import annotations

from typing import Final

import grpc

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.native.half_checks import CheckStream
from trovemq_broker.server.native.reply_stream import OpenStreams
from trovemq_broker.server.wire import producer_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.rocketmq_messages import peer_host
from trovemq_broker.server.wire.statuses import Context, client_id_of
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_proto.records.hashes import group_queue
from trovemq_store.topics.message_kinds import check_kind
from trovemq_store.topics.topics import TopicConfig


class ProducerService:
    """`add_to` a server before it starts; end all `streams` before it stops."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._deferred = DeferredMessages(core)
        self.streams: Final = OpenStreams()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    # --- messages -----------------------------------------------------------------------------------
    async def send_delayed(self, request: Request, context: Context) -> Reply:
        """Schedules a message; the reply has its recall handle."""
        came_ms = self._core.clock_ms()  # a delay counts from now on
        with _Refusals(self._core):
            await self._wait_for_capacity()
            body_size_max = self._core.store.settings.body_size_max
            delay_max_ms = self._core.settings.delivery_delay_max_ms
            send = wire.delayed_send(request, body_size_max, came_ms, delay_max_ms)
            now_ms = self._core.clock_ms()
            config = self._topic(send.topic, "DELAY")
            group = send.message_group
            queue_id = QueueId(group_queue(group, config.write_queue_count)) if group else ANY_QUEUE
            result, recall_handle = self._deferred.schedule(
                send.topic,
                queue_id,
                send.message,
                send.deliver_ms,
                born_host=peer_host(context.peer()),
                now_ms=now_ms,
            )
            await self._core.appender.acknowledged(send.topic, result.end)
        copies = self._core.appender.copies(send.topic)
        return wire.delayed_reply(recall_handle, self._core.appender.durability, copies)

    async def prepare_half(self, request: Request, context: Context) -> Reply:
        with _Refusals(self._core):
            client_id = client_id_of(context)
            await self._wait_for_capacity()
            now_ms = self._core.clock_ms()
            send = wire.half_send(request, self._core.store.settings.body_size_max, now_ms)
            self._topic(send.topic, "TRANSACTION")
            result = self._deferred.prepare(
                send.topic,
                ANY_QUEUE,
                send.message,
                client_id,
                send.check_after_ms,
                born_host=peer_host(context.peer()),
                now_ms=now_ms,
            )
            await self._core.appender.acknowledged(send.topic, result.end)
        copies = self._core.appender.copies(send.topic)
        return wire.half_reply(send.message.unique_key, self._core.appender.durability, copies)

    async def _wait_for_capacity(self) -> None:
        if self._core.group_commit.full:
            await self._core.group_commit.wait_for_capacity()

    def _topic(self, topic: str, kind: str) -> TopicConfig:
        """The topic, which accepts messages of this kind. Raises TroveError TOPIC_NOT_FOUND,
        MESSAGE_TYPE_CONFLICT, PERMISSION_MISSING, and the errors with which a broker refuses all messages."""
        appender = self._core.appender
        config = self._core.store.topics.get(topic) or appender.topic_for_write(topic)
        check_kind(config, kind)
        config.check_open()
        if not config.writable or config.write_queue_count < 1:
            raise TroveError(errors.PERMISSION_MISSING, f"topic {topic} may not be written", topic=topic)
        appender.check_accepting()
        return config

    # --- ends ---------------------------------------------------------------------------------------
    async def recall(self, request: Request, _context: Context) -> Reply:
        command = wire.recall_of(request)
        return wire.recall_reply(await self._deferred.recall(command.topic, command.recall_handle))

    async def end_half(self, request: Request, _context: Context) -> Reply:
        end = wire.end_of(request)
        await self._deferred.end_transaction(end.topic, end.transaction_id, commit=end.commit)
        return wire.end_reply()

    # --- checks -------------------------------------------------------------------------------------
    async def check_halves(self, _requests: object, context: Context) -> None:
        """A stream of frames (half_checks.py)."""
        core = self._core
        stream = CheckStream(core.registry, client_id_of(context), context, core.clock_ms)
        await self.streams.serve(stream)


class _Refusals:
    """Counts the refusals of a `with` block as those of appends."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, failure: BaseException | None, _where: object) -> None:
        if isinstance(failure, TroveError):
            self._core.traffic.refused(failure.symbol)
