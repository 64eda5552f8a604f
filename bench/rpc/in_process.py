"""The processor time of a call, and of a small message of a stream, both ends in one process.

    python -m bench.rpc.in_process                  microseconds, and the function calls of Python
    python -m bench.rpc.in_process --beside TREE    the same beside another checkout, alternately

In a round a separate process measures every row of a checkout. The figures are medians of the rounds, the
ratio is the median of the rounds' ratios: so a machine that others use slows both checkouts alike. The ends
talk over loopback on uvloop, so the times include the kernel's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

import trovemq_rpc as rpc
from bench.report import median_ratio

BODY: Final = bytes(64)
CALLS: Final = 1_000  # of a row, in a repeat
REPEATS: Final = 7  # in a round, of which the least disturbed counts
BURST: Final = 50  # messages that are sent before their answers are read
WARM: Final = 300
COUNTED: Final = 500  # calls of which Python's function calls are counted
ROUNDS: Final = 9
ROOT: Final = Path(__file__).parents[2]

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
    async def unary(path: str, count: int) -> None:
        call = channel.unary_unary(path)
        for _ in range(count):
            await call(BODY)

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
        "stream, one message at a time": lambda count: stream("/b.B/Talk", count, 1),
        "stream, 50 messages at a time": lambda count: stream("/b.B/Talk", count, BURST),
        "stream, one at a time, receivers": by_receivers,
        "stream, 50 at a time, receiver": lambda count: stream("/b.B/Receive", count, BURST),
    }


async def _measure(measure: Callable[[Row], Awaitable[float]], only: str = "") -> dict[str, float]:
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
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = {}
        for name, row in _rows(channel).items():
            if only in name:
                await row(WARM)
                found[name] = await measure(row)
    await server.stop(None)
    return found


async def _microseconds(row: Row) -> float:
    gc.collect()
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        await row(CALLS)
        times.append(time.process_time() - began)
    return min(times) / CALLS * 1e6


async def _function_calls(row: Row) -> float:
    """Calls of functions in Python, and of functions in C by Python, for a call or message."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        await row(COUNTED)
    finally:
        sys.setprofile(None)
    return count / COUNTED


def _round(tree: Path, only: str) -> dict[str, float]:
    """Microseconds of each row, of the transport in that checkout."""
    paths = os.pathsep.join((str(tree / "rpc"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "bench.rpc.in_process", "--round", "--only", only],
        env=dict(os.environ, PYTHONPATH=paths),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="rows whose names have this text")
    parser.add_argument("--round", action="store_true", help="one round of this checkout, as JSON")
    arguments = parser.parse_args()
    if arguments.round:
        print(json.dumps(uvloop.run(_measure(_microseconds, arguments.only))))
        return
    rounds: list[dict[str, float]] = []
    others: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        pair = [(rounds, ROOT)] + ([(others, arguments.beside)] if arguments.beside else [])
        for found, tree in pair if number % 2 else reversed(pair):  # neither is always the first
            found.append(_round(tree, arguments.only))
    functions = uvloop.run(_measure(_function_calls, arguments.only))
    for name in rounds[0]:
        ours = [one[name] for one in rounds]
        line = f"{name:34} {median(ours):7.1f} us {functions[name]:6.1f} function calls"
        if others:
            before = [one[name] for one in others]
            line += f", beside {median(before):7.1f} us: ratio {median_ratio(ours, before):.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
