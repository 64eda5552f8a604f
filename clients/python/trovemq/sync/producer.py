"""Sends in threads: producers and both kinds of transactions."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, Unpack

from trovemq import atomic, transaction
from trovemq import producer as aio
from trovemq.atomic import CommitReceipt
from trovemq.fetched import Buffer
from trovemq.receipts import SendReceipt
from trovemq.send_arguments import SendArguments
from trovemq.sync._calls import SyncWrapper, makes, waits
from trovemq.sync.received import ReceivedMessage

_Inner = TypeVar("_Inner", transaction.Transaction, atomic.AtomicTransaction)


class _InBlock(SyncWrapper[_Inner]):
    """A transaction that ends with its block; an exception within the block rolls it back."""

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        self._thread.run(self._inner.__aexit__(kind, failure, where))


class Transaction(_InBlock[transaction.Transaction]):
    """Messages that are seen together with a decision; made by `Producer.transaction`."""

    send = waits(transaction.Transaction.send)
    commit = waits(transaction.Transaction.commit)
    rollback = waits(transaction.Transaction.rollback)


class AtomicTransaction(_InBlock[atomic.AtomicTransaction]):
    """Messages and acknowledgements that are committed in one step; made by `Client.transaction`."""

    send = waits(atomic.AtomicTransaction.send)
    send_batch = waits(atomic.AtomicTransaction.send_batch)
    commit = waits(atomic.AtomicTransaction.commit)

    @property
    def transaction_id(self) -> str:
        """The transaction's id."""
        return self._inner.transaction_id

    @property
    def receipt(self) -> CommitReceipt | None:
        """The receipt of the commit; None before."""
        return self._inner.receipt

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledges a received message with the commit. Raises TroveError."""
        self._thread.call(lambda: self._inner.ack(message.received))

    def rollback(self) -> None:
        """Drops everything; messages of `ack` are returned."""
        self._thread.call(self._inner.rollback)


class Producer(SyncWrapper[aio.Producer]):
    """Sends messages of one topic; made by `Client.producer`, used as a context manager.

    Threads may share a producer: messages that they send at the same time share frames.
    """

    send = waits(aio.Producer.send)
    send_batch = waits(aio.Producer.send_batch)
    transaction = makes(aio.Producer.transaction, Transaction)
    ready = waits(aio.Producer.ready)
    flush = waits(aio.Producer.flush)
    close = waits(aio.Producer.close)
    abort = waits(aio.Producer.abort)

    def send_nowait(self, body: Buffer, **arguments: Unpack[SendArguments]) -> Future[SendReceipt]:
        """Sends one message; the future has its receipt, or an error, also one of the arguments."""

        async def send() -> SendReceipt:
            return await self._inner.send_nowait(body, **arguments)

        return self._thread.start(send())

    def send_oneway(self, body: Buffer, **arguments: Unpack[SendArguments]) -> None:
        """Sends one message without an acknowledgement: it may be lost unnoticed."""
        self._thread.call(lambda: self._inner.send_oneway(body, **arguments))

    @property
    def topic(self) -> str:
        """The topic."""
        return self._inner.topic

    @property
    def producer_id(self) -> str | None:
        """The id under which its messages are numbered; None if they are not."""
        return self._inner.producer_id

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that are sent or waiting, and not yet acknowledged."""
        return self._inner.in_flight_bytes

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent or waiting, and not yet acknowledged; without delayed ones."""
        return self._thread.call(lambda: self._inner.in_flight_count)

    @property
    def one_way_dropped(self) -> int:
        """Frames of one-way messages that this client could not write."""
        return self._inner.one_way_dropped

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._inner.__aexit__(None, None, None))
