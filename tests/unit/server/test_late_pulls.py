"""Pulls that come when the broker is stopping."""

from __future__ import annotations

import asyncio

from tests.support.call_forms import called
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.native.fetch_stream import begin_pull
from trovemq_proto.v1 import message_pb2


@fake_time
async def test_a_pull_that_came_while_the_broker_stopped_waited_for_messages() -> None:
    core = TestBroker()
    request = message_pb2.FetchRequest(topic="orders", wait_ms=20_000)
    pull = called(lambda calls: begin_pull(core, *calls))
    core.long_polls.close()
    async with asyncio.timeout(1):
        reply = message_pb2.FetchReply.FromString(await pull(request, RpcContext()))
    assert (reply.next_offset, reply.error.symbol) == (0, "")
