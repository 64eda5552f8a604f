"""An empty server for comparison: `Stream` echoes each frame, `Sink` answers each with one byte."""

from __future__ import annotations

from typing import Any

import grpc
import uvloop


async def _echo(_request_iterator: Any, context: Any) -> None:
    while (frame := await context.read()) is not grpc.aio.EOF:
        await context.write(frame)


async def _sink(_request_iterator: Any, context: Any) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(b"\0")


async def main() -> None:
    """Serves on a free loopback port, prints the address, runs until it is terminated."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    handlers = {
        "Stream": grpc.stream_stream_rpc_method_handler(_echo),
        "Sink": grpc.stream_stream_rpc_method_handler(_sink),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("trovemq.bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
