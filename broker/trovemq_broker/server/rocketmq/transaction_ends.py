"""EndTransaction and RecallMessage: the end of messages that were sent and are not visible yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.resources import message_types, topic_to_send
from trovemq_broker.server.wire.statuses import OK_STATUS, Context
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.files.failures import storage_errors

RESOLUTIONS: Final = (v2.TRANSACTION_RESOLUTION_UNSPECIFIED, v2.COMMIT, v2.ROLLBACK)


class Ender:
    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts

    async def end_transaction(
        self, request: service_pb2.EndTransactionRequest, _context: Context
    ) -> service_pb2.EndTransactionResponse:
        """EndTransaction. An undecided transaction stays open; its producer is asked again later."""
        topic = topic_to_send(request.topic)
        transaction_id = request.transaction_id
        if not transaction_id.strip():
            raise TroveError(errors.TRANSACTION_ILLEGAL, "the transaction id is blank")
        if request.resolution not in RESOLUTIONS:
            raise TroveError(errors.REQUEST_ILLEGAL, f"resolution {request.resolution} is unknown")
        if request.resolution != v2.TRANSACTION_RESOLUTION_UNSPECIFIED:
            commit = request.resolution == v2.COMMIT
            transactions = self._parts.transactions
            await self._written(
                lambda now_ms: transactions.end(transaction_id, topic, commit=commit, now_ms=now_ms)
            )
        return service_pb2.EndTransactionResponse(status=OK_STATUS)

    async def recall(
        self, request: service_pb2.RecallMessageRequest, _context: Context
    ) -> service_pb2.RecallMessageResponse:
        """RecallMessage: cancels a delayed message. To repeat the call changes nothing."""
        topic = topic_to_send(request.topic)
        config = self._parts.store.topics.require(topic)
        if v2.DELAY not in message_types(config):
            raise TroveError(
                errors.MESSAGE_TYPE_CONFLICT,
                f"topic {topic} is of type {config.message_type}: it has no delayed messages",
            )
        handle = decode_recall_handle(request.recall_handle)
        if handle.topic != topic:
            raise TroveError(errors.RECALL_HANDLE_ILLEGAL, "the recall handle is of another topic")
        if handle.broker != self._parts.broker:
            raise TroveError(errors.RECALL_HANDLE_ILLEGAL, "the recall handle is of another broker")
        timers = self._parts.timers
        await self._written(lambda now_ms: timers.recall(topic, handle.deliver_ms, handle.message_id, now_ms))
        return service_pb2.RecallMessageResponse(status=OK_STATUS, message_id=handle.message_id)

    async def _written(self, write: Callable[[EpochMs], AppendResult | None]) -> None:
        """Returns when the records are as durable as an acknowledged message."""
        parts = self._parts
        if parts.group_commit.full:
            await parts.group_commit.wait_for_capacity()
        parts.appender.check_running()
        with storage_errors("the append failed", errors.UNKNOWN_ERROR):
            result = write(parts.clock_ms())
        if result is not None:
            await parts.group_commit.acknowledgeable(result.end)
