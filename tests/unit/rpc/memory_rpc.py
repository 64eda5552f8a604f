"""A real server and channel of the package on the network in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trovemq_rpc as rpc
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS = ("127.0.0.1", 50_051)
TARGET = "127.0.0.1:50051"

Options = Sequence[tuple[str, Any]]


def run(
    program: Callable[[MemoryLoop], Coroutine[Any, Any, Any]], seed: int = 0, faults: Faults | None = None
) -> Any:
    loop = MemoryLoop(seed, faults, end_s=20_000)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(program(loop))


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _wait(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(float(request))
    return request


async def _count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """Messages of 1,000 bytes, numbered, as many as the request says."""
    for number in range(int(request)):
        yield b"%d " % number + bytes(1000)


async def _join(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def _talk(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _chat(requests: Any, context: Any) -> None:
    """Echoes by a receiver; for some messages reading pauses."""
    context.set_receiver(lambda message: len(message) % 3 != 0 and context.try_send(message))
    while (message := await context.read()) is not rpc.EOF:
        await asyncio.sleep(len(message) % 7 / 100)
        await context.write(message)


HANDLERS = rpc.method_handlers_generic_handler(
    "t.T",
    {
        "Echo": rpc.unary_unary_rpc_method_handler(_echo),
        "Wait": rpc.unary_unary_rpc_method_handler(_wait),
        "Count": rpc.unary_stream_rpc_method_handler(_count),
        "Join": rpc.stream_unary_rpc_method_handler(_join),
        "Talk": rpc.stream_stream_rpc_method_handler(_talk),
        "Chat": rpc.stream_stream_rpc_method_handler(_chat),
    },
)


@asynccontextmanager
async def serving(loop: MemoryLoop, options: Options = (), credentials: Any = None) -> AsyncIterator[Any]:
    """A server that listens in memory on ADDRESS."""
    server = rpc.server(options=list(options))
    server.add_generic_rpc_handlers((HANDLERS,))
    await server.start()
    listener = await loop.create_server(lambda: server.accept(credentials), *ADDRESS)
    try:
        yield server
    finally:
        listener.close()
        await server.stop(None)
