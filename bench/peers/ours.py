"""TroveMQ by its SDK: single messages, batches, and a consumer group."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from importlib import import_module, metadata
from pathlib import Path
from typing import Final

import trovemq
from bench.peers.peer import Command, Peer
from bench.peers.task import (
    LIVE_TIMEOUT_S,
    Answer,
    Stopwatch,
    Task,
    age_us,
    body,
    latencies,
    paced,
    stamped,
    timed,
    until_input_ends,
)
from trovemq.options import ClientOptions
from trovemq.testing import free_port

QUEUES: Final = 8
SEGMENT_SIZE: Final = 1 << 30
LOADED: Final = [
    import_module(name)
    for name in (
        "trovemq._consume.group_stream",
        "trovemq.producer",
        "trovemq.subscription",
        "trovemq_proto.records.batch",
        "trovemq_proto.records.record_crcs",
    )
]
"""Loaded before the stopwatch starts, as the other clients' modules are."""
SLEEPING: Final = ClientOptions(busy_poll_us=0)
PREFETCH: Final = 1_000  # messages; Redis and NATS are asked for 500 and 4,000 at a time


def connected(task: Task) -> AbstractAsyncContextManager[trovemq.Client]:
    return trovemq.connect(task.address)


class Single:
    """`client.send`, and `Message` objects."""

    async def make_topic(self, client: trovemq.Client, task: Task) -> Answer:
        await client.admin.create_topic(task.topic, queue_count=QUEUES)
        return {"count": 1}

    async def one_at_a_time(self, client: trovemq.Client, task: Task) -> Answer:
        await client.send(task.topic, body(0))
        return await timed(task, lambda number: client.send(task.topic, body(number)))

    async def produce(self, client: trovemq.Client, task: Task) -> Answer:
        sent, watch = 0, Stopwatch(task)

        async def send_more() -> None:
            nonlocal sent
            while sent < task.count and not watch.over:
                sent += 1
                await client.send(task.topic, body(sent))

        await asyncio.gather(*(send_more() for _ in range(task.in_flight)))
        return watch.answer(sent)

    async def consume(self, client: trovemq.Client, task: Task) -> Answer:
        got, size, watch = 0, 0, Stopwatch(task)
        for queue_id in range(QUEUES):
            async for message in client.pull(task.topic, queue_id=queue_id, offset=0):
                size += len(message.body)
                got += 1
        return watch.answer(got, size=size)

    async def steady(self, client: trovemq.Client, task: Task) -> Answer:
        async with client.producer(task.topic, idempotent=True) as producer:
            return await until_input_ends(lambda number: producer.send(body(number)))

    async def live_send(self, client: trovemq.Client, task: Task) -> None:
        async with client.producer(task.topic) as producer:  # waits for the answers at its end
            await paced(task, lambda number: _sent(producer.send_nowait(stamped(number), queue_id=0)))

    async def live_read(self, client: trovemq.Client, task: Task) -> Answer:
        ages: list[float] = []
        async with asyncio.timeout(task.seconds + LIVE_TIMEOUT_S):
            async for message in client.pull(task.topic, queue_id=0, offset=0, follow=True):
                ages.append(age_us(message.body))
                if len(ages) >= task.count:
                    break
        return latencies(ages)


class Sleeping(Single):
    """The same by a client whose event loop sleeps while it waits for an answer."""

    async def one_at_a_time(self, client: trovemq.Client, task: Task) -> Answer:
        async with trovemq.connect(task.address, options=SLEEPING) as own:
            return await super().one_at_a_time(own, task)

    async def live_send(self, client: trovemq.Client, task: Task) -> None:
        async with trovemq.connect(task.address, options=SLEEPING) as own:
            await super().live_send(own, task)


class Batch(Single):
    """`producer.send_batch`, and batches of records, every body taken as bytes."""

    async def produce(self, client: trovemq.Client, task: Task) -> Answer:
        """in_flight up to 1,000: one batch of that size at a time; more: batches of 1,000."""
        size, sent = min(task.in_flight, 1000), 0
        async with client.producer(task.topic) as producer:
            await producer.send_batch([body(0)], queue_id=0)  # opens the stream
            watch = Stopwatch(task)

            async def send_more(queue_id: int) -> None:
                nonlocal sent
                while sent < task.count and not watch.over:
                    first, sent = sent, sent + size
                    await producer.send_batch([body(first + i) for i in range(size)], queue_id=queue_id)

            await asyncio.gather(*(send_more(number % QUEUES) for number in range(task.in_flight // size)))
            return watch.answer(sent)

    async def consume(self, client: trovemq.Client, task: Task) -> Answer:
        got, size, watch = 0, 0, Stopwatch(task)
        for queue_id in range(QUEUES):
            async for batch in client.pull_batches(task.topic, queue_id=queue_id):
                for content in batch.bodies():
                    size += len(content)
                    got += 1
        return watch.answer(got, size=size)


class Group(Single):
    """A group's member: each message acknowledged by `process()`; leaving waits for the acknowledgements."""

    async def group(self, client: trovemq.Client, task: Task) -> Answer:
        got, watch = 0, Stopwatch(task)
        group, prefetch = f"group-of-{task.topic}", PREFETCH
        async with client.subscribe(task.topic, group=group, prefetch=prefetch) as messages:
            async for message in messages:
                async with message.process():
                    got += 1
                if got >= task.count or watch.over:
                    break
        return watch.answer(got - messages.refused)


class GroupBatch(Single):
    """The same in lists of up to 500, each acknowledged by one `process()`."""

    async def group(self, client: trovemq.Client, task: Task) -> Answer:
        got, watch = 0, Stopwatch(task)
        group, prefetch = f"group-of-{task.topic}", PREFETCH
        async with client.subscribe(task.topic, group=group, prefetch=prefetch) as messages:
            async for batch in messages.batches(500):
                async with batch.process():
                    got += len(batch)
                if got >= task.count or watch.over:
                    break
        return watch.answer(got - messages.refused)


def _sent(_receipt: object) -> None:
    """Its result is not awaited."""


CLIENTS = {"single": Single, "sleeping": Sleeping, "batch": Batch, "group": Group, "group-batch": GroupBatch}


class TroveMQ(Peer):
    """This clone's broker, with segments of 1 GiB as by default."""

    name, module, clients, python = "TroveMQ", "ours", tuple(CLIENTS), Path(sys.executable)

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return f"TroveMQ {metadata.version('trovemq')}"

    def command(self, directory: Path, port: int, *, synced: bool) -> Command:
        addresses = ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
        flush = f"flushDiskType={'SYNC_FLUSH' if synced else 'ASYNC_FLUSH'}"
        settings = ["--set", flush, "--set", f"mappedFileSizeCommitLog={SEGMENT_SIZE}"]
        return [sys.executable, "-m", "trovemq_broker", *addresses, "--store", directory / "store", *settings]


PEER = TroveMQ()
