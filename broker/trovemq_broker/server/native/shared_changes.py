"""The calls that change topics, groups, users, rules and quotas, where the cluster's configuration has an
owner.

| this broker                      | a method with `@shared_change`                                          |
|----------------------------------|-------------------------------------------------------------------------|
| has its own configuration        | is called                                                               |
| owns the cluster's configuration | is called; it changes the table                                         |
| follows the owner                | is not called: the call is forwarded, the owner's reply is the reply    |

A follower has checked the caller's rights when it forwards a call, by its rules, which may be older than the
owner's: the owner checks them again, makes the change in the name of that caller, and audits it. A call is
forwarded once: where it arrives at a broker that is not the owner, it is refused with CONFIG_OWNER_MOVED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Final, Protocol, TypeVar

from trovemq_broker.cluster_config.shared import NOT_SHARED, SharedConfig
from trovemq_broker.security.creators import present_creator, reset_creator, set_creator
from trovemq_broker.server.access.audit import outcome_of, outcome_of_error
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.access.forwarded_callers import forwarded_creator
from trovemq_broker.server.access.needs import ROWS
from trovemq_broker.server.wire import methods
from trovemq_broker.server.wire.forwarded_calls import CallAsBytes, calls_of, read_forwarded, to_bytes
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.peers import peer_of_call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

EARLIER_S: Final = 0.2
"""Margin before the client's deadline at which a forwarded call ends, with an error that names the owner."""
_IN_DOUBT: Final = "the change may or may not have been made"


class ChangingService(Protocol):
    """A service with such methods."""

    shared: SharedChanges

    def forwarded_as(self, name: str, request: Request, context: Context) -> str:
        """The method as which a follower forwards a call of the method `name`; empty for a call that is about
        this broker alone, and is made here. Raises the TroveErrors of checks that are made here."""
        ...


Service = TypeVar("Service", bound=ChangingService)
Method = Callable[[Service, Request, Context], Awaitable[Reply]]


def shared_change(method: Method[Service]) -> Method[Service]:
    """Marks a method as in the table above. It is called with the context None for a forwarded call."""

    @wraps(method)
    async def call(service: Service, request: Request, context: Context) -> Reply:
        config, name = service.shared.config, method.__name__
        if config.is_shared and not config.is_owner:
            forwarded = service.forwarded_as(name, request, context)
            if forwarded:
                return await service.shared.forward(forwarded, request, context)
        return await method(service, request, context)

    call.is_shared_change = True  # type: ignore[attr-defined]
    return call


class SharedChanges:
    """The methods of all services that change the configuration. `broker`: the name of this one; `security`:
    None without authentication."""

    def __init__(
        self,
        config: SharedConfig = NOT_SHARED,
        broker: str = "",
        security: BrokerSecurity | None = None,
    ) -> None:
        self.config: Final = config
        self._broker = broker
        self._security = security
        self._by_name: dict[str, CallAsBytes] = {}
        self._by_path: dict[str, tuple[CallAsBytes, Callable[[Request, Any], Awaitable[Reply]]]] = {}

    def add(self, descriptor: methods.Service, service: ChangingService) -> None:
        """Adds the service's methods that are marked."""
        for call in calls_of(descriptor):
            method = getattr(type(service), call.name)
            if hasattr(method, "is_shared_change"):
                self._by_name[call.name] = call
                self._by_path[call.path] = call, partial(method.__wrapped__, service)

    @property
    def paths(self) -> list[str]:
        """The methods that handle() takes."""
        return sorted(self._by_path)

    async def forward(self, name: str, request: Request, context: Context) -> Reply:
        """The owner's reply to the call. Raises the errors of SharedConfig.forward."""
        call, remaining_s = self._by_name[name], context.time_remaining()
        try:
            async with asyncio.timeout(None if remaining_s is None else max(remaining_s - EARLIER_S, 0)):
                data = await self.config.forward(
                    call.path,
                    to_bytes(request),
                    caller=present_creator().name,
                    source=f"{peer_of_call(context).source} through {self._broker}".lstrip(),
                )
        except TimeoutError:
            owner = self.config.table.head.owner
            what = (
                f"owner {owner} of the cluster's configuration did not answer in time; the change may or may"
            )
            raise TroveError(
                errors.CONFIG_OWNER_UNREACHABLE, f"{what} not have been made", owner=owner, in_doubt="true"
            ) from None
        return call.read_reply(data)

    async def handle(self, method: str, request: bytes, caller: str, source: str) -> bytes:
        """On the owner: makes the change of a call that another broker has forwarded, and returns the reply.

        Args:
            method: As in `/trovemq.v1.AdminService/CreateTopic`.
            request: Its request.
            caller: The access key of the client's user; empty if that broker does not authenticate callers.
            source: The client's address, and the broker that has forwarded it, for the audit.

        Raises:
            TroveError: CONFIG_OWNER_MOVED, REQUEST_ILLEGAL, ACCESS_DENIED, and those of the method.
        """
        known = self._by_path.get(method)
        if known is None:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{method[:120]!a} is not a call that is forwarded")
        if not (self.config.is_shared and self.config.is_owner):
            text = "this broker does not own the cluster's configuration"
            raise TroveError(errors.CONFIG_OWNER_MOVED, text)
        call, make = known
        message = read_forwarded(call, request)
        creator = forwarded_creator(self._security, caller)
        if self._security is not None:
            address = f" {source}".partition(" through ")[0].strip()
            self._security.admit(caller, address, ROWS[call.path], message, call.path)
        token = set_creator(creator)
        try:
            return to_bytes(await self._audited(call.path, message, caller, source, make))
        finally:
            reset_creator(token)

    async def _audited(
        self,
        path: str,
        message: Request,
        caller: str,
        source: str,
        make: Callable[[Request, Any], Awaitable[Reply]],
    ) -> Reply:
        if self._security is None:
            return await make(message, None)
        audit, row = self._security.audit, ROWS[path]
        begun = await audit.begin(row, path, caller, source, message)
        outcome = errors.UNKNOWN_ERROR.symbol
        try:
            reply = await make(message, None)
            outcome = outcome_of(reply)
        except BaseException as error:
            outcome = outcome_of_error(error)
            raise
        finally:
            audit.called(row, path, caller, source, message, outcome, begun)
        return reply
