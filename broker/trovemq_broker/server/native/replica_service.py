"""ReplicaService: a node of a replica group, for operators."""

from __future__ import annotations

from typing import Protocol

import grpc

from trovemq_broker.replication.frames import Node, Offset
from trovemq_broker.replication.status import CutFiles, CutPart, NodeStatus, Promoted, PromotionAsked
from trovemq_broker.server.wire import replica_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member


class ReplicaCalls(Protocol):
    """A node (`trovemq_broker.daemon.replica` has it)."""

    def status(self) -> NodeStatus: ...

    async def init_group(self) -> None:
        """TroveError REPLICA_STATE_ILLEGAL: it has a group already."""
        ...

    async def leave_group(self) -> None:
        """TroveError REPLICA_STATE_ILLEGAL: it is not the last node, or does not lead."""
        ...

    async def add_node(self, member: Member) -> None:
        """TroveError NOT_LEADER, REPLICA_STATE_ILLEGAL, NOT_ENOUGH_REPLICAS."""
        ...

    async def remove_node(self, node: Node) -> None:
        """TroveError NOT_LEADER, NOT_A_MEMBER, REPLICA_STATE_ILLEGAL, NOT_ENOUGH_REPLICAS."""
        ...

    async def promote(self, asked: PromotionAsked) -> Promoted:
        """TroveError NOT_ENOUGH_REPLICAS, REPLICA_STATE_ILLEGAL, NOT_A_MEMBER."""
        ...

    async def switch_over(self, target: Node) -> None:
        """`target`: empty: any. TroveError NOT_LEADER, REPLICA_STATE_ILLEGAL."""
        ...

    async def pause_failover(self, seconds: int) -> None:
        """0: no longer. TroveError REPLICA_STATE_ILLEGAL, COORDINATION_UNAVAILABLE."""
        ...

    async def cut_files(self) -> CutFiles: ...

    async def cut_part(self, path: str, offset: Offset) -> CutPart:
        """TroveError REQUEST_ILLEGAL: there is no such file, or it is damaged."""
        ...


class ReplicaService:
    """The methods of replica.proto. Every refusal is a TroveError."""

    def __init__(self, node: ReplicaCalls | None) -> None:
        """`node` None: of a broker that is not a node."""
        self._calls = node

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def get_replica(self, _request: Request, _context: Context) -> Reply:
        return self._status()

    async def init_group(self, _request: Request, _context: Context) -> Reply:
        await self._node.init_group()
        return self._status()

    async def leave_group(self, _request: Request, _context: Context) -> Reply:
        await self._node.leave_group()
        return self._status()

    async def add_node(self, request: Request, _context: Context) -> Reply:
        await self._node.add_node(wire.added_member(request))
        return self._status()

    async def remove_node(self, request: Request, _context: Context) -> Reply:
        await self._node.remove_node(wire.removed_node(request))
        return self._status()

    async def promote(self, request: Request, _context: Context) -> Reply:
        return wire.promoted_reply(await self._node.promote(wire.promotion_asked(request)))

    async def switch_over(self, request: Request, _context: Context) -> Reply:
        await self._node.switch_over(wire.switch_target(request))
        return self._status()

    async def pause_failover(self, request: Request, _context: Context) -> Reply:
        await self._node.pause_failover(wire.pause_seconds(request))
        return self._status()

    async def list_cut_records(self, _request: Request, _context: Context) -> Reply:
        return wire.cut_files_reply(await self._node.cut_files())

    async def read_cut_records(self, request: Request, _context: Context) -> Reply:
        return wire.cut_part_reply(await self._node.cut_part(*wire.cut_part_asked(request)))

    def _status(self) -> Reply:
        return wire.status_reply(self._node.status())

    @property
    def _node(self) -> ReplicaCalls:
        if self._calls is None:
            raise TroveError(
                errors.REPLICA_STATE_ILLEGAL,
                "this broker is not a node of a replica group: it was started with coordination = none",
            )
        return self._calls
