"""A channel whose calls are signed, in a session that a handshake opens before the first call.

The handshake is SCRAM-SHA-256; `trovemq_proto.authentication.calls` lists the signed bytes. A server without
authentication is called without signatures.

A session ends with its time, with its secret, or with the server. A unary call that is refused for that
reason is repeated once with a new session. A stream fails as if its server could not be reached, so that its
owner opens it again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.authentication.calls import METADATA_KEY, SigningKey, message_signer
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.authentication.handshake import AUTHENTICATE, NONCE_BYTES, log_in
from trovemq_proto.authentication.scram import ScramError
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import security_pb2

from .failures import error_of_call, unreachable

_RENEWED_AFTER: Final = 0.8  # part of a session's time

Failures = tuple[type[BaseException], ...]


@dataclass(slots=True)
class _Session:
    """`key` None: the server has no authentication. `until`: in the loop's time."""

    key: SigningKey | None
    until: float
    calls: int = 0


class SignedChannel:
    """A channel's calls, signed; `channel` has grpc.aio's interface.

    Args:
        channel: The channel to the server.
        address: The server's address, for errors.
        credentials: The credentials of the calls.
        failures: The exceptions that the channel's calls raise.
        timeout_ms: The time limit for each step of the handshake.
    """

    def __init__(
        self, channel: Any, address: str, credentials: Credentials, failures: Failures, timeout_ms: int
    ) -> None:
        self.address = address
        self.failures = failures
        self._channel = channel
        self._credentials = credentials
        self._timeout = timeout_ms / 1000
        self._ask = channel.unary_unary(
            AUTHENTICATE, response_deserializer=security_pb2.AuthenticateReply.FromString
        )
        self._session: asyncio.Future[_Session] | None = None

    async def close(self) -> None:
        """Ends every call and closes the channel."""
        if self._session is not None:
            self._session.cancel()
        await self._channel.close()

    # --- as of a channel ------------------------------------------------------------------------------
    def unary_unary(self, path: str, response_deserializer: Any = None) -> Any:
        made = self._channel.unary_unary(path, response_deserializer=response_deserializer)
        return lambda request, timeout=None, metadata=(): UnaryCall(
            self, path, metadata, lambda data, signed: made(data, timeout=timeout, metadata=signed), request
        )

    def unary_stream(self, path: str, response_deserializer: Any = None) -> Any:
        made = self._channel.unary_stream(path, response_deserializer=response_deserializer)
        return lambda request, timeout=None, metadata=(): StreamCall(
            self,
            path,
            metadata,
            lambda sign, signed: made(sign(request), timeout=timeout, metadata=signed),
        )

    def stream_unary(self, path: str, response_deserializer: Any = None) -> Any:
        made = self._channel.stream_unary(path, response_deserializer=response_deserializer)
        return lambda requests, timeout=None, metadata=(): StreamCall(
            self,
            path,
            metadata,
            lambda sign, signed: made(_signed(requests, sign), timeout=timeout, metadata=signed),
        )

    def stream_stream(self, path: str, response_deserializer: Any = None) -> Any:
        made = self._channel.stream_stream(path, response_deserializer=response_deserializer)
        return lambda timeout=None, metadata=(): StreamCall(
            self, path, metadata, lambda _sign, signed: made(timeout=timeout, metadata=signed)
        )

    # --- sessions -------------------------------------------------------------------------------------
    async def sign_call(self, path: str) -> tuple[tuple[tuple[str, bytes], ...], Callable[[bytes], bytes]]:
        """Metadata for one call, and the function that signs its messages. Raises TroveError."""
        session = await self._current()
        if session.key is None:
            return (), _unsigned
        number, session.calls = session.calls, session.calls + 1
        credential = session.key.credential(number, path)
        return ((METADATA_KEY, credential),), message_signer(session.key, number)

    def forget_session(self) -> None:
        """The server has refused the session: the next call opens another one."""
        if self._session is not None and self._session.done():
            self._session = None

    async def _current(self) -> _Session:
        """The session, made by the first call. Raises TroveError."""
        loop, known = asyncio.get_running_loop(), self._session
        if known is not None and known.done():
            failed = known.cancelled() or known.exception() is not None
            if failed or loop.time() > known.result().until:
                known = None
        if known is None:
            known = self._session = asyncio.ensure_future(self._make())
        return await asyncio.shield(known)

    async def _make(self) -> _Session:
        loop = asyncio.get_running_loop()
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        try:
            key, time_ms = await log_in(self._credentials, nonce, self._step)
        except ScramError as error:
            raise TroveError(errors.AUTHENTICATION_FAILED, f"{self.address}: {error}") from None
        except TroveError as error:
            if (
                error.spec is errors.AUTHENTICATION_DISABLED
                or error.fields.get("grpc_status") == "UNIMPLEMENTED"
            ):
                return _Session(None, float("inf"))
            raise
        return _Session(key, loop.time() + time_ms / 1000 * _RENEWED_AFTER)

    async def _step(self, request: security_pb2.AuthenticateRequest) -> security_pb2.AuthenticateReply:
        asked = self._ask(request.SerializeToString(), timeout=self._timeout)
        try:
            reply: security_pb2.AuthenticateReply = await asked
        except self.failures as failure:
            raise await error_of_call(asked, failure, self.address) from failure
        return reply


