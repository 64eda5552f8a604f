"""A client's log-in: both steps of the handshake, over any transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from trovemq_proto.authentication.calls import SigningKey
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.authentication.scram import ClientHandshake, client_first
from trovemq_proto.v1 import security_pb2

AUTHENTICATE: Final = "/trovemq.v1.SecurityService/Authenticate"
NONCE_BYTES: Final = 24


async def log_in(
    credentials: Credentials,
    nonce: str,
    ask: Callable[[security_pb2.AuthenticateRequest], Awaitable[security_pb2.AuthenticateReply]],
) -> tuple[SigningKey, int]:
    """The session's key, and for how many ms its calls may begin. `nonce`: random, 16 characters or more.

    Raises ScramError if the server does not know the secret, and the errors of `ask`.
    """
    first = client_first(credentials.access_key, nonce)
    answer = await ask(security_pb2.AuthenticateRequest(message=first))
    handshake = ClientHandshake(first, answer.message, credentials.secret_key.encode())
    last = await ask(security_pb2.AuthenticateRequest(message=handshake.message))
    return SigningKey(last.session_id, handshake.finish(last.message)), last.session_time_ms
