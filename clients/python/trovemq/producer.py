"""Sends one message at a time, many at once, or whole columns, with acknowledgements, retries and limits.

Messages that are sent one by one are collected in a batch for each queue. A batch is submitted to its
broker's stream at once (linger_ms=0) or after the linger time, and grows until the stream writes it or it is
full. So a single message is sent in the next iteration of the event loop. Many messages share a frame: the
messages of one iteration, and those that come within five milliseconds while two frames of the queue are
unanswered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Self, Unpack

from trovemq._common.arguments import check_bodies, check_body, check_number, check_text
from trovemq._net.connections import ConnectionPool
from trovemq._net.routes import Slot
from trovemq._produce.column_batch import ColumnBatch, Columns
from trovemq._produce.columns import columns_of, split_columns
from trovemq._produce.delivery import Delivery
from trovemq._produce.in_flight import InFlightLimiter
from trovemq._produce.outgoing import RECORD_OVERHEAD, Batch, SingleMessages
from trovemq._produce.property_block import BARE_BLOCK_SIZE, property_block
from trovemq._produce.sequences import OVERHEAD as NUMBER_OVERHEAD
from trovemq._produce.sequences import SequenceAssigner
from trovemq._produce.slots import SlotChooser
from trovemq._produce.unacknowledged import Unacknowledged
from trovemq.faults import Faults
from trovemq.fetched import Buffer
from trovemq.receipts import BatchReceipt, PartialBatchError, SendReceipt
from trovemq.send_arguments import Keys, SendArguments
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.internal_properties import Writer

if TYPE_CHECKING:  # imported when they are first needed
    from trovemq._produce.deferred import DeferredSender
    from trovemq.transaction import Checker, Transaction, Transactions


FRAME_SIZE_MAX_DEFAULT: Final = 4 << 20
"""The most bytes of a frame for a broker that is not in the routes."""

_Prepared = tuple[bytes, bytes, str, Slot | None, bool, int]
"""One message, checked: its body, its encoded properties and its message id (both empty if the client makes
the key and nothing else is given), its queue (None: any), whether it keeps an order, its size."""

_OpenKey = tuple[Slot | None, bool, bool]  # slot (None: any), ordered, one-way


class Producer(Unacknowledged):
    """Sends messages of one topic; created by `Client.producer`, used as an async context manager.

    Leaving the context flushes, also after an exception; `abort` drops unsent messages instead. All methods
    must be called on the event loop in which the client was created.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        *,
        linger_ms: float = 0.0,
        batch_bytes_max: int = 1 << 20,
        in_flight_bytes_max: int = 64 << 20,
        retry_in_doubt: bool = False,
        checker: Checker | None = None,
        sequence_assigner: SequenceAssigner | None = None,
    ) -> None:
        self.topic = topic
        self._sequence_assigner = sequence_assigner
        retry_in_doubt = retry_in_doubt or sequence_assigner is not None
        self._pool = pool
        self._linger_seconds = linger_ms / 1000
        self._batch_bytes_max = batch_bytes_max
        self._in_flight = InFlightLimiter(in_flight_bytes_max)
        self._chooser = SlotChooser(pool, topic)
        self._open: dict[_OpenKey, SingleMessages] = {}
        self._delivery = Delivery(
            pool, self._chooser, self._in_flight, self._close_to_more, retry_in_doubt=retry_in_doubt
        )
        self._closed = False
        self._topic_known = False  # a route named it once, so its queues stay known
        self._retry_in_doubt = retry_in_doubt
        self._faults = pool.options.faults
        self._tracing = pool.options.tracing
        self._checker = checker
        self._known_deferred_sender: DeferredSender | None = None
        self._known_transactions: Transactions | None = None
        self._watch()

    # --- single messages ------------------------------------------------------------------------------

    async def send(
        self,
        body: Buffer,
        *,
        keys: Keys = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        message_group: str | None = None,
        priority: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> SendReceipt:
        """Sends one message and waits for its acknowledgement.

        Waits first while `in_flight_bytes_max` bytes are unacknowledged. If the call is cancelled, a message
        that was not yet written to the connection is not sent; otherwise it may be stored.

        Args:
            body: The message's bytes.
            keys: One key or several; a look-up by any of them finds the message. No spaces within one.
            tag: The message's tag; consumers can filter by it.
            properties: The user's own properties.
            message_id: The UNIQ_KEY; made by the client where None.
            queue_id: The queue; None: queues take turns, with a batch each.
            broker: The broker; needed with `queue_id` if several have the topic.
            ordering_key: Messages of one ordering key go to one queue, in the order of sending.
            message_group: An ordering key whose order orderly consumer groups keep: they get a message of a
                group only when those before it are consumed. At most 63 bytes; for topics of type FIFO.
            priority: 0 to 9, 9 is received first; None counts as 4. For topics of `order = priority`; pulling
                by offset stays in the order of sending. Not together with message_group.
            deliver_at: The message is invisible before that time; a time without a zone is local time. For
                topics of type DELAY or MIXED.
            deliver_after: The message is invisible for this time from now on: seconds, or a timedelta.

        Returns:
            The place of the message and its durability; for a delayed message also its recall handle.

        Raises:
            TroveError: The message was refused (KEY_ILLEGAL, TAG_ILLEGAL, PROPERTY_ILLEGAL,
                UNIQUE_KEY_ILLEGAL, PROPERTIES_SIZE_EXCEEDED, MESSAGE_SIZE_EXCEEDED, TOPIC_NOT_FOUND,
                QUEUE_NOT_FOUND, BROKER_AMBIGUOUS, MESSAGE_GROUP_ILLEGAL, DELIVERY_TIME_ILLEGAL,
                MESSAGE_TYPE_CONFLICT, DISK_FULL, …), or no answer came in time (BROKER_UNREACHABLE,
                REQUEST_TIMEOUT): its field in_doubt is `true` if the message may have been stored.
        """
        if self._tracing is not None and self._tracing.wants_send(properties):
            return await self._tracing.send(
                self.topic,
                self.send,
                body,
                keys=keys,
                tag=tag,
                properties=properties,
                message_id=message_id,
                queue_id=queue_id,
                broker=broker,
                ordering_key=ordering_key,
                message_group=message_group,
                priority=priority,
                deliver_at=deliver_at,
                deliver_after=deliver_after,
            )
        if not self._topic_known:
            await self._learn_topic()
        if deliver_at is not None or deliver_after is not None:
            self._check_open(body)
            if queue_id is not None or ordering_key is not None:
                text = (
                    "a delayed message gets its queue when it is due: give neither queue_id nor ordering_key"
                )
                raise TroveError(errors.REQUEST_ILLEGAL, text)
            self._check_body(None if broker is None else self._chooser.of_broker(broker), len(body))
            return await self._deferred_sender().send_delayed(
                body,
                deliver_at=deliver_at,
                deliver_after=deliver_after,
                broker=broker,
                keys=keys,
                tag=tag,
                properties=properties,
                message_id=message_id,
                message_group=message_group,
                priority=priority,
            )
        message = self._prepare(
            body, keys, tag, properties, message_id, queue_id, broker, ordering_key, message_group, priority
        )
        size = message[-1]
        if not self._in_flight.try_take(size):
            await self._in_flight.enter(size)
        waiter: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        self._enqueue(message, waiter)
        if self._faults is not None:
            return await self._faulty_send(message, waiter, self._faults)
        return await waiter

    async def _faulty_send(
        self, message: _Prepared, waiter: asyncio.Future[SendReceipt], faults: Faults
    ) -> SendReceipt:
        """The receipt, or an injected fault; see `trovemq.faults`."""
        receipt = await waiter
        place = (receipt.topic, receipt.queue_id, receipt.queue_offset)
        if faults.strikes("duplicates", *place):
            again: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
            self._in_flight.take(message[-1])
            self._enqueue(message, again)
            await again
        if faults.strikes("slow_disk", *place):
            await asyncio.sleep(faults.slow_disk_ms / 1000)
        if faults.strikes("lost_answers", *place):
            text = "the answer was lost, on purpose; the message may have been stored"
            raise TroveError(errors.BROKER_UNREACHABLE, text, in_doubt="true")
        return receipt

    def send_nowait(self, body: Buffer, **arguments: Unpack[SendArguments]) -> asyncio.Future[SendReceipt]:
        """Sends one message, with the fields of SendArguments; the future has its receipt or TroveError.

        Cancelling the future takes the message back if it was not yet written to the connection.

        Raises:
            TroveError: LIMIT_EXCEEDED if `in_flight_bytes_max` bytes are unacknowledged (`await ready()`
                before), and errors of the arguments.
        """
        if self._tracing is not None and self._tracing.wants_send(arguments.get("properties")):
            return self._tracing.send_nowait(self.topic, self.send_nowait, body, **arguments)
        message = self._prepare(body, **arguments)
        self._in_flight.take(message[-1])
        waiter: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        self._enqueue(message, waiter)
        return waiter

    def send_oneway(self, body: Buffer, **arguments: Unpack[SendArguments]) -> None:
        """Sends one message, with the fields of SendArguments, without an acknowledgement: it may be lost
        without notice; the broker only counts its refusals. Raises TroveError LIMIT_EXCEEDED, and errors of
        the arguments."""
        if self._tracing is not None and self._tracing.wants_send(arguments.get("properties")):
            self._tracing.send_oneway(self.topic, self.send_oneway, body, **arguments)
            return
        message = self._prepare(body, **arguments)
        self._in_flight.take(message[-1])
        self._enqueue(message, None)

    # --- columns --------------------------------------------------------------------------------------

    async def send_batch(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Keys] | None = None,
        tags: Sequence[str | None] | str | None = None,
        properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        message_ids: Sequence[str] | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        priority: Sequence[int | None] | int | None = None,
    ) -> BatchReceipt:
        """Sends many messages to one queue, in their order, and waits for all acknowledgements.

        There is no Python object per message. A batch that fits into one frame is stored as a whole or not at
        all; a larger one is split. The arguments must not be changed until the call returns. If the call is
        cancelled, messages that were not yet written to the connection are not sent.

        Args:
            bodies: n messages' bytes.
            keys: n keys, or n sequences of keys; None for none.
            tags: n tags, or one for all.
            properties: n mappings, or one for all.
            message_ids: n UNIQ_KEYs; made by the client where None.
            queue_id: The queue; None: the client chooses one.
            broker: The broker; needed with `queue_id` if several have the topic.
            ordering_key: Batches of one ordering key go to one queue, in the order of sending.
            priority: n priorities, 0 to 9 or None, or one for all.

        Returns:
            The receipts as columns; item i is message i's.

        Raises:
            TroveError: The messages were refused, or no answer came in time (BROKER_UNREACHABLE,
                REQUEST_TIMEOUT): its field in_doubt is `true` if they may have been stored.
            PartialBatchError: Some frames of a split batch are stored and others are not.
        """
        check_bodies(bodies)
        if not len(bodies):
            return BatchReceipt(())
        if self._tracing is not None and self._tracing.wants_batch(properties):
            return await self._tracing.send_batch(
                self.topic,
                self.send_batch,
                bodies,
                keys=keys,
                tags=tags,
                properties=properties,
                message_ids=message_ids,
                queue_id=queue_id,
                broker=broker,
                ordering_key=ordering_key,
                priority=priority,
            )
        await self._learn_topic()
        slot = self._slot(queue_id, broker, ordering_key)
        self._check_body(slot, max(map(len, bodies)))
        columns = columns_of(bodies, keys, tags, properties, message_ids, priority)
        if slot is None and message_ids is not None:
            slot = self._chooser.home(message_ids[0])
        if self._sequence_assigner is not None:
            columns = replace(columns, size=columns.size + NUMBER_OVERHEAD * len(bodies))
        movable = slot is None
        slot = self._chooser.next() if slot is None else self._chooser.queue_of(slot)
        batches = []
        route = self._chooser.find_route(slot)
        size_max = FRAME_SIZE_MAX_DEFAULT if route is None else route.broker.batch_size_max
        for part in split_columns(columns, size_max):
            await self._in_flight.enter(part.size)
            batches.append(self._submit_columns(part, slot, movable, ordering_key is not None))
        if len(batches) == 1:
            return BatchReceipt((await batches[0].receipt,))
        return await _gather_receipts(batches)

    def _submit_columns(self, columns: Columns, slot: Slot, movable: bool, ordered: bool) -> ColumnBatch:
        batch = ColumnBatch(
            self.topic, self._delivery, slot, self._deadline(), columns, movable=movable, ordered=ordered
        )
        batch.sequence_assigner = self._sequence_assigner
        self._delivery.submit(batch)
        return batch

    # --- transactions and delayed messages ------------------------------------------------------------

    def transaction(self, *, check_after_ms: int | None = None) -> Transaction:
        """A transaction, to be used as an async context manager; its messages are committed at its end.

        Give `client.producer` a `checker`: a broker has it decide about transactions that a process left open
        when it ended.

        Args:
            check_after_ms: How long the broker waits before it asks, at most an hour; None: the broker's
                setting.
        """
        self._check_open(b"")
        transaction = self._transactions().transaction(check_after_ms)
        if self._tracing is not None:
            transaction.send_half = partial(self._tracing.send, self.topic, transaction.send_half)
        return transaction

    def _deferred_sender(self) -> DeferredSender:
        if self._known_deferred_sender is None:
            from trovemq._produce.deferred import DeferredSender

            self._known_deferred_sender = DeferredSender(
                self._pool,
                self.topic,
                self._chooser,
                self._in_flight,
                retry_in_doubt=self._retry_in_doubt,
            )
        return self._known_deferred_sender

    def _transactions(self) -> Transactions:
        if self._known_transactions is None:
            from trovemq.transaction import Transactions

            self._known_transactions = Transactions(
                self._pool, self.topic, self._deferred_sender(), self._checker
            )
        return self._known_transactions

    async def _close_deferred(self) -> None:
        if self._known_deferred_sender is not None:
            await self._known_deferred_sender.close()
        if self._known_transactions is not None:
            await self._known_transactions.close()

    # --- the producer as a whole ----------------------------------------------------------------------

    @property
    def producer_id(self) -> str | None:
        """The id under which its messages are numbered; None if they are not."""
        return None if self._sequence_assigner is None else self._sequence_assigner.producer_id

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that are sent or waiting, and not yet acknowledged."""
        return self._in_flight.used

    @property
    def in_flight_count(self) -> int:
        """Messages that are sent or waiting, and not yet acknowledged; without delayed ones."""
        return sum(batch.count for batch in self._delivery.outstanding.union(self._open.values()))

    @property
    def one_way_dropped(self) -> int:
        """Frames of one-way messages that this client could not write."""
        return self._delivery.one_way_dropped

    async def ready(self, size: int = 1) -> None:
        """Waits until `size` more bytes may be in flight, so that `send_nowait` succeeds."""
        self._pool.check_loop()
        await self._in_flight.wait(size + RECORD_OVERHEAD)

    async def flush(self) -> None:
        """Sends lingering messages and waits until everything sent so far is acknowledged or has failed.

        Failures are in the futures. A cancelled call no longer waits; nothing else changes.
        """
        self._pool.check_loop()
        for batch in list(self._open.values()):
            self._release(batch)
        await self._delivery.drained()
        if self._known_deferred_sender is not None:
            await self._known_deferred_sender.drained()

    async def close(self) -> None:
        """Flushes; after that nothing can be sent."""
        self._pool.check_loop()
        self._closed = True
        await self.flush()
        await self._close_deferred()

    async def abort(self) -> None:
        """Drops everything that is not acknowledged: its futures fail with CLIENT_CLOSED."""
        self._pool.check_loop()
        self._closed = True
        for batch in list(self._open.values()):
            self._release(batch)
        await self._delivery.close(self._closed_error())
        await self._close_deferred()

    async def __aenter__(self) -> Self:
        await self._learn_topic()
        if self._checker is not None:  # from now on the brokers can ask it
            await self._transactions().enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- batching -------------------------------------------------------------------------------------

    def _prepare(
        self,
        body: Buffer,
        keys: Keys = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_id: str | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        message_group: str | None = None,
        priority: int | None = None,
    ) -> _Prepared:
        if self._closed:
            raise self._closed_error()
        self._pool.check_loop()
        if type(body) is not bytes:
            check_body(body)
            body = bytes(body)
        size = len(body) + RECORD_OVERHEAD
        named = message_id
        bare = keys is None and tag is None and properties is None and message_id is None
        if bare and message_group is None and priority is None and self._faults is None:
            block = b""
            message_id = ""
            size += BARE_BLOCK_SIZE
        else:
            writer = Writer.SDK if self._sequence_assigner is None else Writer.USER
            message_id, block = property_block(
                keys, tag, properties, message_id, message_group, priority, writer
            )
            size += len(block)
        if message_group is not None:
            self._chooser.note_message_group()
        ordering_key = message_group if ordering_key is None else ordering_key
        if queue_id is None and broker is None and ordering_key is None:
            slot = None if named is None else self._chooser.home(named)
        else:
            slot = self._slot(queue_id, broker, ordering_key)
        body_size_max = self._pool.routes.body_size_max  # the lowest of all brokers
        if body_size_max is None or len(body) > body_size_max:
            self._check_body(slot, len(body))
        if self._sequence_assigner is not None:
            size += NUMBER_OVERHEAD
        return body, block, message_id, slot, ordering_key is not None, size

    def _slot(self, queue_id: int | None, broker: str | None, ordering_key: str | None) -> Slot | None:
        if broker is not None:
            check_text("broker", broker)
        if ordering_key is not None:
            check_text("ordering_key", ordering_key)
        if queue_id is not None:
            if type(queue_id) is not int:
                check_number("queue_id", queue_id)
            if queue_id < 0:
                raise TroveError(
                    errors.QUEUE_NOT_FOUND, f"no queue has the number {queue_id}", queue_id=queue_id
                )
            return self._chooser.of_queue(queue_id, broker)
        if ordering_key is not None:
            return self._chooser.of_key(ordering_key)
        return None if broker is None else self._chooser.of_broker(broker)

    def _enqueue(self, message: _Prepared, waiter: asyncio.Future[SendReceipt] | None) -> None:
        body, block, message_id, slot, ordered, size = message
        key = (slot, ordered, waiter is None)
        batch = self._open.get(key)
        if batch is not None and batch.size + size > batch.size_max:
            self._release(batch)
            self._open.pop(key, None)
            batch = None
        if batch is None:
            batch = self._open_batch(key)
        batch.add(body, block, message_id, waiter, size)
        if not batch.released and (not self._linger_seconds or batch.size >= self._batch_bytes_max):
            batch.released = True
            self._delivery.submit(batch)

    def _open_batch(self, key: _OpenKey) -> SingleMessages:
        slot, ordered, one_way = key
        movable = slot is None
        slot = self._chooser.next() if slot is None else self._chooser.queue_of(slot)
        batch = SingleMessages(self.topic, self._delivery, slot, self._deadline(), movable, ordered, one_way)
        batch.route = route = self._chooser.find_route(slot)
        batch.sequence_assigner = self._sequence_assigner
        if ordered:
            batch.chosen_among = self._pool.routes.fifo_slots(self.topic)
            batch.serial = self._delivery.next_serial()
        size_max = FRAME_SIZE_MAX_DEFAULT if route is None else route.broker.batch_size_max
        batch.size_max = size_max if size_max < self._batch_bytes_max else self._batch_bytes_max
        batch.open_key = key
        self._open[key] = batch
        if self._linger_seconds:
            asyncio.get_running_loop().call_later(self._linger_seconds, self._release, batch)
        return batch

    def _release(self, batch: SingleMessages) -> None:
        """Submits a batch to its stream; it may still grow until the stream writes it."""
        if not batch.released:
            batch.released = True
            self._delivery.submit(batch)

    def _close_to_more(self, batch: Batch) -> None:
        key = batch.open_key
        if key is not None and self._open.get(key) is batch:
            del self._open[key]

    def _closed_error(self) -> TroveError:
        closed = "client" if self._pool.closed else "producer"
        return TroveError(errors.CLIENT_CLOSED, f"the {closed} is closed")

    def _check_open(self, body: Buffer) -> None:
        if self._closed:
            raise self._closed_error()
        self._pool.check_loop()
        if type(body) is not bytes:
            check_body(body)

    # --- limits ---------------------------------------------------------------------------------------

    async def _learn_topic(self) -> None:
        """Fetches the routes again for a topic that no route names; it may be new."""
        if self._closed:
            raise self._closed_error()
        self._pool.check_loop()
        if not self._pool.routes.slots(self.topic):
            await self._pool.refresh()
        self._topic_known = bool(self._pool.routes.slots(self.topic))

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._pool.options.delivery_timeout_ms / 1000

    def _check_body(self, slot: Slot | None, size: int) -> None:
        """Checks the body by the limit of the slot's broker, or by the lowest limit if any broker may get the
        message."""
        routes = self._pool.routes
        broker = routes.find(slot.broker) if slot is not None else None
        size_max = broker.body_size_max if broker is not None else routes.body_size_max
        if size_max is not None and size > size_max:
            text = f"the body has {size} bytes; {size_max} is the limit"
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text, size=size, size_max=size_max)


async def _gather_receipts(batches: list[ColumnBatch]) -> BatchReceipt:
    results = await asyncio.gather(*(batch.receipt for batch in batches), return_exceptions=True)
    first = next((result for result in results if isinstance(result, BaseException)), None)
    parts = [result for result in results if not isinstance(result, BaseException)]
    if first is None:
        return BatchReceipt(parts)
    if not isinstance(first, TroveError):
        raise first
    indexes: list[int] = []
    end = 0
    for batch, result in zip(batches, results, strict=True):
        begin, end = end, end + batch.count
        if not isinstance(result, BaseException):
            indexes += range(begin, end)
    raise PartialBatchError(first, BatchReceipt(parts), indexes, end) from first
