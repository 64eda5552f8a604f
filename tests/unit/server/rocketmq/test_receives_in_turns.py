"""Receives that read many records for their filters leave the loop to others between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.groups.delivery.delivery import RECEIVE_READS_MAX
from broker.server.rocketmq.receiving import LONG_LOOK_READS
from tests.support import fake_loop
from tests.support.engine import append, record
from tests.support.rocketmq_parts import Parts, receive_request
from tests.support.rpc_context import RpcContext
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

RECEIVES = 8


def backlog(parts: Parts, count: int) -> None:
    """Messages that no filter of these tests takes, and one that it does."""
    for colour, messages in (("red", count), ("blue", 1)):
        append(parts.store, *(record(b"x", properties={"colour": colour}) for _ in range(messages)))
    parts.store.dispatch()


async def received(parts: Parts, bodies: list[bytes]) -> None:
    """One receive of one message."""
    request = receive_request(batch_size=1, expression="colour = 'blue'", kind=v2.SQL)
    async for element in parts.receiver.receive(request, RpcContext()):
        reply = service_pb2.ReceiveMessageResponse.FromString(element)
        if reply.HasField("message"):
            bodies.append(reply.message.body)


def test_a_clients_receives_all_looked_in_one_pass_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        parts, bodies, passes, long_looks = Parts(), list[bytes](), 0, list[int]()
        backlog(parts, 2 * RECEIVE_READS_MAX + 100)
        receive_runs = parts.delivery.receive_runs

        def noted(request: Any) -> Any:
            found = receive_runs(request)
            if parts.delivery.last_reads >= LONG_LOOK_READS:
                long_looks.append(passes)
            return found

        monkeypatch.setattr(parts.delivery, "receive_runs", noted)
        tasks = [asyncio.create_task(received(parts, bodies)) for _ in range(RECEIVES)]
        while not bodies:
            passes += 1
            await asyncio.sleep(0)
            assert passes < 100
        assert bodies == [b"x"]
        assert len(long_looks) > 1
        assert len(set(long_looks)) == len(long_looks)
        await asyncio.gather(*tasks)

    fake_loop.run(scene())
