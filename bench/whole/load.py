"""The load of one source tree: its client against its broker, by the public interface alone.

A process that `bench.whole.run` starts with the interpreter of a tree. It reads a row's name per line and
answers with one JSON object: messages, seconds, and the processor seconds of this client and of the broker.
It imports nothing of this tree, since it runs in others, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import uvloop

import trovemq
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

BODY = bytes(range(256)) * 4
QUEUES = 4
BATCH = 1_000
FILL = 60_000
FEW = 20_000
SENDS_TOGETHER = 64
REST_S = 15.0
LOOK_S = 0.5
IDLE_SHARE = 0.02
SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "bench-whole"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))

Row = Callable[["Load", str], Awaitable[int]]


class Load:
    """One broker and the client of the same tree. Every row makes its own topic first,
    outside of the measured time, which `begin` starts."""

    def __init__(self, address: str, pid: int, raw: str, client: trovemq.Client) -> None:
        self.client = client
        self.raw = raw
        self._pid = pid
        self._started = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        self._started = self._now()

    async def rest(self) -> None:
        """Returns when the broker does next to nothing, or after REST_S."""
        for _ in range(round(REST_S / LOOK_S)):
            _, _, before = self._now()
            await asyncio.sleep(LOOK_S)
            _, _, after = self._now()
            if after - before < IDLE_SHARE * LOOK_S:
                return

    def spent(self, messages: int) -> dict[str, float]:
        """Since `begin`: messages, seconds, and processor seconds of client and broker."""
        seconds, client, broker = (now - then for now, then in zip(self._now(), self._started, strict=True))
        return {"messages": messages, "seconds": seconds, "client": client, "broker": broker}

    def _now(self) -> tuple[float, float, float]:
        tasks = Path(f"/proc/{self._pid}/task").iterdir()
        broker = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        return time.perf_counter(), time.process_time(), broker


# --- the native protocol ----------------------------------------------------------------------------------
async def send(load: Load, topic: str) -> int:
    """Single sends, one after the other."""
    await load.client.send(topic, BODY, keys=["first"])
    load.begin()
    for number in range(8_000):
        await load.client.send(topic, BODY, keys=[f"k{number}"])
    return 8_000


async def flight(load: Load, topic: str) -> int:
    """Single sends, 64 at once."""
    await load.client.send(topic, BODY)
    numbers = iter(range(FEW))

    async def work() -> None:
        for number in numbers:
            await load.client.send(topic, BODY, keys=[f"k{number}"])

    load.begin()
    await asyncio.gather(*(work() for _ in range(SENDS_TOGETHER)))
    return FEW


async def batch(load: Load, topic: str) -> int:
    """Batches of 1,000, pipelined."""
    return await _fill(load, topic, 2 * FILL, with_keys=True)


async def _fill(load: Load, topic: str, count: int, *, with_keys: bool = False) -> int:
    keys = [[f"k{first + i}" for i in range(BATCH)] for first in range(0, count, BATCH)]
    async with load.client.producer(topic) as producer:
        await producer.send_batch([BODY], queue_id=0)
        load.begin()
        pending: set[asyncio.Task[Any]] = set()
        for number, batch_keys in enumerate(keys):
            if len(pending) >= 16:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            sent = producer.send_batch(
                [BODY] * BATCH, keys=batch_keys if with_keys else None, queue_id=number % QUEUES
            )
            pending.add(asyncio.create_task(sent))
            await asyncio.sleep(0)
        await asyncio.gather(*pending)
    return count


async def _filled(load: Load, topic: str, count: int, *, with_keys: bool = False) -> None:
    """Fills, and waits until the broker has done all that follows: else it would be measured, too."""
    await _fill(load, topic, count, with_keys=with_keys)
    await load.rest()


async def pull(load: Load, topic: str) -> int:
    """Batches pulled by offset, every body taken."""
    await _filled(load, topic, 2 * FILL)
    load.begin()
    count = 0
    for queue_id in range(QUEUES):
        async for pulled in load.client.pull_batches(topic, queue_id=queue_id):
            count += len([record.body for record in pulled.messages()])
    return count


async def iterate(load: Load, topic: str) -> int:
    """A member of a group that iterates, default options; `process()` for each message."""
    await _filled(load, topic, FILL)
    async with load.client.subscribe(topic, group=f"{topic}-group") as messages:
        load.begin()
        count = 0
        async for message in messages:
            async with message.process():
                count += 1
            if count == FILL:
                break
    return count


async def consume(load: Load, topic: str) -> int:
    """Handlers with default options."""
    await _filled(load, topic, FILL)
    count = 0
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        nonlocal count
        count += 1
        if count == FILL:
            done.set()

    load.begin()
    task = asyncio.ensure_future(load.client.consume(topic, f"{topic}-group", handle))
    await done.wait()
    spent = load.spent(count)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return spent  # type: ignore[return-value]


async def batches(load: Load, topic: str) -> int:
    """Batches of 100 of a group, `process()` for each."""
    await _filled(load, topic, FILL)
    async with load.client.subscribe(topic, group=f"{topic}-group") as messages:
        load.begin()
        count = 0
        async for received in messages.batches(100):
            async with received.process():
                count += len(received)
            if count >= FILL:
                break
    return count


async def query(load: Load, topic: str) -> int:
    """Look-ups by key, one after the other."""
    await _filled(load, topic, FEW, with_keys=True)
    load.begin()
    for number in range(1_500):
        answer = await load.client.query(topic, f"k{number * 7 % FEW}")
        assert len(answer.messages) == 1, answer
    return 1_500


async def by_id(load: Load, topic: str) -> int:
    """Look-ups by unique key, one after the other."""
    async with load.client.producer(topic) as producer:
        receipts = await producer.send_batch([BODY] * 1_500, queue_id=0)
    await asyncio.sleep(1)
    name = "message_id" if hasattr(receipts[0], "message_id") else "unique_key"  # until the first release
    keys = [getattr(receipt, name) for receipt in receipts]
    load.begin()
    for key in keys:
        answer = await load.client.get(key, topic=topic)
        assert len(answer.messages) == 1, answer
    return len(keys)


# --- RocketMQ's protocol ----------------------------------------------------------------------------------
def _message(topic: str) -> Any:
    system = v2.SystemProperties(
        message_id=f"01{0:032X}", body_encoding=v2.IDENTITY, born_host="bench", keys=["key"], tag="tag"
    )
    system.message_type = v2.NORMAL
    system.born_timestamp.GetCurrentTime()
    return v2.Message(topic=v2.Resource(name=topic), body=BODY, system_properties=system)


async def _send_v2(load: Load, topic: str, count: int) -> int:
    request = service.SendMessageRequest(messages=[_message(topic)]).SerializeToString()
    before, _, after = request.partition(f"{0:032X}".encode())
    numbers = iter(range(count))
    start = time.time_ns() // 1_000
    async with grpc.aio.insecure_channel(load.raw) as connection:
        call = connection.unary_unary(SERVICE + "SendMessage")

        async def work() -> None:
            for number in numbers:
                await call(b"%b%032X%b" % (before, start + number, after), metadata=METADATA)

        load.begin()
        await asyncio.gather(*(work() for _ in range(SENDS_TOGETHER)))
    return count


async def v2_send(load: Load, topic: str) -> int:
    """SendMessage, 64 calls at once."""
    return await _send_v2(load, topic, FEW)


async def v2_receive(load: Load, topic: str) -> int:
    """ReceiveMessage of 32 by eight members, one AckMessage for each message."""
    await _filled(load, topic, FEW)
    request = service.ReceiveMessageRequest(
        group=v2.Resource(name=f"{topic}-group"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=32,
        auto_renew=False,
    )
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromSeconds(2)
    count = 0
    async with grpc.aio.insecure_channel(load.raw) as connection:
        receive = connection.unary_stream(
            SERVICE + "ReceiveMessage", response_deserializer=service.ReceiveMessageResponse.FromString
        )
        acknowledge = connection.unary_unary(SERVICE + "AckMessage")

        async def member() -> None:
            nonlocal count
            while count < FEW:
                acks = []
                async for reply in receive(request.SerializeToString(), metadata=METADATA, timeout=30):
                    if reply.HasField("message"):
                        system = reply.message.system_properties
                        ack = service.AckMessageRequest(
                            group=request.group,
                            topic=request.message_queue.topic,
                            entries=[
                                service.AckMessageEntry(
                                    message_id=system.message_id, receipt_handle=system.receipt_handle
                                )
                            ],
                        )
                        acks.append(acknowledge(ack.SerializeToString(), metadata=METADATA))
                count += len(acks)
                await asyncio.gather(*acks)

        load.begin()
        await asyncio.gather(*(member() for _ in range(8)))
    return count


ROWS: dict[str, Row] = {
    each.__name__: each
    for each in (send, flight, batch, pull, iterate, consume, batches, query, by_id, v2_send, v2_receive)
}


async def _lines() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def main(address: str, pid: int, raw: str, ca: str, secret: str) -> None:
    """Answers each line until the input ends."""
    options: dict[str, Any] = {}
    if ca:
        from trovemq_proto.tls import TlsOptions

        options["tls"] = TlsOptions(ca=Path(ca))
    if secret:
        options |= {"access_key": "admin", "secret_key": secret}
    async with trovemq.connect(address, **options) as client:
        load = Load(address, pid, raw, client)
        number = 0
        async for name in _lines():
            number += 1
            topic = f"{name.replace('_', '-')}-{os.getpid()}-{number}"
            await client.admin.create_topic(topic, queue_count=QUEUES)
            count: Any = await ROWS[name](load, topic)
            print(json.dumps(count if isinstance(count, dict) else load.spent(count)), flush=True)
            await client.admin.delete_topic(topic)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    uvloop.run(main(arguments[0], int(arguments[1]), *arguments[2:5]))
