"""RocketMQ's v2 protocol by raw calls, as fast as a client process can make them. One command, one process:

    python -m bench.rocketmq_raw send BROKER SECONDS
    python -m bench.rocketmq_raw receive BROKER ECHO SECONDS
    python -m bench.rocketmq_raw idle BROKER COUNT          prints a line when they wait; ends with its input
    python -m bench.rocketmq_raw delayed BROKER SECONDS

Each prints one JSON object. The variants are measured alternately, for one second or less, in the same
process, so that other work of the machine affects both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health_pb2

from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

SERVICE = "/apache.rocketmq.v2.MessagingService/"
HEALTH = "/grpc.health.v1.Health/Check"
FRAMES = "/trovemq.bench.Echo/Frames"
SEND_TOPIC, RECEIVE_TOPIC, IDLE_TOPIC, DELAY_TOPIC = "raw-send", "raw-receive", "raw-idle", "raw-delay"
GROUP = "bench"
BODY = bytes(range(256)) * 4
CALLS_IN_FLIGHT = 64
RECEIVES_IN_FLIGHT = 8
BATCH = 32
TURNS = 6
DUE_A_SECOND = 1_000
DELAY_AHEAD_S = 5.0
DELAYED_A_CALL = 50
POLLS_PER_CONNECTION = 250
POLLS_PER_GROUP = 100

_OK_SENT = service.SendMessageResponse(status=v2.Status(code=v2.OK, message="OK")).SerializeToString()
_OK_ACKNOWLEDGED = service.AckMessageResponse(status=v2.Status(code=v2.OK, message="OK")).SerializeToString()

Call = Callable[[], Awaitable[int]]


class RawError(Exception):
    """The server's answer was wrong."""


@dataclass(slots=True)
class Turns:
    """The counts of one kind of call in each round."""

    rates: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def run(self, call: Call, seconds: float, in_flight: int) -> None:
        """Makes calls for `seconds`; a call returns how much it counts."""
        count = 0
        begin = time.perf_counter()
        end = begin + seconds

        async def work() -> None:
            nonlocal count
            while (started := time.perf_counter()) < end:
                done = await call()
                self.times.append(time.perf_counter() - started)
                count += done
                if not done:
                    return

        await asyncio.gather(*(work() for _ in range(in_flight)))
        self.rates.append(count / (time.perf_counter() - begin))


