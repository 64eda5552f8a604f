"""TransactionService: atomic transactions, one stream each.

A transaction ends with its stream: by a commit or a rollback, when the stream breaks, by its time-out, or
when the broker stops. A commit that was appended is answered when it is as durable as other acknowledged
messages; if its stream breaks before that, it is committed nevertheless, and GetTransaction reports it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.atomic.ends import Committed
from trovemq_broker.atomic.open_transactions import OpenTransaction, OpenTransactions
from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.wire.native_messages import born_host_of, wire_durability
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.v1 import transaction_pb2

SERVICE: Final = transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionParts:
    """The parts of the service."""

    transactions: OpenTransactions
    appender: Appender
    group_commit: GroupCommit
    traffic: Traffic
    broker: str
    clock_ms: Callable[[], EpochMs]


class TransactionService:
    def __init__(self, parts: TransactionParts) -> None:
        self._parts = parts
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    async def end_all(self, timeout_s: float) -> None:
        """Ends all streams: open transactions are rolled back, running commits are answered."""
        self._stopping.set()
        if self._running:
            await asyncio.wait(list(self._running), timeout=timeout_s)

    # --- calls ----------------------------------------------------------------------------------------
    async def get_transaction(
        self, request: transaction_pb2.GetTransactionRequest, _context: Context
    ) -> transaction_pb2.TransactionReply:
        committed = self._parts.transactions.committed(request.transaction_id, self._parts.clock_ms())
        return await self._reply(committed)

    async def transact(self, _requests: object, context: Context) -> transaction_pb2.TransactionReply:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        started = time.perf_counter()
        try:
            reply = await self._transact(context)
        except TroveError as error:
            self._parts.traffic.refused(error.symbol)
            self._parts.traffic.answered("Transact", error.symbol, started)
            raise
        finally:
            self._running.discard(task)
        self._parts.traffic.answered("Transact", "OK", started)
        return reply

    async def _transact(self, context: Context) -> transaction_pb2.TransactionReply:
        transactions = self._parts.transactions
        self._parts.appender.check_not_drained()
        first = await self._read(context, None)
        if first is None or first.WhichOneof("frame") != "begin":
            raise TroveError(errors.REQUEST_ILLEGAL, "a transaction's first frame is its begin")
        opened = transactions.begin(first.begin.transaction_id, first.begin.timeout_ms)
        deadline = asyncio.get_running_loop().time() + opened.timeout_ms / 1000
        born_host = born_host_of(context.peer())
        try:
            while True:
                frame = await self._next(context, opened, deadline)
                kind = None if frame is None else frame.WhichOneof("frame")
                if frame is None or kind is None:
                    raise TroveError(errors.REQUEST_ILLEGAL, "the stream ended, and the transaction had not")
                if kind == "commit":
                    return await self._commit(opened)
                if kind == "rollback":
                    transactions.check_not_committed(opened)
                    transactions.roll_back(opened)
                    return transaction_pb2.TransactionReply(
                        transaction_id=opened.transaction_id, broker=self._parts.broker
                    )
                await self._take(opened, frame, kind, born_host)
        finally:
            transactions.roll_back(opened)  # without effect if it has ended

    async def _next(
        self, context: Context, opened: OpenTransaction, deadline: float
    ) -> transaction_pb2.TransactionFrame | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._read(context, opened)
        except TimeoutError:
            get_logger().warning(
                "transaction.timed_out", transaction=opened.transaction_id, timeout_ms=opened.timeout_ms
            )
            raise self._parts.transactions.give_up(opened) from None

    async def _read(
        self, context: Context, opened: OpenTransaction | None
    ) -> transaction_pb2.TransactionFrame | None:
        """The next frame; None at the stream's end. Raises TroveError SERVICE_NOT_AVAILABLE when the broker
        is stopping."""
        reading = asyncio.ensure_future(context.read())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping")
            frame = reading.result()
        finally:
            stopping.cancel()
            reading.cancel()
        return None if is_end(frame) else frame

    async def _take(
        self,
        opened: OpenTransaction,
        frame: transaction_pb2.TransactionFrame,
        kind: str,
        born_host: bytes | None,
    ) -> None:
        transactions = self._parts.transactions
        if kind == "messages":
            messages = frame.messages
            batch = self._parts.appender.checked_batch(
                messages.topic, QueueId(messages.queue_id), messages.records, of_open_transaction=True
            )
            transactions.add(opened, messages.topic, QueueId(messages.queue_id), batch, born_host)
        elif kind == "acknowledgements":
            given = frame.acknowledgements
            transactions.acknowledge(opened, given.group, given.topic, given.receipt_handles)
        else:
            raise TroveError(errors.REQUEST_ILLEGAL, f"a transaction has one begin, not another {kind}")

    async def _commit(self, opened: OpenTransaction) -> transaction_pb2.TransactionReply:
        parts = self._parts
        if parts.group_commit.full:
            await parts.group_commit.wait_for_capacity()
        try:
            committed = parts.transactions.commit(opened, parts.clock_ms())
        except TroveError as error:
            if error.spec is errors.STORE_FAILED:
                parts.group_commit.fail(error)
            raise
        if not committed.repeated:
            self._count(committed)
        return await self._reply(committed)

    def _count(self, committed: Committed) -> None:
        places = [message.physical_offset for message in committed.messages] + [committed.end]
        for message, next_place in zip(committed.messages, places[1:], strict=True):
            self._parts.traffic.appended(message.topic, 1, next_place - message.physical_offset)

    async def _reply(self, committed: Committed) -> transaction_pb2.TransactionReply:
        """The reply, when the transaction is as durable as the flush mode requires."""
        parts = self._parts
        if parts.appender.sync:
            await parts.group_commit.durable(committed.end)
        topics = list(dict.fromkeys(message.topic for message in committed.messages))
        numbers = {topic: number for number, topic in enumerate(topics)}
        return transaction_pb2.TransactionReply(
            transaction_id=committed.transaction_id,
            committed=True,
            topics=topics,
            topic_indexes=[numbers[message.topic] for message in committed.messages],
            queue_ids=[message.queue_id for message in committed.messages],
            queue_offsets=[message.queue_offset for message in committed.messages],
            physical_offsets=[message.physical_offset for message in committed.messages],
            acknowledged_count=committed.acknowledged_count,
            store_timestamp=committed.store_timestamp,
            store_host=committed.store_host,
            durability=wire_durability(parts.appender.durability),
            broker=parts.broker,
            repeated_commit=committed.repeated,
        )
