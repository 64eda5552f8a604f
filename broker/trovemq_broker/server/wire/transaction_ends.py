"""EndTransaction and RecallMessage: requests to commands, results to replies."""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_broker.server.wire.resources import topic_to_send
from trovemq_broker.server.wire.statuses import OK_STATUS
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

_COMMITS: Final = {v2.TRANSACTION_RESOLUTION_UNSPECIFIED: None, v2.COMMIT: True, v2.ROLLBACK: False}


class TransactionEnd(NamedTuple):
    """commit: None if the producer has not decided yet."""

    topic: str
    transaction_id: str
    commit: bool | None


class Recall(NamedTuple):
    """Cancels a delayed message."""

    topic: str
    handle: str


def transaction_end(request: service_pb2.EndTransactionRequest) -> TransactionEnd:
    """Raises TroveError TOPIC_ILLEGAL, TRANSACTION_ILLEGAL, REQUEST_ILLEGAL."""
    topic = topic_to_send(request.topic)
    if not request.transaction_id.strip():
        raise TroveError(errors.TRANSACTION_ILLEGAL, "the transaction id is blank")
    if request.resolution not in _COMMITS:
        raise TroveError(errors.REQUEST_ILLEGAL, f"resolution {request.resolution} is unknown")
    return TransactionEnd(topic, request.transaction_id, _COMMITS[request.resolution])


def end_reply(_request: object, _result: None) -> service_pb2.EndTransactionResponse:
    """OK."""
    return service_pb2.EndTransactionResponse(status=OK_STATUS)


def recall(request: service_pb2.RecallMessageRequest) -> Recall:
    """Raises TroveError TOPIC_ILLEGAL."""
    return Recall(topic_to_send(request.topic), request.recall_handle)


def recall_reply(_request: object, message_id: str) -> service_pb2.RecallMessageResponse:
    """OK, and the id of the message."""
    return service_pb2.RecallMessageResponse(status=OK_STATUS, message_id=message_id)
