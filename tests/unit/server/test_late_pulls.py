"""Pulls that come when the broker is stopping."""

from __future__ import annotations

import asyncio

from tests.support import fake_loop
from tests.support.call_forms import called
from tests.support.engine import open_store
from tests.support.rpc_context import RpcContext
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.pull import Puller, PullSettings
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.fetch_stream import FetchParts, begin_pull
from trovemq_proto.v1 import message_pb2
from trovemq_store.files.memory import MemoryFileSystem


def test_a_pull_that_came_while_the_broker_stopped_waited_for_messages() -> None:
    async def scene() -> None:
        polls = LongPolls()
        parts = FetchParts(Puller(open_store(MemoryFileSystem()), PullSettings()), polls, Traffic())
        request = message_pb2.FetchRequest(topic="orders", wait_ms=20_000)
        pull = called(lambda calls: begin_pull(parts, *calls))
        polls.close()
        async with asyncio.timeout(1):
            reply = message_pb2.FetchReply.FromString(await pull(request, RpcContext()))
        assert (reply.next_offset, reply.error.symbol) == (0, "")

    fake_loop.run(scene())
