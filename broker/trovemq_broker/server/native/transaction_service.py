"""TransactionService: atomic transactions, one stream each.

A transaction ends with its stream: by a commit or a rollback, when the stream breaks, by its time-out, or
when the broker stops. A commit that was appended is answered when it is as durable as other acknowledged
messages; if its stream breaks before that, it is committed nevertheless, and GetTransaction reports it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from trovemq_broker.atomic.ends import Committed
from trovemq_broker.atomic.open_transactions import AtomicTransaction
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire import transaction_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.native_messages import born_host_of
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.grpc_transport import is_end
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class TransactionService:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[Any]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def end_all(self, timeout_s: float) -> None:
        """Ends all streams: open transactions are rolled back, running commits are answered."""
        self._stopping.set()
        if self._running:
            await asyncio.wait(list(self._running), timeout=timeout_s)

    # --- calls ----------------------------------------------------------------------------------------
    async def get_transaction(self, request: Request, _context: Context) -> Reply:
        transaction_id = wire.transaction_id_of(request)
        committed = self._core.atomic.committed(transaction_id, self._core.clock_ms())
        return await self._reply(committed)

    async def transact(self, _requests: object, context: Context) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        started = time.perf_counter()
        try:
            reply = await self._transact(context)
        except TroveError as error:
            self._core.traffic.refused(error.symbol)
            self._core.traffic.answered("Transact", error.symbol, started)
            raise
        finally:
            self._running.discard(task)
        self._core.traffic.answered("Transact", "OK", started)
        return reply

    async def _transact(self, context: Context) -> Reply:
        transactions = self._core.atomic
        self._core.appender.check_not_drained()
        first = await self._read(context, None)
        if not isinstance(first, wire.Begin):
            raise TroveError(errors.REQUEST_ILLEGAL, "a transaction's first frame is its begin")
        opened = transactions.begin(first.transaction_id, first.timeout_ms)
        deadline = asyncio.get_running_loop().time() + opened.timeout_ms / 1000
        born_host = born_host_of(context.peer())
        try:
            while True:
                match await self._next(context, opened, deadline):
                    case wire.AddMessages() as messages:
                        self._add(opened, messages, born_host)
                    case wire.AddAcknowledgements(group, topic, handles):
                        transactions.acknowledge(opened, group, topic, handles)
                    case wire.Commit():
                        return await self._commit(opened)
                    case wire.RollBack():
                        transactions.check_not_committed(opened)
                        transactions.roll_back(opened)
                        return wire.rolled_back_reply(opened.transaction_id, self._core.broker)
                    case wire.Begin():
                        text = "a transaction has one begin, not another begin"
                        raise TroveError(errors.REQUEST_ILLEGAL, text)
                    case None:
                        text = "the stream ended, and the transaction had not"
                        raise TroveError(errors.REQUEST_ILLEGAL, text)
        finally:
            transactions.roll_back(opened)  # without effect if it has ended

    async def _next(
        self, context: Context, opened: AtomicTransaction, deadline: float
    ) -> wire.TransactionCommand | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._read(context, opened)
        except TimeoutError:
            get_logger().warning(
                "transaction.timed_out", transaction=opened.transaction_id, timeout_ms=opened.timeout_ms
            )
            raise self._core.atomic.give_up(opened) from None

    async def _read(
        self, context: Context, opened: AtomicTransaction | None
    ) -> wire.TransactionCommand | None:
        """The next command; None at the stream's end. Raises TroveError SERVICE_NOT_AVAILABLE when the broker
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
        return None if is_end(frame) else wire.command_of(frame)

    def _add(self, opened: AtomicTransaction, messages: wire.AddMessages, born_host: bytes | None) -> None:
        topic, queue_id = messages.topic, messages.queue_id
        batch = self._core.appender.checked_batch(topic, queue_id, messages.records, of_open_transaction=True)
        self._core.atomic.add(opened, topic, queue_id, batch, born_host)

    async def _commit(self, opened: AtomicTransaction) -> Reply:
        core = self._core
        if core.group_commit.full:
            await core.group_commit.wait_for_capacity()
        try:
            committed = core.atomic.commit(opened, core.clock_ms())
        except TroveError as error:
            if error.spec is errors.STORE_FAILED:
                core.group_commit.fail(error)
            raise
        if not committed.repeated:
            self._count(committed)
        return await self._reply(committed)

    def _count(self, committed: Committed) -> None:
        places = [message.physical_offset for message in committed.messages] + [committed.end]
        for message, next_place in zip(committed.messages, places[1:], strict=True):
            self._core.traffic.appended(message.topic, 1, next_place - message.physical_offset)

    async def _reply(self, committed: Committed) -> Reply:
        """The reply, when the transaction is as durable as an acknowledged message of each of its topics."""
        core, appender = self._core, self._core.appender
        topics = sorted({message.topic for message in committed.messages}, key=appender.is_replicated)
        topic = topics[-1] if topics else ""  # of acknowledgements only: as the group
        await appender.acknowledged(topic, committed.end)
        copies = appender.copies(topic)
        return wire.committed_reply(committed, core.appender.durability, core.broker, copies)
