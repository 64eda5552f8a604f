"""The servers that `bench.rpc` measures: `python -m bench.rpc.server native|grpcio|tcp [--tls KEY
CERTIFICATE]`.

Methods of the same names for both transports, and `EchoCallback` of ours; `Cpu` answers with the
processor time used so far. Prints the port, runs until it is terminated.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

import trovemq_rpc as rpc

SERVICE = "trovemq.bench.Rpc"
LARGE = [("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", 16 << 20)]
KEEPALIVE_S = 10
OPTIONS = [*LARGE, ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000)]


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


async def _cpu(_request: bytes, _context: Any) -> bytes:
    return repr(time.process_time()).encode()


async def _sink(requests: AsyncIterator[bytes], _context: Any) -> bytes:
    size = 0
    async for request in requests:
        size += len(request)
    return str(size).encode()


async def _source(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """`100,1048576`: a count of messages, and their size."""
    count, size = map(int, request.split(b","))
    message = bytes(size)
    for _ in range(count):
        yield message


def _echo_calls(calls: list[rpc.ServerCall]) -> None:
    for call in calls:
        call.reply(bytes(call.message))


def handlers(make: Any) -> dict[str, Any]:
    """Of grpcio's makers or of ours: the names are the same."""
    return {
        "Echo": make.unary_unary_rpc_method_handler(_echo),
        "Cpu": make.unary_unary_rpc_method_handler(_cpu),
        "Sink": make.stream_unary_rpc_method_handler(_sink),
        "Source": make.unary_stream_rpc_method_handler(_source),
    }


async def serve_native(tls: list[str]) -> None:
    server = rpc.server(options=OPTIONS)
    server.add_registered_method_handlers(SERVICE, handlers(rpc))
    server.add_callback_handlers(SERVICE, {"EchoCallback": rpc.CallbackUnary(_echo_calls)})
    await serve(server, rpc, tls)


async def serve_grpcio(tls: list[str]) -> None:
    import grpc

    server = grpc.aio.server(options=OPTIONS)
    generic = grpc.method_handlers_generic_handler(SERVICE, handlers(grpc))
    server.add_generic_rpc_handlers((generic,))
    await serve(server, grpc, tls)


async def serve(server: Any, transport: Any, tls: list[str]) -> None:
    """Both transports have the same names."""
    if tls:
        key, certificate = (Path(path).read_bytes() for path in tls)
        credentials = transport.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


class _TcpEcho(asyncio.Protocol):
    """Answers each read with the same bytes: the least that any protocol costs."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


async def serve_tcp() -> None:
    server = await asyncio.get_running_loop().create_server(_TcpEcho, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    kind, tls = sys.argv[1], sys.argv[3:5]
    if kind == "tcp":
        uvloop.run(serve_tcp())
    else:
        uvloop.run(serve_native(tls) if kind == "native" else serve_grpcio(tls))


if __name__ == "__main__":
    main()
