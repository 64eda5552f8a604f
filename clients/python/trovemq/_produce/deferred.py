"""Sends messages that their broker stores now, and that are readable later: delayed messages and halves of
transactions.

One message is one call. A message that was certainly not stored is sent again, to another broker if there is
one and the caller has given no message id. A message that may have been stored is sent again only if the
producer allows it (retry_in_doubt): to the same broker, with the same message id, and it waits for it.

A delay is sent as a duration, which the broker counts from the moment when it gets the message. The time that
has passed since the program's call is subtracted, also when a message is sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias, Unpack

from trovemq._common.identity import new_client_id
from trovemq._net.connections import ConnectionPool
from trovemq._produce.delivery import marked_in_doubt
from trovemq._produce.in_flight import InFlightLimiter
from trovemq._produce.outgoing import RECORD_OVERHEAD
from trovemq._produce.property_block import check_message_group, check_priority
from trovemq._produce.slots import SlotChooser
from trovemq._produce.unique_keys import next_unique_key
from trovemq._wire.producers import DeferredMessage, ProducerCalls, StoredNow
from trovemq.fetched import Buffer
from trovemq.receipts import SendReceipt
from trovemq.send_arguments import Keys, MessageArguments
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.properties import message_properties, not_of

NOT_YET: Final = -1  # queue and offsets of a message that is not yet in a queue of its topic
DELIVER_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_IN_DOUBT: Final = (errors.BROKER_UNREACHABLE, errors.REQUEST_TIMEOUT)

HandOver: TypeAlias = Callable[[ProducerCalls, int], Awaitable[StoredNow]]
"""Hands a message over to a broker. The number: ms since the program's call."""


