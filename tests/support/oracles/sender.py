"""SendMessage as it was before it had one command: each message by protobuf alone, each append alone."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from hashlib import md5, sha1
from typing import Any, Final

from trovemq_broker.produce.append import batch_size_limit
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.produce.queue_chooser import QueueChooser
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.resources import message_types, topic_to_send
from trovemq_broker.server.wire.rocketmq_messages import (
    BORN_MS_MAX,
    PROPERTY_BORN_HOST,
    PROPERTY_TRACE_CONTEXT,
    SYSTEM_TEXT_SIZE_MAX,
    duration_ms,
    peer_host,
    timestamp_ms,
)
from trovemq_broker.server.wire.send_checks import check_message, kind_of
from trovemq_broker.server.wire.send_replies import Stored, reply_of
from trovemq_broker.server.wire.statuses import Context, client_id_of
from trovemq_broker.timers.recall_handle import encode_recall_handle
from trovemq_daemon.calls import Answer, answer_into
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId
from trovemq_proto.records import PROPERTY_SHARDING_KEY, encode_properties
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.records.keys import key_sizes
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES, PROPERTY_TIMER_DELIVER_MS
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.steps import Steps
from trovemq_store.files.failures import storage_errors
from trovemq_store.topics.message_kinds import check_kind
from trovemq_store.topics.topics import TopicConfig

SEND_MESSAGES_MAX: Final = 1_024
CHECKED_STEP: Final = 32
"""The most messages that are checked, or converted, in one step; more of them need a task."""
_PLAIN: Final = (v2.NORMAL, v2.PRIORITY)
"""Types that are appended at once, to any queue."""


class AtOnce:
    """Appends each send as soon as it begins. The sends of one iteration share the queue of a topic."""

    def __init__(self, parts: BrokerCore) -> None:
        self._parts = parts
        self._chooser = QueueChooser()
        self._chosen: dict[str, QueueId] = {}

    def end_turn(self) -> None:
        self._chosen.clear()

    def shared_queue(self, topic: str) -> QueueId:
        queue_id = self._chosen.get(topic)
        if queue_id is None:
            config = self._parts.appender.topic_for_write(topic)
            queue_id = self._chosen[topic] = self._chooser.choose(topic, config.write_queue_count)
        return queue_id

    def begin(
        self,
        topic: str,
        queue_id: QueueId,
        messages: Sequence[OutgoingMessage],
        done: Callable[[AppendResult | Exception], None],
        *,
        born_host: bytes,
        now_ms: EpochMs,
    ) -> None:
        queue_id = queue_id if queue_id >= 0 else self.shared_queue(topic)
        rows = [
            (one.body, encode_properties(one.stored_properties("")), one.born_timestamp or now_ms)
            for one in messages
        ]
        records = self._parts.accumulator.encoder.encode_rows(topic, queue_id, born_host, rows)
        done(self._parts.appender.append(topic, queue_id, records, None))


class Sender:
    def __init__(self, parts: BrokerCore) -> None:
        self._parts = parts
        settings = parts.store.settings
        self._body_size_max = settings.body_size_max
        self._inflated_max = max(batch_size_limit(settings), settings.body_size_max)
        self.at_once = AtOnce(parts)

    async def send(
        self, request: service_pb2.SendMessageRequest, context: Context
    ) -> service_pb2.SendMessageResponse:
        """SendMessage. Raises TroveError if the whole request is refused: then nothing was stored."""
        group_commit = self._parts.group_commit
        if group_commit.full:
            await group_commit.wait_for_capacity()
        messages = request.messages
        steps = self._checked(messages, context)
        send, ready, kinds = await self._parts.turns.run_from_now(steps)
        if _all_plain(kinds):
            answered: asyncio.Future[service_pb2.SendMessageResponse]
            answered = asyncio.get_running_loop().create_future()
            self._begin_plain(messages, send, ready, answer_into(answered))
            return await answered
        if len(ready) == 1:
            stored = [await send.store_one(messages[0], ready[0], kinds[0])]
        else:
            stored = await send.store_many(messages, ready, kinds)
        await self._settle(stored)
        return reply_of([one.system_properties.message_id for one in messages], stored)

    def _checked(
        self, messages: Sequence[v2.Message], context: Context
    ) -> Steps[tuple[_Send, list[OutgoingMessage], list[v2.MessageType]]]:
        now_ms = self._parts.clock_ms()
        topic = yield from self._check(messages, now_ms)
        config, kinds = self._check_topic(topic, messages)
        send = _Send(self._parts, self.at_once, topic, config, context, now_ms)
        ready, inflated_size = [], 0
        for number, message in enumerate(messages, 1):
            one = outgoing(message, self._body_size_max)
            ready.append(one)
            if message.system_properties.body_encoding == v2.GZIP:
                inflated_size += len(one.body)
                self._check_inflated(inflated_size)
            if not number % CHECKED_STEP:
                yield
        return send, ready, kinds

    def _check_inflated(self, size: int) -> None:
        """Bounds the inflated size of all bodies together by the size of a batch, because a few kilobytes may
        inflate to megabytes."""
        if size > self._inflated_max:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"the bodies inflate to more than {self._inflated_max} bytes together: send them one by one",
                batch_size_max=self._inflated_max,
            )

    def _begin_plain(
        self, messages: Sequence[v2.Message], send: _Send, ready: list[OutgoingMessage], answer: Answer
    ) -> None:
        """Appends the messages together. Answers when they are as durable as the flush mode promises."""
        parts = self._parts

        def stored(outcome: AppendResult | Exception) -> None:
            if isinstance(outcome, Exception):
                answer(outcome)
            elif parts.appender.sync:
                parts.group_commit.when_durable(outcome.end, lambda error: durable(outcome, error))
            else:
                durable(outcome, None)

        def durable(result: AppendResult, error: TroveError | None) -> None:
            if error is not None:
                parts.traffic.refused(error.symbol)
            answer(
                reply_of(
                    [one.system_properties.message_id for one in messages],
                    [Stored(result, index, error=error) for index in range(len(ready))],
                )
            )

        send.begin_append(ready, ANY_QUEUE, stored)

    # --- checks -------------------------------------------------------------------------------------
    def _check(self, messages: Sequence[v2.Message], now_ms: EpochMs) -> Steps[str]:
        """Checks each message alone. Returns the topic of all messages."""
        if not messages:
            raise TroveError(errors.BATCH_ILLEGAL, "a send needs at least one message")
        if len(messages) > SEND_MESSAGES_MAX:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"{len(messages)} messages, the limit is {SEND_MESSAGES_MAX}"
            )
        topic = ""
        latest_ms = now_ms + self._parts.settings.delivery_delay_max_ms
        for number, message in enumerate(messages, 1):
            name = topic_to_send(message.topic)
            if topic and name != topic:
                raise TroveError(errors.BATCH_ILLEGAL, "the messages of one send have one topic")
            topic = name
            check_message(message, self._body_size_max, latest_ms)
            if not number % CHECKED_STEP:
                yield
        return topic

    def _check_topic(
        self, topic: str, messages: Sequence[v2.Message]
    ) -> tuple[TopicConfig, list[v2.MessageType]]:
        """The topic, which accepts all these messages, and their types."""
        config = self._parts.store.topics.get(topic) or self._parts.appender.topic_for_write(topic)
        accepted = message_types(config)
        kinds = [kind_of(message) for message in messages]
        for kind in kinds:
            if kind not in accepted:
                check_kind(config, v2.MessageType.Name(kind))
        if len(kinds) > 1 and v2.TRANSACTION in kinds:
            raise TroveError(errors.REQUEST_ILLEGAL, "a transactional message is sent alone")
        if not config.writable or config.write_queue_count < 1:
            raise TroveError(errors.PERMISSION_MISSING, f"topic {topic} may not be written", topic=topic)
        self._parts.appender.check_accepting()
        return config, kinds

    # --- durability ---------------------------------------------------------------------------------
    async def _settle(self, stored: list[Stored]) -> None:
        """Returns when the stored messages are durable; other entries get the error.

        Raises the error of a send of which nothing was stored.
        """
        ends = [one.result.end for one in stored if one.result is not None]
        if not ends:
            assert stored[0].error is not None, "a message that was not stored has an error"
            raise stored[0].error
        if self._parts.appender.sync:
            try:
                await self._parts.group_commit.durable(max(ends))
            except TroveError as error:
                self._parts.traffic.refused(error.symbol)
                stored[:] = [one if one.result is None else replace(one, error=error) for one in stored]


class _Send:
    """One request that has passed all checks."""

    def __init__(
        self,
        parts: BrokerCore,
        at_once: AtOnce,
        topic: str,
        config: TopicConfig,
        context: Context,
        now_ms: EpochMs,
    ) -> None:
        self._parts = parts
        self._at_once = at_once
        self._topic = topic
        self._queue_count = config.write_queue_count
        self._context = context
        self._born_host = peer_host(context.peer())
        self._now_ms = now_ms

    async def store_one(self, message: v2.Message, ready: OutgoingMessage, kind: v2.MessageType) -> Stored:
        """Stores a message that is not plain. If it raises TroveError, nothing was stored."""
        group = message.system_properties.message_group
        queue_id = QueueId(group_queue(group, self._queue_count)) if group else ANY_QUEUE
        if kind == v2.TRANSACTION:
            return self._prepare(message, ready, queue_id)
        if kind == v2.DELAY:
            deliver_ms = timestamp_ms(message.system_properties.delivery_timestamp)
            if deliver_ms > self._now_ms:
                return self._schedule(ready, queue_id, deliver_ms)
            ready = replace(
                ready,
                system_properties={**ready.system_properties, PROPERTY_TIMER_DELIVER_MS: str(deliver_ms)},
            )
        return Stored(await self._append([ready], queue_id))

    async def store_many(
        self, messages: Sequence[v2.Message], ready: list[OutgoingMessage], kinds: list[v2.MessageType]
    ) -> list[Stored]:
        """Stores the messages; returns one result each, in order. Plain messages are appended together; those
        of one message group keep their order."""
        plain = [index for index, kind in enumerate(kinds) if kind in _PLAIN]
        others = [index for index, kind in enumerate(kinds) if kind not in _PLAIN]
        tasks: list[Coroutine[Any, Any, list[Stored]]] = [
            self._guarded(self._store_singly(messages[index], ready[index], kinds[index]), 1)
            for index in others
        ]
        if plain:
            tasks.append(self._guarded(self._store_together([ready[index] for index in plain]), len(plain)))
        results = await asyncio.gather(*tasks)
        stored = [one for result in results for one in result]
        return [
            one for _, one in sorted(zip([*others, *plain], stored, strict=True), key=lambda pair: pair[0])
        ]

    async def _store_singly(
        self, message: v2.Message, ready: OutgoingMessage, kind: v2.MessageType
    ) -> list[Stored]:
        return [await self.store_one(message, ready, kind)]

    async def _store_together(self, ready: list[OutgoingMessage]) -> list[Stored]:
        result = await self._append(ready, ANY_QUEUE)
        return [Stored(result, index) for index in range(len(ready))]

    async def _guarded(self, storing: Coroutine[Any, Any, list[Stored]], count: int) -> list[Stored]:
        """Stores one part of the messages: its refusal does not affect the others."""
        try:
            return await storing
        except TroveError as error:
            self._parts.traffic.refused(error.symbol)
            return [Stored(None, error=error)] * count

    async def _append(self, ready: Sequence[OutgoingMessage], queue_id: QueueId) -> AppendResult:
        appended: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self.begin_append(ready, queue_id, answer_into(appended))
        return await appended

    def begin_append(
        self,
        ready: Sequence[OutgoingMessage],
        queue_id: QueueId,
        done: Callable[[AppendResult | Exception], None],
    ) -> None:
        """Appends. `done` gets the result, or the reason why nothing was stored; it is not called if this
        raises TroveError."""

        def appended(outcome: AppendResult | Exception) -> None:
            if isinstance(outcome, Exception):
                done(outcome)
                return
            result = outcome
            self._parts.traffic.appended(
                self._topic, result.record_count, result.bytes_written, result.positions
            )
            done(result)

        self._at_once.begin(
            self._topic,
            queue_id,
            ready,
            appended,
            born_host=self._born_host,
            now_ms=self._now_ms,
        )

    def _prepare(self, message: v2.Message, ready: OutgoingMessage, queue_id: QueueId) -> Stored:
        client_id = client_id_of(self._context)
        immunity_ms = duration_ms(message.system_properties.orphaned_transaction_recovery_duration)
        record = self._record(ready, queue_id)
        transactions = self._parts.transactions
        result = self._written(
            ready.unique_key,
            lambda: transactions.prepare(record, self._now_ms, client_id=client_id, immunity_ms=immunity_ms),
        )
        self._parts.registry.sent_half(client_id, self._topic)
        return Stored(result)

    def _schedule(self, ready: OutgoingMessage, queue_id: QueueId, deliver_ms: EpochMs) -> Stored:
        record = self._record(ready, queue_id)
        timers = self._parts.timers
        result = self._written(ready.unique_key, lambda: timers.schedule(record, deliver_ms, self._now_ms))
        due_ms = self._due_ms_of_original(result) if result.duplicates else deliver_ms
        if due_ms is None:
            return Stored(result)
        handle = encode_recall_handle(self._topic, self._parts.broker, due_ms, ready.unique_key)
        return Stored(result, recall_handle=handle)

    def _due_ms_of_original(self, result: AppendResult) -> EpochMs | None:
        """The delivery time of the original of a duplicate, because only the original can be recalled. None
        if it was not delayed."""
        with storage_errors("the original cannot be read", errors.UNKNOWN_ERROR):
            return self._parts.timers.due_ms_at(result.physical_offset)

    def _record(self, ready: OutgoingMessage, queue_id: QueueId) -> NewRecord:
        return NewRecord(
            self._topic,
            self._at_once.shared_queue(self._topic) if queue_id < 0 else queue_id,
            ready.body,
            ready.stored_properties(""),
            ready.born_timestamp or self._now_ms,
            self._born_host,
        )

    def _written(self, unique_key: str, write: Callable[[], AppendResult]) -> AppendResult:
        """The message that write() stored, or the original of a duplicate."""
        deduplication = self._parts.appender.deduplication
        with storage_errors("the append failed", errors.UNKNOWN_ERROR):
            result = deduplication.append_if_absent(self._topic, unique_key.encode(), self._now_ms, write)
        self._parts.traffic.appended(self._topic, result.record_count, result.bytes_written)
        return result


def _all_plain(kinds: Sequence[v2.MessageType]) -> bool:
    return all(kind in _PLAIN for kind in kinds)


def outgoing(message: v2.Message, body_size_max: int) -> OutgoingMessage:
    """The store's form of a message that has passed the checks of a send.

    Raises TroveError BATCH_ILLEGAL: the body does not match its digest or its encoding;
    MESSAGE_SIZE_EXCEEDED: it inflates to more than `body_size_max` bytes.
    """
    system = message.system_properties
    born_ms = timestamp_ms(system.born_timestamp)
    properties = message.user_properties
    return OutgoingMessage(
        _identity_body(message, body_size_max),
        system.tag,
        tuple(system.keys),
        system.message_id,
        # the stored form has no empty names and values
        {name: value for name, value in properties.items() if name and value} if properties else {},
        0,
        born_ms if 0 < born_ms <= BORN_MS_MAX else EpochMs(0),
        _system_properties(system),
    )


def _identity_body(message: v2.Message, body_size_max: int) -> bytes:
    system = message.system_properties
    body = message.body
    if system.HasField("body_digest"):
        _check_digest(body, system.body_digest)
    return _gunzip(body, body_size_max) if system.body_encoding == v2.GZIP else body


def _check_digest(body: bytes, digest: v2.Digest) -> None:
    """Compares the digest, except CRC32, which clients write in three different forms."""
    if digest.type == v2.MD5:
        found = md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == v2.SHA1:
        found = sha1(body, usedforsecurity=False).hexdigest()
    else:
        return
    if digest.checksum.lower() != found:
        raise TroveError(errors.BATCH_ILLEGAL, "the body does not have the digest that the message states")


def _gunzip(body: bytes, body_size_max: int) -> bytes:
    inflater = zlib.decompressobj(31)
    try:
        inflated = inflater.decompress(body, body_size_max + 1)
    except zlib.error as error:
        raise TroveError(errors.BATCH_ILLEGAL, f"the body is said to be gzip, and is not: {error}") from error
    if len(inflated) > body_size_max:
        raise TroveError(
            errors.MESSAGE_SIZE_EXCEEDED, f"the body inflates to more than {body_size_max} bytes"
        )
    if not inflater.eof:
        raise TroveError(errors.BATCH_ILLEGAL, "the gzip body is cut short")
    return inflated


def _system_properties(system: v2.SystemProperties) -> dict[str, str]:
    """The system properties under the names with which RocketMQ stores them. The record's born host is the
    peer's address; the address that the sender names is a property."""
    found = {}
    if sizes := key_sizes(system.keys):
        found[PROPERTY_KEY_SIZES] = sizes
    if system.message_group:
        found[PROPERTY_SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        found[PROPERTY_PRIORITY] = str(system.priority)
    if system.born_host and _storable(system.born_host):
        found[PROPERTY_BORN_HOST] = system.born_host
    if system.trace_context and _storable(system.trace_context):
        found[PROPERTY_TRACE_CONTEXT] = system.trace_context
    return found


def _storable(text: str) -> bool:
    """Whether the record's form can have the text; informative texts that it cannot have are omitted."""
    return len(text) <= SYSTEM_TEXT_SIZE_MAX and text.isprintable()
