"""Who may call the replication listener: the other nodes of the group, and no client.

| connection             | a caller is                                                                       |
|------------------------|-----------------------------------------------------------------------------------|
| TLS                    | the members whose names are in its certificate (subjectAltName), which is trusted |
| plain, on loopback     | any member; with authentication after a log-in (node_login)                       |
| plain, another address | none                                                                              |

Methods: those of ReplicationService; `Authenticate` for every caller where there is authentication; no other,
not health or reflection either. A refusal says only that the caller is not allowed.

Invariants
- No handler begins, and no message is parsed, before its caller is known to be a member. GetStatus begins for
  everyone with a trusted certificate, or on loopback, and answers members, and those who know the group's id:
  a node that was removed learns it so.
- Each message of a plain stream is signed by its session, whose secret must still be valid.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.replication.frames import Node, NowMs
from trovemq_broker.server.wire.replica_frames import GET_STATUS, SERVICE
from trovemq_daemon.peers import came_by_tls, peer_of_call
from trovemq_daemon.refusals import Refusals
from trovemq_daemon.sessions import SessionCall, Sessions
from trovemq_daemon.users import User
from trovemq_proto import errors
from trovemq_proto.authentication.calls import METADATA_KEY, TRAILER_SIZE, message_checker
from trovemq_proto.authentication.handshake import AUTHENTICATE
from trovemq_proto.errors import TroveError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_SERVED: Final = f"/{SERVICE.full_name}/"
SOURCE_CONNECTIONS_MAX: Final = 32
CONNECTIONS_MAX: Final = 256


class PeersAllowed:
    """The check before each handler of a replication listener (AccessCheck of GrpcServer: `handler`).

    Args:
        members: The names of the group's other nodes.
        clock_ms: Epoch ms, of the sessions.
        sessions: Of the users of this broker; None without authentication.
        may_replicate: Whether the user is one of the nodes' own.
    """

    def __init__(
        self,
        members: Callable[[], Collection[Node]],
        clock_ms: Callable[[], NowMs],
        sessions: Sessions | None = None,
        may_replicate: Callable[[User], bool] = lambda user: user.is_super,
    ) -> None:
        self._members = members
        self._clock_ms = clock_ms
        self._sessions = sessions
        self._may_replicate = may_replicate
        self.refusals: Final = Refusals()

    # --- callers --------------------------------------------------------------------------------------
    def nodes_of(self, context: Any) -> frozenset[Node]:
        """The members that the caller of a call may be. Never raises."""
        members = frozenset(self._members())
        names = _names_of(context)
        return members if names is None else members & names

    def check_node(self, context: Any, node: Node) -> None:
        """TroveError NOT_A_MEMBER if the caller of a call is another node."""
        if node not in self.nodes_of(context):
            raise self._refused(context, "")

    def check_status(self, context: Any, node: Node, *, knows_group: bool) -> None:
        """TroveError NOT_A_MEMBER if the caller of GetStatus is another node, or a stranger to the group."""
        names = _names_of(context)
        if not (knows_group or node in self._members()) or (names is not None and node not in names):
            raise self._refused(context, GET_STATUS)

    # --- handlers -------------------------------------------------------------------------------------
    def handler(self, path: str, handler: Handler) -> Handler:
        """The handler with the check before it."""
        if path == AUTHENTICATE and self._sessions is not None:
            return handler
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour, read = getattr(handler, kind), handler.request_deserializer or bytes
        streams = handler.request_streaming

        def admitted(data: Any, context: Any) -> Any:
            call = self._admitted(path, context)
            return _requests(data, call, read) if streams else read(call(data))

        async def coroutine(data: Any, context: Any) -> Any:
            return await behaviour(admitted(data, context), context)

        async def generator(data: Any, context: Any) -> AsyncIterator[Any]:
            async with aclosing(behaviour(admitted(data, context), context)) as replies:
                async for reply in replies:
                    yield reply

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        guarded = generator if inspect.isasyncgenfunction(behaviour) else coroutine
        return make(guarded, bytes, handler.response_serializer)

    def _admitted(self, path: str, context: Any) -> Callable[[bytes], bytes]:
        """Checks the caller. Returns the check of its messages. TroveError NOT_A_MEMBER,
        AUTHENTICATION_FAILED."""
        if not path.startswith(_SERVED):
            raise self._refused(context, path)
        names = _names_of(context)
        if names is not None and not names:
            raise self._refused(context, path)
        if path != GET_STATUS and not self.nodes_of(context):
            raise self._refused(context, path)
        if came_by_tls(context) or self._sessions is None:
            return bytes
        return self._signed(path, context, self._sessions)

    def _signed(self, path: str, context: Any, sessions: Sessions) -> Callable[[bytes], bytes]:
        call = self._session_call(path, context, sessions)
        is_signed = message_checker(call.session.key, call.number)

        def check(data: bytes) -> bytes:
            if not is_signed(data):
                raise self._failed(context, path)
            if not self._may_replicate(sessions.user_of(call.session)):
                raise self._refused(context, path, call.session.access_key)
            return data[:-TRAILER_SIZE]

        return check

    def _session_call(self, path: str, context: Any, sessions: Sessions) -> SessionCall:
        found = [value for key, value in context.invocation_metadata() or () if key == METADATA_KEY]
        if len(found) != 1:
            raise self._failed(context, path)
        value = found[0] if isinstance(found[0], bytes) else found[0].encode("latin-1", "replace")
        try:
            return sessions.call(value, path, self._clock_ms())
        except TroveError:
            raise self._failed(context, path) from None

    # --- refusals -------------------------------------------------------------------------------------
    def note(self, context: Any, path: str, error: TroveError, user: str = "") -> None:
        """Counts a refusal, and logs it once a minute."""
        self.refusals.add(path, error, peer_of_call(context).source, user, self._clock_ms())

    def _failed(self, context: Any, path: str) -> TroveError:
        error = TroveError(errors.AUTHENTICATION_FAILED, "the listener asks for the log-in of a node")
        self.note(context, path, error)
        return error

    def _refused(self, context: Any, path: str, user: str = "") -> TroveError:
        error = TroveError(errors.NOT_A_MEMBER, "the caller is not allowed here")
        self.note(context, path, error, user)
        return error


def _names_of(context: Any) -> frozenset[Node] | None:
    """The names that the caller of a call may have; None: any."""
    if not came_by_tls(context):
        return None if peer_of_call(context).is_private else frozenset()
    named = (context.auth_context() or {}).get("x509_subject_alternative_name", ())
    return frozenset(bytes(one).decode("utf-8", "replace") for one in named)


async def _requests(
    requests: AsyncIterator[bytes], check: Callable[[bytes], bytes], read: Callable[[bytes], Any]
) -> AsyncIterator[Any]:
    async for data in requests:
        yield read(check(data))


class ReplicaConnections:
    """Counts the connections of a replication listener (ConnectionCount), before any credentials. One
    address cannot take the places of the others."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.count = 0

    def opened(self, peer: str) -> bool:
        source = peer.rpartition(":")[0]
        if self.count >= CONNECTIONS_MAX or self._of.get(source, 0) >= SOURCE_CONNECTIONS_MAX:
            return False
        self._of[source] = self._of.get(source, 0) + 1
        self.count += 1
        return True

    def closed(self, peer: str) -> None:
        source = peer.rpartition(":")[0]
        self._of[source] -= 1
        self.count -= 1
        if not self._of[source]:
            del self._of[source]
