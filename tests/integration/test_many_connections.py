"""Connections that come and go: nothing of them stays. 1,000 in a soak."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import grpc
import pytest

from tests.durability.process_memory import memory_kib
from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.stubs import ADMIN, MESSAGES, stub_of
from tests.support.trials import SOAK
from trovemq_proto.v1 import admin_pb2, message_pb2

pytestmark = pytest.mark.slow

COUNT = 1_000 if SOAK else 80
AT_ONCE = 20
GROWN_KIB_MAX = 32 << 10
DESCRIPTORS_MORE = 8
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def descriptors(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


async def come_and_go(address: str, *, rude: bool) -> None:
    """One connection: a call, a stream, a pull that waits; half of them leave without ending these."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        messages = stub_of(MESSAGES, channel)
        await messages.Pull(message_pb2.FetchRequest(topic="orders"), timeout=30)
        fetch = messages.Fetch()
        await fetch.write(message_pb2.FetchRequest(topic="orders", wait_ms=30_000))
        waiting = messages.Pull(message_pb2.FetchRequest(topic="orders", wait_ms=30_000))
        if not rude:
            fetch.cancel()
            waiting.cancel()


def open_streams(broker: BrokerProcess) -> list[str]:
    """The lines of the metric that are not zero."""
    lines = [
        line for line in broker.get("/metrics")[1].splitlines() if line.startswith("trovemq_open_streams{")
    ]
    return [line for line in lines if line.rpartition(" ")[2] != "0.0"]


@pytest.mark.asyncio
async def test_1000_connections_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        process = broker.process.pid
        async with grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel:
            await stub_of(ADMIN, channel).CreateTopic(
                admin_pb2.CreateTopicRequest(topic="orders", queue_count=1)
            )
            for number in range(AT_ONCE):
                await come_and_go(broker.address, rude=number % 2 == 0)
            before, opened = memory_kib("RssAnon", process), descriptors(process)
            for _ in range(COUNT // AT_ONCE):
                await asyncio.gather(
                    *(come_and_go(broker.address, rude=number % 2 == 0) for number in range(AT_ONCE))
                )
            deadline = time.monotonic() + 120
            while descriptors(process) > opened + DESCRIPTORS_MORE and time.monotonic() < deadline:
                gc.collect()  # calls lie in cycles, and hold their connections
                await asyncio.sleep(0.2)
            assert descriptors(process) <= opened + DESCRIPTORS_MORE
            assert memory_kib("RssAnon", process) - before <= GROWN_KIB_MAX
            while (left := open_streams(broker)) and time.monotonic() < deadline:
                await asyncio.sleep(0.2)
            assert not left
        assert broker.stop() == 0
