"""The scripted server of the SDK's tests, with a daemon's limits, on the network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Self

import trovemq_rpc as rpc
from tests.support.fake_consuming import CONSUMER
from tests.support.stubs import MESSAGES, PRODUCERS, QUERIES, REGISTRATION, ROUTES, add_fake
from tests.unit.sdk.fake_server import FakeServer, _Messages, _Queries, _Routes
from trovemq_daemon.grpc_server import GrpcLimits
from trovemq_proto.v1 import route_pb2
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS = ("127.0.0.1", 8081)


class _Registration:
    async def register(self, heartbeats: Any, context: Any) -> AsyncIterator[route_pb2.HeartbeatReply]:
        async for _ in heartbeats:
            yield route_pb2.HeartbeatReply()


class MemoryServer(FakeServer):
    """Listens on ADDRESS."""

    async def start(self) -> Self:
        server = rpc.server(options=GrpcLimits(transport="trovemq").options())
        add_fake(server, ROUTES, _Routes(self))
        add_fake(server, MESSAGES, _Messages(self))
        add_fake(server, QUERIES, _Queries(self))
        add_fake(server, REGISTRATION, _Registration())
        add_fake(server, CONSUMER, self.consuming)
        add_fake(server, PRODUCERS, self.deferred)
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
