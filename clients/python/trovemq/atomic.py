"""Atomic transactions: messages of several topics, and acknowledgements, that are stored together or not at
all.

Not to be confused with `Producer.transaction` (trovemq.transaction), RocketMQ's transaction: there each
message is stored as a half message at once, and the broker may later ask the producer whether to commit it.
Here nothing is sent before the commit, no broker asks, and all messages appear in one step.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, Unpack

from trovemq._common.arguments import check_body
from trovemq._net.connections import ConnectionPool
from trovemq._net.new_topics import learn_topic
from trovemq._net.routes import Slot
from trovemq._produce.outgoing import RECORD_OVERHEAD
from trovemq._produce.property_block import property_block
from trovemq._produce.queue_routes import RecordForm
from trovemq._wire import transactions as wire
from trovemq.fetched import Buffer
from trovemq.models.cluster import BrokerInfo
from trovemq.receipts import SendReceipt
from trovemq.received import ReceivedMessage
from trovemq.send_arguments import Keys, MessageArguments
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_offset_msg_id, encode_record
from trovemq_proto.records.hashes import group_queue

_log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 4_096
ACKNOWLEDGEMENTS_MAX: Final = 4_096
BYTES_MAX: Final = 256 << 20
"""The most bytes of one transaction in this client; a broker takes a quarter of its segments' size (256 MiB
by default)."""
HANDLES_TOGETHER_MAX: Final = 1_024
COMMIT_TIMEOUT_MS_MIN: Final = 10_000


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """A committed atomic transaction.

    Attributes:
        transaction_id: Its id, which the stored messages carry as the property TROVEMQ_TX_ID.
        messages: One receipt per message, in the order of sending.
        acknowledged_count: Messages acknowledged with it.
        broker: Name of the broker that has it.
        repeated: The broker had committed it before this request (an earlier answer was lost).
    """

    transaction_id: str
    messages: Sequence[SendReceipt]
    acknowledged_count: int
    broker: str
    repeated: bool


@dataclass(slots=True)
class _Outgoing:
    topic: str
    body: bytes
    block: bytes
    message_id: str
    born_timestamp: int
    queue_id: int | None
    ordering_key: str | None


class AtomicTransaction:
    """Messages and acknowledgements that are committed in one step; made by `Client.transaction`.

        async with client.transaction() as tx:
            await tx.send("orders", b"order 42")
            await tx.send("stock", b"-1")
                tx.ack(message)                      # received by a subscription
        print(tx.receipt.messages[0].queue_offset)

    The end of the block commits. An exception or a cancellation within it rolls back: nothing is stored, and
    the messages of `ack` are returned. After any crash of the broker either everything is stored or nothing.
    (`Producer.transaction` is something else: RocketMQ's half messages.)

    Attributes:
        transaction_id: Its id.
        receipt: The receipt of the commit; None before.
    """

    def __init__(self, pool: ConnectionPool, *, broker: str | None, timeout_ms: int | None) -> None:
        if timeout_ms is not None and timeout_ms < 1:
            raise TroveError(errors.REQUEST_ILLEGAL, f"timeout_ms={timeout_ms} is not positive")
        self.transaction_id = uuid.uuid4().hex
        self.receipt: CommitReceipt | None = None
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._pinned: dict[str, str] = {}  # broker -> the reason
        if broker is not None:
            self._pin(broker, "broker=")
        self._messages: list[_Outgoing] = []
        self._acknowledged: list[ReceivedMessage] = []
        self._size = 0
        self._ended = False
        self._opened = self._began = asyncio.get_running_loop().time()

    async def __aenter__(self) -> Self:
        self._pool.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if failure is None:
            await self.commit()
        else:
            self.rollback()

    # --- messages and acknowledgements ---------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: Buffer,
        *,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        **message: Unpack[MessageArguments],
    ) -> int:
        """Adds one message. A delayed message cannot be part of a transaction.

        Args:
            topic: The topic.
            body: The message's bytes.
            queue_id: The queue; None: queues take turns.
            broker: The broker; all messages of a transaction are on one.
            ordering_key: Messages of one ordering key go to one queue, in the order of sending.
            message: The fields of MessageArguments.

        Returns:
            Its number: the index of its receipt in `receipt.messages`.

        Raises:
            TroveError: An argument is wrong (KEY_ILLEGAL, TAG_ILLEGAL, …); TRANSACTION_SIZE_EXCEEDED;
                TRANSACTION_BROKERS; REQUEST_ILLEGAL after the end.
        """
        self._check_open()
        check_body(body)
        if len(self._messages) >= MESSAGES_MAX:
            text = f"a transaction has at most {MESSAGES_MAX} messages"
            raise TroveError(errors.TRANSACTION_SIZE_EXCEEDED, text)
        if queue_id is not None and queue_id < 0:
            raise TroveError(errors.QUEUE_NOT_FOUND, f"no queue has the number {queue_id}", queue_id=queue_id)
        message_id, block = property_block(**message)
        ordering_key = message.get("message_group") if ordering_key is None else ordering_key
        size = len(body) + len(block) + RECORD_OVERHEAD
        if self._size + size > BYTES_MAX:
            text = f"a transaction has at most {BYTES_MAX} bytes"
            raise TroveError(errors.TRANSACTION_SIZE_EXCEEDED, text)
        if broker is not None:
            self._pin(broker, f"broker= of a message of {topic}")
        now_ms = time.time_ns() // 1_000_000
        key = ordering_key if queue_id is None else None
        self._messages.append(_Outgoing(topic, bytes(body), block, message_id, now_ms, queue_id, key))
        self._size += size
        return len(self._messages) - 1

    async def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Keys] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
        priority: Sequence[int | None] | int | None = None,
    ) -> range:
        """Adds many messages of one topic, in their order; `tag` and `properties` are one for all; of
        `priority` there are as many as bodies, or one for all.

        Returns:
            Their numbers: the indexes of their receipts in `receipt.messages`.

        Raises:
            TroveError: An argument is wrong, or TRANSACTION_SIZE_EXCEEDED, TRANSACTION_BROKERS,
                REQUEST_ILLEGAL after the end. Messages before the refused one belong to the transaction.
        """
        if isinstance(priority, Sequence) and len(priority) != len(bodies):
            text = f"{len(priority)} priorities for {len(bodies)} bodies"
            raise TroveError(errors.REQUEST_ILLEGAL, text)
        first = len(self._messages)
        for index, body in enumerate(bodies):
            await self.send(
                topic,
                body,
                keys=None if keys is None else keys[index],
                tag=tag,
                properties=properties,
                queue_id=queue_id,
                broker=broker,
                ordering_key=ordering_key,
                priority=priority if priority is None or isinstance(priority, int) else priority[index],
            )
        return range(first, len(self._messages))

    def ack(self, message: ReceivedMessage) -> None:
        """Consumes a received message with the commit. Without a commit the message is returned.

        Raises:
            TroveError: REQUEST_ILLEGAL for a message that is settled already, for one without a group (a
                broadcast), or after the end; TRANSACTION_BROKERS; TRANSACTION_SIZE_EXCEEDED.
        """
        self._check_open()
        if message.settled:
            raise TroveError(errors.REQUEST_ILLEGAL, "the message is settled already")
        if not message.settlement.group:
            raise TroveError(errors.REQUEST_ILLEGAL, "this message is not in flight for a consumer group")
        if len(self._acknowledged) >= ACKNOWLEDGEMENTS_MAX:
            text = f"a transaction has at most {ACKNOWLEDGEMENTS_MAX} acknowledgements"
            raise TroveError(errors.TRANSACTION_SIZE_EXCEEDED, text)
        self._pin(message.broker, f"a message received from {message.topic}")
        message.settled = True
        self._acknowledged.append(message)

    # --- its end --------------------------------------------------------------------------------------

    async def commit(self) -> CommitReceipt:
        """Stores everything, in one step, and waits until it is as safe as the broker's flush mode says.

        A temporary failure is retried until `delivery_timeout_ms`, under the same id: it is committed once. A
        transaction without messages and acknowledgements commits without a call.

        Raises:
            TroveError: It was refused, and nothing is stored: TRANSACTION_TIMED_OUT, TRANSACTION_BROKERS, …
                With the field in_doubt it is unknown whether it is stored, because the broker cannot be
                reached any more.
        """
        self._check_open()
        self._ended = True
        try:
            self.receipt = await self._commit()
        except BaseException:
            self._give_back()
            raise
        for message in self._acknowledged:
            message.settlement.acknowledged_elsewhere(message)
        return self.receipt

    def rollback(self) -> None:
        """Drops everything; the messages of `ack` are returned."""
        self._check_open()
        self._ended = True
        self._give_back()

    def _give_back(self) -> None:
        for message in self._acknowledged:
            message.settlement.return_message(message, None, tried=True)

    async def _commit(self) -> CommitReceipt:
        if not self._messages and not self._acknowledged:
            return CommitReceipt(self.transaction_id, (), 0, "", False)
        if self._timeout_ms is not None and self._age_ms() > self._timeout_ms:
            text = f"the transaction was open for {self._age_ms():.0f} ms; its time-out is {self._timeout_ms}"
            raise TroveError(errors.TRANSACTION_TIMED_OUT, text)
        broker, places = await self._placed()
        loop, options = asyncio.get_running_loop(), self._pool.options
        self._began = loop.time()
        deadline, failures, in_doubt = self._began + options.delivery_timeout_ms / 1000, 0, False
        while True:
            try:
                reply = await self._try_once(broker, places, ask_first=in_doubt)
                return self._receipt(reply, places)
            except TroveError as error:
                in_doubt = in_doubt or _may_be_stored(error)
                failures += 1
                delay = options.backoff.seconds(failures)
                again = error.retriable or _may_be_stored(error)
                if again and loop.time() + delay <= deadline and not self._pool.closed:
                    await asyncio.sleep(delay)
                    continue
                fields = {**error.fields, "transaction_id": self.transaction_id}
                if in_doubt:
                    fields["in_doubt"] = "true"
                raise TroveError(error.spec, error.message, **fields) from error

    def _age_ms(self) -> float:
        return (asyncio.get_running_loop().time() - self._opened) * 1000

    async def _try_once(self, broker: BrokerInfo, places: list[Slot], *, ask_first: bool) -> wire.CommitReply:
        connection = self._pool.connection(broker)
        if ask_first:  # the answer of an earlier try may be lost
            try:
                return await wire.get_transaction(connection, self.transaction_id)
            except TroveError as error:
                if error.spec is not errors.TRANSACTION_NOT_FOUND or self._may_be_forgotten(error):
                    raise
        form = RecordForm.of(broker, connection.address)
        frames = self._frames(places, form, broker.batch_size_max)
        timeout_ms = max(self._pool.options.call_timeout_ms, self._timeout_ms or 0, COMMIT_TIMEOUT_MS_MIN)
        return await wire.transact(connection, frames, timeout_ms)

    def _may_be_forgotten(self, error: TroveError) -> bool:
        """Whether the broker may have forgotten a commit: then sending it again could store it twice."""
        remembered_ms = error.fields.get("remembered_ms")
        tried_ms = (asyncio.get_running_loop().time() - self._began) * 1000
        return remembered_ms is not None and tried_ms >= int(remembered_ms)

    def _frames(self, places: list[Slot], form: RecordForm, size_max: int) -> Iterator[bytes]:
        yield wire.begin_frame(self.transaction_id, self._timeout_ms or 0)
        born_host = bytes(20 if form.born_host_ipv6 else 8)
        store_host = bytes(20 if form.store_host_ipv6 else 8)
        for (topic, queue_id), indexes in self._by_queue(places).items():
            records = bytearray()
            for index in indexes:
                message = self._messages[index]
                record = encode_record(
                    topic,
                    message.body,
                    queue_id=queue_id,
                    properties=message.block,
                    born_timestamp=message.born_timestamp,
                    born_host=born_host,
                    store_host=store_host,
                    append_property_crc=form.append_property_crc,
                )
                if records and len(records) + len(record) > size_max:
                    yield wire.messages_frame(topic, queue_id, bytes(records))
                    records = bytearray()
                records += record
            yield wire.messages_frame(topic, queue_id, bytes(records))
        handles: dict[tuple[str, str], list[str]] = {}
        for received in self._acknowledged:
            key = (received.settlement.group, received.topic)
            handles.setdefault(key, []).append(received.receipt_handle)
        for (group, topic), given in handles.items():
            for begin in range(0, len(given), HANDLES_TOGETHER_MAX):
                yield wire.acknowledgements_frame(group, topic, given[begin : begin + HANDLES_TOGETHER_MAX])
        yield wire.commit_frame()

    def _by_queue(self, places: list[Slot]) -> dict[tuple[str, int], list[int]]:
        """The messages of each queue, in their order: they are sent and stored in this order."""
        found: dict[tuple[str, int], list[int]] = {}
        for index, (message, place) in enumerate(zip(self._messages, places, strict=True)):
            found.setdefault((message.topic, place.queue_id), []).append(index)
        return found

    def _receipt(self, reply: wire.CommitReply, places: list[Slot]) -> CommitReceipt:
        order = [index for indexes in self._by_queue(places).values() for index in indexes]
        if len(reply.queue_offsets) != len(order):
            text = f"the broker answers of {len(reply.queue_offsets)} messages, {len(order)} were sent"
            raise TroveError(errors.UNKNOWN_ERROR, text)
        receipts: list[SendReceipt | None] = [None] * len(order)
        for index, queue_offset, physical_offset in zip(
            order, reply.queue_offsets, reply.physical_offsets, strict=True
        ):
            receipts[index] = SendReceipt(
                topic=self._messages[index].topic,
                queue_id=places[index].queue_id,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
                offset_msg_id=encode_offset_msg_id(reply.store_host, PhysicalOffset(physical_offset)),
                message_id=self._messages[index].message_id,
                durability=reply.durability,
                store_timestamp=reply.store_timestamp,
                broker=reply.broker,
                status="PUT_OK",
                transaction_id=self.transaction_id,
                copies=reply.copies,
            )
        messages = tuple(receipt for receipt in receipts if receipt is not None)
        count, repeated = reply.acknowledged_count, reply.repeated
        return CommitReceipt(self.transaction_id, messages, count, reply.broker, repeated)

    # --- one broker -----------------------------------------------------------------------------------

    def _pin(self, broker: str, why: str) -> None:
        other = next((name for name in self._pinned if name != broker), None)
        if other is not None:
            raise TroveError(
                errors.TRANSACTION_BROKERS,
                f"{why} needs broker {broker}, and {self._pinned[other]} needs broker {other}",
                brokers=f"{other}, {broker}",
            )
        self._pinned.setdefault(broker, why)

    async def _placed(self) -> tuple[BrokerInfo, list[Slot]]:
        """The broker that has all topics, and a queue of it for each message."""
        routes = self._pool.routes
        topics = list(dict.fromkeys(message.topic for message in self._messages))
        for topic in topics:
            if not routes.slots(topic):
                await learn_topic(self._pool, topic)
        for message in self._messages:
            if message.ordering_key is not None and (slots := routes.ordered_slots(message.topic)):
                slot = slots[group_queue(message.ordering_key, len(slots))]
                self._pin(slot.broker, f"the ordering key {message.ordering_key!r} of {message.topic}")
        async with self._pool.explaining():
            broker = self._chosen(topics)
        turns = {topic: secrets.randbelow(1 << 16) for topic in topics}
        return broker, [self._slot(message, broker.name, turns[message.topic]) for message in self._messages]

    def _chosen(self, topics: Sequence[str]) -> BrokerInfo:
        routes = self._pool.routes
        names = [broker.name for broker in routes.brokers()]
        if self._pinned:
            names = [routes.broker(next(iter(self._pinned))).name]
        slots_of = routes.slots if self._pinned else routes.writable_slots
        having = {topic: [slot.broker for slot in slots_of(topic)] for topic in topics}
        unknown = next((topic for topic, brokers in having.items() if not brokers), None)
        if unknown is not None:
            text = f"topic {unknown[:200]} is on no broker of the routes"
            raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=unknown[:200])
        common = [name for name in names if all(name in brokers for brokers in having.values())]
        if not common:
            where = "; ".join(
                f"{topic} is on {', '.join(sorted(set(brokers)))}" for topic, brokers in having.items()
            )
            pinned = "".join(f"; {why} needs {name}" for name, why in self._pinned.items())
            brokers = ", ".join(sorted({name for names in having.values() for name in names}))
            text = f"no broker has all topics of the transaction: {where}{pinned}"
            raise TroveError(errors.TRANSACTION_BROKERS, text, brokers=brokers)
        healthy = [name for name in common if not self._pool.suspect(routes.broker(name))]
        return routes.broker(secrets.choice(healthy or common))

    def _slot(self, message: _Outgoing, broker: str, turn: int) -> Slot:
        if message.queue_id is not None:
            return Slot(broker, message.queue_id)
        routes = self._pool.routes
        if message.ordering_key is not None:
            slots = routes.ordered_slots(message.topic)
            return slots[group_queue(message.ordering_key, len(slots))]
        own = [slot for slot in routes.slots(message.topic) if slot.broker == broker]
        return own[turn % len(own)]

    def _check_open(self) -> None:
        if self._ended:
            raise TroveError(errors.REQUEST_ILLEGAL, "the transaction has ended")
        self._pool.check_loop()


def _may_be_stored(error: TroveError) -> bool:
    """Whether the commit may have been done nevertheless."""
    return error.spec in (
        errors.BROKER_UNREACHABLE,
        errors.REQUEST_TIMEOUT,
        errors.FLUSH_DISK_TIMEOUT,
        errors.REPLICA_TIMEOUT,
        errors.STORE_FAILED,
        errors.STORE_DELETED,
        errors.UNKNOWN_ERROR,
    )
