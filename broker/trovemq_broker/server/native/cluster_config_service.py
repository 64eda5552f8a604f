"""ClusterConfigService: the cluster's configuration between its brokers, and for operators.

A part of the table with secrets of users is sent only over TLS or on loopback.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

import grpc

from trovemq_broker.cluster_config.entries import Generation, Position
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.status import NodeStatus, PromiseAsked, TakenOver
from trovemq_broker.cluster_config.take_over import CopyStatus
from trovemq_broker.server.wire import config_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.peers import peer_of_call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Handle: TypeAlias = Callable[[str, bytes, str, str], Awaitable[bytes]]
"""Runs the handler of a client's call on this broker: method, request, access key of the client's user
(empty: none) and its address. Returns the bytes of the reply; raises TroveError."""


class ConfigCalls(Protocol):
    """This broker's part in the cluster's configuration (`trovemq_broker.cluster.config_node` has it)."""

    def watch(self, hello: Hello, reports: AsyncIterator[Report]) -> AsyncGenerator[TablePart | None, None]:
        """The parts for a follower; None first, if it has everything. Raises TroveError."""
        ...

    def owner_position(self) -> Position:
        """Where the table is. TroveError CONFIG_OWNER_MOVED if this broker does not own it."""
        ...

    async def promise(self, asked: PromiseAsked) -> CopyStatus:
        """TroveError CONFIG_OTHER_CLUSTER, CONFIG_GENERATION_OLD, DISK_FULL, STORE_FAILED."""
        ...

    def copy(self, generation: Generation) -> AsyncGenerator[TablePart, None]:
        """All entries, for the take-over of that generation. TroveError CONFIG_GENERATION_OLD."""
        ...

    def status(self) -> NodeStatus: ...

    async def take_over(self, cluster: str, source: str) -> TakenOver:
        """TroveError of cluster_config.take_over, and JOB_RUNNING."""
        ...

    async def remove_member(self, broker: str) -> Collection[str] | None:
        """On the owner: the brokers that do not know of it yet; None: it was no member. TroveError
        CONFIG_OWNER_MOVED, CONFIG_OWNER_STAYS, and those of SharedConfig.change."""
        ...

    async def clear_dropped(self) -> int:
        """How many dropped changes were listed. TroveError DISK_FULL, STORE_FAILED."""
        ...


class ClusterConfigService:
    """The methods of cluster_config.proto. Every refusal is a TroveError."""

    def __init__(self, node: ConfigCalls, handle: Handle) -> None:
        self._node = node
        self._handle = handle

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def watch_config(
        self, requests: AsyncIterator[Request], context: Context
    ) -> AsyncGenerator[Reply, None]:
        private = peer_of_call(context).is_private
        try:
            hello = wire.first_of(await requests.__anext__())
        except StopAsyncIteration:
            raise TroveError(errors.REQUEST_ILLEGAL, "a stream begins with a hello") from None
        reports = _Reports(requests)
        async with aclosing(self._node.watch(hello, reports)) as parts:
            async for part in parts:
                yield _sent(part, private)

    async def forward_change(self, request: Request, _context: Context) -> Reply:
        call = wire.forwarded(request)
        self._node.owner_position()
        reply = await self._handle(call.method, call.request, call.caller, call.source)
        return wire.forwarded_reply(reply, self._node.owner_position())

    async def promise_generation(self, request: Request, _context: Context) -> Reply:
        return wire.copy_reply(await self._node.promise(wire.promise_of(request)))

    async def fetch_config(self, request: Request, context: Context) -> AsyncGenerator[Reply, None]:
        private = peer_of_call(context).is_private
        async with aclosing(self._node.copy(wire.fetched_generation(request))) as parts:
            async for part in parts:
                yield _sent(part, private)

    async def get_config_status(self, _request: Request, _context: Context) -> Reply:
        return wire.status_reply(self._node.status())

    async def take_over_config(self, request: Request, _context: Context) -> Reply:
        return wire.taken_over_reply(await self._node.take_over(*wire.take_over_of(request)))

    async def remove_member(self, request: Request, _context: Context) -> Reply:
        return wire.removed_reply(await self._node.remove_member(wire.removed_member(request)))

    async def clear_dropped(self, _request: Request, _context: Context) -> Reply:
        return wire.cleared_reply(await self._node.clear_dropped())


class _Reports:
    """The reports that follow the hello of a stream."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> _Reports:
        return self

    async def __anext__(self) -> Report:
        return wire.report_of(await self._requests.__anext__())


def _sent(part: TablePart | None, private: bool) -> bytes:
    """TroveError REQUEST_ILLEGAL if others could read a secret on the network."""
    if part is not None and not private and any(entry.secrets for entry in part.entries):
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            "secrets of users are sent over TLS only, or on loopback: set tls_listen on the owner, and "
            "nameserver_tls on the broker that follows",
        )
    return wire.part_reply(part)
