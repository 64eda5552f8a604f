"""SendMessage: messages of one topic are checked and stored; the reply has one entry for each.

All messages of a request are checked before the first is stored. An entry is OK when its message is as
durable as an acknowledged message of this broker is.

Messages of a topic that only other brokers have are forwarded (forwards.py), before anything is done here.

Every call becomes one command (wire/send_requests.py). Delayed messages and half messages are written by
their own stores, all others are submitted to the accumulator; the single messages of the calls of one
iteration of the loop as one batch of each topic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from trovemq_broker.produce.append import batch_size_limit
from trovemq_broker.produce.batches import Batch
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.joined_sends import JoinedSends
from trovemq_broker.server.wire.rocketmq_messages import peer_host
from trovemq_broker.server.wire.send_replies import Stored, reply_of, reply_of_stored
from trovemq_broker.server.wire.send_requests import (
    DELAY,
    PRIORITY,
    STEP,
    TRANSACTION,
    ReadSend,
    Send,
    SendLimits,
    SentMessage,
    read_send,
    reading_of,
    stored_body,
)
from trovemq_broker.server.wire.statuses import Context, check_client_id, client_id_of
from trovemq_daemon.calls import Answer, Call, answer_into
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId, QueueOffset
from trovemq_proto.records import parse_properties
from trovemq_proto.records.hashes import group_queue
from trovemq_store.engine.message_store import AppendResult
from trovemq_store.engine.steps import Steps, finished
from trovemq_store.topics.message_kinds import NORMAL, accepted_kinds, check_kind
from trovemq_store.topics.topics import TopicConfig

SEND_MESSAGE: Final = "SendMessage"
TOPICS_KNOWN: Final = 16_384  # whose types are kept
FIELDS_SIZE_MAX: Final = 512  # bytes of a record without its body and properties, at most
ANY_QUEUE_KINDS: Final = (NORMAL, PRIORITY)
"""Types that any queue takes: all such messages of a request are one batch."""


class PartDone(Protocol):
    """Done, with the recall handle of a delayed message."""

    def __call__(
        self,
        outcome: AppendResult | Exception,
        ended_at: float = 0.0,
        error: TroveError | None = None,
        recall_handle: str = "",
        /,
    ) -> None: ...


Peer: TypeAlias = "Call | Context"
"""Of the client: its address and metadata."""
Caller: TypeAlias = tuple[Peer, EpochMs]
"""And the time of the call."""


class _ElsewhereError(Exception):
    """Another broker stores the messages of the call; nothing was done here."""

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.broker: Final = broker


class Sender:
    """`forwards`: to other brokers; None: every message is stored here."""

    def __init__(self, core: BrokerCore, forwards: Forwards | None = None) -> None:
        self._core = core
        self._forwards = forwards
        self._deferred = DeferredMessages(core)
        self._encoder = core.accumulator.encoder
        settings = core.store.settings
        self._body_size_max = settings.body_size_max
        self._inflated_max = max(batch_size_limit(settings), settings.body_size_max)
        self._known: dict[str, TopicConfig] = {}  # by topic; each may be written, and takes normal messages

    # --- calls --------------------------------------------------------------------------------------
    def on_calls(self, calls: Sequence[Call]) -> None:
        """SendMessage. A call whose whole request is refused is answered with the error: then nothing of it
        was stored."""
        core = self._core
        if core.group_commit.full:
            for call in calls:
                call.run(self._send_in_task(call))
            return
        limits = self._limits()
        joined: dict[str, JoinedSends] = {}
        head = None
        with core.accumulator.together():
            for call in calls:
                try:
                    head = check_client_id(call.context, head)
                    send = read_send(call, limits)
                    if send is None:
                        call.run(self._send_in_task(call))
                    else:
                        self._begin(send, call, joined)
                except _ElsewhereError as elsewhere:
                    call.keep()
                    call.run(self._forward(call, elsewhere.broker))
                except Exception as error:
                    call.answer(error)
            self._submit_joined(joined)

    async def _send_in_task(self, call: Call) -> None:
        try:
            await self._begin_in_steps(reading_of(call), call, call.answer)
        except _ElsewhereError as elsewhere:
            await self._forward(call, elsewhere.broker)

    async def _forward(self, call: Call, broker: str) -> None:
        assert self._forwards is not None, "it has named the broker"
        call.answer(await self._forwards.one(broker, SEND_MESSAGE, call.keep(), call.context))

    async def send(self, read: ReadSend, context: Context) -> object:
        """Sends the messages of one request. Returns the reply, which may be serialised. Raises TroveError if
        the whole request is refused."""
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await self._begin_in_steps(read, context, answer_into(answered))
        return await answered

    async def _begin_in_steps(self, read: ReadSend, peer: Peer, answer: Answer) -> None:
        """Stores the messages of any request, when there is space for them. Raises TroveError."""
        group_commit, turns = self._core.group_commit, self._core.turns
        if group_commit.full:
            await group_commit.wait_for_capacity()
        send = await turns.run_from_now(read(self._limits()))
        config = self._admit(send)
        self._check_group(send, peer)
        send = await turns.run_from_now(self._decoded(send))
        self._store(send, config, peer, answer)

    def _limits(self) -> SendLimits:
        core = self._core
        latest_ms = EpochMs(core.clock_ms() + core.settings.delivery_delay_max_ms)
        return SendLimits(self._body_size_max, latest_ms)

    # --- one command --------------------------------------------------------------------------------
    def _begin(self, send: Send, call: Call, joined: dict[str, JoinedSends]) -> None:
        """Stores the messages of a call: one that any queue takes together with those of other calls, which
        are submitted later. Raises TroveError if the whole request is refused."""
        messages = send.messages
        message = messages[0]
        if len(messages) == 1 and message.encoding is None and message.kind in ANY_QUEUE_KINDS:
            self._join(send, message, call, joined)
            return
        config = self._admit(send)
        self._check_group(send, call)
        send = finished(self._decoded(send))
        self._submit_joined(joined)  # their calls came before
        self._store(send, config, call, call.answer)

    def _join(self, send: Send, message: SentMessage, call: Call, joined: dict[str, JoinedSends]) -> None:
        topic = send.topic
        message_id, kind, body, block, born_ms, *_ = message
        sends = joined.get(topic)
        if sends is None or sends.kind != kind:
            self._admit(send)
        encoder = self._encoder
        if (
            sends is not None
            and sends.size + len(body) + len(block) + FIELDS_SIZE_MAX > encoder.batch_size_max
        ):
            self._submit_joined(joined)
            sends = None
        if sends is None:
            queue_id = self._core.accumulator.queue_of(topic, ANY_QUEUE)
            sends = joined[topic] = JoinedSends(topic, queue_id, kind, self._core.traffic.refused)
        host = peer_host(call.peer())
        born_ms = born_ms or self._core.clock_ms()
        size = encoder.add_row(sends.pieces, topic, sends.queue_id, host, body, block, born_ms)
        sends.add(call, message_id, size)

    def _submit_joined(self, joined: dict[str, JoinedSends]) -> None:
        for sends in joined.values():
            if sends.size:
                self._core.accumulator.submit(*sends.batch())
        joined.clear()

    def _admit(self, send: Send) -> TopicConfig:
        """The topic, which accepts all these messages. Raises TroveError."""
        topic, messages = send
        config = self._core.store.topics.get(topic)
        alone = len(messages) == 1
        if config is None or not alone or messages[0].kind != NORMAL or self._known.get(topic) is not config:
            config = self._checked(topic, messages)
        appender = self._core.appender
        if not appender.accepts:
            appender.check_accepting()
        return config

    def _check_group(self, send: Send, peer: Peer) -> None:
        """Raises _ElsewhereError for a message group that belongs to another broker."""
        group = send.messages[0].group
        if group and self._forwards is not None:
            client_id = client_id_of(peer.context if isinstance(peer, Call) else peer)
            if broker := self._forwards.group_broker(send.topic, group, client_id):
                raise _ElsewhereError(broker)

    def _topic(self, topic: str, message: SentMessage) -> TopicConfig:
        """Raises TroveError; _ElsewhereError for a topic that only other brokers have."""
        config = self._core.store.topics.get(topic)
        if config is not None:
            return config
        if self._forwards is not None:
            broker = self._forwards.topic_broker(topic, message.group, message.message_id)
            if broker:
                raise _ElsewhereError(broker)
        return self._core.appender.topic_for_write(topic)

    def _checked(self, topic: str, messages: Sequence[SentMessage]) -> TopicConfig:
        config = self._topic(topic, messages[0])
        accepted = accepted_kinds(config)
        kinds = [message.kind for message in messages]
        for kind in kinds:
            if kind not in accepted:
                check_kind(config, kind)
        if len(kinds) > 1 and TRANSACTION in kinds:
            raise TroveError(errors.REQUEST_ILLEGAL, "a transactional message is sent alone")
        config.check_open()
        if not config.writable or config.write_queue_count < 1:
            raise TroveError(errors.PERMISSION_MISSING, f"topic {topic} may not be written", topic=topic)
        if NORMAL in accepted:
            if len(self._known) >= TOPICS_KNOWN:
                self._known.clear()
            self._known[topic] = config
        return config

    def _decoded(self, send: Send) -> Steps[Send]:
        """The command with the bodies to store. Raises TroveError of stored_body(), BATCH_SIZE_EXCEEDED."""
        messages, inflated_size = [], 0
        for number, message in enumerate(send.messages, 1):
            body = stored_body(message, self._body_size_max)
            if message.encoding is not None and message.encoding.gzip:
                inflated_size += len(body)
                self._check_inflated(inflated_size)
            messages.append(message._replace(body=body, encoding=None))
            if not number % STEP:
                yield
        return Send(send.topic, messages)

    def _check_inflated(self, size: int) -> None:
        """Bounds the inflated size of all bodies together by the size of a batch, because a few kilobytes may
        inflate to megabytes."""
        if size > self._inflated_max:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"the bodies inflate to more than {self._inflated_max} bytes together: send them one by one",
                batch_size_max=self._inflated_max,
            )

    # --- storing ------------------------------------------------------------------------------------
    def _store(self, send: Send, config: TopicConfig, peer: Peer, answer: Answer) -> None:
        """Stores the messages of an admitted command: those that any queue takes as one batch, each other one
        separately. Raises TroveError if that is one part, and it is refused."""
        messages = send.messages
        caller = (peer, self._core.clock_ms())
        if len(messages) == 1 or all(message.kind in ANY_QUEUE_KINDS for message in messages):
            self._store_part(send, config, caller, self._answering(messages, answer))
            return
        parts = [[index] for index, message in enumerate(messages) if message.kind not in ANY_QUEUE_KINDS]
        if any(message.kind in ANY_QUEUE_KINDS for message in messages):
            parts.append([index for index, message in enumerate(messages) if message.kind in ANY_QUEUE_KINDS])
        entries = _Entries(messages, len(parts), self._core.traffic.refused, answer)
        for indexes in parts:
            ended = partial(entries.end_part, indexes)
            try:
                part = send._replace(messages=[messages[index] for index in indexes])
                self._store_part(part, config, caller, ended)
            except TroveError as error:
                ended(error)

    def _answering(self, messages: Sequence[SentMessage], answer: Answer) -> PartDone:
        """Answers a command that is stored as one part."""

        def stored(
            outcome: AppendResult | Exception,
            _ended_at: float = 0.0,
            error: TroveError | None = None,
            recall_handle: str = "",
        ) -> None:
            if isinstance(outcome, Exception):
                answer(outcome)
                return
            if len(messages) == 1 and error is None and not recall_handle:
                answer(reply_of_stored(messages[0].message_id, _queue_offset(outcome)))
                return
            if error is not None:
                self._core.traffic.refused(error.symbol)
            entries = [Stored(outcome, index, recall_handle, error) for index in range(len(messages))]
            answer(reply_of([message.message_id for message in messages], entries))

        return stored

    def _store_part(self, send: Send, config: TopicConfig, caller: Caller, done: PartDone) -> None:
        """Stores messages that any queue takes, or one other. Raises TroveError if nothing was stored."""
        topic, messages = send
        message = messages[0]
        if message.kind in ANY_QUEUE_KINDS:
            self._submit(topic, ANY_QUEUE, messages, caller, done)
            return
        queue_id = (
            QueueId(group_queue(message.group, config.write_queue_count)) if message.group else ANY_QUEUE
        )
        if message.kind == TRANSACTION:
            self._prepare(topic, queue_id, message, caller, done)
        elif message.kind == DELAY:
            self._schedule(topic, queue_id, message, caller, done)
        else:
            self._submit(topic, queue_id, (message,), caller, done)

    def _submit(
        self, topic: str, queue_id: QueueId, messages: Sequence[SentMessage], caller: Caller, done: PartDone
    ) -> None:
        accumulator = self._core.accumulator
        queue_id = accumulator.queue_of(topic, queue_id)
        context, now_ms = caller
        records = accumulator.encoder.encode_rows(
            topic,
            queue_id,
            peer_host(context.peer()),
            [(body, block, born_ms or now_ms) for _, _, body, block, born_ms, *_ in messages],
        )
        accumulator.submit(Batch(topic, queue_id, records, len(messages)), done)

    def _prepare(
        self, topic: str, queue_id: QueueId, message: SentMessage, caller: Caller, done: PartDone
    ) -> None:
        """Stores a half message."""
        context, now_ms = caller
        result = self._deferred.prepare(
            topic,
            queue_id,
            _outgoing(message),
            client_id_of(context),
            message.immunity_ms,
            born_host=peer_host(context.peer()),
            now_ms=now_ms,
        )
        self._answer_when_durable(topic, result, done)

    def _schedule(
        self, topic: str, queue_id: QueueId, message: SentMessage, caller: Caller, done: PartDone
    ) -> None:
        """Stores a message that is delivered later, or at once if its time has come."""
        context, now_ms = caller
        if message.deliver_ms <= now_ms:
            self._core.accumulator.append_all()  # it is written now: after those that came before it
        result, recall_handle = self._deferred.schedule(
            topic,
            queue_id,
            _outgoing(message),
            message.deliver_ms,
            born_host=peer_host(context.peer()),
            now_ms=now_ms,
        )
        self._answer_when_durable(topic, result, done, recall_handle)

    def _answer_when_durable(
        self, topic: str, result: AppendResult, done: PartDone, recall_handle: str = ""
    ) -> None:
        ended_at = time.perf_counter()
        when = self._core.appender.when_acknowledged(topic)
        when(result.end, lambda error: done(result, ended_at, error, recall_handle))


def _outgoing(message: SentMessage) -> OutgoingMessage:
    return OutgoingMessage(
        message.body,
        unique_key=message.message_id,
        born_timestamp=message.born_ms,
        system_properties=parse_properties(message.properties),
    )


def _queue_offset(result: AppendResult) -> QueueOffset:
    """Of the only message of a send."""
    return result.queue_offset(0) if result.duplicates else result.first_queue_offset


class _Entries:
    """The entries of a reply whose messages are stored in several parts: the refusal of one does not affect
    the others."""

    def __init__(
        self,
        messages: Sequence[SentMessage],
        pending_parts: int,
        refused: Callable[[str], None],
        answer: Answer,
    ) -> None:
        self._messages = messages
        self._pending_parts = pending_parts
        self._refused = refused
        self._answer = answer
        self._stored: list[Stored] = [Stored(None)] * len(messages)
        self._sync_error: TroveError | None = None
        self._fault: Exception | None = None

    def end_part(
        self,
        indexes: list[int],
        outcome: AppendResult | Exception,
        _ended_at: float = 0.0,
        error: TroveError | None = None,
        recall_handle: str = "",
    ) -> None:
        """The messages at these places are stored, or refused. Answers after the last part."""
        if isinstance(outcome, AppendResult):
            self._sync_error = error or self._sync_error
            for index, place in enumerate(indexes):
                self._stored[place] = Stored(outcome, index, recall_handle, error)
        elif isinstance(outcome, TroveError):
            self._refused(outcome.symbol)
            for place in indexes:
                self._stored[place] = Stored(None, error=outcome)
        else:
            self._fault = outcome
        self._pending_parts -= 1
        if not self._pending_parts:
            self._answer_all()

    def _answer_all(self) -> None:
        """The error of the first message, if nothing was stored."""
        if self._fault is not None:
            self._answer(self._fault)
            return
        if self._sync_error is not None:
            self._refused(self._sync_error.symbol)
        stored = self._stored
        if any(one.result is not None for one in stored):
            self._answer(reply_of([message.message_id for message in self._messages], stored))
        else:
            self._answer(stored[0].error)
