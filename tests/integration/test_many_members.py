"""A hundred members of one group join and leave while messages come: each message is settled once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

import trovemq
from tests.support.trials import SOAK
from trovemq import ReceivedMessage
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

MEMBERS = 100
CLIENTS = 10
MESSAGES = 20_000 if SOAK else 2_000
TIME_MAX_S = 120.0
"""For all of it on a busy machine; alone it takes a few seconds."""


async def test_a_hundred_members_that_join_and_leave_settle_each_message_once() -> None:
    """Twenty times one of them leaves in the midst of it, and another comes."""
    settled: Counter[bytes] = Counter()
    source = random.Random("members")

    async def handle(message: ReceivedMessage) -> None:
        settled[message.body] += 1

    with BrokerProcess() as broker:
        async with AsyncExitStack() as stack, asyncio.timeout(TIME_MAX_S):
            connecting = [trovemq.connect(broker.address) for _ in range(CLIENTS)]
            clients = [await stack.enter_async_context(each) for each in connecting]
            await clients[0].admin.create_topic("orders", queue_count=4)

            async def member(number: int, ends: asyncio.Event) -> None:
                async with clients[number % CLIENTS].subscribe("orders", "workers") as messages:
                    consuming = asyncio.create_task(messages.consume(handle, 4))
                    await ends.wait()
                    consuming.cancel()
                    await asyncio.gather(consuming, return_exceptions=True)

            ends = [asyncio.Event() for _ in range(MEMBERS)]
            members = [asyncio.create_task(member(number, end)) for number, end in enumerate(ends)]
            groups = clients[0].admin.groups
            while not await _has_members(groups, MEMBERS):
                await asyncio.sleep(0.05)
            async with clients[0].producer("orders") as producer:
                for begin in range(0, MESSAGES, MESSAGES // 20):
                    await producer.send_batch([b"%d" % n for n in range(begin, begin + MESSAGES // 20)])
                    leaving = source.randrange(MEMBERS)
                    ends[leaving].set()
                    await members[leaving]
                    ends[leaving] = asyncio.Event()
                    members[leaving] = asyncio.create_task(member(leaving, ends[leaving]))
            while sum(lag.lag for lag in await groups.lag("workers")):
                await asyncio.sleep(0.05)
            for end in ends:
                end.set()
            await asyncio.gather(*members)
    assert settled == {b"%d" % number: 1 for number in range(MESSAGES)}


async def _has_members(groups: Any, count: int) -> bool:
    try:
        return len(await groups.members("workers")) >= count
    except trovemq.TroveError:
        return False  # the first one has not come yet
