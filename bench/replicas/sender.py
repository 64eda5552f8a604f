"""`python -m bench.replicas.sender ADDRESS TOPIC RATE`: RATE sends of 1 KiB a second, one at a time.

Until its input ends; then it prints [[when due, seconds until acknowledged], …] as JSON. A send that is late
because the one before it was slow counts from when it was due. The clock is that of all processes of the
machine (time.perf_counter).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop

import trovemq
from bench.peers.ours import SLEEPING
from bench.peers.task import body


async def send(address: str, topic: str, rate: float) -> None:
    times: list[tuple[float, float]] = []
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with trovemq.connect(address, options=SLEEPING) as client:
        await client.send(topic, body(0))
        print("ready", flush=True)
        began = time.perf_counter()
        while not ended.done():
            due = began + len(times) / rate
            await asyncio.sleep(due - time.perf_counter())
            await client.send(topic, body(len(times)))
            times.append((due, time.perf_counter() - due))
    print(json.dumps(times), flush=True)
    os._exit(0)  # the thread is not waited for


if __name__ == "__main__":
    uvloop.run(send(sys.argv[1], sys.argv[2], float(sys.argv[3])))
