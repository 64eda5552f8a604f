"""Heartbeat and NotifyClientTermination: their checks and replies."""

from __future__ import annotations

from typing import Final

from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError
from trovemq_proto import errors
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

_SERVED: Final = (v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER, v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER)


def check_heartbeat(request: service_pb2.HeartbeatRequest) -> None:
    """Raises CLIENT_UNKNOWN for a client type that is not served. 0 is: Go's client sends it while it
    recovers."""
    if request.client_type not in _SERVED:
        raise ProtocolError(
            v2.UNRECOGNIZED_CLIENT_TYPE,
            f"client type {request.client_type} is not served",
            errors.CLIENT_UNKNOWN,
        )


def heartbeat_reply(_request: object, _result: None) -> service_pb2.HeartbeatResponse:
    """OK."""
    return service_pb2.HeartbeatResponse(status=OK_STATUS)


def termination_reply(_request: object, _result: None) -> service_pb2.NotifyClientTerminationResponse:
    """OK."""
    return service_pb2.NotifyClientTerminationResponse(status=OK_STATUS)
