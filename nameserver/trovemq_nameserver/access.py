"""Access to a nameserver with authentication: for the brokers and clients of its `users_file`, by sessions
and signed calls as at a broker (daemon/trovemq_daemon/sessions.py).

| call                   | for                                                    |
|------------------------|--------------------------------------------------------|
| health, `Authenticate` | every caller                                           |
| routes, reflection     | every user of the file                                 |
| `Register`             | brokers, each under its own name                       |
| `Forget`               | administrators; brokers, each under its own name       |
| everything else        | none of them                                           |

Invariants
- No handler begins before its call is admitted; each message of a stream is admitted before the handler gets
  it. Only a large heartbeat's broker is checked later, when it is read, and before it is registered.
- A session ends when its secret is no longer valid: an open stream at its next message or reply.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.file_watch import FileWatch
from trovemq_daemon.grpc_services import method_handler
from trovemq_daemon.handler_guard import bounded_reader
from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import peer_of_call
from trovemq_daemon.refusals import Refusals
from trovemq_daemon.sessions import SESSION_TIME_MAX_MS, Sessions
from trovemq_daemon.users import User, UserKind
from trovemq_nameserver.heartbeats import LargeHeartbeat
from trovemq_nameserver.users import KnownUsers, read_users
from trovemq_proto import errors
from trovemq_proto.authentication.calls import METADATA_KEY, message_checker
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2, security_pb2

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_SECURITY: Final = security_pb2.DESCRIPTOR.services_by_name["SecurityService"]
_OPEN: Final = (f"/{_SECURITY.full_name}/Authenticate", "/grpc.health.v1.Health/")
_FOR_EVERY_USER: Final = ("/trovemq.v1.RouteService/", "/grpc.reflection.")
_KEY_SIZE: Final = 32


class NameserverAccess:
    """The users of the file, their sessions, and the check before each handler. For use on the event loop."""

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        self._path = path
        self.clock_ms = clock_ms
        self._salt_key = secrets.token_bytes(_KEY_SIZE)
        self._users = KnownUsers()
        self._files = FileWatch([path])
        self.sessions: Final = Sessions(self, self._salt_key, secrets.token_bytes)
        self.refusals: Final = Refusals()

    def user(self, access_key: str) -> User | None:
        return self._users.user(access_key)

    async def load(self) -> None:
        """Reads the file. After SettingsError, for a file that cannot be used, the users are unchanged."""
        self._users = await asyncio.to_thread(read_users, self._path, self._salt_key, self._users)
        get_logger().info("access.users_read", path=str(self._path), users=len(self._users))

    async def run(self, interval_ms: int) -> None:
        """Reads the file when it has changed, and forgets expired sessions, until it is cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            self.sessions.expire(self.clock_ms())
            self.refusals.log.flush(self.clock_ms())
            if await asyncio.to_thread(self._files.changed):
                try:
                    await self.load()
                except SettingsError as error:
                    get_logger().error("access.users_not_read", message=str(error), kept="the earlier users")

    # --- handshakes -----------------------------------------------------------------------------------
    def add_to(self, server: Any) -> None:
        """Adds the service of handshakes; a nameserver does not administer users."""
        handler = method_handler(_SECURITY.methods_by_name["Authenticate"], self._authenticate)
        server.add_registered_method_handlers(_SECURITY.full_name, {"Authenticate": handler})

    async def _authenticate(
        self, request: security_pb2.AuthenticateRequest, context: Context
    ) -> security_pb2.AuthenticateReply:
        now_ms = self.clock_ms()
        if request.message.startswith("n,,"):
            source = peer_of_call(context).source
            answer = self.sessions.begin(request.message, now_ms, source)
            return security_pb2.AuthenticateReply(message=answer)
        try:
            answer, session = self.sessions.finish(request.message, now_ms)
        except TroveError as error:
            self.refused(_OPEN[0], error, context, "")
            raise
        return security_pb2.AuthenticateReply(
            message=answer, session_id=session.key.session_id, session_time_ms=SESSION_TIME_MAX_MS
        )

    # --- calls ----------------------------------------------------------------------------------------
    def handler(self, path: str, handler: Handler) -> Handler:
        """Wraps a handler with the check; `trovemq_daemon.grpc_server` calls this for each method."""
        if path.startswith(_OPEN):
            return handler
        kind = "_".join(
            "stream" if streaming else "unary"
            for streaming in (handler.request_streaming, handler.response_streaming)
        )
        behaviour, read = getattr(handler, kind), bounded_reader(handler.request_deserializer)

        streams = handler.request_streaming

        async def coroutine(data: Any, context: Context) -> Any:
            call = _Call(self, path, context, read)
            return await behaviour(call.requests(data) if streams else call.admitted(data), context)

        async def generator(data: Any, context: Context) -> AsyncIterator[Any]:
            call = _Call(self, path, context, read)
            request = call.requests(data) if streams else call.admitted(data)
            async with aclosing(behaviour(request, context)) as replies:
                async for reply in replies:
                    call.check_session()
                    yield reply

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        guarded = generator if inspect.isasyncgenfunction(behaviour) else coroutine
        return make(guarded, bytes, handler.response_serializer)

    def broker_of(self, access_key: str) -> str | None:
        return self._users.broker_of(access_key)

    def is_administrator(self, access_key: str) -> bool:
        user = self.user(access_key)
        return user is not None and user.kind is UserKind.SUPER

    def refused(self, path: str, error: TroveError, context: Context, access_key: str) -> None:
        self.refusals.add(path, error, peer_of_call(context).source, access_key, self.clock_ms())