class DeferredSender:
    """Sends those messages of one producer that are readable later.

    Args:
        pool: Routes and connections.
        topic: The topic.
        chooser: Chooses the queues in turn.
        in_flight: The producer's back-pressure.
        retry_in_doubt: Whether messages that may have been stored are sent again.

    Attributes:
        client_id: The id of the producer.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        chooser: SlotChooser,
        in_flight: InFlightLimiter,
        *,
        retry_in_doubt: bool,
    ) -> None:
        self.client_id = new_client_id()
        self._pool = pool
        self._topic = topic
        self._chooser = chooser
        self._in_flight = in_flight
        self._retry_in_doubt = retry_in_doubt
        self._sends: set[asyncio.Task[SendReceipt]] = set()

    async def send_delayed(
        self,
        body: Buffer,
        *,
        deliver_at: datetime | None,
        deliver_after: float | timedelta | None,
        broker: str | None,
        **arguments: Unpack[MessageArguments],
    ) -> SendReceipt:
        """Sends a message that is put on a queue at its time. Arguments, result and errors are those of
        `Producer.send`."""
        message = _message(self._topic, body, **arguments)
        home = self._home(broker, arguments.get("message_id"))
        _check_times(deliver_at, deliver_after)
        try:
            if deliver_at is not None:
                deliver_ms = _checked(round(deliver_at.timestamp() * 1000))
                return await self._send(
                    message,
                    home,
                    lambda calls, _passed_ms: calls.send_delayed(message, deliver_ms=deliver_ms),
                )
            delay_ms = _delay_ms(deliver_after or 0)
        except (OverflowError, ValueError, OSError) as error:
            raise TroveError(errors.DELIVERY_TIME_ILLEGAL, f"no such time: {error}") from error
        return await self._send(
            message,
            home,
            lambda calls, passed_ms: calls.send_delayed(message, delay_ms=max(0, delay_ms - passed_ms)),
        )

    async def send_half(
        self,
        body: Buffer,
        *,
        broker: str | None,
        check_after_ms: int | None,
        **arguments: Unpack[MessageArguments],
    ) -> SendReceipt:
        """Sends a half message, which is readable after the commit of its transaction. The receipt has its
        transaction_id."""
        message = _message(self._topic, body, **arguments)
        home = self._home(broker, arguments.get("message_id"))
        return await self._send(
            message, home, lambda calls, _passed_ms: calls.prepare_half(message, check_after_ms or 0)
        )

    def _home(self, broker: str | None, message_id: str | None) -> str | None:
        """The one broker that may get the message, or None."""
        slot = None if broker is not None or message_id is None else self._chooser.home(message_id)
        return broker if slot is None else slot.broker

    async def drained(self) -> None:
        """Waits until every message sent so far is answered or has failed."""
        if self._sends:
            await asyncio.wait(list(self._sends))

    async def close(self) -> None:
        """Cancels unanswered sends."""
        for task in list(self._sends):
            task.cancel()
        await asyncio.gather(*self._sends, return_exceptions=True)

    # --- one message ----------------------------------------------------------------------------------
    async def _send(self, message: DeferredMessage, broker: str | None, hand_over: HandOver) -> SendReceipt:
        """A cancelled caller no longer waits, but the message may be stored."""
        size = _size(message) + RECORD_OVERHEAD
        await self._in_flight.enter(size)
        try:
            task = asyncio.get_running_loop().create_task(self._deliver(message, broker, hand_over))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)
            return await _shielded(task)
        finally:
            self._in_flight.give(size)

    async def _deliver(
        self, message: DeferredMessage, broker_name: str | None, hand_over: HandOver
    ) -> SendReceipt:
        options, loop = self._pool.options, asyncio.get_running_loop()
        began, attempts, doubtful = loop.time(), 0, False
        deadline = began + options.delivery_timeout_ms / 1000
        while True:
            attempts += 1
            handed_over = False
            try:
                slot = self._chooser.next() if broker_name is None else self._chooser.of_broker(broker_name)
                broker = self._chooser.broker(slot)
                calls = ProducerCalls(self._pool.connection(broker), self.client_id)
                # It waits for an answer first: a message on a connection that never worked would be in doubt.
                await calls.reach()
                handed_over = True
                stored = await hand_over(calls, int((loop.time() - began) * 1000))
                return _receipt(message, stored, broker.name)
            except TroveError as error:
                if handed_over and error.spec in _IN_DOUBT:
                    doubtful = True
                    broker_name = broker.name  # a broker that deduplicates knows only its own messages
                delay = options.backoff.seconds(attempts)
                late = loop.time() + delay >= deadline or attempts >= options.send_attempts_max
                ended = late or not error.retriable or self._pool.closed
                if doubtful and (ended or not self._retry_in_doubt):
                    raise marked_in_doubt(error) from error
                if ended:
                    raise
                await asyncio.sleep(delay)


async def _shielded(task: asyncio.Task[SendReceipt]) -> SendReceipt:
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise TroveError(errors.CLIENT_CLOSED, "the producer is closed") from None
        task.cancel()
        raise


def _receipt(message: DeferredMessage, stored: StoredNow, broker: str) -> SendReceipt:
    """The receipt of a message that is not yet in a queue of its topic."""
    return SendReceipt(
        topic=message.topic,
        queue_id=NOT_YET,
        queue_offset=NOT_YET,
        physical_offset=NOT_YET,
        offset_msg_id="",
        message_id=message.message_id,
        durability=stored.durability,
        store_timestamp=message.born_timestamp,
        broker=broker,
        status="PUT_OK",
        recall_handle=stored.recall_handle,
        transaction_id=stored.transaction_id,
        copies=stored.copies,
    )


def _message(
    topic: str,
    body: Buffer,
    *,
    keys: Keys = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    message_id: str | None = None,
    message_group: str | None = None,
    priority: int | None = None,
) -> DeferredMessage:
    """A new message. Raises TroveError for illegal parts."""
    message_id = next_unique_key() if message_id is None else message_id
    message_properties(message_id, keys, tag, properties)
    return DeferredMessage(
        topic=topic,
        body=bytes(body),
        message_id=message_id,
        keys=[keys] if isinstance(keys, str) else list(keys or ()),
        tag=tag or "",
        properties=properties or {},
        message_group="" if message_group is None else check_message_group(message_group),
        priority=None if priority is None else int(check_priority(priority, message_group)),
        born_timestamp=time.time_ns() // 1_000_000,
    )


def _size(message: DeferredMessage) -> int:
    """Bytes of its body and texts, about as many as its request has."""
    texts = (message.message_id, message.tag, message.message_group, *message.keys)
    pairs = message.properties.items()
    return len(message.body) + sum(map(len, texts)) + sum(len(name) + len(value) for name, value in pairs)


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
