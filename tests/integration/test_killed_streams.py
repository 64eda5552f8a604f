"""A broker that is killed while streams of its groups are at work."""

from __future__ import annotations

import asyncio
import random

import pytest

import trovemq
from tests.support.trials import SOAK
from trovemq import Client, GroupSettings
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

KILLS = 20 if SOAK else 2
MESSAGES = 400  # between two kills
MESSAGE_GROUPS = 4


async def test_killed_brokers_lose_no_message_of_a_group_nor_its_order() -> None:
    """The acknowledgements of the last moments before a kill may be lost: then messages come twice, but none
    is left out, and none comes before an earlier one of its message group was there."""
    source = random.Random("killed streams")
    with BrokerProcess(ready_timeout=240) as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic("steps", queue_count=2, message_type="FIFO")
            for group in ("ordered", "shared"):
                settings = GroupSettings(orderly=group == "ordered", retry_max=100, backoff_ms=(10,))
                await client.admin.groups.create(group, settings)
            consumers = [
                asyncio.create_task(consume(client, group, KILLS * MESSAGES))
                for group in ("ordered", "shared")
            ]
            for kill in range(KILLS):
                await send(client, kill * MESSAGES)
                await asyncio.sleep(source.random() / 10)
                await asyncio.to_thread(broker.restart, kill=True)
            async with asyncio.timeout(240):
                ordered, _ = await asyncio.gather(*consumers)
    seen: set[int] = set()
    for number in ordered:
        assert number < MESSAGE_GROUPS or number - MESSAGE_GROUPS in seen
        seen.add(number)


async def send(client: Client, begin: int) -> None:
    """Message n is of message group n % MESSAGE_GROUPS."""
    for number in range(begin, begin + MESSAGES):
        await client.send("steps", b"%d" % number, message_group=f"g{number % MESSAGE_GROUPS}")


async def consume(client: Client, group: str, count: int) -> list[int]:
    """The numbers in the order in which they came, until all are there; some are returned first."""
    found: list[int] = []
    different: set[int] = set()
    source = random.Random(group)
    async with client.subscribe("steps", group) as messages:
        async for message in messages:
            if source.random() < 0.02:
                await message.nack(0)
                continue
            found.append(int(message.body))
            different.add(found[-1])
            await message.consumed()
            if len(different) == count:
                break
    return found
