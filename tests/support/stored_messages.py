"""The messages that a real broker has stored, read with the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.support.broker_process import BrokerProcess
from trovemq import Client, connect
from trovemq_proto.records import Message

CONNECT_WAIT_MS: Final = 30_000


def ask(broker: BrokerProcess, question: Callable[[Client], Any]) -> Any:
    """One question to a broker, in a separate event loop."""

    async def asked() -> Any:
        async with connect(broker.address, wait_ms=CONNECT_WAIT_MS) as client:
            return await question(client)

    return asyncio.run(asked())


def stored(broker: BrokerProcess, topic: str) -> list[Message]:
    """All messages of a topic, queue by queue."""

    async def read(client: Client) -> list[Message]:
        found: list[Message] = []
        for queue in await client.queue_offsets(topic):
            pulled = client.pull(topic, queue_id=queue.queue_id, offset=queue.min_offset)
            found += [message async for message in pulled]
        return found

    messages: list[Message] = ask(broker, read)
    return messages
