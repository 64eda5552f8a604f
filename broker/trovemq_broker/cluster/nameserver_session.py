"""How a broker calls nameservers and other brokers: the log-in, the pause before the next attempt, the errors
of a call.

One without authentication accepts unsigned messages: a nameserver answers UNIMPLEMENTED to the log-in, a
broker AUTHENTICATION_DISABLED. A nameserver is called all the same, with a warning: this broker would not be
in the routes otherwise while log-ins are switched on. Another broker is refused by one that checks its own
callers: it would get the messages and the names of their users without a proof that it is a member.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from trovemq_daemon.handler_guard import ERROR_METADATA_KEY
from trovemq_proto import errors
from trovemq_proto.authentication.calls import METADATA_KEY, SigningKey, message_signer
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.authentication.handshake import AUTHENTICATE, NONCE_BYTES, log_in
from trovemq_proto.authentication.scram import ScramError
from trovemq_proto.channels import Channel
from trovemq_proto.errors import TroveError, from_wire
from trovemq_proto.v1 import common_pb2, security_pb2

DOUBLINGS_MAX: Final = 20
NOT_CHECKED: Final = (
    "it checks no log-ins, and this broker does: set authentication_enable there, or correct the address"
)

ReadCredentials = Callable[[], Credentials]
"""Reads the file again, so that the next stream uses a changed secret. Blocks. Raises SettingsError."""
Sign = Callable[[bytes], bytes]
Metadata = tuple[tuple[str, bytes], ...]
Jitter = Callable[[], float]
"""Returns a number of [0, 1): spreads the calls of brokers that lost the same nameserver (random.random in
the daemon)."""


class BackOff(Protocol):
    """The bounds of the pause between two attempts."""

    @property
    def registration_retry_min_ms(self) -> int: ...

    @property
    def registration_retry_max_ms(self) -> int: ...


def back_off_s(attempt: int, settings: BackOff, jitter: float) -> float:
    """Seconds to wait after failure 1, 2, …: a random part, at least half, of a time that doubles between the
    two bounds."""
    doubled_ms = settings.registration_retry_min_ms << min(attempt - 1, DOUBLINGS_MAX)
    return min(settings.registration_retry_max_ms, doubled_ms) * (0.5 + 0.5 * jitter) / 1000


class Attempts:
    """The pauses between the attempts of one connection."""

    def __init__(self, settings: BackOff, jitter: Jitter) -> None:
        self._settings = settings
        self._jitter = jitter
        self._failed = 0

    def pause_s(self, *, lasted: bool) -> float:
        """Seconds to wait after an attempt has ended. `lasted`: it had worked, so the pause is the first."""
        self._failed = 1 if lasted else self._failed + 1
        return back_off_s(self._failed, self._settings, self._jitter())


class Session:
    """A log-in. `key`: None if the other side accepts unsigned messages."""

    def __init__(self, key: SigningKey | None) -> None:
        self._key = key
        self._calls = 0

    @property
    def is_signed(self) -> bool:
        return self._key is not None

    def call(self, method: str) -> tuple[Metadata, Sign]:
        """The metadata of the next call, and the function that signs its messages."""
        if self._key is None:
            return (), _unsigned
        number, self._calls = self._calls, self._calls + 1
        return ((METADATA_KEY, self._key.credential(number, method)),), message_signer(self._key, number)


async def open_session(
    channel: Channel,
    read_credentials: ReadCredentials | None,
    timeout_s: float,
    *,
    must_check: bool = False,
) -> Session:
    """`must_check`: with credentials, the other side has to check the log-in. Raises AioRpcError, ScramError,
    SettingsError."""
    if read_credentials is None:
        return Session(None)
    credentials = await asyncio.to_thread(read_credentials)
    ask = channel.unary_unary(
        AUTHENTICATE,
        request_serializer=security_pb2.AuthenticateRequest.SerializeToString,
        response_deserializer=security_pb2.AuthenticateReply.FromString,
    )
    try:
        key, _ = await log_in(
            credentials,
            secrets.token_urlsafe(NONCE_BYTES),
            lambda request: ask(request, timeout=timeout_s),
        )
    except grpc.aio.AioRpcError as error:
        described = error_in(error.trailing_metadata())
        disabled = described is not None and described.spec is errors.AUTHENTICATION_DISABLED
        if disabled or error.code().name == "UNIMPLEMENTED":
            if must_check:
                raise ScramError(NOT_CHECKED) from None
            return Session(None)
        raise
    return Session(key)


async def log_in_for(
    channel: Channel, method: str, read_credentials: ReadCredentials | None, timeout_s: float
) -> tuple[Metadata, Sign]:
    """The metadata of a call of `method`, and the function that signs its messages.

    Raises AioRpcError, ScramError, SettingsError.
    """
    return (await open_session(channel, read_credentials, timeout_s)).call(method)


def error_in(trailer: Any) -> TroveError | None:
    """The TroveMQ error in a call's trailing metadata; None if there is none, or if it is not readable."""
    for key, value in trailer or ():
        if key == ERROR_METADATA_KEY:
            try:
                error = common_pb2.Error.FromString(value)
                return from_wire(error.symbol, error.message, dict(error.fields))
            except (DecodeError, TypeError):  # TypeError: a field has the name of an argument
                return None
    return None


def _unsigned(message: bytes) -> bytes:
    return message
