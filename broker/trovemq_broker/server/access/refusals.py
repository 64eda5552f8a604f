"""The replies to refused calls in each protocol.

RocketMQ's clients read a status in the reply; a gRPC status would be a broken connection for them. On the
telemetry stream the refusal is a command with a status only, and the stream ends.
"""

from __future__ import annotations

from typing import Any

from trovemq_broker.server.wire.methods import reply_type
from trovemq_broker.server.wire.rocketmq_services import METHODS
from trovemq_broker.server.wire.statuses import status_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def is_rocketmq(path: str) -> bool:
    """Whether the call belongs to RocketMQ's protocol."""
    return path in METHODS


def refused_reply(path: str, error: TroveError) -> Any:
    """The reply, or the element of a stream, that refuses a call of RocketMQ's protocol."""
    reply: Any = reply_type(METHODS[path])
    if "status" not in reply.DESCRIPTOR.fields_by_name:  # ChangeLogLevel
        return reply(remark=error.message)
    if error.spec is errors.ACCESS_DENIED:
        # FORBIDDEN is also the code for a topic without write or read permission
        error = TroveError(error.spec, f"{error.symbol}: {error.message}")
    return reply(status=status_of(error))
