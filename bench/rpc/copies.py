"""How often the bytes of a large message are copied between a program and its transport, at each end.

The sender's copies are the bytes that reach the transport in other buffers than the program's. The receiver's
are those that the reader of messages copies, and those of a second buffer that the handler gets. The ends are
joined in memory. The kernel's own copies do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import trovemq_rpc as rpc
from bench.report import Report
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.transport import MemoryTransport
from trovemq_rpc.wire.framing import MessageReader

ADDRESS = ("127.0.0.1", 50_052)
SIZE = 1 << 20
COPIES_MAX = 2


@dataclass(slots=True)
class Copied:
    """Bytes that were copied for one message."""

    by_sender: int = 0
    by_receiver: int = 0


def copied_for_a_message(*, deserialized: bool) -> Copied:
    """Sends a message from a channel to a server, whose method has a deserializer or not."""
    copied, message = Copied(), bytes(SIZE)
    in_memory = MemoryTransport.writelines

    def writelines(transport: MemoryTransport, pieces: Iterable[Any]) -> None:
        pieces = list(pieces)
        copied.by_sender += sum(len(piece) for piece in pieces if memoryview(piece).obj is not message)
        in_memory(transport, pieces)

    class Reader(MessageReader):
        def _fill(self, data: memoryview) -> int:
            count = super()._fill(data)
            copied.by_receiver += count
            return count

    loop = MemoryLoop()
    with (
        mock.patch.object(MemoryTransport, "writelines", writelines),
        mock.patch("trovemq_rpc.intake.MessageReader", Reader),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        request = runner.run(_send(loop, message, (lambda data: data) if deserialized else None))
    if isinstance(request, bytes):  # and not the reader's bytearray
        copied.by_receiver += len(request)
    return copied


async def _send(loop: MemoryLoop, message: bytes, deserializer: Any) -> Any:
    """The request as the handler of a stream gets it."""
    received: list[Any] = []

    async def take(requests: Any, _context: Any) -> bytes:
        received.extend([request async for request in requests])
        return b""

    server = rpc.server()
    handler = rpc.stream_unary_rpc_method_handler(take, deserializer)
    server.add_registered_method_handlers("copies.Copies", {"Take": handler})
    await server.start()
    listener = await loop.create_server(lambda: server.accept(None), *ADDRESS)
    async with rpc.insecure_channel(f"{ADDRESS[0]}:{ADDRESS[1]}") as channel:
        await channel.stream_unary("/copies.Copies/Take")(iter([message]))
    listener.close()
    await server.stop(None)
    (request,) = received
    return request


def measure_copies(report: Report) -> None:
    plain = copied_for_a_message(deserialized=False)
    generated = copied_for_a_message(deserialized=True)
    title = "copies of a 1 MiB message by Python"
    report.add(f"{title}: sender", plain.by_sender / SIZE, "x", at_most=COPIES_MAX)
    report.add(f"{title}: receiver", plain.by_receiver / SIZE, "x", at_most=COPIES_MAX)
    report.add(
        f"{title}: receiver with a deserializer", generated.by_receiver / SIZE, "x", at_most=COPIES_MAX
    )