class UnaryCall:
    """A unary call that is signed when it is awaited."""

    def __init__(
        self,
        channel: SignedChannel,
        path: str,
        metadata: Any,
        make: Callable[[bytes, Any], Any],
        request: bytes,
    ) -> None:
        self._channel = channel
        self._path = path
        self._metadata = tuple(metadata)
        self._make = make
        self._request = request

    def __await__(self) -> Generator[Any, None, Any]:
        return self._once(last=False).__await__()

    async def _once(self, *, last: bool) -> Any:
        signed, sign = await self._channel.sign_call(self._path)
        asked = self._make(sign(self._request), (*self._metadata, *signed))
        try:
            return await asked
        except self._channel.failures as failure:
            error = await error_of_call(asked, failure, self._channel.address)
            if last or error.spec is not errors.AUTHENTICATION_FAILED:
                raise error from failure
        self._channel.forget_session()
        return await self._once(last=True)


class StreamCall:
    """A call with a stream, opened when it is first used. Raises TroveError."""

    def __init__(
        self,
        channel: SignedChannel,
        path: str,
        metadata: Any,
        make: Callable[[Callable[[bytes], bytes], Any], Any],
    ) -> None:
        self._channel = channel
        self._path = path
        self._metadata = tuple(metadata)
        self._make = make
        self._sign: Callable[[bytes], bytes] = _unsigned
        self._call: Any = None
        self._opening: asyncio.Future[Any] | None = None
        self._receiver: Callable[[Any], bool] | None = None
        self._cancelled = False

    async def _opened(self) -> Any:
        if self._call is not None:
            return self._call
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Any:
        signed, self._sign = await self._channel.sign_call(self._path)
        if self._cancelled:
            raise unreachable(self._channel.address, "the call was given up")
        self._call = self._make(self._sign, (*self._metadata, *signed))
        self._pass_receiver()
        return self._call

    def set_receiver(self, receiver: Callable[[Any], bool]) -> None:
        """As the transport's own, where it has one: else `read` returns all replies."""
        self._receiver = receiver
        if self._call is not None:
            self._pass_receiver()

    def _pass_receiver(self) -> None:
        receiver = self._receiver
        if receiver is not None and hasattr(self._call, "set_receiver"):
            self._call.set_receiver(receiver)

    async def _through(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        call = await self._opened()
        try:
            return await use(call)
        except self._channel.failures as failure:
            raise self._broken(await error_of_call(call, failure, self._channel.address)) from failure

    def _broken(self, error: TroveError) -> TroveError:
        if error.spec is not errors.AUTHENTICATION_FAILED:
            return error
        self._channel.forget_session()
        return unreachable(self._channel.address, "the session is over; the next call makes another one")

    async def read(self) -> Any:
        return await self._through(lambda call: call.read())

    async def write(self, message: bytes) -> None:
        call = self._call or await self._opened()
        try:
            await call.write(self._sign(message))
        except self._channel.failures as failure:
            raise self._broken(await error_of_call(call, failure, self._channel.address)) from failure

    @property
    def writable(self) -> bool:
        """Whether the call is open, uses our own transport, and `write` would not wait."""
        return getattr(self._call, "writable", False)

    def write_now(self, message: bytes, *, alone: bool) -> None:
        """Signs a message and writes it at once, from a callback. `alone`: no other waits for its answer."""
        self._call.write_now(self._sign(message), alone=alone)

    async def done_writing(self) -> None:
        await self._through(lambda call: call.done_writing())

    def __await__(self) -> Generator[Any, None, Any]:
        async def answer(call: Any) -> Any:
            return await call

        return self._through(answer).__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        call = await self._opened()
        replies = aiter(call)
        while True:
            try:
                reply = await anext(replies)
            except StopAsyncIteration:
                return
            except self._channel.failures as failure:
                raise self._broken(await error_of_call(call, failure, self._channel.address)) from failure
            yield reply

    def cancel(self) -> None:
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()


def _unsigned(message: bytes) -> bytes:
    return message


async def _signed(requests: AsyncIterator[bytes], sign: Callable[[bytes], bytes]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield sign(request)
