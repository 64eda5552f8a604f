"""A message's cost for the broker in a store of one topic, of 64, and of 10,000 that all get messages.

    SendMessage   single messages by RocketMQ's protocol: one call after the other, and 64 in flight
    Append        frames of 100 records, on 16 streams
    Pull          the first message of a queue, 64 calls in flight

Every topic has one queue, and a message in it before anything is measured; calls go through all topics in
turn, from one round to the next. 64 sends in flight are one append, to one topic or to 64; but 64 topics have
64 consume queues to write. So the ratio of 10,000 to 64 is the growth with the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import trovemq
import trovemq_rpc as rpc
from bench import measure as measuring
from bench.goals.calls import SEND, Sender, cost_us
from bench.report import Report
from bench.rocketmq_raw import BODY
from trovemq._unique_keys import next_unique_keys
from trovemq.testing import BrokerProcess
from trovemq_proto.records import BatchEncoder
from trovemq_proto.v1 import common_pb2, message_pb2

TOPICS: Final = 10_000
IN_FLIGHT: Final = 64
STREAMS: Final = 16
RECORDS: Final = 100
CALLS: Final = 3_000
CALLS_ALONE: Final = 1_000
FRAMES: Final = 300
ROUNDS: Final = 3
RATIO_MAX: Final = 1.2
"""A cost that does not grow, with the difference between rounds of one run."""
METHODS: Final = "/trovemq.v1.MessageService/"
Found = dict[str, list[float]]
"""Microseconds a message by round, for each kind of call."""


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    count, rounds = TOPICS // (10 if quick else 1), 1 if quick else ROUNDS
    names = [f"topic-{number:06}" for number in range(count)]
    with BrokerProcess(store=directory / "topics", flushDiskType="ASYNC_FLUSH") as broker:
        async with trovemq.connect(broker.address) as client, rpc.insecure_channel(broker.address) as channel:
            await _make(client, names[:1])
            alone = await Topics(channel, names[:1]).costs(broker.pid, rounds)
            await _make(client, names[1:IN_FLIGHT])
            few = await Topics(channel, names[:IN_FLIGHT]).costs(broker.pid, rounds)
            await _make(client, names[IN_FLIGHT:])
            among = await Topics(channel, names).costs(broker.pid, rounds)
    for kind in alone:
        name = f"{kind}: server's processor a message"
        report.add(f"{name}, 1 topic", median(alone[kind]), "us")
        report.add(f"{name}, {IN_FLIGHT} topics", median(few[kind]), "us")
        report.add(f"{name}, {count:,} topics", median(among[kind]), "us")
        ratio = median(among[kind]) / median(alone[kind])
        report.add(f"{name}, {count:,} topics / 1", ratio, "x", at_most=RATIO_MAX)
        report.add(f"{name}, {count:,} topics / {IN_FLIGHT}", median(among[kind]) / median(few[kind]), "x")


async def _make(client: trovemq.Client, names: Sequence[str]) -> None:
    async def make(number: int) -> None:
        await client.admin.create_topic(names[number], queue_count=1)

    await measuring.each(len(names), make, IN_FLIGHT)


class Topics:
    """Calls that go through these topics in turn."""

    def __init__(self, channel: Any, names: Sequence[str]) -> None:
        self._names = names
        self._numbers = itertools.count()
        self._senders = [Sender(name) for name in names]
        self._send = channel.unary_unary(SEND)
        self._pull = channel.unary_unary(METHODS + "Pull")
        self._free = [channel.stream_stream(METHODS + "Append")() for _ in range(STREAMS)]

    async def costs(self, pid: int, rounds: int) -> Found:
        await measuring.each(len(self._names), self.send, IN_FLIGHT)
        kinds: dict[str, tuple[Callable[[int], Awaitable[None]], int, int, int]] = {
            "SendMessage, one at a time": (self.send, CALLS_ALONE, 1, 1),
            f"SendMessage, {IN_FLIGHT} in flight": (self.send, CALLS, IN_FLIGHT, 1),
            f"Append of {RECORDS} records": (self.append, FRAMES, STREAMS, RECORDS),
            f"Pull, {IN_FLIGHT} in flight": (self.pull, CALLS, IN_FLIGHT, 1),
        }
        found: Found = {kind: [] for kind in kinds}
        for _ in range(-1, rounds):  # the first one warms
            for kind, (do, count, at_once, messages) in kinds.items():
                found[kind].append(await cost_us(pid, count, self._onwards(do), at_once) / messages)
        return {kind: costs[1:] for kind, costs in found.items()}

    def _onwards(self, do: Callable[[int], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
        """`do` from the topic on at which the last calls ended."""

        async def call(_: int) -> None:
            await do(next(self._numbers))

        return call

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

    def _name(self, number: int) -> str:
        return self._names[number % len(self._names)]
