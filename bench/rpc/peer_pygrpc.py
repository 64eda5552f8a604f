"""pygrpc-native, whose server does HTTP/2 in Rust: `python -m bench.rpc.peer_pygrpc`. It has no channel, so
ours calls it.

No dependency of the project: measured where it is installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import grpc
import uvloop

import trovemq_rpc as rpc
from bench.rpc.server import OPTIONS, SERVICE, handlers, serve

MODULE = "pygrpc_native"
DISTRIBUTION = "pygrpc-native"
NAME = f"{DISTRIBUTION}, called by ours"


@asynccontextmanager
async def methods_of(port: int) -> AsyncIterator[dict[str, Any]]:
    """`Echo` and `Cpu` of the server at this port."""
    async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield {name: channel.unary_unary(f"/{SERVICE}/{name}") for name in ("Echo", "Cpu")}


async def _serve() -> None:
    server = import_module("pygrpc_native.aio").server(options=OPTIONS)
    own = {name: handler for name, handler in handlers(grpc).items() if name in {"Echo", "Cpu"}}
    server.add_registered_method_handlers(SERVICE, own)
    await serve(server, grpc, [])


if __name__ == "__main__":
    uvloop.run(_serve())
