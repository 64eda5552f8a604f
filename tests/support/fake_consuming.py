"""A scripted broker's Consume stream in the test's own loop: one queue, leases, credit, commands.

It keeps the frames' contents, so that tests can check a client's bytes on the wire. A hook that returns an
error makes the settlement of that kind, or the delivery, fail with it. An orderly fake holds messages after
an unsettled message of its group. Leases last until their client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import Message

from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.receipts import handle_of
from trovemq_proto.records import PROPERTY_SHARDING_KEY, encode_record
from trovemq_proto.v1 import consumer_pb2, group_pb2

CONSUMER: Final = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]
BATCH_MAX: Final = 32

Hook = Callable[[Any], TroveError | None]


@dataclass
class Held:
    """One message of the fake: visible, leased or gone. `handle`: its own, after it was extended."""

    body: bytes
    offset: int
    topic: str
    message_group: str | None
    attempt: int = 0
    receipt: str = ""
    handle: str = ""
    leased: bool = False
    client_id: str = ""
    is_damaged: bool = False

    def record(self) -> bytes:
        return record_of(self.body, self.offset, self.topic, self.message_group, is_damaged=self.is_damaged)


class Settled(NamedTuple):
    """One message of a settlement."""

    body: bytes
    invisible_ms: int
    suspend: bool


@dataclass
class Member:
    """One Consume stream."""

    client_id: str
    context: Any
    start: consumer_pb2.ConsumeStart
    topic: str
    credit: int = 0
    credit_max: int = 0
    batch: int = 0
    received_batch: int = 0
    is_stopped: bool = False
    answers: asyncio.Queue[consumer_pb2.CommandAnswer] = field(default_factory=asyncio.Queue)
    frames: list[consumer_pb2.ConsumeFrame] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def command(self, command: consumer_pb2.ConsumeCommand) -> consumer_pb2.CommandAnswer:
        """Sends a command and returns the client's answer."""
        await self.write(consumer_pb2.ConsumeReply(command=command))
        return await asyncio.wait_for(self.answers.get(), 30)

    async def write(self, reply: consumer_pb2.ConsumeReply) -> None:
        """Sends it. grpcio takes the next one only when the one before is away."""
        async with self._writing:
            await self.context.write(reply)


