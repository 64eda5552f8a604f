"""A scripted ProducerService in the test's own loop. It keeps the requests; the error that a hook returns is
that of the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from trovemq_proto.errors import TroveError
from trovemq_proto.records import encode_record
from trovemq_proto.v1 import common_pb2, producer_pb2

Hook = Callable[[Any], TroveError | None]
Abort = Callable[[Any, TroveError], Awaitable[None]]


@dataclass
class Asked:
    """One stream on which a producer is asked about half messages."""

    client_id: str
    context: Any
    topics: list[str]
    beats: int = 0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def write(self, reply: producer_pb2.CheckHalvesReply) -> None:
        """Sends it. grpcio takes the next one only when the one before is away."""
        async with self._writing:
            await self.context.write(reply)

    async def ask(self, body: bytes, transaction_id: str, topic: str = "orders") -> None:
        """Asks about a half message with that body."""
        properties = {"UNIQ_KEY": transaction_id, "REAL_TOPIC": topic, "REAL_QID": "3", "p": "v"}
        record = encode_record("RMQ_SYS_TRANS_HALF_TOPIC", body, properties=properties)
        check = producer_pb2.HalfCheck(
            topic=topic, transaction_id=transaction_id, queue_id=3, queue_offset=7, record=record
        )
        await self.write(producer_pb2.CheckHalvesReply(check=check))


class FakeProducers:
    """The service.

    Attributes:
        hooks: By RPC; an error that a hook returns is the call's.
        calls: By RPC, every request.
        asked: The streams that have begun, oldest first.
        left: The ids of the clients that have left.
        start_error: Refuses streams.
    """

    def __init__(self, abort: Abort) -> None:
        self._abort = abort
        self.hooks: dict[str, Hook] = {}
        self.calls: dict[str, list[Any]] = {}
        self.asked: list[Asked] = []
        self.left: list[str] = []
        self.start_error: TroveError | None = None
        self._changed = asyncio.Condition()

    # --- for tests ------------------------------------------------------------------------------------
    def requests(self, rpc: str) -> list[Any]:
        return self.calls.get(rpc, [])

    def ends(self) -> list[tuple[str, bool]]:
        """The transaction ids of the EndHalf calls, and whether they are commits."""
        return [(request.transaction_id, request.commit) for request in self.requests("EndHalf")]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until it is so."""
        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- the service ----------------------------------------------------------------------------------
    async def _note(self, rpc: str, request: Any, context: Any) -> None:
        self.calls.setdefault(rpc, []).append(request)
        hook = self.hooks.get(rpc)
        error = hook(request) if hook is not None else None
        await self._notify()
        if error is not None:
            await self._abort(context, error)

    async def send_delayed(self, request: Any, context: Any) -> producer_pb2.SendDelayedReply:
        await self._note("SendDelayed", request, context)
        handle = f"handle-{request.message.unique_key}"
        return producer_pb2.SendDelayedReply(recall_handle=handle, durability=common_pb2.DISK)

    async def prepare_half(self, request: Any, context: Any) -> producer_pb2.PrepareHalfReply:
        await self._note("PrepareHalf", request, context)
        return producer_pb2.PrepareHalfReply(
            transaction_id=request.message.unique_key, durability=common_pb2.MEMORY
        )

    async def recall(self, request: Any, context: Any) -> producer_pb2.RecallReply:
        await self._note("Recall", request, context)
        return producer_pb2.RecallReply(unique_key="recalled")

    async def end_half(self, request: Any, context: Any) -> producer_pb2.EndHalfReply:
        await self._note("EndHalf", request, context)
        return producer_pb2.EndHalfReply()

    async def check_halves(self, frames: AsyncIterator[producer_pb2.CheckHalvesFrame], context: Any) -> None:
        client_id = str(dict(context.invocation_metadata()).get("x-mq-client-id", ""))
        asked: Asked | None = None
        async for frame in frames:
            if self.start_error is not None:
                await self._abort(context, self.start_error)
            if frame.leave:
                self.left.append(client_id)
            elif asked is None:
                asked = Asked(client_id, context, list(frame.start.topics))
                self.asked.append(asked)  # before its client can know of it
                await asked.write(producer_pb2.CheckHalvesReply(connected=True))
            else:
                asked.beats += 1
            await self._notify()
