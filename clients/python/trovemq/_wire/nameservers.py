"""The calls of nameservers on one connection, beside those for routes."""

from __future__ import annotations

from trovemq_proto.v1 import route_pb2

from .connection import Connection


async def forget(connection: Connection, broker: str) -> bool:
    """Forgets a lost broker. Returns whether it was one. Raises TroveError."""
    request, decode = route_pb2.ForgetRequest(broker=broker), route_pb2.ForgetReply.FromString
    return (await connection.ask("RegistrationService/Forget", request, decode)).was_lost
