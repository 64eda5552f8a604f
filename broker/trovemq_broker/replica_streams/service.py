"""ReplicationService, and the limits of its listener."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

import grpc
from zlib_ng.zlib_ng import crc32

from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replica_streams.peers_allowed import PeersAllowed
from trovemq_broker.replica_streams.stream_settings import StreamSettings
from trovemq_broker.replication.frames import Epoch, Hello, Identity, Node, Offset, Progress
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus
from trovemq_broker.server.wire import replica_frames as wire
from trovemq_broker.server.wire.replica_frames import ConsumersPart, PromiseAsked
from trovemq_broker.server.wire.replica_messages import status_reply
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

HELLO_WAIT_S: Final = 5.0
STREAMS_OF_CONNECTION_MAX: Final = 8
CALLS_MAX: Final = 64
_FRAME_OVERHEAD: Final = 1_024


class ReplicaNode(Protocol):
    """This node, in whatever role it is."""

    @property
    def names(self) -> tuple[str, str]:
        """Of the cluster and the group."""
        ...

    @property
    def promised(self) -> Epoch: ...

    def open_status(self) -> NodeStatus:
        """TroveError SERVICE_NOT_AVAILABLE: it changes its role."""
        ...

    def leading(self) -> LeaderStreams:
        """TroveError NOT_LEADER, with the leader if it is known."""
        ...

    async def promise(self, epoch: Epoch) -> Promised:
        """A node that leads steps down. Its log is synced, and the promise on disk, when it returns.
        TroveError EPOCH_STALE: a higher one is promised; DISK_FULL, STORE_FAILED."""
        ...

    async def store_members(self, change: MembersChange) -> Identity:
        """Returns the log of this node, which has stored the list. TroveError GROUP_MISMATCH, EPOCH_STALE,
        REPLICA_STATE_ILLEGAL."""
        ...

    async def read_log(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        """Committed records and the blank after them. TroveError REPLICA_OFFSET_MISMATCH, STORE_FAILED."""
        ...

    async def read_consumers(self, epoch: Epoch, known: int, offset: int) -> ConsumersPart:
        """Of the state that this leader has saved. TroveError NOT_LEADER, EPOCH_STALE: it leads another
        epoch."""
        ...


class ReplicationService:
    """The methods of replication.proto. Every refusal is a TroveError."""

    def __init__(
        self, node: ReplicaNode, allowed: PeersAllowed, settings: StreamSettings | None = None
    ) -> None:
        self._node = node
        self._allowed = allowed
        self._settings = settings or StreamSettings()
        self._streams = 0
        self._reads: Counter[Node] = Counter()

    def add_to(self, server: grpc.aio.Server) -> None:
        readers = {method.name: bytes for method in wire.SERVICE.methods}
        add_service(server, wire.SERVICE, self, readers)

    async def follow(self, requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[bytes, None]:
        if self._streams >= self._settings.streams_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._streams} streams are open already")
        self._streams += 1
        try:
            hello = await self._hello(requests, context)
            frames = self._node.leading().follow(hello, _reports(requests))
            async with aclosing(frames):
                async for frame in frames:
                    yield wire.leader_bytes(frame)
        finally:
            self._streams -= 1

    async def _hello(self, requests: AsyncIterator[bytes], context: Any) -> Hello:
        """TroveError REPLICA_FRAME_ILLEGAL, NOT_A_MEMBER."""
        try:
            hello = wire.hello_of(await _first(requests))
        except TroveError as error:
            self._allowed.note(context, wire.FOLLOW, error)
            raise
        self._allowed.check_node(context, hello.identity.node)
        return hello

    async def promise(self, request: bytes, _context: Any) -> bytes:
        asked: PromiseAsked = wire.promise_asked(request)
        self._check_names(asked.cluster, asked.group)
        return wire.promised_bytes(await self._node.promise(asked.epoch))

    async def read_log(self, request: bytes, context: Any) -> bytes:
        asked = wire.range_asked(request)
        self._allowed.check_node(context, asked.node)
        self._check_names(asked.cluster, asked.group)
        if asked.epoch < self._node.promised:
            text = f"a call of epoch {asked.epoch}; {self._node.promised} is promised"
            raise TroveError(errors.EPOCH_STALE, text)
        with self._one_read(asked.node):
            size_max = min(asked.size_max, self._settings.read_size_max)
            data, blank = await self._node.read_log(asked.offset, size_max)
        return wire.range_bytes(wire.LogRange(asked.offset, data, crc32(data), blank))

    async def read_consumers(self, request: bytes, context: Any) -> bytes:
        asked = wire.consumers_asked(request)
        self._allowed.check_node(context, asked.node)
        self._check_names(asked.cluster, asked.group)
        with self._one_read(asked.node):
            part = await self._node.read_consumers(asked.epoch, asked.known, asked.offset)
        return wire.consumers_bytes(part)

    @contextmanager
    def _one_read(self, node: Node) -> Iterator[None]:
        """TroveError LIMIT_EXCEEDED."""
        if self._reads[node] >= self._settings.reads_max:
            text = f"{self._settings.reads_max} calls of node {node} read the store already"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        self._reads[node] += 1
        try:
            yield
        finally:
            self._reads[node] -= 1

    async def get_status(self, request: bytes, context: Any) -> bytes:
        asked = wire.status_asked(request)
        status = self._node.open_status()
        knows_group = bool(status.cluster) and (asked.cluster, asked.group) == (status.cluster, status.group)
        self._allowed.check_status(context, asked.node, knows_group=knows_group)
        return status_reply(status).SerializeToString()

    async def store_members(self, request: bytes, _context: Any) -> bytes:
        return wire.stored_bytes(await self._node.store_members(wire.members_change(request)))

    def _check_names(self, cluster: str, group: str) -> None:
        if (cluster, group) != self._node.names:
            raise TroveError(errors.GROUP_MISMATCH, f"group {group} of cluster {cluster}")


async def _first(requests: AsyncIterator[bytes]) -> bytes:
    """TroveError REPLICA_FRAME_ILLEGAL if none comes."""
    try:
        async with asyncio.timeout(HELLO_WAIT_S):
            return await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        raise TroveError(errors.REPLICA_FRAME_ILLEGAL, "a stream begins with a hello") from None


async def _reports(requests: AsyncIterator[bytes]) -> AsyncGenerator[Progress, None]:
    async for data in requests:
        yield wire.progress_of(data)


def listener_limits(limits: GrpcLimits, settings: StreamSettings) -> GrpcLimits:
    """The limits of the replication listener: requests are small, frames of the log large."""
    return replace(
        limits,
        receive_size_max=wire.LISTED_SIZE_MAX + _FRAME_OVERHEAD,
        send_size_max=settings.message_size_max,
        concurrent_streams_max=STREAMS_OF_CONNECTION_MAX,
        concurrent_calls_max=CALLS_MAX,
    )
