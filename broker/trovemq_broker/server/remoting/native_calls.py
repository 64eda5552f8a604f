"""Makes calls of TroveMQ's services for the requests of RocketMQ's tools (wire/tool_calls.py).

So a topic that `mqadmin` creates is created by the same function as one of `trovemq topic create`: with the
same rights, audit and limits, and in the cluster's configuration where that has an owner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Protocol, TypeAlias

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.wire.methods import Service
from trovemq_broker.server.wire.native_calls import Reply
from trovemq_broker.server.wire.shown_replies import MaySee
from trovemq_broker.server.wire.tool_calls import NativeCall, methods_of
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import RETRY_PREFIX

TLS_SECURITY: Final[Mapping[str, tuple[bytes, ...]]] = {"transport_security_type": (b"ssl",)}
NAMES_STEP: Final = 256
Method: TypeAlias = Callable[[Any, Any], Awaitable[Reply]]


class Admission(Protocol):
    """The check of access for calls that a request stands for (gate.py)."""

    def admitted(self, request: Request, call: NativeCall) -> AbstractAsyncContextManager[None]:
        """The block makes the call: its caller may make it, and it is audited. TroveError."""
        ...

    def query(self, request: Request) -> AbstractAsyncContextManager[None]:
        """The block is a query, whose time counts for the quotas of the request's user. TroveError."""
        ...

    def may_see(self, request: Request) -> MaySee | None:
        """A test whether the caller may know that a resource exists; None: it may know all."""
        ...

    def has_secret(self, name: str, secret: str) -> bool:
        """Whether a user has this secret now, for a caller who may create the user."""
        ...


class OpenAdmission:
    """Of a broker that does not authenticate its callers."""

    @asynccontextmanager
    async def admitted(self, _request: Request, _call: NativeCall) -> AsyncIterator[None]:
        yield

    def query(self, _request: Request) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def may_see(self, _request: Request) -> MaySee | None:
        return None

    def has_secret(self, _name: str, _secret: str) -> bool:
        return False


class CallContext:
    """The connection of a remoting client, as the handlers of TroveMQ's services ask for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def peer(self) -> str:
        return self._connection.peer

    def auth_context(self) -> Mapping[str, tuple[bytes, ...]]:
        return TLS_SECURITY if self._connection.is_secure else {}

    def time_remaining(self) -> float | None:
        """Unknown: requests of remoting name no deadline."""
        return None


class NativeCalls:
    """`admission`: set by the daemon, where callers are authenticated."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}
        self.admission: Admission = OpenAdmission()

    def add(self, descriptor: Service, service: object) -> None:
        """A service whose calls are made."""
        for path, name in methods_of(descriptor):
            self._methods[path] = getattr(service, name)

    async def make(self, request: Request, call: NativeCall) -> Reply:
        """The call's reply. Raises its TroveErrors, and those of the check of access."""
        async with self.admission.admitted(request, call):
            return await self._methods[call.path](call.message, CallContext(request.connection))

    def admitted(self, request: Request, call: NativeCall) -> AbstractAsyncContextManager[None]:
        """The block makes the call's change or look-up, and answers in RocketMQ's form. TroveError."""
        return self.admission.admitted(request, call)

    def query(self, request: Request) -> AbstractAsyncContextManager[None]:
        """The block is a query that no call of a service stands for. TroveError LIMIT_EXCEEDED."""
        return self.admission.query(request)

    def seen(self, request: Request, kind: Kind, names: Iterable[str]) -> list[str]:
        """The names that the caller may know. A retry topic belongs to its group."""
        may_see = self.admission.may_see(request)
        if may_see is None:
            return list(names)
        return [name for name in names if may_see(*_resource(kind, name))]

    def seen_steps(self, request: Request, kind: Kind, names: Sequence[str]) -> Steps[list[str]]:
        """The names of many that the caller may know, in their order. TroveError AUTHENTICATION_FAILED."""
        found: list[str] = []
        for some in range(0, len(names), NAMES_STEP):
            found += self.seen(request, kind, names[some : some + NAMES_STEP])
            yield
        return found


def _resource(kind: Kind, name: str) -> tuple[Kind, str]:
    if kind is Kind.TOPIC and name.startswith(RETRY_PREFIX):
        return Kind.GROUP, name.removeprefix(RETRY_PREFIX)
    return kind, name
