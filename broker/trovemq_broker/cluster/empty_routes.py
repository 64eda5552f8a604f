"""RouteService of a node that does not lead: it has no route, because messages go to the leader; or one to
itself, while it is read from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

from grpc.aio import Server

from trovemq_broker.cluster.self_route import SERVICE, SelfRouteService
from trovemq_broker.cluster.view import GroupLeader, group_leader
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import route_pb2

LOOK_S: Final = 2.0
"""Interval at which an open stream checks whether another node leads."""


class EmptyRoutes:
    """Clients that are given this node's address connect, and ask it for the leader. `node`: its name;
    `leader`: the node that leads, None where that is not known; `refusal`: NOT_LEADER, which names it.
    `stopping` ends the streams."""

    def __init__(
        self,
        name: str,
        version: str,
        stopping: asyncio.Event,
        node: str = "",
        leader: Callable[[], GroupLeader | None] = lambda: None,
        *,
        clock_ms: Callable[[], EpochMs],
        refusal: Callable[[], TroveError],
    ) -> None:
        self._info = route_pb2.ServerInfo(role=route_pb2.BROKER, version=version, name=name, node=node)
        self._leader = leader
        self._clock_ms = clock_ms
        self._refusal = refusal
        self._stopping = stopping
        self._own: SelfRouteService | None = None

    @property
    def own(self) -> SelfRouteService | None:
        """The routes to this node alone, while it is read from."""
        return self._own

    @own.setter
    def own(self, routes: SelfRouteService | None) -> None:
        """The streams of the ones before end: clients ask again."""
        if self._own is not None:
            self._own.close()
        self._own = routes

    def add_to(self, server: Server) -> None:
        add_service(server, SERVICE, self)

    async def get_server_info(self, _request: Any, _context: Any) -> route_pb2.ServerInfo:
        leader = self._leader()
        group = None if leader is None else group_leader(leader)
        info = route_pb2.ServerInfo(now=self._clock_ms(), leader=group)
        info.MergeFrom(self._info)
        return info

    async def get_route(self, request: Any, context: Any) -> route_pb2.RouteReply:
        if self._own is not None:
            return await self._own.get_route(request, context)
        return route_pb2.RouteReply()

    async def get_cluster(self, request: Any, context: Any) -> route_pb2.ClusterReply:
        if self._own is not None:
            return await self._own.get_cluster(request, context)
        return self._empty()

    async def watch_routes(self, request: Any, context: Any) -> AsyncIterator[route_pb2.ClusterReply]:
        """While there are none: the refusal, and another one once another node leads."""
        if self._own is not None:
            async with aclosing(self._own.watch_routes(request, context)) as own:
                async for reply in own:
                    yield reply
            return
        sent = None
        while not self._stopping.is_set() and self._own is None:
            if (empty := self._empty()) != sent:
                sent = empty
                yield empty
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
        if not self._stopping.is_set():
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this replica serves reads now: ask again")

    def _empty(self) -> route_pb2.ClusterReply:
        return route_pb2.ClusterReply(refusal=error_to_wire(self._refusal()))
