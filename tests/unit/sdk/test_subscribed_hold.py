"""The hold of a subscription knows how many messages its program works on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import ReceivedMessage, TroveError

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("options", "expected"), [({}, 8), ({"prefetch": 5}, 5)])
async def test_a_handler_receives_twice_its_concurrency(
    broker: FakeServer, connect: Connect, options: dict[str, Any], expected: int
) -> None:
    client = await connect(broker)

    async def handler(_message: ReceivedMessage) -> None:
        """There are no messages."""

    consuming = asyncio.create_task(client.consume("orders", "g", handler, concurrency=4, **options))
    await broker.consuming.until(lambda: any(one.credit_max for one in broker.consuming.members))
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    assert broker.consuming.members[0].credit_max == expected


async def test_workers_and_lists_are_held_twice(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        hold = subscription._inbox.hold
        subscription.works_on(3)
        assert hold.least == 6
        for concurrency in (0, 10_001):
            with pytest.raises(TroveError, match=f"concurrency={concurrency} is not in"):
                subscription.works_on(concurrency)
        taking = asyncio.ensure_future(subscription.next_batch(20, 0.01))
        await asyncio.sleep(0)
        assert hold.least == 120
        taking.cancel()
    async with client.subscribe("orders", "g") as subscription:
        tasks = [asyncio.ensure_future(subscription.next()) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert subscription._inbox.hold.least == 10, "each of them works on a message"
    assert await asyncio.gather(*tasks) == [None] * 5
    assert client.subscribe("orders", "g", broadcast=True)._inbox.count_max == 256
