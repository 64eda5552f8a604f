"""SendMessage: messages of one topic are checked and stored; the reply has one entry for each.

All messages of a request are checked before the first is stored. An entry is OK when its message is as
durable as the flush mode promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from trovemq_broker.produce.append import batch_size_limit
from trovemq_broker.produce.coalesce import Done, SendOutcome
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.rocketmq.usual_sends import UsualSends
from trovemq_broker.server.wire.resources import message_types, topic_to_send
from trovemq_broker.server.wire.rocketmq_messages import (
    duration_ms,
    outgoing,
    peer_host,
    stored_born_ms,
    timestamp_ms,
)
from trovemq_broker.server.wire.send_checks import check_message, kind_of
from trovemq_broker.server.wire.send_replies import Stored, reply_of, reply_of_one
from trovemq_broker.server.wire.statuses import Context, client_id_of
from trovemq_daemon.callback_handlers import Answer, answer_into
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.steps import Steps, finished
from trovemq_store.topics.message_kinds import check_kind
from trovemq_store.topics.topics import TopicConfig

SEND_MESSAGES_MAX: Final = 1_024
CHECKED_STEP: Final = 32
"""The most messages that are checked, or converted, in one step; more of them need a task."""
_PLAIN: Final = (v2.NORMAL, v2.PRIORITY)
"""Types that are appended at once, to any queue."""


class Sender:
    def __init__(self, parts: RocketmqParts) -> None:
        self._parts = parts
        self._deferred = DeferredMessages(parts)
        settings = parts.store.settings
        self._body_size_max = settings.body_size_max
        self._inflated_max = max(batch_size_limit(settings), settings.body_size_max)
        self.usual = UsualSends(parts)
        self._accepting_block = 0
        """The coalescer's block in which new messages were accepted; nothing changes in a block."""

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
        return reply_of(messages, stored)

    def begin_send(self, request: service_pb2.SendMessageRequest, context: Context, answer: Answer) -> bool:
        """As send, without a task, for messages that are appended at once, to any queue."""
        messages = request.messages
        count = len(messages)
        block = self._parts.coalescer.block
        accepting = block != 0 and block == self._accepting_block
        if not accepting and self._parts.group_commit.full:
            return False
        if count == 1:
            message = messages[0]
            if self._begin_usual(message, context, answer, accepting=accepting):
                return True
            return self._begin_one(message, context, answer)
        if count > CHECKED_STEP:
            return False
        send, ready, kinds = finished(self._checked(messages, context))
        if not _all_plain(kinds):
            return False
        self._begin_plain(messages, send, ready, answer)
        return True

    def _begin_usual(self, message: v2.Message, context: Context, answer: Answer, *, accepting: bool) -> bool:
        """As _begin_one, for the usual message to a topic that has accepted one: the same checks, made
        together. False, and nothing was done, for any other. `accepting`: new messages are accepted."""
        usual = self.usual.read(message)
        if usual is None:
            return False
        parts = self._parts
        if not accepting:
            parts.appender.check_accepting()
            self._accepting_block = parts.coalescer.block
        topic, message_id, block, body, born_ms = usual
        parts.coalescer.begin_checked(
            topic,
            body,
            block,
            self._answering(topic, message, message_id, answer),
            born_host=peer_host(context.peer()),
            born_timestamp=stored_born_ms(born_ms, parts.clock_ms()),
        )
        return True

    def _begin_one(self, message: v2.Message, context: Context, answer: Answer) -> bool:
        """As begin_send, for one message, with fewer calls and objects."""
        parts = self._parts
        now_ms = parts.clock_ms()
        topic = topic_to_send(message.topic)
        check_message(message, self._body_size_max, now_ms + parts.settings.delivery_delay_max_ms)
        config, (kind,) = self._check_topic(topic, (message,))
        ready = outgoing(message, self._body_size_max)
        if kind not in _PLAIN:
            return False
        if kind == v2.NORMAL and topic == message.topic.name:
            self.usual.learn(topic, config)
        parts.coalescer.begin(
            topic,
            ANY_QUEUE,
            (ready,),
            self._answering(topic, message, message.system_properties.message_id, answer),
            born_host=peer_host(context.peer()),
            now_ms=now_ms,
            checked=True,
        )
        return True

    def _answering(self, topic: str, message: v2.Message, message_id: str, answer: Answer) -> Done:
        """Answers when the message is as durable as the flush mode promises."""
        parts = self._parts
        traffic = parts.traffic

        def stored(outcome: SendOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                answer(outcome)
                return
            result = outcome.result
            traffic.appended(topic, result.record_count, result.bytes_written)
            if parts.appender.sync:
                parts.group_commit.when_durable(result.end, lambda error: durable(result, error))
            else:
                answer(reply_of_one(message_id, result.queue_offset(0)))

        def durable(result: AppendResult, error: TroveError | None) -> None:
            if error is None:
                answer(reply_of_one(message_id, result.queue_offset(0)))
            else:
                traffic.refused(error.symbol)
                answer(reply_of((message,), [Stored(result, error=error)]))

        return stored

    def _checked(
        self, messages: Sequence[v2.Message], context: Context
    ) -> Steps[tuple[_Send, list[OutgoingMessage], list[v2.MessageType]]]:
        now_ms = self._parts.clock_ms()
        topic = yield from self._check(messages, now_ms)
        config, kinds = self._check_topic(topic, messages)
        send = _Send(self._parts, self._deferred, topic, config, context, now_ms)
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
            answer(reply_of(messages, [Stored(result, index, error=error) for index in range(len(ready))]))

        send.begin_append(ready, ANY_QUEUE, stored)

    # --- checks -------------------------------------------------------------------------------------
    def _check(self, messages: Sequence[v2.Message], now_ms: EpochMs) -> Steps[str]:
        """Checks each message by itself. Returns the topic of all messages."""
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
        parts: RocketmqParts,
        deferred: DeferredMessages,
        topic: str,
        config: TopicConfig,
        context: Context,
        now_ms: EpochMs,
    ) -> None:
        self._parts = parts
        self._deferred = deferred
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
            return self._schedule(ready, queue_id, deliver_ms)
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

        def appended(outcome: SendOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                done(outcome)
                return
            result = outcome.result
            self._parts.traffic.appended(
                self._topic, result.record_count, result.bytes_written, result.positions
            )
            done(result)

        self._parts.coalescer.begin(
            self._topic,
            queue_id,
            ready,
            appended,
            born_host=self._born_host,
            now_ms=self._now_ms,
            checked=True,
        )

    def _prepare(self, message: v2.Message, ready: OutgoingMessage, queue_id: QueueId) -> Stored:
        immunity_ms = duration_ms(message.system_properties.orphaned_transaction_recovery_duration)
        result = self._deferred.prepare(
            self._topic,
            queue_id,
            ready,
            client_id_of(self._context),
            immunity_ms,
            born_host=self._born_host,
            now_ms=self._now_ms,
        )
        return Stored(result)

    def _schedule(self, ready: OutgoingMessage, queue_id: QueueId, deliver_ms: EpochMs) -> Stored:
        result, recall_handle = self._deferred.schedule(
            self._topic, queue_id, ready, deliver_ms, born_host=self._born_host, now_ms=self._now_ms
        )
        return Stored(result, recall_handle=recall_handle)


def _all_plain(kinds: Sequence[v2.MessageType]) -> bool:
    return all(kind in _PLAIN for kind in kinds)
