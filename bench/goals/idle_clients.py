"""Clients that wait for messages: `python -m bench.goals.idle_clients BROKER COUNT`.

Each has a separate connection, as a simple consumer of the official clients has: an open Telemetry stream
with its settings, and a ReceiveMessage that waits 20 s and is then sent again. The first waits are of all
lengths, so that the polls' ends are spread evenly. A line on the standard input begins heartbeats, one every
10 s of each client, evenly spread, too; the process ends with its input. Prints how many clients wait.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import uvloop

import trovemq_rpc as rpc
from bench.rocketmq_raw import IDLE_TOPIC, SERVICE, receive_request
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

POLL_S: Final = 20.0
HEARTBEAT_S: Final = 10.0
GROUP_SIZE: Final = 100
CONNECTED_AT_ONCE: Final = 50
SETTLE_S: Final = 1.5


class WaitingClient:
    """One of `count` clients, by its number."""

    def __init__(self, address: str, number: int, count: int) -> None:
        self.part = (number + 1) / count
        """Of the time between two polls, or two heartbeats, after which its own come."""
        self._group = f"idle-{number // GROUP_SIZE}"
        self._channel: Any = rpc.insecure_channel(address)
        self._metadata = (
            ("x-mq-client-id", f"idle-{number}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waits(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def connect(self) -> None:
        """Returns when the broker has accepted its settings."""
        self._telemetry = self._channel.stream_stream(SERVICE + "Telemetry")(metadata=self._metadata)
        await self._telemetry.write(self._settings())
        answer = service.TelemetryCommand.FromString(bytes(await self._telemetry.read()))
        assert answer.settings.HasField("subscription"), answer
        self._tasks = [asyncio.create_task(self._poll())]

    def begin_heartbeats(self) -> None:
        self._tasks.append(asyncio.create_task(self._heartbeats()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _settings(self) -> bytes:
        entry = v2.SubscriptionEntry(
            topic=v2.Resource(name=IDLE_TOPIC), expression=v2.FilterExpression(type=v2.TAG, expression="*")
        )
        subscription = v2.Subscription(group=v2.Resource(name=self._group), subscriptions=[entry])
        subscription.long_polling_timeout.FromMilliseconds(int(POLL_S * 1000))
        settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER, subscription=subscription)
        settings.user_agent.CopyFrom(v2.UA(language=v2.PYTHON, version="5.1.2"))
        return service.TelemetryCommand(settings=settings).SerializeToString()

    async def _poll(self) -> None:
        receive, wait_s = self._channel.unary_stream(SERVICE + "ReceiveMessage"), POLL_S * self.part
        while True:
            request = receive_request(self._group, IDLE_TOPIC, poll_s=max(wait_s, 1.0))
            async for reply in receive(request, metadata=self._metadata):
                answer = service.ReceiveMessageResponse.FromString(bytes(reply))
                assert not answer.HasField("message"), "the topic is empty"
            wait_s = POLL_S

    async def _heartbeats(self) -> None:
        heartbeat = self._channel.unary_unary(SERVICE + "Heartbeat")
        request = service.HeartbeatRequest(
            group=v2.Resource(name=self._group), client_type=v2.SIMPLE_CONSUMER
        ).SerializeToString()
        await asyncio.sleep(HEARTBEAT_S * self.part)
        while True:
            await heartbeat(request, metadata=self._metadata)
            await asyncio.sleep(HEARTBEAT_S)


async def main(address: str, count: int) -> None:
    clients = [WaitingClient(address, number, count) for number in range(count)]
    for begin in range(0, count, CONNECTED_AT_ONCE):
        await asyncio.gather(*(client.connect() for client in clients[begin : begin + CONNECTED_AT_ONCE]))
    await asyncio.sleep(SETTLE_S)
    loop = asyncio.get_running_loop()
    while True:
        print(sum(client.waits for client in clients), flush=True)
        if not await loop.run_in_executor(None, sys.stdin.readline):
            break
        for client in clients:
            client.begin_heartbeats()
    await asyncio.gather(*(client.close() for client in clients))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
