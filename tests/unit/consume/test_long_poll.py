"""Long polls: called once, cancelled cleanly, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trovemq_broker.fetch.long_poll import LongPolls, Waiter
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId


@pytest.mark.asyncio
async def test_growth_wakes_only_those_who_wait_for_the_queue() -> None:
    polls, calls = LongPolls(), list[str]()

    def named(name: str) -> Callable[[bool], None]:
        return lambda grown: calls.append(f"{name} {grown}")

    for name, queue_id in (("a", 0), ("b", 0), ("c", 1)):
        polls.wait("orders", QueueId(queue_id), 60_000, named(name))
    polls.wake([("orders", QueueId(0)), ("others", QueueId(0))])
    assert calls == ["a True", "b True"]
    assert len(polls) == 1
    polls.wake([("orders", QueueId(0))])
    assert len(calls) == 2, "each is called once"
    polls.close()
    assert calls[2:] == ["c True"]
    assert len(polls) == 0


@pytest.mark.asyncio
async def test_the_deadline_calls_with_false() -> None:
    polls = LongPolls()
    called: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    polls.wait("orders", QueueId(0), 1, called.set_result)
    assert await called is False
    assert len(polls) == 0


@pytest.mark.asyncio
async def test_a_cancelled_waiter_is_never_called() -> None:
    polls, calls = LongPolls(), list[bool]()
    waiter = polls.wait("orders", QueueId(0), 1, calls.append)
    waiter.cancel()
    waiter.cancel()
    polls.wake([("orders", QueueId(0))])
    await asyncio.sleep(0.002)
    assert calls == []
    assert len(polls) == 0


@pytest.mark.asyncio
async def test_a_waiter_may_cancel_another_while_both_are_woken() -> None:
    polls, calls = LongPolls(), list[str]()
    others: list[Waiter] = []

    def first_called(_grown: bool) -> None:
        calls.append("first")
        others[0].cancel()

    polls.wait("orders", QueueId(0), 60_000, first_called)
    others.append(polls.wait("orders", QueueId(0), 60_000, lambda _grown: calls.append("second")))
    polls.wake([("orders", QueueId(0))])
    assert calls == ["first"]
    assert len(polls) == 0


@pytest.mark.asyncio
async def test_waiting_again_from_the_callback_does_not_loop() -> None:
    polls, calls = LongPolls(), list[bool]()

    def again(grown: bool) -> None:
        calls.append(grown)
        polls.wait("orders", QueueId(0), 60_000, again)

    polls.wait("orders", QueueId(0), 60_000, again)
    polls.wake([("orders", QueueId(0))])
    assert calls == [True]
    assert len(polls) == 1
    polls.wake_topic("others")
    assert calls == [True]
    polls.wake_topic("orders")
    assert calls == [True, True]


@pytest.mark.asyncio
async def test_the_number_of_waiters_is_bounded() -> None:
    polls = LongPolls(waiters_max=2)
    waiters = [polls.wait("orders", QueueId(0), 60_000, lambda _grown: None) for _ in range(2)]
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        polls.wait("orders", QueueId(0), 60_000, lambda _grown: None)
    waiters[0].cancel()
    polls.wait("orders", QueueId(0), 60_000, lambda _grown: None)
    polls.close()


@pytest.mark.asyncio
async def test_a_waiter_that_stands_is_called_each_time_until_its_deadline() -> None:
    polls, calls = LongPolls(), list[bool]()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def called(grown: bool) -> None:
        calls.append(grown)
        if not grown:
            over.set_result(None)

    polls.wait("orders", QueueId(0), 1, called, stands=True)
    for _ in range(3):
        polls.wake([("orders", QueueId(0))])
    assert (calls, len(polls)) == ([True] * 3, 1)
    await over
    polls.wake([("orders", QueueId(0))])
    assert (calls, len(polls)) == ([True] * 3 + [False], 0)


@pytest.mark.asyncio
async def test_a_waiter_that_stands_may_be_cancelled_while_both_are_woken() -> None:
    polls, calls = LongPolls(waiters_max=2), list[str]()
    others: list[Waiter] = []

    def first_called(_grown: bool) -> None:
        calls.append("first")
        others[0].cancel()

    polls.wait("orders", QueueId(0), 60_000, first_called, stands=True)
    others.append(
        polls.wait("orders", QueueId(0), 60_000, lambda _grown: calls.append("second"), stands=True)
    )
    assert polls.full
    polls.wake([("orders", QueueId(0))])
    assert (calls, len(polls), polls.full) == (["first"], 1, False)
