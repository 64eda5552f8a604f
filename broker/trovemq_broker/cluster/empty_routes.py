"""RouteService of a node that does not lead: it has no route, because messages go to the leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc.aio import Server

from trovemq_broker.cluster.self_route import SERVICE
from trovemq_broker.cluster.view import GroupLeader, group_leader
from trovemq_daemon.grpc_services import add_service
from trovemq_proto.v1 import route_pb2


class EmptyRoutes:
    """Clients that are given this node's address connect, and ask it for the leader. `node`: its name;
    `leader`: the node that leads, None where that is not known. `stopping` ends the streams."""

    def __init__(
        self,
        name: str,
        version: str,
        stopping: asyncio.Event,
        node: str = "",
        leader: Callable[[], GroupLeader | None] = lambda: None,
    ) -> None:
        self._info = route_pb2.ServerInfo(role=route_pb2.BROKER, version=version, name=name, node=node)
        self._stopping = stopping
        self._leader = leader

    def add_to(self, server: Server) -> None:
        add_service(server, SERVICE, self)

    async def get_server_info(self, _request: Any, _context: Any) -> route_pb2.ServerInfo:
        leader = self._leader()
        if leader is None:
            return self._info
        info = route_pb2.ServerInfo(leader=group_leader(leader))
        info.MergeFrom(self._info)
        return info

    async def get_route(self, _request: Any, _context: Any) -> route_pb2.RouteReply:
        return route_pb2.RouteReply()

    async def get_cluster(self, _request: Any, _context: Any) -> route_pb2.ClusterReply:
        return route_pb2.ClusterReply()

    async def watch_routes(self, _request: Any, _context: Any) -> AsyncIterator[route_pb2.ClusterReply]:
        yield route_pb2.ClusterReply()
        await self._stopping.wait()
