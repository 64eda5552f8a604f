"""The scripted server of the SDK's tests, with a daemon's limits, on the network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

import trovemq_rpc as rpc
from tests.unit.sdk.fake_server import FakeServer, _Messages, _Queries, _Routes
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_proto.v1 import message_pb2_grpc, query_pb2_grpc, route_pb2, route_pb2_grpc
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS = ("127.0.0.1", 8081)


class _Registration(route_pb2_grpc.RegistrationServiceServicer):
    async def Register(self, heartbeats: Any, context: Any) -> AsyncIterator[route_pb2.HeartbeatReply]:
        async for _ in heartbeats:
            yield route_pb2.HeartbeatReply()


class MemoryServer(FakeServer):
    """Listens on ADDRESS."""

    async def start(self) -> Self:
        server = rpc.server(options=GrpcLimits(transport="trovemq").options())
        route_pb2_grpc.add_RouteServiceServicer_to_server(_Routes(self), server)
        message_pb2_grpc.add_MessageServiceServicer_to_server(_Messages(self), server)
        query_pb2_grpc.add_QueryServiceServicer_to_server(_Queries(self), server)
        route_pb2_grpc.add_RegistrationServiceServicer_to_server(_Registration(), server)
        server.add_generic_rpc_handlers((self.messaging.handlers(),))
        await server.start()
        self._server = server
        self.address = "{}:{}".format(*ADDRESS)
        self._listener = await asyncio.get_running_loop().create_server(lambda: server.accept(None), *ADDRESS)
        return self

    async def stop(self) -> None:
        self._listener.close()
        await self._server.stop(None)


def run(program: Callable[[MemoryLoop], Coroutine[Any, Any, None]], seed: int) -> None:
    """Runs it in the loop's own time, on a network that delays and cuts bytes."""
    loop = MemoryLoop(seed, Faults(delay_s_max=0.05, piece_size_max=4096), end_s=2_000)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(program(loop))