async def in_turns(ours: Call, other: Call, seconds: float, in_flight: int) -> dict[str, Any]:
    """Both calls alternately; `ratio` is the median over the rounds of ours to the other's."""
    mine, theirs = Turns(), Turns()
    for call in (other, ours):
        await Turns().run(call, 0.5, in_flight)  # connections, caches
    for _ in range(TURNS):
        await theirs.run(other, seconds / TURNS / 2, in_flight)
        await mine.run(ours, seconds / TURNS / 2, in_flight)
    ratios = [one / two for one, two in zip(mine.rates, theirs.rates, strict=True)]
    return {
        "ratio": median(ratios),
        "ratios": ratios,
        "ours": median(mine.rates),
        "other": median(theirs.rates),
        "times": mine.times[:: max(len(mine.times) // 10_000, 1)],
    }


def channel(address: str, number: int = 0) -> grpc.aio.Channel:
    """`number` distinguishes connections that gRPC would share."""
    return grpc.aio.insecure_channel(address, options=[("trovemq.number", number)])


METADATA = (("x-mq-client-id", "bench-raw"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))


def message(topic: str, number: int, deliver_ms: int = 0) -> v2.Message:
    system = v2.SystemProperties(
        message_id=f"01{number:032X}", body_encoding=v2.IDENTITY, born_host="bench", keys=["key"], tag="tag"
    )
    system.message_type = v2.DELAY if deliver_ms else v2.NORMAL
    system.born_timestamp.GetCurrentTime()
    if deliver_ms:
        system.delivery_timestamp.FromMilliseconds(deliver_ms)
    return v2.Message(topic=v2.Resource(name=topic), body=BODY, system_properties=system)


# --- send -----------------------------------------------------------------------------------------------
async def send(address: str, seconds: float) -> dict[str, Any]:
    """SendMessage beside the health service's Check on the same broker, 64 calls in flight."""
    request = service.SendMessageRequest(messages=[message(SEND_TOPIC, 0)]).SerializeToString()
    before, _, after = request.partition(f"{0:032X}".encode())
    numbers = itertools.count(time.time_ns() // 1_000)
    async with channel(address) as connection:
        send_message = connection.unary_unary(SERVICE + "SendMessage")
        check = connection.unary_unary(HEALTH)
        empty = health_pb2.HealthCheckRequest().SerializeToString()

        async def send_one() -> int:
            reply = await send_message(b"%b%032X%b" % (before, next(numbers), after), metadata=METADATA)
            if not reply.startswith(_OK_SENT):
                raise RawError(str(service.SendMessageResponse.FromString(reply)))
            return 1

        async def check_one() -> int:
            await check(empty, metadata=METADATA)
            return 1

        return await in_turns(send_one, check_one, seconds, CALLS_IN_FLIGHT)


# --- receive --------------------------------------------------------------------------------------------
def receive_request(group: str, topic: str, poll_s: float, invisible_s: float = 60) -> bytes:
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=BATCH,
    )
    request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    request.long_polling_timeout.FromMilliseconds(int(poll_s * 1000))
    return request.SerializeToString()


class Receiving:
    """Receives and acknowledges on one connection."""

    def __init__(self, connection: grpc.aio.Channel, topic: str) -> None:
        self._receive = connection.unary_stream(SERVICE + "ReceiveMessage")
        self._acknowledge = connection.unary_unary(SERVICE + "AckMessage")
        self._topic = topic
        self._request = receive_request(GROUP, topic, poll_s=5)
        self.sizes: list[int] = []
        """Of the elements of the last full reply."""

    async def receive(self) -> list[v2.Message]:
        """Messages that come within the polling time."""
        elements = [element async for element in self._receive(self._request, metadata=METADATA)]
        if len(elements) == BATCH + 2:
            self.sizes = [len(element) for element in elements]
        replies = map(service.ReceiveMessageResponse.FromString, elements)
        return [reply.message for reply in replies if reply.HasField("message")]

    async def acknowledge(self, messages: list[v2.Message]) -> None:
        request = service.AckMessageRequest(
            group=v2.Resource(name=GROUP), topic=v2.Resource(name=self._topic)
        )
        for one in messages:
            system = one.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        reply = await self._acknowledge(request.SerializeToString(), metadata=METADATA)
        if not reply.startswith(_OK_ACKNOWLEDGED):
            raise RawError(str(service.AckMessageResponse.FromString(reply).status))


async def receive(address: str, echo: str, seconds: float) -> dict[str, Any]:
    """ReceiveMessage and AckMessage beside an empty stream of as many frames of the same sizes."""
    async with channel(address) as connection, channel(echo) as other:
        receiving = Receiving(connection, RECEIVE_TOPIC)
        frames = other.unary_stream(FRAMES)

        async def receive_some() -> int:
            messages = await receiving.receive()
            if messages:
                await receiving.acknowledge(messages)
            return len(messages)

        async def take_frames() -> int:
            request = ",".join(map(str, receiving.sizes)).encode()
            return len([frame async for frame in frames(request, metadata=METADATA)]) - 2

        if await receive_some() != BATCH:
            raise RawError("there is not a full batch to receive")
        return await in_turns(receive_some, take_frames, seconds, RECEIVES_IN_FLIGHT)


# --- idle -----------------------------------------------------------------------------------------------
async def idle(address: str, count: int) -> None:
    """This many long polls on a topic without messages, until the standard input ends."""
    connections = [channel(address, number) for number in range(-(-count // POLLS_PER_CONNECTION))]

    async def poll(number: int) -> None:
        request = receive_request(f"idle-{number // POLLS_PER_GROUP}", IDLE_TOPIC, poll_s=20)
        receive = connections[number // POLLS_PER_CONNECTION].unary_stream(SERVICE + "ReceiveMessage")
        async for _ in receive(request, metadata=METADATA):
            raise RawError("a poll that should wait was answered")

    polls = [asyncio.create_task(poll(number)) for number in range(count)]
    await asyncio.sleep(1.5)
    print(json.dumps({"waiting": sum(not task.done() for task in polls)}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in polls:
        task.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    for connection in connections:
        await connection.close()


# --- delayed --------------------------------------------------------------------------------------------
async def delayed(address: str, seconds: float) -> dict[str, Any]:
    """1,000 messages a second fall due; how long after its time the consumer has each one."""
    count = int(seconds * DUE_A_SECOND)
    first_ms = int((time.time() + DELAY_AHEAD_S) * 1000)
    times = [first_ms + number * 1000 // DUE_A_SECOND for number in range(count)]
    lateness: list[float] = []
    async with channel(address) as connection, channel(address, 1) as another:
        send_message = connection.unary_unary(SERVICE + "SendMessage")
        receiving = Receiving(another, DELAY_TOPIC)

        async def consume() -> None:
            while len(lateness) < count and time.time() * 1000 < times[-1] + 5_000:
                messages = await receiving.receive()
                now_ms = time.time() * 1000
                due_ms = [one.system_properties.delivery_timestamp.ToMilliseconds() for one in messages]
                lateness.extend(now_ms - one_ms for one_ms in due_ms)
                if messages:
                    await receiving.acknowledge(messages)

        consumers = [asyncio.create_task(consume()) for _ in range(RECEIVES_IN_FLIGHT)]
        numbers = iter(range(0, count, DELAYED_A_CALL))

        async def schedule() -> None:
            for begin in numbers:
                messages = [
                    message(DELAY_TOPIC, number, EpochMs(times[number]))
                    for number in range(begin, min(begin + DELAYED_A_CALL, count))
                ]
                request = service.SendMessageRequest(messages=messages).SerializeToString()
                reply = await send_message(request, metadata=METADATA)
                if not reply.startswith(_OK_SENT):
                    raise RawError(str(service.SendMessageResponse.FromString(reply).status))

        await asyncio.gather(*(schedule() for _ in range(4)))
        scheduled_s = DELAY_AHEAD_S - (first_ms / 1000 - time.time())
        while len(lateness) < count and time.time() * 1000 < times[-1] + 5_000:
            await asyncio.sleep(0.05)
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    if min(lateness, default=0) < 0:
        raise RawError(f"a message came {-min(lateness)} ms before its time")
    if scheduled_s > DELAY_AHEAD_S:
        raise RawError(f"scheduling {count} messages took {scheduled_s:.1f} s")
    return {"count": count, "came": len(lateness), "times": [ms / 1000 for ms in lateness]}


async def main(command: str, *arguments: str) -> None:
    if command == "idle":
        await idle(arguments[0], int(arguments[1]))
        return
    commands = {"send": send, "receive": receive, "delayed": delayed}
    *texts, seconds = arguments
    print(json.dumps(await commands[command](*texts, float(seconds))), flush=True)  # type: ignore[operator]


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
