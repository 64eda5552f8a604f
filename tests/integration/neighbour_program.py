"""A program at a broker of another version: `python -P neighbour_program.py SERVER RUN`.

It runs with the SDK on its path, today's or an earlier one, so it uses only calls that both have. RUN is the
beginning of all bodies: a later run at the same store receives those of the earlier ones, too. Prints one
JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing

import trovemq

BATCH = 20
TAKEN_SECONDS_MAX = 240


async def send_all(client: trovemq.Client, run: str) -> list[str]:
    """The bodies of the messages, one or more by each way of sending."""
    receipt = await client.send("orders", f"{run} single".encode(), keys=[f"{run}-key"], tag="paid")
    assert receipt.durability == "disk"
    async with client.producer("orders") as producer:
        await producer.send_batch([f"{run} batch {number}".encode() for number in range(BATCH)])
        await producer.send_nowait(f"{run} nowait".encode())
        await producer.send(f"{run} delayed".encode(), deliver_after=0.2)
        recalled = await producer.send(f"{run} recalled".encode(), deliver_after=600)
        await client.recall("orders", recalled.recall_handle)
        async with producer.transaction() as half:
            await half.send(f"{run} half".encode())
    async with client.transaction() as atomic:
        await atomic.send("orders", f"{run} atomic".encode())
    single = ("single", "nowait", "delayed", "half", "atomic")
    return sorted([f"{run} {name}" for name in single] + [f"{run} batch {number}" for number in range(BATCH)])


async def take(client: trovemq.Client, group: str, count: int) -> list[str]:
    """The bodies of the first messages that a new group gets; one of them is returned first."""
    bodies: set[str] = set()
    returned = False
    async with (
        asyncio.timeout(TAKEN_SECONDS_MAX),
        client.subscribe("orders", group=group, start="earliest") as messages,
    ):
        while len(bodies) < count:
            message = await anext(messages)
            if not returned:
                returned = True
                await message.nack(delay=0.01)
                continue
            bodies.add(message.body.decode())
            await message.ack()
    return sorted(bodies)


async def look_up(client: trovemq.Client, run: str, group: str) -> None:
    """Every kind of look-up finds the single message, acknowledged."""
    (found,) = (await client.query("orders", f"{run}-key")).messages
    assert found.body == f"{run} single".encode()
    (same,) = (await client.get(found.offset_msg_id)).messages
    assert same == found
    (searched,) = (await client.search("orders", trovemq.Where.key_prefix(f"{run}-k"))).messages
    assert searched.offset_msg_id == found.offset_msg_id
    placed = await client.get_at("orders", found.queue_id, found.queue_offset)
    assert placed.body == found.body
    track = await client.track(found.offset_msg_id)
    (status,) = [one for one in track.statuses if one.group == group]
    assert status.consumed, status
    pulled = client.pull("orders", queue_id=found.queue_id, offset=found.queue_offset)
    async with aclosing(pulled) as messages:
        assert (await anext(messages)).body == found.body


async def administer(client: trovemq.Client, run: str, group: str) -> None:
    """Topics, groups and the cluster."""
    await client.admin.create_topic(f"{run}-own", queue_count=1)
    (altered,) = await client.admin.alter_topic(f"{run}-own", queue_count=2)
    assert altered.queue_count == 2
    await client.admin.delete_topic(f"{run}-own")
    assert sum(queue.lag for queue in await client.admin.groups.lag(group)) == 0
    changes = await client.admin.groups.reset(group, "orders", to_min=True, preview=True)
    assert changes
    (described,) = await client.admin.groups.describe(group)
    assert described.topics == ("orders",)
    (statistics,) = await client.admin.statistics()
    assert statistics.counters["messages_in"] > 0
    assert any(topic.topic == "orders" for topic in (await client.admin.cluster()).brokers[0].topics)


async def main(server: str, run: str) -> None:
    async with trovemq.connect(server) as client:
        await client.admin.create_topic("orders", queue_count=2, message_type="MIXED", exist_ok=True)
        before = sum(queue.max_offset for queue in await client.queue_offsets("orders"))
        sent = await send_all(client, run)
        group = f"{run}-group"
        taken = await take(client, group, before + len(sent))
        await look_up(client, run, group)
        await administer(client, run, group)
        print(json.dumps({"sdk": trovemq.__file__, "sent": sent, "taken": taken}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
