"""EndTransaction and RecallMessage: the end of messages that were sent and are not visible yet."""

from __future__ import annotations

from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.wire.resources import topic_to_send
from trovemq_broker.server.wire.statuses import OK_STATUS, Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

RESOLUTIONS: Final = (v2.TRANSACTION_RESOLUTION_UNSPECIFIED, v2.COMMIT, v2.ROLLBACK)


class Ender:
    def __init__(self, parts: BrokerCore) -> None:
        self._deferred = DeferredMessages(parts)

    async def end_transaction(
        self, request: service_pb2.EndTransactionRequest, _context: Context
    ) -> service_pb2.EndTransactionResponse:
        """EndTransaction. An undecided transaction stays open; its producer is asked again later."""
        topic = topic_to_send(request.topic)
        if not request.transaction_id.strip():
            raise TroveError(errors.TRANSACTION_ILLEGAL, "the transaction id is blank")
        if request.resolution not in RESOLUTIONS:
            raise TroveError(errors.REQUEST_ILLEGAL, f"resolution {request.resolution} is unknown")
        if request.resolution != v2.TRANSACTION_RESOLUTION_UNSPECIFIED:
            commit = request.resolution == v2.COMMIT
            await self._deferred.end_transaction(topic, request.transaction_id, commit=commit)
        return service_pb2.EndTransactionResponse(status=OK_STATUS)

    async def recall(
        self, request: service_pb2.RecallMessageRequest, _context: Context
    ) -> service_pb2.RecallMessageResponse:
        """RecallMessage: cancels a delayed message. To repeat the call changes nothing."""
        message_id = await self._deferred.recall(topic_to_send(request.topic), request.recall_handle)
        return service_pb2.RecallMessageResponse(status=OK_STATUS, message_id=message_id)
