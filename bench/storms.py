"""One user's storm of calls, as a separate process: `python -m bench.storms KIND ADDRESS SECONDS CALLS`.

Credentials come from TROVEMQ_ACCESS_KEY and TROVEMQ_SECRET_KEY. It ends after a number of calls or seconds,
whichever is first, and prints the numbers of calls that were answered and that were refused as JSON.

| kind | a call |
| --- | --- |
| create | makes a topic of 8 queues |
| search | the newest 256 messages with a tag, of 20,000 that have it |
| receive | ReceiveMessage of 32 messages for 10 s; none is acknowledged |
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvloop

import trovemq
import trovemq_rpc
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

AT_ONCE: Final = 64
TOPIC: Final = "storm"
TAG: Final = "storm"
DATE: Final = "20261123T001500Z"
CLIENT_ID: Final = (("x-mq-client-id", "storm"),)
KINDS: Final = ("create", "search", "receive")

Call = Callable[[int], Awaitable[bool]]
"""Whether the call was accepted."""


async def storm(call: Call, seconds: float, calls: int) -> dict[str, int]:
    """The calls, AT_ONCE at a time."""
    counts = {"answered": 0, "refused": 0}
    numbers, end = iter(range(calls)), time.monotonic() + seconds

    async def work() -> None:
        for number in numbers:
            if time.monotonic() >= end:
                return
            counts["answered" if await call(number) else "refused"] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return counts


def by_client(client: trovemq.Client, kind: str) -> Call:
    async def call(number: int) -> bool:
        try:
            if kind == "create":
                await client.admin.create_topic(f"storm-{os.getpid()}-{number:06}", 8)
            else:
                await client.search(TOPIC, tag=TAG, max=256)
        except TroveError as error:
            if error.symbol != "LIMIT_EXCEEDED":
                raise
            return False
        return True

    return call


def rocketmq_metadata(user: str, secret: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call, signed with the scheme of RocketMQ's clients."""
    signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
    signed = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (*CLIENT_ID, ("x-mq-date-time", DATE), ("authorization", signed))


def receiving(channel: Any, user: str, secret: str) -> Call:
    """Raw calls, for a client of ours would wait between them."""
    receive = channel.unary_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage")
    metadata = rocketmq_metadata(user, secret)

    def request(number: int) -> bytes:
        wanted = service.ReceiveMessageRequest(
            group=v2.Resource(name="storm"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC), id=number % 8),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
            batch_size=32,
        )
        wanted.invisible_duration.FromSeconds(10)
        wanted.long_polling_timeout.FromMilliseconds(0)
        return wanted.SerializeToString()

    requests = [request(number) for number in range(8)]

    async def call(number: int) -> bool:
        taken = True
        async for reply in receive(requests[number % 8], metadata=metadata):
            answer = service.ReceiveMessageResponse.FromString(reply)
            taken = taken and answer.status.code != v2.TOO_MANY_REQUESTS
        return taken

    return call


async def main(kind: str, address: str, seconds: str, calls: str) -> None:
    limits = float(seconds), int(calls)
    if kind == "receive":
        user, secret = os.environ["TROVEMQ_ACCESS_KEY"], os.environ["TROVEMQ_SECRET_KEY"]
        async with trovemq_rpc.insecure_channel(address) as channel:
            counts = await storm(receiving(channel, user, secret), *limits)
    else:
        async with trovemq.connect(address) as client:
            counts = await storm(by_client(client, kind), *limits)
    print(json.dumps(counts))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
