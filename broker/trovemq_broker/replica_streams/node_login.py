"""The log-in of nodes at each other's plain listeners, on loopback, where callers log in.

All nodes of a group have one sealing key, and with it the secret of one user, whom no client has. So nodes
need none of the broker's users: a new node has none yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from trovemq_broker.replication.frames import Node, NowMs
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.security_messages import (
    SERVICE,
    Handshake,
    handshake_message,
    handshake_reply,
)
from trovemq_daemon.grpc_services import method_handler
from trovemq_daemon.peers import peer_of_call
from trovemq_daemon.sessions import SESSION_TIME_MAX_MS, Sessions
from trovemq_daemon.users import User, UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.authentication.scram import KEY_SIZE, SALT_SIZE
from trovemq_proto.errors import TroveError

NAME: Final = "node"
PURPOSE: Final = b"log-in of nodes"
"""For which the secret is derived from the sealing key."""


def explained(error: TroveError, node: Node) -> TroveError:
    """Of a call of that node: a refused log-in says what to do."""
    if error.spec is not errors.AUTHENTICATION_FAILED:
        return error
    text = (
        f"node {node} and this one do not know each other ({error.message}): all nodes of a group need the"
        " same authentication_enable, and one key (sealing_key_file)"
    )
    return TroveError(errors.SEALING_KEY_MISMATCH, text)


class NodeLogin:
    """`secret`: of the sealing key. `clock_ms`: epoch ms."""

    def __init__(
        self, secret: str, clock_ms: Callable[[], NowMs], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._clock_ms = clock_ms
        self.credentials: Final = Credentials(NAME, secret)
        self._user = new_user(
            NAME, UserKind.SUPER, secret.encode(), salt=random_bytes(SALT_SIZE), now_ms=clock_ms()
        )
        self.sessions: Final = Sessions(self, random_bytes(KEY_SIZE), random_bytes)

    def user(self, access_key: str) -> User | None:
        return self._user if access_key == NAME else None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Adds the log-in alone."""
        handler = method_handler(SERVICE.methods_by_name["Authenticate"], self._authenticate)
        server.add_registered_method_handlers(SERVICE.full_name, {"Authenticate": handler})

    @converted(handshake_message, handshake_reply)
    async def _authenticate(self, message: str, context: Any) -> Handshake:
        """TroveError AUTHENTICATION_FAILED."""
        now_ms = self._clock_ms()
        if message.startswith("n,,"):
            return Handshake(self.sessions.begin(message, now_ms, peer_of_call(context).source))
        answer, session = self.sessions.finish(message, now_ms)
        return Handshake(answer, session.key.session_id, SESSION_TIME_MAX_MS)
