"""An empty server for comparison: `Stream` echoes each frame, `Sink` answers each with one byte,
`Frames` answers with a stream of frames of the sizes that the request names.

`python -m bench.echo guarded`: by the server class of the daemons, with its limits, metrics and errors.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any

import grpc
import uvloop
from prometheus_client import CollectorRegistry

from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics

SERVICE = "trovemq.bench.Echo"


async def _echo(_request_iterator: Any, context: Any) -> None:
    while (frame := await context.read()) is not grpc.aio.EOF:
        await context.write(frame)


async def _sink(_request_iterator: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(b"\0")


async def _frames(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    for frame in _zeros(request):
        yield frame


@lru_cache(maxsize=1_024)
def _zeros(sizes: bytes) -> list[bytes]:
    """`24,1300,1300` -> frames of these sizes."""
    return [bytes(int(size)) for size in sizes.split(b",")]


async def main() -> None:
    """Serves on a free loopback port, prints the address, runs until it is terminated."""
    handlers = {
        "Stream": grpc.stream_stream_rpc_method_handler(_echo),
        "Sink": grpc.stream_stream_rpc_method_handler(_sink),
        "Frames": grpc.unary_stream_rpc_method_handler(_frames),
    }
    server: Any
    if sys.argv[1:] == ["guarded"]:
        metrics = RpcMetrics(CollectorRegistry(), cluster="bench", node_type="echo", node_id="echo")
        server = GrpcServer(GrpcLimits(), metrics)
        server.server.add_registered_method_handlers(SERVICE, handlers)
        address = str(server.bind(Address("127.0.0.1", 0)))
    else:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        server = grpc.aio.server(options=options)
        server.add_registered_method_handlers(SERVICE, handlers)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    print(address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
