"""Clients of remoting that wait for messages: `python -m bench.goals.idle_remoting_clients BROKER COUNT`.

Each has a separate connection, as a push consumer has: PULLS pulls that wait 15 s and are then sent again,
and a heartbeat every 30 s. The first waits are of all lengths, so that their ends are spread evenly. Prints
the number of pulls that wait; the process ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Final, cast

import uvloop

from bench.rocketmq_raw import IDLE_TOPIC
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.frame import FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import Header

POLL_MS: Final = 15_000
HEARTBEAT_S: Final = 30.0
PULLS: Final = 4
GROUP_SIZE: Final = 100
CONNECTED_AT_ONCE: Final = 50
SETTLE_S: Final = 1.0
READY_S_MAX: Final = 40.0
HEARTBEAT: Final = 1_000
"""The opaque number of heartbeats; a pull has its queue's."""


class WaitingClient(asyncio.Protocol):
    """One of `count` clients, by its number."""

    def __init__(self, number: int, count: int) -> None:
        self._part = (number + 1) / count
        self._number = number
        self._group = f"idle-{number // GROUP_SIZE}"
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self.waiting: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._beat()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.clear()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(memoryview(data)):
            header = frame.header()
            if not header.is_response:
                continue
            assert header.code in (0, 19), header
            if header.opaque != HEARTBEAT:
                self._pull(header.opaque, POLL_MS)
            elif not self.waiting:
                for queue_id in range(PULLS):
                    self._pull(queue_id, max(int(POLL_MS * self._part), 1_000))

    def _beat(self) -> None:
        if self._transport is None:
            return
        subscription = {"topic": IDLE_TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}
        consumer = {"groupName": self._group, "subscriptionDataSet": [subscription]}
        data = {"clientID": f"idle-{self._number}", "consumerDataSet": [consumer]}
        header = Header(RequestCode.HEART_BEAT, HEARTBEAT)
        self._transport.write(encode_frame(header, json.dumps(data).encode()))
        asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _pull(self, queue_id: int, wait_ms: int) -> None:
        if self._transport is None:
            return
        self.waiting.add(queue_id)
        fields = {
            "consumerGroup": self._group,
            "topic": IDLE_TOPIC,
            "queueId": str(queue_id),
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "2",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subVersion": "1",
        }
        self._transport.write(encode_frame(Header(RequestCode.PULL_MESSAGE, queue_id, fields=fields), b""))


async def main(address: str, count: int) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    clients: list[WaitingClient] = []
    for begin in range(0, count, CONNECTED_AT_ONCE):
        numbers = range(begin, min(begin + CONNECTED_AT_ONCE, count))
        made = (
            loop.create_connection(partial(WaitingClient, one, count), host, int(port)) for one in numbers
        )
        clients += [client for _, client in await asyncio.gather(*made)]
    end_s = loop.time() + READY_S_MAX
    while sum(len(client.waiting) for client in clients) < count * PULLS and loop.time() < end_s:
        await asyncio.sleep(SETTLE_S)
    await asyncio.sleep(SETTLE_S)
    print(sum(len(client.waiting) for client in clients), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
