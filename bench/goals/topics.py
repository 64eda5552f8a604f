"""A message's cost for the broker in a store of one topic, of 64, and of 10,000 that all get messages.

    SendMessage   single messages by RocketMQ's protocol: one call after the other, and 64 in flight
    Append        frames of 100 records, on 16 streams
    Pull          the first message of a queue, 64 calls in flight

Three brokers take turns, so that a machine whose speed drifts says the same of all; a ratio is the median of
the rounds' ratios. The whole work is counted: a step lasts until the trees have its messages, and the
consume queues are synced at the end of each kind of calls, whose messages pay for it in equal parts. A broker
syncs many queues once a minute, or where 512 MiB of the log wait for it: so each kind lasts until about then,
a minute at most, with the interval of three minutes, since three brokers share the time.

Every topic has one queue, and a message in it before anything is measured; calls go through all topics in
turn, from one round to the next. 64 sends in flight are one append, to one topic or to 64; but 64 topics have
64 consume queues to write. So the ratio of 10,000 to 64 is the growth with the store.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import trovemq
import trovemq_rpc as rpc
from bench import limits
from bench import measure as measuring
from bench.goals.calls import SEND, Sender
from bench.report import Report, median_ratio
from bench.rocketmq_raw import BODY
from trovemq._produce.unique_keys import next_unique_keys
from trovemq.testing import BrokerProcess
from trovemq_proto.records import BatchEncoder
from trovemq_proto.v1 import common_pb2, message_pb2

TOPICS: Final = 10_000
IN_FLIGHT: Final = 64
STREAMS: Final = 16
RECORDS: Final = 100
TURN_S: Final = 5.0
SYNC_INTERVAL: Final = "many_queues_flush_interval_ms"
SYNC_INTERVAL_MS: Final = 180_000
SYNCED: Final = "restart_read_bytes"
IN_TREES: Final = "tree_lag_bytes"
POLL_S: Final = 0.1
RATIO_MAX: Final = 1.2
"""A cost that does not grow, with the difference between runs."""
METHODS: Final = "/trovemq.v1.MessageService/"


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    topic_counts = (1, IN_FLIGHT, TOPICS // (10 if quick else 1))
    async with AsyncExitStack() as stack:
        stores = [await filled(stack, directory / f"topics-{count}", count) for count in topic_counts]
        for kind, calls in stores[0].kinds.items():
            found = await in_turns(stores, kind, 1 if quick else calls.rounds, directory)
            _report(report, kind, topic_counts, found)


def _report(report: Report, kind: str, topic_counts: Sequence[int], costs: Sequence[Sequence[float]]) -> None:
    name = f"{kind}: server's processor a message"
    for count, of_store in zip(topic_counts, costs, strict=True):
        report.add(f"{name}, {count:,} topic{'s' if count > 1 else ''}", median(of_store), "us")
    alone, few, among = costs
    many = f"{name}, {topic_counts[-1]:,} topics"
    report.add(f"{many} / 1", median_ratio(among, alone), "x", at_most=RATIO_MAX)
    report.add(f"{many} / {IN_FLIGHT}", median_ratio(among, few), "x")


async def filled(stack: AsyncExitStack, store: Path, count: int) -> Topics:
    """A broker that runs until the stack is closed, with `count` topics and a message in each."""
    broker = stack.enter_context(BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH"))
    client = await stack.enter_async_context(trovemq.connect(broker.address))
    channel = await stack.enter_async_context(rpc.insecure_channel(broker.address))
    topics = Topics(broker.pid, client, channel, [f"topic-{number:06}" for number in range(count)])
    await topics.make()
    return topics


async def in_turns(stores: Sequence[Topics], kind: str, rounds: int, directory: Path) -> list[list[float]]:
    """Microseconds a message by round, of each store. Each round begins with another store, and each step
    with memory that the log's files find warm: its first use costs more than all else of a message in a
    batch."""
    turns: list[list[Step]] = [[] for _ in stores]
    for number in range(rounds * len(stores)):
        round_number, turn = divmod(number, len(stores))
        place = (round_number + turn) % len(stores)
        await asyncio.to_thread(limits.warm_page_cache, directory, stores[place].kinds[kind].written)
        turns[place].append(await stores[place].turn(kind))
    costs = []
    for store, taken in zip(stores, turns, strict=True):
        sync_us = await store.sync_us() / sum(turn.messages for turn in taken)
        costs.append([turn.spent_us / turn.messages + sync_us for turn in taken])
    return costs


class Calls(NamedTuple):
    do: Callable[[int], Awaitable[None]]
    at_once: int
    messages: int  # of each call
    rounds: int
    written: int  # bytes that a step writes, about


class Step(NamedTuple):
    messages: int
    spent_us: float
    """Of the broker's processor."""


