"""Turns of the event loop between messages. A call that blocks moves the clock, and nothing else runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.support.fake_loop import run, turns
from trovemq._consume.inbox import Inbox
from trovemq._consume.loop_turns import STANDSTILL_MIN_S, TURN_AFTER_S, LoopTurns
from trovemq.subscription import Subscription


class Blocking:
    """Turns whose clock is the loop's, and moves also in a call that blocks."""

    def __init__(self) -> None:
        self.blocked_s = 0.0
        loop = asyncio.get_running_loop()
        self.turns = LoopTurns(loop)
        self.turns.clock = lambda: loop.time() + self.blocked_s
        self.turns.note()
        self.ran = 0
        loop.call_soon(self._run)

    def _run(self) -> None:
        """Other work of the loop."""
        self.ran += 1
        asyncio.get_running_loop().call_soon(self._run)

    def block(self, seconds: float) -> None:
        self.blocked_s += seconds


def scene(program: Callable[[Blocking], Awaitable[None]]) -> None:
    async def main() -> None:
        await program(Blocking())

    run(main())


def test_a_quick_program_gives_no_turns_and_a_slow_one_after_each_call() -> None:
    async def program(here: Blocking) -> None:
        for _ in range(9):
            await here.turns.give()
            here.block(TURN_AFTER_S / 10)
        assert here.ran == 0
        for number in range(1, 10):
            here.block(0.05)
            await here.turns.give()
            assert here.ran >= 3 * number

    scene(program)


def test_of_many_callers_one_blocks_in_a_turn() -> None:
    async def program(here: Blocking) -> None:
        calls: list[tuple[int, int]] = []

        async def handle(number: int) -> None:
            for _ in range(3):
                await here.turns.give()
                calls.append((number, here.ran))
                here.block(0.05)

        here.block(1)
        await asyncio.gather(*(handle(number) for number in range(5)))
        assert len({ran for _, ran in calls}) == len(calls), "two of them in one iteration"
        assert [number for number, _ in calls[:5]] == [0, 1, 2, 3, 4], "each in turn"

    scene(program)


def test_others_that_hold_up_the_loop_do_not_stop_a_caller() -> None:
    async def program(here: Blocking) -> None:
        async def other() -> None:
            while True:
                here.block(2 * TURN_AFTER_S)
                await asyncio.sleep(0)

        others = asyncio.ensure_future(other())
        for _ in range(5):
            await here.turns.give()
        others.cancel()

    scene(program)


def test_a_cancelled_caller_hinders_no_other() -> None:
    async def program(here: Blocking) -> None:
        here.block(1)
        first, second = (asyncio.ensure_future(here.turns.give()) for _ in range(2))
        await turns(1)
        first.cancel()
        await second
        await asyncio.gather(first, return_exceptions=True)

    scene(program)


def test_a_standstill_is_counted_and_warned_of_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    async def program(here: Blocking) -> None:
        here.turns.watch()
        await asyncio.sleep(0.3)
        await asyncio.sleep(5)
        assert (here.turns.standstills, caplog.records) == (0, [])
        here.block(12)
        await here.turns.give()
        assert (here.turns.standstills, round(here.turns.longest_s)) == (1, 12)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "stood still for 12." in record.getMessage()
        here.block(STANDSTILL_MIN_S)
        await here.turns.give()
        assert (here.turns.standstills, len(caplog.records)) == (2, 1), "one warning a minute"
        here.turns.unwatch()
        here.block(100)
        await here.turns.give()
        assert here.turns.standstills == 2, "nothing is measured any more"

    run_without_other_work(program)


def run_without_other_work(program: Callable[[Blocking], Awaitable[None]]) -> None:
    """The clock of the fake loop moves only while nothing is ready."""

    async def main() -> None:
        here = Blocking()
        here._run = lambda: None  # type: ignore[method-assign]
        await program(here)

    run(main())


def test_a_taker_cancelled_in_its_turn_passes_its_message_on() -> None:
    async def program(here: Blocking) -> None:
        inbox = Inbox(8, 1_000)
        inbox.before_take = here.turns.give
        first, second = (asyncio.ensure_future(inbox.get()) for _ in range(2))
        await turns(10)
        here.block(1)
        inbox._getters.wake(1)  # as for a message
        await turns(1)
        first.cancel()
        inbox.close()
        assert await second is None
        await asyncio.gather(first, return_exceptions=True)

    scene(program)


def test_a_waiting_message_is_not_taken_before_work_that_is_due() -> None:
    async def program(here: Blocking) -> None:
        subscription = object.__new__(Subscription)
        subscription._turns, subscription._inbox = here.turns, Inbox(8, 1_000)
        messages: Iterator[Any] = iter(("first", "second", "third"))
        subscription._inbox.messages = messages
        ready: Callable[[], Any] = subscription._ready
        assert ready() == "first"
        here.turns.lately_until = here.turns.clock() + 60
        assert ready() is None, "the loop stood still: the broker answers first"
        here.turns.lately_until = 0.0
        assert ready() == "second"
        here.block(TURN_AFTER_S)
        assert ready() is None, "other work of the loop is due"
        here.turns.note()
        assert [ready(), ready()] == ["third", None]

    scene(program)
