"""Waiters for receives: woken in order, one a wake-up, and never forgotten."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_loop import fake_time, turns
from trovemq_broker.groups.members.receive_waits import ReceiveWaits
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId

pytestmark = fake_time


class Pollers:
    """Polls of groups, each of which notes its name when it is woken, and continues waiting."""

    def __init__(self, waiters_max: int = 16) -> None:
        self.waits = ReceiveWaits(waiters_max)
        self.looks: list[str] = []
        self.ended: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def poll(self, name: str, group: str = "g", topic: str = "orders", seconds: float = 20.0) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self.tasks[name] = asyncio.ensure_future(self._poll(name, group, topic, until))

    async def _poll(self, name: str, group: str, topic: str, until: float) -> None:
        with self.waits.enter(group, topic) as wait:
            while await wait.woken(until):
                self.looks.append(name)
        self.ended.append(name)


async def test_growth_wakes_one_waiter_of_each_group() -> None:
    polls = Pollers()
    for name, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        polls.poll(name, group)
    polls.poll("other", "a", "others")
    await turns()
    polls.waits.on_messages_available([("orders", QueueId(3))])
    await turns()
    assert polls.looks == ["a1", "b1"]
    polls.waits.on_messages_available([("unknown", QueueId(0))])
    await turns()
    assert polls.looks == ["a1", "b1"]


async def test_who_got_nothing_keeps_its_place() -> None:
    polls = Pollers()
    for name in ("first", "second", "third"):
        polls.poll(name)
    await turns()
    for _ in range(2):
        polls.waits.wake(("g", "orders"))
        await turns()
    assert polls.looks == ["first", "first"]
    polls.waits.on_messages_available([("orders", QueueId(0)), ("orders", QueueId(1))])
    await turns()
    assert polls.looks[2:] == ["first", "second"], "two queues grew: two look"


async def test_retry_topics_of_every_form_wake_the_group() -> None:
    polls = Pollers()
    polls.poll("mine", "g")
    polls.poll("theirs", "g2")
    await turns()
    for topic in ("%RETRY%g_orders", "%RETRY%g+orders", "%RETRY%g", "%RETRY%g_others"):
        polls.waits.on_messages_available([(topic, QueueId(0))])
        await turns()
    assert polls.looks == ["mine"] * 3


async def test_a_wake_up_of_a_cancelled_waiter_goes_to_the_next() -> None:
    polls = Pollers()
    polls.poll("gone")
    polls.poll("next")
    await turns()
    polls.waits.wake(("g", "orders"))
    polls.tasks["gone"].cancel()
    await turns()
    assert polls.looks == ["next"]
    assert len(polls.waits) == 1


async def test_the_time_is_over_when_it_is_over() -> None:
    polls, loop = Pollers(), asyncio.get_running_loop()
    polls.poll("a", seconds=5.0)
    polls.poll("b", seconds=7.5)
    await polls.tasks["a"]
    assert loop.time() == pytest.approx(5.0)
    polls.waits.wake(("g", "orders"))
    await polls.tasks["b"]
    assert loop.time() == pytest.approx(7.5)
    assert polls.looks == ["b"]
    assert len(polls.waits) == 0
    polls.waits.on_messages_available([("orders", QueueId(0))])  # no poll waits


async def test_the_number_of_waiters_is_bounded() -> None:
    polls = Pollers(waiters_max=2)
    polls.poll("a")
    polls.poll("b", "other")
    await turns()
    with pytest.raises(TroveError) as caught, polls.waits.enter("g", "orders"):
        raise AssertionError("there is no space")
    assert caught.value.symbol == "LIMIT_EXCEEDED"
    polls.tasks["a"].cancel()
    await turns()
    polls.poll("c")
    await turns()
    assert len(polls.waits) == 2


async def test_all_look_when_their_topic_or_group_changed_and_at_the_end() -> None:
    polls = Pollers()
    for name, group, topic in (("a", "g", "orders"), ("b", "g", "orders"), ("c", "h", "others")):
        polls.poll(name, group, topic)
    await turns()
    polls.waits.wake_topic("orders")
    await turns()
    assert polls.looks == ["a", "b"]
    polls.waits.wake_group("h")
    await turns()
    assert polls.looks[2:] == ["c"]
    polls.waits.close()
    await turns()
    assert polls.looks[3:] == ["a", "b", "c"]
    assert polls.waits.closed


async def test_a_thousand_idle_polls_do_nothing() -> None:
    polls = Pollers(waiters_max=2_000)
    for number in range(1_000):
        polls.poll(str(number), f"group-{number % 10}", seconds=20.0)
    await turns()
    assert len(polls.waits) == 1_000
    polls.waits.on_messages_available([("orders", QueueId(0))])
    await turns()
    assert len(polls.looks) == 10
    await asyncio.gather(*polls.tasks.values())
    assert len(polls.looks) == 10
    assert len(polls.ended) == 1_000
