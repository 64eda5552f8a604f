"""Sends that need the v2 protocol: delayed messages and the halves of transactions.

One message is one call. A message that was certainly not stored is sent again, to another broker if there is
one. A message that may have been stored is sent again only if the producer allows it (retry_in_doubt): to the
same broker, with the same message id.

A delay counts by the clock of the broker that gets the message, from the call on: a message that is sent
again has waited for a part of it. This machine's clock is not asked.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final, Unpack

from trovemq._net.connections import ConnectionPool
from trovemq._net.routes import Slot
from trovemq._produce.in_flight import InFlightLimiter
from trovemq._produce.outgoing import RECORD_OVERHEAD
from trovemq._produce.slots import SlotChooser
from trovemq._rocketmq.messages import mark_delayed, mark_half, milliseconds, outgoing_message
from trovemq._rocketmq.messaging import MessagingService
from trovemq.fetched import Buffer
from trovemq.models.cluster import BrokerInfo
from trovemq.receipts import SendReceipt
from trovemq.send_arguments import MessageArguments
from trovemq.transaction import Checker, Transaction, Transactions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.properties import not_of
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

NOT_YET: Final = -1  # queue and offsets of a message that is not yet in a queue of its topic
CHECK_AFTER_MS_MAX: Final = 3_600_000
DELIVER_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_IN_DOUBT: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT)


class MessagingSender:
    """Sends single messages of one topic.

    Args:
        pool: Routes and connections.
        chooser: Chooses the queues in turn.
        client_id: The id of the sender.
        retry_in_doubt: Whether messages that may have been stored are sent again.
    """

    def __init__(
        self, pool: ConnectionPool, chooser: SlotChooser, client_id: str, *, retry_in_doubt: bool
    ) -> None:
        self._pool = pool
        self._chooser = chooser
        self._client_id = client_id
        self._retry_in_doubt = retry_in_doubt
        self._sends: set[asyncio.Task[SendReceipt]] = set()

    async def send(self, message: v2.Message, broker: str | None, delay_ms: int | None = None) -> SendReceipt:
        """Sends one message. A cancelled caller no longer waits, but the message may be stored. Raises
        TroveError."""
        task = asyncio.get_running_loop().create_task(self._send(message, broker, delay_ms))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise TroveError(errors.CLIENT_CLOSED, "the producer is closed") from None
            task.cancel()
            raise

    async def drained(self) -> None:
        """Waits until every message sent so far is answered or has failed."""
        if self._sends:
            await asyncio.wait(list(self._sends))

    async def close(self) -> None:
        """Cancels unanswered sends."""
        for task in list(self._sends):
            task.cancel()
        await asyncio.gather(*self._sends, return_exceptions=True)

    async def _send(self, message: v2.Message, broker_name: str | None, delay_ms: int | None) -> SendReceipt:
        options, loop = self._pool.options, asyncio.get_running_loop()
        began, attempts = loop.time(), 0
        deadline = began + options.delivery_timeout_ms / 1000
        while True:
            attempts += 1
            handed_over = False
            try:
                slot = self._chooser.next() if broker_name is None else self._chooser.of_broker(broker_name)
                broker = self._chooser.broker(slot)
                service = MessagingService(self._pool.connection(broker), self._client_id)
                # It waits for an answer first: a message on a connection that never worked would be in doubt.
                passed_ms = int((loop.time() - began) * 1000)  # before the broker's clock is read
                now_ms = await service.reach()
                if delay_ms is not None:
                    mark_delayed(message, _checked(now_ms + delay_ms - passed_ms))
                handed_over = True
                return receipt_of(await service.send(message), message, slot, broker)
            except TroveError as error:
                in_doubt = handed_over and error.spec in _IN_DOUBT
                if in_doubt and not self._retry_in_doubt:
                    text = f"{error.message}; the message may have been stored"
                    raise TroveError(error.spec, text, **{**error.fields, "in_doubt": "true"}) from error
                if in_doubt:  # a broker that deduplicates knows only its own messages
                    broker_name = broker.name
                delay = options.backoff.seconds(attempts)
                late = loop.time() + delay >= deadline or attempts >= options.send_attempts_max
                if late or not error.retriable or self._pool.closed:
                    raise
                await asyncio.sleep(delay)


def receipt_of(
    entry: service_pb2.SendResultEntry, message: v2.Message, slot: Slot, broker: BrokerInfo
) -> SendReceipt:
    """The receipt of a message that is not yet in a queue of its topic."""
    system = message.system_properties
    return SendReceipt(
        topic=message.topic.name,
        queue_id=NOT_YET,
        queue_offset=NOT_YET,
        physical_offset=NOT_YET,
        offset_msg_id="",
        unique_key=entry.message_id or system.message_id,
        durability="disk" if broker.flush_mode == "sync" else "memory",
        store_timestamp=milliseconds(system.born_timestamp),
        broker=broker.name,
        status="PUT_OK",
        recall_handle=entry.recall_handle,
        transaction_id=entry.transaction_id if system.message_type == v2.TRANSACTION else "",
    )


class DelayedSender:
    """Sends those messages of one producer that are put on a queue later.

    Args:
        pool: Routes and connections.
        topic: The topic.
        chooser: Chooses the queues in turn.
        in_flight: The producer's back-pressure.
        retry_in_doubt: Whether messages that may have been stored are sent again.
        checker: The program's decision about transactions that are still open.

    Attributes:
        transactions: Ends transactions.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        chooser: SlotChooser,
        in_flight: InFlightLimiter,
        retry_in_doubt: bool,
        checker: Checker | None,
    ) -> None:
        self._topic = topic
        self._in_flight = in_flight
        self.transactions = Transactions(pool, topic, checker)
        # Half messages, and the stream on which the broker checks them, have one identity.
        client_id = self.transactions.client_id
        self._sender = MessagingSender(pool, chooser, client_id, retry_in_doubt=retry_in_doubt)

    def transaction(self, check_after_ms: int | None) -> Transaction:
        """As `Producer.transaction`."""
        if check_after_ms is not None and not 0 < check_after_ms <= CHECK_AFTER_MS_MAX:
            text = f"check_after_ms={check_after_ms} is not in 1..{CHECK_AFTER_MS_MAX}"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        return Transaction(self.transactions, self._send_half, check_after_ms)

    async def send_delayed(
        self,
        body: Buffer,
        *,
        deliver_at: datetime | None,
        deliver_after: float | timedelta | None,
        broker: str | None,
        **arguments: Unpack[MessageArguments],
    ) -> SendReceipt:
        """As `Producer.send`."""
        message = outgoing_message(self._topic, body, **arguments)
        _check_times(deliver_at, deliver_after)
        try:
            if deliver_at is not None:
                mark_delayed(message, _checked(round(deliver_at.timestamp() * 1000)))
                return await self._send(message, broker)
            delay_ms = _delay_ms(deliver_after or 0)
        except (OverflowError, ValueError, OSError) as error:
            raise TroveError(errors.DELIVERY_TIME_ILLEGAL, f"no such time: {error}") from error
        return await self._send(message, broker, delay_ms)

    async def _send_half(
        self,
        body: Buffer,
        *,
        broker: str | None,
        check_after_ms: int | None,
        **arguments: Unpack[MessageArguments],
    ) -> SendReceipt:
        message = outgoing_message(self._topic, body, **arguments)
        mark_half(message, check_after_ms)
        return await self._send(message, broker)

    async def _send(
        self, message: v2.Message, broker: str | None, delay_ms: int | None = None
    ) -> SendReceipt:
        size = message.ByteSize() + RECORD_OVERHEAD
        await self._in_flight.enter(size)
        try:
            return await self._sender.send(message, broker, delay_ms)
        finally:
            self._in_flight.give(size)

    async def drained(self) -> None:
        """Waits until every message sent so far is answered or has failed."""
        await self._sender.drained()

    async def close(self) -> None:
        """Cancels unanswered sends, and reports the end of the producer to the brokers."""
        await self._sender.close()
        await self.transactions.close()


def _delay_ms(deliver_after: float | timedelta) -> int:
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else float(deliver_after)
    return _checked(max(0, round(seconds * 1000)))


def _checked(deliver_ms: int) -> int:
    """The same. Raises TroveError DELIVERY_TIME_ILLEGAL where it is no time of the calendar."""
    if not 0 <= deliver_ms <= DELIVER_MS_MAX:
        raise TroveError(errors.DELIVERY_TIME_ILLEGAL, f"{deliver_ms} ms since 1970 is not a delivery time")
    return deliver_ms


def _check_times(deliver_at: object, deliver_after: object) -> None:
    if not isinstance(deliver_at, datetime | None):
        raise TroveError(errors.DELIVERY_TIME_ILLEGAL, f"deliver_at is a datetime, {not_of(deliver_at)}")
    if not isinstance(deliver_after, int | float | timedelta | None):
        text = f"deliver_after is seconds or a timedelta, {not_of(deliver_after)}"
        raise TroveError(errors.DELIVERY_TIME_ILLEGAL, text)
    if deliver_at is not None and deliver_after is not None:
        raise TroveError(errors.DELIVERY_TIME_ILLEGAL, "give deliver_at or deliver_after, not both")