class FakeConsuming:
    """The service; add it to a server by `add_fake`.

    Attributes:
        settings: The group's, for clients; orderly makes the fake hold message groups.
        refusal: The answer to each new stream.
        hooks: By kind of settlement, or "deliver".
        settled: By kind, every message of a settlement that came.
        members: The streams, oldest first.
        gone: Bodies that were acknowledged, in that order; `dead` those that were dead-lettered.
        left: The ids of clients that left.
    """

    def __init__(self) -> None:
        self.settings = group_pb2.GroupSettings(retry_max=2, backoff_ms=[1])
        self.refusal: TroveError | None = None
        self.hooks: dict[str, Hook] = {}
        self.settled: dict[str, list[Settled]] = {}
        self.frames_of_kind: dict[str, int] = {}
        self.members: list[Member] = []
        self.gone: list[bytes] = []
        self.dead: list[bytes] = []
        self.held: list[Held] = []
        self.left: list[str] = []
        self._offsets = self._leases = 0
        self._changed = asyncio.Condition()

    # --- for tests ------------------------------------------------------------------------------------
    async def offer(self, *bodies: bytes, topic: str = "orders", message_group: str | None = None) -> None:
        """Puts messages on the queue."""
        for body in bodies:
            self.held.append(Held(body, self._offsets, topic, message_group))
            self._offsets += 1
        await self.notify()

    async def notify(self) -> None:
        """Something changed that streams, or `until`, may wait for."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until it is so."""
        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(condition)

    async def until_received(self) -> None:
        """Waits until all messages of the queue were leased, and clients have confirmed their batches."""
        await self.until(
            lambda: not self.visible() and all(one.batch == one.received_batch for one in self.members)
        )

    def bodies(self) -> list[bytes]:
        """The remaining messages."""
        return [held.body for held in self.held]

    def visible(self) -> list[bytes]:
        return [held.body for held in self.held if not held.leased]

    def requests(self, kind: str) -> list[Settled]:
        """The messages of settlements of this kind."""
        return self.settled.get(kind, [])

    # --- the service ----------------------------------------------------------------------------------
    async def consume(self, frames: AsyncIterator[consumer_pb2.ConsumeFrame], context: Any) -> None:
        first = await anext(aiter(frames))
        if self.refusal is not None:
            await _abort(context, self.refusal)
        client_id = str(dict(context.invocation_metadata())["x-mq-client-id"])
        member = Member(client_id, context, first.start, first.topic)
        self.members.append(member)
        await member.write(consumer_pb2.ConsumeReply(settings=self.settings))
        await self.notify()
        tasks = [
            asyncio.ensure_future(self._read(member, frames)),
            asyncio.ensure_future(self._deliver(member)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failure = task.exception()
                if isinstance(failure, TroveError):
                    await _abort(context, failure)
        finally:
            for task in tasks:
                task.cancel()

    def _take_back(self, member: Member) -> None:
        for held in self.held:
            held.leased = held.leased and held.client_id != member.client_id

    async def _read(self, member: Member, frames: AsyncIterator[consumer_pb2.ConsumeFrame]) -> None:
        async for frame in frames:
            member.frames.append(frame)
            member.credit += frame.credit_messages
            member.credit_max = max(member.credit_max, member.credit)
            member.received_batch = max(member.received_batch, frame.received_batch)
            for answer in frame.answers:
                member.answers.put_nowait(answer)
            if frame.settlements:
                results = [self._settle(one) for one in frame.settlements]
                await member.write(consumer_pb2.ConsumeReply(results=results))
            if frame.stop:
                member.is_stopped = True
                await member.write(consumer_pb2.ConsumeReply(stopped=True))
            if frame.leave:
                self.left.append(member.client_id)
                self._take_back(member)
            await self.notify()

    async def _deliver(self, member: Member) -> None:
        while True:
            found: list[Held] = []

            def some(found: list[Held] = found) -> bool:
                if member.credit > 0 and not member.is_stopped:
                    self._check("deliver", member)
                    found.extend(self._lease(min(member.credit, BATCH_MAX), member))
                return bool(found)

            try:
                async with self._changed:
                    await self._changed.wait_for(some)
            except TroveError as error:
                if error.spec is not errors.PERMISSION_MISSING:
                    raise
                await member.write(consumer_pb2.ConsumeReply(ended=error_to_wire(error)))
                await asyncio.Event().wait()
            member.credit -= len(found)
            member.batch += 1
            await member.write(
                consumer_pb2.ConsumeReply(
                    batch=member.batch,
                    runs=[
                        consumer_pb2.ConsumeRun(
                            first_offset=one.offset, count=1, attempt=one.attempt, receipt=one.receipt
                        )
                        for one in found
                    ],
                    records=b"".join(one.record() for one in found),
                )
            )
            await self.notify()

    def _check(self, kind: str, what: Any) -> None:
        hook = self.hooks.get(kind)
        if hook is not None and (error := hook(what)) is not None:
            raise error

    def _lease(self, count: int, member: Member) -> list[Held]:
        found: list[Held] = []
        busy = {held.message_group for held in self.held if held.leased}
        for held in self.held:
            if held.leased or len(found) == count or held.topic != member.topic:
                continue
            if self.settings.orderly and held.message_group in busy:
                continue
            self._leases += 1
            held.leased, held.client_id, held.attempt = True, member.client_id, held.attempt + 1
            held.receipt, held.handle = f"{self._leases:x}.{self._leases:08x}", ""
            found.append(held)
        return found

    # --- settlements ----------------------------------------------------------------------------------
    def _settle(self, settlement: consumer_pb2.Settlement) -> consumer_pb2.SettlementResult:
        kind = consumer_pb2.SettlementKind.Name(settlement.kind)
        result = consumer_pb2.SettlementResult(settlement_id=settlement.settlement_id)
        self.frames_of_kind[kind] = self.frames_of_kind.get(kind, 0) + 1
        messages = self._named(settlement)
        self.settled.setdefault(kind, []).extend(
            Settled(held.body if held else b"", settlement.invisible_ms, settlement.suspend)
            for held in messages.values()
        )
        try:
            self._check(kind, settlement)
            for offset, held in messages.items():
                if held is not None:
                    self._settle_message(kind, held, settlement, result)
                elif settlement.handle:
                    raise TroveError(errors.RECEIPT_HANDLE_ILLEGAL)
                else:
                    refusal = error_to_wire(TroveError(errors.RECEIPT_HANDLE_ILLEGAL))
                    result.refused.add(offset=offset, error=refusal)
        except TroveError as error:
            result.error.CopyFrom(error_to_wire(error))
        return result

    def _named(self, settlement: consumer_pb2.Settlement) -> dict[int, Held | None]:
        """The messages by offset; None for those that are not leased so."""
        leased = [held for held in self.held if held.leased]
        if settlement.handle:
            named = [
                held
                for held in leased
                if settlement.handle == (held.handle or handle_of(held.receipt, held.offset))
            ]
            return {named[0].offset: named[0]} if named else {-1: None}
        by_offset = {held.offset: held for held in leased if held.receipt == settlement.receipt}
        pairs = zip(settlement.ranges[::2], settlement.ranges[1::2], strict=True)
        return {
            offset: by_offset.get(offset) for first, count in pairs for offset in range(first, first + count)
        }

    def _settle_message(
        self,
        kind: str,
        held: Held,
        settlement: consumer_pb2.Settlement,
        result: consumer_pb2.SettlementResult,
    ) -> None:
        if kind in ("ACKNOWLEDGE", "DEAD_LETTER"):
            self.held.remove(held)
            (self.gone if kind == "ACKNOWLEDGE" else self.dead).append(held.body)
            return
        self._leases += 1
        held.receipt = held.handle = f"{self._leases:x}.{held.offset:x}.0"
        held.attempt -= settlement.suspend
        if kind == "EXTEND":
            result.handle = held.handle
        if settlement.invisible_ms < 1_000:
            delay = settlement.invisible_ms / 1_000
            asyncio.get_running_loop().call_later(delay, self._show, held, held.handle)

    def _show(self, held: Held, handle: str) -> None:
        if held.handle == handle:
            held.leased = False
            self._notifying = asyncio.get_running_loop().create_task(self.notify())


def record_of(
    body: bytes,
    offset: int = 0,
    topic: str = "orders",
    message_group: str | None = None,
    *,
    is_damaged: bool = False,
) -> bytes:
    """A message as it lies in the log of a broker."""
    properties = {"UNIQ_KEY": f"id-{body.decode()}", "TAGS": "tag", "KEYS": "key", "p": "v"}
    if message_group is not None:
        properties[PROPERTY_SHARDING_KEY] = message_group
    return encode_record(
        topic,
        body,
        queue_offset=offset,
        physical_offset=1_000 * offset,
        born_timestamp=1_700_000_000_000,
        store_timestamp=1_700_000_000_000,
        properties=properties,
        body_crc=1 if is_damaged else None,
    )


async def _abort(context: Any, error: TroveError) -> None:
    """Ends a call as the servers do."""
    wire: Message = error_to_wire(error)
    trailer = (("trovemq-error-bin", wire.SerializeToString()),)
    await context.abort(grpc.StatusCode[error.spec.grpc_status], error.message, trailer)
