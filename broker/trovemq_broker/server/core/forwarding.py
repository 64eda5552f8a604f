"""Calls of RocketMQ's protocol that another broker handles, as the services need them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol

from trovemq_broker.server.wire.forwarded_messages import ForwardedClient


class ForwardedCall(NamedTuple):
    """`method`: of MessagingService, as in SendMessage. `remaining_s`: until the client's deadline, None if
    it has none. `by_tls`: the call came by TLS, and is forwarded in no other way."""

    client: ForwardedClient
    method: str
    request: bytes
    remaining_s: float | None
    by_tls: bool


class ForwardedStream(Protocol):
    """A telemetry stream at another broker."""

    async def write(self, command: bytes) -> None:
        """Raises TroveError BROKER_UNREACHABLE."""
        ...

    async def read(self) -> bytes | None:
        """The next command; None at the end. Raises TroveError."""
        ...

    def cancel(self) -> None: ...


class ForwardCalls(Protocol):
    """Forwards calls to other brokers, one hop: a broker that gets a forwarded call handles it itself."""

    @property
    def has_tls(self) -> bool:
        """Whether calls can be forwarded by TLS, to brokers that have it."""
        ...

    def forward(self, broker: str, call: ForwardedCall) -> AsyncGenerator[bytes, None]:
        """The replies. Raises TroveError BROKER_NOT_FOUND, BROKER_UNREACHABLE, REQUEST_TIMEOUT,
        LIMIT_EXCEEDED, AUTHENTICATION_FAILED, and those of the other broker's check of the caller."""
        ...

    async def open_telemetry(self, broker: str, client: ForwardedClient, *, by_tls: bool) -> ForwardedStream:
        """Raises the errors of a forwarded call."""
        ...


class NativeStream(Protocol):
    """A native call at another broker: its messages as bytes."""

    async def write(self, message: bytes) -> None:
        """Raises TroveError BROKER_UNREACHABLE."""
        ...

    async def end(self) -> None:
        """No more messages come from the client."""
        ...

    async def read(self) -> bytes | None:
        """The next reply; None at the end. Raises TroveError, with UNREAD if nothing was done."""
        ...

    def cancel(self) -> None: ...


class NativeCalls(Protocol):
    """Opens native calls at another broker, or at the leader of a replica group."""

    async def open_native(
        self, broker: str, path: str, client: ForwardedClient, remaining_s: float | None, *, by_tls: bool
    ) -> NativeStream:
        """Raises the errors of a forwarded call."""
        ...


class BrokerCalls(ForwardCalls, NativeCalls, Protocol):
    """Forwards the calls of both protocols."""