class Topics:
    """Calls to one broker that go through these topics in turn."""

    def __init__(self, pid: int, client: trovemq.Client, channel: Any, names: Sequence[str]) -> None:
        self._pid = pid
        self.client: Final = client
        self._names = names
        self._numbers = itertools.count()
        self._senders = [Sender(name) for name in names]
        self._send = channel.unary_unary(SEND)
        self._pull = channel.unary_unary(METHODS + "Pull")
        self._free = [channel.stream_stream(METHODS + "Append")() for _ in range(STREAMS)]
        self.kinds: Final = {
            "SendMessage, one at a time": Calls(self.send, 1, 1, 12, 1 << 26),
            f"SendMessage, {IN_FLIGHT} in flight": Calls(self.send, IN_FLIGHT, 1, 7, 1 << 27),
            f"Append of {RECORDS} records": Calls(self.append, STREAMS, RECORDS, 3, 1 << 30),
            f"Pull, {IN_FLIGHT} in flight": Calls(self.pull, IN_FLIGHT, 1, 3, 1 << 20),
        }

    async def make(self) -> None:
        """Makes the topics, and sends a message to each."""

        async def create(number: int) -> None:
            await self.client.admin.create_topic(self._names[number], queue_count=1)

        await measuring.each(len(self._names), create, IN_FLIGHT)
        await measuring.each(len(self._names), self.send, IN_FLIGHT)
        await self.settle()

    async def settle(self) -> None:
        """Returns when the trees have all messages, and the consume queues are synced."""
        await self._until_none(IN_TREES)
        await self.sync_us()

    async def turn(self, kind: str) -> Step:
        """Calls for some seconds, until the trees have their messages."""
        do, at_once, messages, *_ = self.kinds[kind]
        count, before, end = 0, self._spent_us(), time.monotonic() + TURN_S

        async def call() -> None:
            nonlocal count
            while time.monotonic() < end:
                await do(next(self._numbers))
                count += 1

        await asyncio.gather(*(call() for _ in range(at_once)))
        await self._until_none(IN_TREES)
        return Step(count * messages, self._spent_us() - before)

    async def sync_us(self) -> float:
        """The broker's processor time until all consume queues are synced."""
        before = self._spent_us()
        await self.client.admin.brokers.set_setting(SYNC_INTERVAL, "10ms")
        await self._until_none(SYNCED)
        await self.client.admin.brokers.set_setting(SYNC_INTERVAL, f"{SYNC_INTERVAL_MS}ms")
        return self._spent_us() - before

    async def _until_none(self, counter: str) -> None:
        while (await self.client.admin.statistics())[0].counters[counter]:
            await asyncio.sleep(POLL_S)

    def _spent_us(self) -> float:
        return measuring.scheduled_seconds(self._pid) * 1e6

    async def send(self, number: int) -> None:
        await self._senders[number % len(self._senders)].send(self._send)

    async def pull(self, number: int) -> None:
        request = message_pb2.FetchRequest(topic=self._name(number), messages_max=1)
        reply = message_pb2.FetchReply.FromString(bytes(await self._pull(request.SerializeToString())))
        assert reply.records, reply.error

    async def append(self, number: int) -> None:
        name, stream = self._name(number), self._free.pop()
        records = BatchEncoder(name, append_property_crc=True).encode(
            [BODY] * RECORDS, queue_id=0, unique_keys=next_unique_keys(RECORDS), born_timestamp=1
        )
        frame = message_pb2.AppendFrame(frame_id=number + 1, topic=name, records=bytes(records))
        await stream.write(frame.SerializeToString())
        reply = message_pb2.AppendReply.FromString(bytes(await stream.read()))
        assert reply.status == common_pb2.PUT_OK, reply.error
        self._free.append(stream)

    async def consume_one(self, number: int) -> None:
        """A new group consumes the first message of a topic, and leaves."""
        group = f"group-{number:06}"
        async with self.client.subscribe(self._name(number), group=group, prefetch=1) as messages:
            async for message in messages:
                async with message.process():
                    return

    def _name(self, number: int) -> str:
        return self._names[number % len(self._names)]
