"""The loop stays awake after a lone request, and soon stops doing so where answers are late."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import TARGET, run, serving
from trovemq_rpc.channel.polling import DURATION_MAX_US, SKIPPED_MAX, Polling
from trovemq_rpc.testing.loop import MemoryLoop

LOOKS = 4  # that a request may take: an iteration of the fake loop is a microsecond


class FakeLoop:
    """Calls back on request, and counts iterations as its time."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.turn = 0
        self.yields = 0

    def call_soon(self, callback: Callable[[], None], context: Any) -> None:
        self.callbacks.append(callback)

    def clock(self) -> float:
        return self.turn / 1e6

    def yield_processor(self) -> None:
        self.yields += 1

    def run_turn(self) -> None:
        self.turn += 1
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    @property
    def sleeps(self) -> bool:
        return not self.callbacks


def polling_on(loop: FakeLoop) -> Polling:
    return Polling(loop, LOOKS, loop.clock, loop.yield_processor)  # type: ignore[arg-type]


def ask(loop: FakeLoop, polling: Polling, answer_after: int) -> int:
    """One request whose answer comes after that number of iterations; returns in how many it was awake."""
    polling.begin()
    awake = 0
    for _ in range(answer_after):
        awake += not loop.sleeps
        loop.run_turn()
    polling.waits = False
    return awake


def test_the_loop_stays_awake_until_the_answer() -> None:
    loop = FakeLoop()
    assert ask(loop, polling_on(loop), 3) == 3


def test_the_loop_sleeps_when_the_answer_has_come() -> None:
    loop = FakeLoop()
    ask(loop, polling_on(loop), 3)
    loop.run_turn()
    assert loop.sleeps


def test_the_loop_sleeps_when_no_answer_comes_in_time() -> None:
    loop = FakeLoop()
    assert ask(loop, polling_on(loop), 100) == LOOKS


def test_each_look_yields_the_processor() -> None:
    loop = FakeLoop()
    ask(loop, polling_on(loop), 100)
    assert loop.yields == LOOKS - 1


def test_late_answers_make_it_rare() -> None:
    """Requests that wait in vain: the first two, then after 1, 3, 7 ... and at last 1,023 others."""
    loop = FakeLoop()
    polling = polling_on(loop)
    tried = [index for index in range(5_000) if ask(loop, polling, 10)]
    gaps = [after - before - 1 for before, after in pairwise(tried)]
    assert (gaps[:11], set(gaps[11:])) == (
        [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, SKIPPED_MAX],
        {SKIPPED_MAX},
    )


def test_after_one_answer_in_time_polls_are_frequent_again() -> None:
    loop = FakeLoop()
    polling = polling_on(loop)
    for _ in range(200):
        ask(loop, polling, 10)
    while not ask(loop, polling, 2):
        pass
    assert ask(loop, polling, 2) == 2


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=60))
def test_at_most_one_look_is_scheduled(steps: list[tuple[int, int]]) -> None:
    """Whatever the times of answers and of the requests after them, even in one iteration."""
    loop = FakeLoop()
    polling = polling_on(loop)
    for answer_after, idle_turns in steps:
        polling.begin()
        for _ in range(answer_after):
            loop.run_turn()
            assert len(loop.callbacks) <= 1
        polling.waits = False
        for _ in range(idle_turns):
            loop.run_turn()
    loop.run_turn()
    loop.run_turn()
    assert loop.sleeps


def test_the_time_has_a_limit() -> None:
    loop = FakeLoop()
    polling = Polling(loop, 10**9, loop.clock, loop.yield_processor)  # type: ignore[arg-type]
    assert ask(loop, polling, DURATION_MAX_US + 100) == DURATION_MAX_US


def test_calls_are_answered_with_and_without_it() -> None:
    async def program(loop: MemoryLoop) -> list[bytes]:
        async with serving(loop), rpc.insecure_channel(TARGET, [("trovemq.busy_poll_us", 50)]) as channel:
            echo, talk = channel.unary_unary("/t.T/Echo"), channel.stream_stream("/t.T/Talk")()
            answers = [await echo(b"%d" % number) for number in range(20)]
            await talk.write(b"first")
            answers.append(await talk.read())
            for number in range(20):
                talk.write_now(b"%d" % number, alone=True)
                answers.append(await talk.read())
            await talk.done_writing()
            return answers

    numbers = [b"%d" % number for number in range(20)]
    assert run(program) == [*numbers, b"first", *numbers]
