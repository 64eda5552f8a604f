"""The processor time of a call, and of a small message of a stream, both ends in one process.

    python -m bench.rpc.in_process --with JOIN_SIZE_MAX=0

The options are those of bench/paired.py. The ends talk over loopback on uvloop, so the times include the
kernel's.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from time import process_time_ns
from typing import Any, Final

import uvloop

import trovemq_rpc as rpc
from bench import paired

BODY: Final = bytes(64)
LARGE_BODY: Final = bytes(3_000)
CALLS: Final = 2_000  # of a row, in a round
BURST: Final = 50  # messages that are sent before their answers are read
WARM: Final = 300
ROUNDS: Final = 15

Row = Callable[[int], Awaitable[None]]
"""Makes this number of calls, or sends and receives this number of messages."""


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


def _answer(calls: list[Any]) -> None:
    for call in calls:
        call.reply(call.keep())


async def _talk(_requests: Any, context: Any) -> None:
    while (message := await context.read()) is not rpc.EOF:
        await context.write(message)


async def _receive(_requests: Any, context: Any) -> None:
    """Answers from a callback, as the broker does: a message wakes no task."""
    context.set_receiver(context.try_send_now)
    while (message := await context.read()) is not rpc.EOF:
        await context.write(message)


def _rows(channel: Any) -> dict[str, Row]:
    async def unary(path: str, count: int, body: bytes = BODY) -> None:
        call = channel.unary_unary(path)
        for _ in range(count):
            await call(body)

    async def together(row: Row, number: int, count: int) -> None:
        await asyncio.gather(*(row(max(1, count // number)) for _ in range(number)))

    async def with_deadline(count: int) -> None:
        call = channel.unary_unary("/b.B/Callback")
        for _ in range(count):
            await call(BODY, timeout=10.0)

    async def stream(path: str, count: int, burst: int) -> None:
        call = channel.stream_stream(path)()
        for _ in range(count // burst):
            for _ in range(burst):
                await call.write(BODY)
            for _ in range(burst):
                await call.read()
        await call.done_writing()
        assert await call.read() == rpc.EOF

    async def by_receivers(count: int) -> None:
        """The next message leaves when the answer comes, from its callback, as the SDK does."""
        call = channel.stream_stream("/b.B/Receive")()
        await call.write(BODY)
        await call.read()
        remaining = count

        def receive(_message: bytes) -> bool:
            nonlocal remaining
            remaining -= 1
            if remaining <= 0:
                return False
            call.write_now(BODY)
            return True

        call.set_receiver(receive)
        await call.write(BODY)
        await call.read()
        await call.done_writing()
        assert await call.read() == rpc.EOF

    return {
        "unary, callback": lambda count: unary("/b.B/Callback", count),
        "unary, callback, deadline": with_deadline,
        "unary, coroutine": lambda count: unary("/b.B/Echo", count),
        "unary, callback, 3 kB": lambda count: unary("/b.B/Callback", count, LARGE_BODY),
        "unary, callback, 32 at a time": lambda count: together(
            lambda each: unary("/b.B/Callback", each), 32, count
        ),
        "stream, one message at a time": lambda count: stream("/b.B/Talk", count, 1),
        "stream, 50 messages at a time": lambda count: stream("/b.B/Talk", count, BURST),
        "8 streams, one message at a time": lambda count: together(
            lambda each: stream("/b.B/Talk", each, 1), 8, count
        ),
        "32 streams, one message at a time": lambda count: together(
            lambda each: stream("/b.B/Talk", each, 1), 32, count
        ),
        "stream, one at a time, receivers": by_receivers,
        "stream, 50 at a time, receiver": lambda count: stream("/b.B/Receive", count, BURST),
    }


class Calls:
    """A server and its channel, while a round of one row runs."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()

    def measure(self, number: int) -> float:
        """Microseconds of a call or message."""
        return self._loop.run_until_complete(self._round(number))

    async def _round(self, number: int) -> float:
        server = _server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            row = list(_rows(channel).values())[number]
            await row(WARM)
            gc.collect()
            began = process_time_ns()
            await row(CALLS)
            spent = process_time_ns() - began
        await server.stop(None)
        return spent / CALLS / 1_000


def _server() -> Any:
    server = rpc.server()
    server.add_registered_method_handlers(
        "b.B",
        {
            "Echo": rpc.unary_unary_rpc_method_handler(_echo),
            "Talk": rpc.stream_stream_rpc_method_handler(_talk),
            "Receive": rpc.stream_stream_rpc_method_handler(_receive),
        },
    )
    server.add_callback_handlers("b.B", {"Callback": rpc.CallbackUnary(_answer)})
    return server


if __name__ == "__main__":
    paired.main("bench.rpc.in_process", list(_rows(None)), Calls().measure, rounds=ROUNDS)
