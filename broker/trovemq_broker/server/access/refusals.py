"""The replies to refused calls in each protocol.

RocketMQ's clients read a status in the reply; a gRPC status would be a broken connection for them. On the
telemetry stream the refusal is a command with a status only, and the stream ends.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message_factory import GetMessageClass

from trovemq_broker.server.rocketmq.service import ADMIN_SERVICE, MESSAGING_SERVICE
from trovemq_broker.server.wire.statuses import status_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2.definition_pb2 import Status

_METHODS: Final = {
    f"/{name}/{method.name}": method
    for name, service in (
        (MESSAGING_SERVICE, service_pb2.DESCRIPTOR.services_by_name["MessagingService"]),
        (ADMIN_SERVICE, admin_pb2.DESCRIPTOR.services_by_name["Admin"]),
    )
    for method in service.methods
}


def is_rocketmq(path: str) -> bool:
    """Whether the call belongs to RocketMQ's protocol."""
    return path in _METHODS


def refused_reply(path: str, error: TroveError) -> Any:
    """The reply, or the element of a stream, that refuses a call of RocketMQ's protocol."""
    output = _METHODS[path].output_type
    reply_type = GetMessageClass(output)
    if "status" not in output.fields_by_name:  # ChangeLogLevel
        return reply_type(remark=error.message)
    return reply_type(status=_status(error))


def _status(error: TroveError) -> Status:
    """The status of a refusal. FORBIDDEN is also the code for a topic without write or read permission, so
    the text begins with the error."""
    if error.spec is errors.ACCESS_DENIED:
        return status_of(TroveError(error.spec, f"{error.symbol}: {error.message}"))
    return status_of(error)