class _Call:
    """One call of a session. Raises TroveError AUTHENTICATION_FAILED for a call without one."""

    def __init__(self, access: NameserverAccess, path: str, context: Context, read: Any) -> None:
        self._access = access
        self._path = path
        self._context = context
        self._read = read
        self._access_key = ""
        try:
            signed_by = access.sessions.call(_credential(context), path, access.clock_ms())
        except TroveError as error:
            access.refused(path, error, context, "")
            raise
        self._session = signed_by.session
        self._access_key = signed_by.session.access_key
        self._is_signed = message_checker(signed_by.session.key, signed_by.number)

    def admitted(self, data: bytes) -> Any:
        """Checks and parses a message. Raises TroveError."""
        with self._counting_refusals():
            return self._admitted(data)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except TroveError as error:
            self._access.refused(self._path, error, self._context, self._access_key)
            raise

    def _admitted(self, data: bytes) -> Any:
        if not self._is_signed(data):
            raise TroveError(errors.AUTHENTICATION_FAILED, "a message is not signed by its session")
        self.check_session()
        message = self._read(data)
        if isinstance(message, TroveError):
            raise message
        if not self._path.startswith(_FOR_EVERY_USER):
            self._check_right(message)
        return message

    def _check_large(self, heartbeat: route_pb2.Heartbeat) -> None:
        """Checks the broker of a heartbeat that was read in steps."""
        with self._counting_refusals():
            self._check_broker(heartbeat)

    def check_session(self) -> None:
        """Raises TroveError if the session's secret is no longer valid."""
        self._access.sessions.user_of(self._session)

    def _check_right(self, message: object) -> None:
        """Raises TroveError ACCESS_DENIED unless this user may send the message."""
        if isinstance(message, route_pb2.Heartbeat):
            self._check_broker(message)
        elif isinstance(message, LargeHeartbeat):
            self._own_broker()
            message.check = self._check_large
        elif isinstance(message, route_pb2.ForgetRequest):
            self._check_forget(message.broker)
        else:
            raise TroveError(errors.ACCESS_DENIED, f"{self._access_key} may not call {self._path}")

    def _own_broker(self) -> str:
        """The name that the user registers. Raises TroveError ACCESS_DENIED if it is not a broker."""
        own = self._access.broker_of(self._access_key)
        if own is None:
            raise TroveError(errors.ACCESS_DENIED, f"{self._access_key} is not a broker of the users_file")
        return own

    def _check_broker(self, heartbeat: route_pb2.Heartbeat) -> None:
        own = self._own_broker()
        if heartbeat.HasField("broker") and heartbeat.broker.name != own:
            named = heartbeat.broker.name[:80]
            raise TroveError(
                errors.ACCESS_DENIED, f"{self._access_key} registers broker {own!a}, not {named!a}"
            )

    def _check_forget(self, broker: str) -> None:
        key = self._access_key
        if not self._access.is_administrator(key) and self._access.broker_of(key) != broker:
            text = f"{key} is neither an administrator of the users_file nor broker {broker[:80]!a}"
            raise TroveError(errors.ACCESS_DENIED, text)

    async def requests(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield self.admitted(data)


def _credential(context: Context) -> bytes:
    """The credential of a call. Raises TroveError AUTHENTICATION_FAILED if there is none, or more than
    one."""
    found = [value for key, value in context.invocation_metadata() or () if key == METADATA_KEY]
    if len(found) != 1:
        raise TroveError(errors.AUTHENTICATION_FAILED, "this nameserver asks for an access key and a secret")
    value = found[0]
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
