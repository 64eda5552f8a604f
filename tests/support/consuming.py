"""The broker's Consume stream in process, and a client of it that says each frame by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc

from tests.support.fake_loop import turns
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_proto.positions import QueueId
from trovemq_proto.records import RecordBatch
from trovemq_proto.v1 import consumer_pb2, group_pb2

GROUP = "g"


class Got(NamedTuple):
    """One message of a batch."""

    body: bytes
    queue_id: QueueId
    offset: int
    attempt: int
    receipt: str


class ConsumeClient:
    """One stream; `open` it, then `say` frames. `serving` is the broker's side of the call."""

    def __init__(
        self,
        parts: TestBroker,
        topic: str = "orders",
        client_id: str = "client-1",
    ) -> None:
        self.service = parts.consumers
        self.context = RpcContext(client_id)
        self.topic = topic
        context: Any = self.context
        self.serving = asyncio.ensure_future(self.service.consume(None, context))
        self.replies: list[consumer_pb2.ConsumeReply] = []
        self.settings: list[group_pb2.GroupSettings] = []
        """The group's, one for each `open`."""

    async def open(
        self, messages: int = 0, byte_count: int = 1 << 20, *, invisible_ms: int = 30_000, **start: Any
    ) -> None:
        """The first frame, with credit."""
        await self.say(
            start=consumer_pb2.ConsumeStart(invisible_ms=invisible_ms, **start),
            credit_messages=messages,
            credit_bytes=byte_count,
        )
        written = self.context.written
        if written and (reply := consumer_pb2.ConsumeReply.FromString(written[0])).HasField("settings"):
            self.settings.append(reply.settings)
            del written[0]

    async def say(self, **fields: Any) -> None:
        """One frame, and time for the answer."""
        named: dict[str, Any] = {"group": GROUP, "topic": self.topic, **fields}
        await self.context.requests.put(consumer_pb2.ConsumeFrame(**named))
        await turns(40)

    async def settle(self, *settlements: consumer_pb2.Settlement) -> Sequence[consumer_pb2.SettlementResult]:
        """One frame of them; their results."""
        before = len(self.context.written)
        await self.say(settlements=settlements)
        replies = [consumer_pb2.ConsumeReply.FromString(one) for one in self.context.written[before:]]
        return [result for reply in replies for result in reply.results]

    def batches(self) -> list[list[Got]]:
        """The replies since the last call."""
        replies = [consumer_pb2.ConsumeReply.FromString(one) for one in self.context.written]
        self.context.written.clear()
        self.replies += replies
        return [_messages(reply) for reply in replies if reply.batch]

    def messages(self) -> list[Got]:
        """All of these batches."""
        return [one for batch in self.batches() for one in batch]

    async def end(self) -> None:
        """The client's regular end."""
        await self.context.requests.put(grpc.aio.EOF)
        await self.serving

    async def break_off(self) -> None:
        """Its connection is gone."""
        self.context.is_done = True
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


def acknowledgement(*got: Got, number: int = 1) -> consumer_pb2.Settlement:
    """Of messages under one receipt."""
    ranges = [value for one in got for value in (one.offset, 1)]
    return consumer_pb2.Settlement(settlement_id=number, receipt=got[0].receipt, ranges=ranges)


def returned(*got: Got, invisible_ms: int = 0, suspend: bool = False) -> consumer_pb2.Settlement:
    made = acknowledgement(*got)
    made.kind, made.invisible_ms, made.suspend = consumer_pb2.RETURN, invisible_ms, suspend
    return made


def _messages(reply: consumer_pb2.ConsumeReply) -> list[Got]:
    bodies = [bytes(body) for body in RecordBatch.split(reply.records).bodies()]
    states = [
        (QueueId(run.queue_id), run.first_offset + number, run.attempt, run.receipt)
        for run in reply.runs
        for number in range(run.count)
    ]
    return [Got(body, *state) for body, state in zip(bodies, states, strict=True)]
