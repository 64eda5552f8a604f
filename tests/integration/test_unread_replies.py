"""Clients that do not read their replies: how much memory a real broker keeps for them, and frees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.durability.process_memory import memory_kib
from tests.durability.raw_http2 import unread_calls
from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.engine import record
from tests.support.stubs import ADMIN, MESSAGES, stub_of
from trovemq_proto.channels import TRANSPORTS
from trovemq_proto.v1 import (
    admin_pb2,
    message_pb2,
    query_pb2,
)

pytestmark = pytest.mark.slow

MIB = 1 << 20
STREAMS = 60
TOTAL, CONNECTION = 32 * MIB, 8 * MIB
OVER = 6 * MIB
"""The first large reply of a method is counted when it is made."""
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
GROWN_KIB_MAX = 64 << 10
SETTINGS = (
    f"reply_bytes_max={TOTAL}",
    f"reply_connection_bytes_max={CONNECTION}",
    "reply_unread_time_max_ms=4000",
    "mappedFileSizeCommitLog=16777216",
    "slow_request_ms=1",
)
"""Each call is logged as slow, also one whose client has gone: grpcio ended the broker with SIGSEGV, because
it was asked for the peer of a call that was over."""


def gauge(broker: BrokerProcess, name: str) -> float:
    _, text = broker.get("/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


async def fill(channel: Any) -> None:
    await stub_of(ADMIN, channel).CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=1))
    messages = stub_of(MESSAGES, channel)
    append = messages.Append()
    for number in range(4):
        data = record(b"%d" % number * MIB, unique_key="U", keys="k", append_property_crc=True)
        frame = message_pb2.AppendFrame(frame_id=number, topic="orders", queue_id=0, records=data)
        await append.write(frame)
        reply = await append.read()
        assert not reply.HasField("error"), reply
    await append.done_writing()


@asynccontextmanager
async def unread_fetches(address: str) -> AsyncIterator[None]:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        calls = [stub_of(MESSAGES, channel).Fetch() for _ in range(STREAMS)]
        for call in calls:
            await call.write(message_pb2.FetchRequest(topic="orders", offset=0, bytes_max=4 * MIB))
        yield
        for call in calls:
            call.cancel()


@asynccontextmanager
async def unread_queries(address: str) -> AsyncIterator[None]:
    request = query_pb2.QueryByKeyRequest(topic="orders", key="k", messages_max=100).SerializeToString()
    with unread_calls(address, "/trovemq.v1.QueryService/QueryByKey", request, STREAMS):
        yield


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ask", [unread_fetches, unread_queries])
async def test_replies_that_nobody_read_took_two_gibibytes_for_ever(
    ask: Any, transport: str, tmp_path: Path
) -> None:
    with running_broker(tmp_path, *SETTINGS, f"grpc_transport={transport}") as broker:
        process = broker.process.pid
        async with grpc.aio.insecure_channel(broker.address, options=OPTIONS) as good:
            await fill(good)
            before = memory_kib("RssAnon", process)
            async with ask(broker.address):
                deadline = time.monotonic() + 30
                while not gauge(broker, "trovemq_reply_waits_total") and time.monotonic() < deadline:
                    await asyncio.sleep(0.1)
                assert gauge(broker, "trovemq_reply_bytes_peak") <= CONNECTION + OVER
                assert memory_kib("RssAnon", process) - before <= GROWN_KIB_MAX
                request = message_pb2.FetchRequest(topic="orders", offset=0, bytes_max=MIB)
                await stub_of(MESSAGES, good).Pull(request, timeout=10)
            deadline = time.monotonic() + 30
            while gauge(broker, "trovemq_reply_bytes") and time.monotonic() < deadline:
                await asyncio.sleep(0.2)
            assert gauge(broker, "trovemq_reply_bytes") == 0
        assert broker.stop() == 0
