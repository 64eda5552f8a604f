"""grpclib, gRPC in Python upon the `h2` package: a server (`python -m bench.rpc.peer_grpclib`) and a channel.

No dependency of the project: measured where it is installed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import uvloop

from bench.rpc.server import SERVICE

MODULE = "grpclib"
NAME = DISTRIBUTION = "grpclib"


class _Bytes:
    """Messages as they are."""

    __content_subtype__ = "proto"

    @staticmethod
    def encode(message: bytes, _kind: Any) -> bytes:
        return message

    @staticmethod
    def decode(data: bytes, _kind: Any) -> bytes:
        return data


class _Service:
    async def echo(self, stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    async def cpu(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(repr(time.process_time()).encode())

    def __mapping__(self) -> dict[str, Any]:
        const = import_module("grpclib.const")
        handlers = {"Echo": self.echo, "Cpu": self.cpu}
        return {
            f"/{SERVICE}/{name}": const.Handler(handler, const.Cardinality.UNARY_UNARY, bytes, bytes)
            for name, handler in handlers.items()
        }


@asynccontextmanager
async def methods_of(port: int) -> AsyncIterator[dict[str, Any]]:
    """`Echo` and `Cpu` of the server at this port."""
    client = import_module("grpclib.client")
    channel = client.Channel("127.0.0.1", port, codec=_Bytes())
    try:
        yield {
            name: client.UnaryUnaryMethod(channel, f"/{SERVICE}/{name}", bytes, bytes)
            for name in ("Echo", "Cpu")
        }
    finally:
        channel.close()


async def _serve() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    server = import_module("grpclib.server").Server([_Service()], codec=_Bytes())
    await server.start(sock=bound)
    print(bound.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
