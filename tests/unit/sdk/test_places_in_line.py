"""Who waits for space or for an answer: a place that is given up, and a server that fails first."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_loop import fake_time, turns
from trovemq._common.backoff import Backoff
from trovemq._net.first_answer import first_of
from trovemq._produce.in_flight import InFlightLimiter
from trovemq.cli.paging import PAGE_MESSAGES_MAX, paged
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@fake_time
async def test_a_sender_cancelled_in_its_turn_held_up_those_after_it() -> None:
    limiter = InFlightLimiter(10)
    limiter.take(10)
    first, second = (asyncio.create_task(limiter.wait(10)) for _ in range(2))
    await turns()
    limiter.give(10)  # wakes the first one
    first.cancel()
    async with asyncio.timeout(10):
        await second
    assert first.cancelled()


@fake_time
async def test_the_first_server_failed_and_the_others_were_not_waited_for() -> None:
    async def answer(seconds: float, error: TroveError | None) -> str:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return "answer"

    failure = TroveError(errors.BROKER_UNREACHABLE)
    tasks = [asyncio.create_task(answer(seconds, error)) for seconds, error in ((0.1, failure), (5.0, None))]
    await first_of(tasks)
    assert tasks[1].result() == "answer"
    with pytest.raises(TroveError, match="BROKER_UNREACHABLE"):
        await first_of([asyncio.create_task(answer(0.1, failure)) for _ in range(2)])


class Page:
    """A page with this number of messages."""

    complete, unreachable, cursor = False, (), "next"

    def __init__(self, count: int) -> None:
        self.messages = tuple(range(count))


@fake_time
async def test_a_second_page_had_more_messages_than_were_asked_for() -> None:
    asked: list[int] = []

    async def ask(count: int, _cursor: str | None) -> Page:
        asked.append(count)
        return Page(count)

    class Session:
        @staticmethod
        async def call(call: object) -> object:
            return await call  # type: ignore[misc]  # an awaitable

    class Coverage:
        def add(self, page: object) -> None:
            del page

    answer = paged(Session(), ask, PAGE_MESSAGES_MAX + 5, None, Coverage())  # type: ignore[arg-type,type-var]

    assert len([message async for message in answer]) == PAGE_MESSAGES_MAX + 5
    assert asked == [PAGE_MESSAGES_MAX, 5]


def test_pauses_between_attempts_grew_beyond_their_longest() -> None:
    backoff = Backoff(20.0, 1_000.0, lambda: 1.0)
    assert [backoff.seconds(failures) for failures in (1, 2, 6, 7, 1_000)] == [0.02, 0.04, 0.64, 1.0, 1.0]
    assert Backoff(20.0, 1_000.0, lambda: 0.0).seconds(1_000) == 0.5
