"""The model of calls: a channel and a server in memory; random calls, cancels, deadlines, faults by seed."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.support.trials import SOAK, Trials
from tests.unit.rpc.memory_rpc import TARGET, run, serving
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

SEEDS = 300 if SOAK else 10
CANCELS = 100_000 if SOAK else 3_000
CUT = Faults(piece_size_max=1 << 14, delay_s_max=0.02)
CUT_AND_LOST = Faults(piece_size_max=1 << 14, delay_s_max=0.02, stall_chance=0.01, loss_chance=0.0005)
LOST = {"UNAVAILABLE"}
LATE = {"DEADLINE_EXCEEDED"}


class Caller:
    """Makes random calls and checks each answer: whole and in order, or an error with a reason."""

    def __init__(self, channel: Any, random: Random, allowed: set[str]) -> None:
        self.random = random
        self.allowed = allowed
        self.outcomes: Counter[str] = Counter()
        self.methods = {
            "Echo": channel.unary_unary("/t.T/Echo"),
            "Count": channel.unary_stream("/t.T/Count"),
            "Join": channel.stream_unary("/t.T/Join"),
            "Talk": channel.stream_stream("/t.T/Talk"),
            "Chat": channel.stream_stream("/t.T/Chat"),
        }

    async def call(self) -> None:
        name = self.random.choice(list(self.methods))
        timeout = self.random.choice((None, None, None, 0.05, 5.0))
        task = asyncio.ensure_future(getattr(self, name.lower())(timeout))
        if self.random.random() < 0.2:
            asyncio.get_running_loop().call_later(self.random.random() * 0.3, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1
        except rpc.AioRpcError as e:
            if e.code().name not in self.allowed | (LATE if timeout else set()):
                raise
            self.outcomes[e.code().name] += 1
        else:
            self.outcomes["answered"] += 1

    def body(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 100, 5_000, 70_000)))

    async def echo(self, timeout: float | None) -> None:
        body = self.body()
        assert bytes(await self.methods["Echo"](body, timeout=timeout)) == body

    async def count(self, timeout: float | None) -> None:
        wanted = self.random.choice((0, 1, 10, 300))
        call = self.methods["Count"](b"%d" % wanted, timeout=timeout)
        came = [int(bytes(message).split(b" ", 1)[0]) async for message in call]
        assert came == list(range(wanted))

    async def join(self, timeout: float | None) -> None:
        bodies = [self.body() for _ in range(self.random.randint(0, 5))]
        call = self.methods["Join"](timeout=timeout)
        for body in bodies:
            await call.write(body)
        await call.done_writing()
        assert bytes(await call) == b"".join(bodies)

    async def talk(self, timeout: float | None) -> None:
        call = self.methods["Talk"](timeout=timeout)
        for _ in range(self.random.randint(0, 5)):
            body = self.body()
            await call.write(body)
            assert bytes(await call.read()) == body
        await call.done_writing()
        assert await call.read() == rpc.EOF

    async def chat(self, timeout: float | None) -> None:
        """Both ends have receivers, which leave some messages to `read`."""
        call, came = self.methods["Chat"](timeout=timeout), list[bytes]()

        def take(message: bytes) -> bool:
            taken = self.random.random() < 0.7
            if taken:
                came.append(message)
            return taken

        call.set_receiver(take)
        bodies = [self.body() for _ in range(self.random.randint(0, 4))]
        for body in bodies:
            await call.write(body)
        await call.done_writing()
        while (message := await call.read()) is not rpc.EOF:
            came.append(bytes(message))
        assert came == bodies


async def conversation(loop: MemoryLoop, allowed: set[str], options: list[tuple[str, Any]]) -> Counter[str]:
    async with serving(loop, options) as server, rpc.insecure_channel(TARGET) as channel:
        caller = Caller(channel, loop.random, allowed)
        for _ in range(3):
            await asyncio.gather(*(caller.call() for _ in range(10)))
        await asyncio.sleep(60)
        assert server.metrics.calls_active == 0
        assert server.endpoint_options.budget.held == 0
    return caller.outcomes


@pytest.mark.parametrize(
    "faults", [Faults(delay_s_max=0.02), CUT, CUT_AND_LOST], ids=["whole", "cut", "cut and lost"]
)
def test_every_answer_is_whole_and_in_order_or_an_error_with_a_reason(faults: Faults, trials: Trials) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        allowed = LOST if faults.loss_chance else set()
        options = [("grpc.max_concurrent_streams", seed % 7 + 1)] if seed % 2 else []
        try:
            outcomes += run(lambda loop: conversation(loop, allowed, options), seed, faults)  # noqa: B023
        except BaseException as e:
            e.add_note(f"seed {seed}")
            raise
    assert outcomes["answered"] > outcomes.total() / 3
    assert outcomes["cancelled"]
    trials.count("rpc", "random calls between channel and server, by seed", SEEDS)


@pytest.mark.slow
def test_random_cancels_of_real_clients_end_without_a_goaway(trials: Trials) -> None:
    """Cancels at any time: before, while and after the answer comes. One connection serves them all."""

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server, rpc.insecure_channel(TARGET) as channel:
            wait = channel.unary_unary("/t.T/Wait")

            async def cancelled() -> None:
                call = wait(b"%.3f" % (loop.random.random() * 0.02))
                await asyncio.sleep(loop.random.random() * 0.06)
                call.cancel()
                await call.code()

            for _ in range(CANCELS // 100):
                await asyncio.gather(*(cancelled() for _ in range(100)))
            assert bytes(await wait(b"0")) == b"0"
            assert len(loop.connections) == 1
            assert server.metrics.calls_active == 0

    run(program, faults=Faults(piece_size_max=1 << 12, delay_s_max=0.01))
    trials.count("rpc", "cancels by real clients", CANCELS)
