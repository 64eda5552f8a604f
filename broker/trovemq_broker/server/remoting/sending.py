"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: messages of one topic and queue.

The properties of a request are in the store's form already, and its body may be compressed by the client:
both are stored as they came. A unique key is added where the client gave none.

The body of a batch, for each message:

| bytes | field |
| --- | --- |
| 4 | size of all of it |
| 4, 4 | magic and CRC: not used |
| 4 | flag |
| 4 + n | body |
| 2 + n | properties |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from trovemq_broker.produce.batches import Batch
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.remoting.hosts import born_host_of
from trovemq_broker.server.remoting.replies import CLIENT
from trovemq_broker.server.remoting.retries import Retries
from trovemq_broker.server.remoting.sent_properties import of_client
from trovemq_broker.server.remoting.transactions import client_id_of_group
from trovemq_broker.transactions.records import PROPERTY_IMMUNITY_SECONDS, PROPERTY_PRODUCER_GROUP
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import parse_properties
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.ids import encode_offset_msg_id
from trovemq_proto.records.layout import (
    DELAY_LEVELS_SECONDS,
    FLAG_AT,
    NAME_END,
    PROPERTIES_SIZE_MAX,
    PROPERTY_DELAY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_AT,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_COMPRESSION_MASK,
    SYS_FLAG_MULTI_TAGS,
    VALUE_END,
)
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX
from trovemq_proto.remoting.codes import ResponseCode, response_code
from trovemq_proto.remoting.fields import Fields
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.message_kinds import TAKES_NORMAL, check_kind
from trovemq_store.topics.names import RETRY_PREFIX
from trovemq_store.topics.subscription_groups import RETRY_MAX_DEFAULT
from trovemq_store.topics.topics import TopicConfig

SYS_FLAGS_KEPT: Final = SYS_FLAG_COMPRESSED | SYS_FLAG_MULTI_TAGS | SYS_FLAG_COMPRESSION_MASK
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_S: Final = "TIMER_DELAY_SEC"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
BATCH_MESSAGES_MAX: Final = 10_000
PASSED_AT_ONCE: Final = 256
"""Messages that waited, and are stored in one iteration of the loop."""
_SEPARATOR: Final = bytes((VALUE_END,))
_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode() + bytes((NAME_END,))
_REPLY_TO: Final = CLIENT.encode() + bytes((NAME_END,))
_CLUSTER: Final = b"CLUSTER" + bytes((NAME_END,))
_SPECIAL: Final = tuple(
    name.encode() + bytes((NAME_END,))
    for name in (
        PROPERTY_DELAY,
        PROPERTY_TIMER_DELIVER_MS,
        TIMER_DELAY_MS,
        TIMER_DELAY_S,
        PROPERTY_TRANSACTION,
    )
)
_BATCH_HEAD: Final = Struct(">iiiii")
_I32: Final = Struct(">i")
_SENT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


class _Names(NamedTuple):
    """The names of a request's fields."""

    topic: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str
    batch: str


_LONG: Final = _Names(
    *("topic", "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "batch")
)
_SHORT: Final = _Names("b", "e", "f", "g", "h", "i", "j", "m")


class _Sent(NamedTuple):
    """One message: `block` is its properties, whole."""

    body: bytes
    block: bytes
    flag: int


class _WaitingSend(NamedTuple):
    """A send that waits for the disk. `context`: has its creator."""

    request: Request
    store: Callable[[], None]
    context: Context


class Sends:
    """For use on the event loop only.

    Invariant: messages for one queue are stored in the order in which they came, also while some wait for
    the disk.
    """

    def __init__(self, core: BrokerCore, retries: Retries) -> None:
        self._core = core
        self._retries = retries
        self.on_request: Callable[[Connection, str], None] = lambda _connection, _client_id: None
        """Is called for a message to which a reply is wanted, with the id of the client that waits for it."""
        self._encoder = core.accumulator.encoder
        self._deferred = DeferredMessages(core)
        self._waiting: deque[_WaitingSend] = deque()
        """Bounded by the bytes that each connection may have under way."""
        self._passing: asyncio.Task[None] | None = None

    # --- requests ---------------------------------------------------------------------------------------
    def send(self, request: Request) -> None:
        self._send(request, _LONG)

    def send_short(self, request: Request) -> None:
        self._send(request, _SHORT)

    def send_batch(self, request: Request) -> None:
        """With the short names, whatever its field for a batch says."""
        names = _SHORT if _SHORT.topic in request.header.fields else _LONG
        self._begin(request, names, is_batch=True)

    def _send(self, request: Request, names: _Names) -> None:
        self._begin(request, names, is_batch=request.fields.boolean(names.batch))

    def _begin(self, request: Request, names: _Names, *, is_batch: bool) -> None:
        if not self._waiting and not self._core.group_commit.full:
            self._store(request, names, is_batch=is_batch)
            return
        store = partial(self._store, request, names, is_batch=is_batch)
        self._waiting.append(_WaitingSend(request, store, copy_context()))
        if self._passing is None:
            self._passing = asyncio.get_running_loop().create_task(self._pass())

    async def _pass(self) -> None:
        """Stores the messages that wait for the disk, in the order in which they came."""
        waiting, commit = self._waiting, self._core.group_commit
        try:
            while waiting:
                await commit.wait_for_capacity()
                for _ in range(PASSED_AT_ONCE):
                    _begin_waiting(waiting.popleft())
                    if not waiting or commit.full:
                        break
                await asyncio.sleep(0)
        except TroveError as error:
            while waiting:
                waiting.popleft().request.fail(error)
        finally:
            self._passing = None

    # --- storing ----------------------------------------------------------------------------------------
    def _store(self, request: Request, names: _Names, *, is_batch: bool) -> None:
        fields = request.fields
        topic = fields.text(names.topic)
        queue_id = QueueId(max(fields.int32(names.queue_id), ANY_QUEUE))
        config = self._topic(topic, queue_id)
        born_ms = fields.int64(names.born_timestamp, 0)
        if not 0 < born_ms <= BORN_TIMESTAMP_MAX:
            born_ms = self._core.clock_ms()
        place = _Target(config, queue_id, born_host_of(request.connection.peer), EpochMs(born_ms))
        sys_flag = fields.int32(names.sys_flag) & SYS_FLAGS_KEPT
        block = self._block(fields.text(names.properties, ""), is_retry=topic.startswith(RETRY_PREFIX))
        if is_batch:
            self._store_batch(request, place, sys_flag)
            return
        self._check_size(request.body)
        message = _Sent(request.body, block, fields.int32(names.flag))
        if topic.startswith(RETRY_PREFIX):
            times = max(fields.int32(names.reconsume_times, 0), 0)
            self._store_retry(request, place, message, sys_flag, times)
            return
        if _REPLY_TO in block:
            self.on_request(request.connection, parse_properties(block).get(CLIENT, ""))
        if any(name in block for name in _SPECIAL) and self._store_special(request, place, message, sys_flag):
            return
        self._submit(request, place, [message], sys_flag, unique_key=_unique_key_of(block))

    def _topic(self, topic: str, queue_id: QueueId) -> TopicConfig:
        """The topic, which may be written. TroveError."""
        appender = self._core.appender
        if not topic.startswith(RETRY_PREFIX):
            return appender.topic_for_write(topic, None if queue_id < 0 else queue_id)
        appender.check_accepting()
        self._core.groups.require(topic.removeprefix(RETRY_PREFIX))
        return self._core.store.topics.ensure_internal(topic, 1, now_ms=self._core.clock_ms())

    def _block(self, text: str, *, is_retry: bool = False) -> bytes:
        """The properties of a client, with a key. TroveError PROPERTIES_SIZE_EXCEEDED."""
        block = text.encode()
        if block and not block.endswith(_SEPARATOR):
            block += _SEPARATOR
        if len(block) > PROPERTIES_SIZE_MAX:
            text = f"the properties have {len(block)} bytes, the limit is {PROPERTIES_SIZE_MAX}"
            raise TroveError(errors.PROPERTIES_SIZE_EXCEEDED, text)
        block = of_client(block, is_retry=is_retry)
        if not block.startswith(_UNIQ_KEY) and _SEPARATOR + _UNIQ_KEY not in block:
            block += _UNIQ_KEY + self._core.next_message_id().encode() + _SEPARATOR
        if _REPLY_TO in block and _CLUSTER not in block:  # its consumer sends the reply to this cluster
            block += _CLUSTER + self._core.store.settings.cluster.encode() + _SEPARATOR
        return block

    def _check_size(self, body: bytes) -> None:
        """TroveError MESSAGE_SIZE_EXCEEDED."""
        size_max = self._core.store.settings.body_size_max
        if len(body) > size_max:
            text = f"the body has {len(body)} bytes, the limit is {size_max}"
            raise TroveError(errors.MESSAGE_SIZE_EXCEEDED, text)

    def _submit(
        self,
        request: Request,
        place: _Target,
        messages: Sequence[_Sent],
        sys_flag: int,
        unique_key: str = "",
    ) -> None:
        core = self._core
        topic = place.config.name
        queue_id = core.accumulator.queue_of(topic, place.queue_id)
        pieces: list[bytes] = []
        for message in messages:
            at = len(pieces)
            self._encoder.add_row(
                pieces, topic, queue_id, place.born_host, message.body, message.block, place.born_ms
            )
            if sys_flag or message.flag:
                pieces[at] = _marked(pieces[at], sys_flag, message.flag)
        data = memoryview(bytearray().join(pieces))
        done = partial(self._answer, request, queue_id, unique_key)
        core.accumulator.submit(Batch(topic, queue_id, data, len(messages), None, True), done)

    def _answer(
        self,
        request: Request,
        queue_id: QueueId,
        unique_key: str,
        outcome: AppendResult | Exception,
        _ended_at: float = 0.0,
        error: TroveError | None = None,
    ) -> None:
        if isinstance(outcome, Exception):
            request.fail(outcome)
            return
        code = ResponseCode.SUCCESS
        if error is not None:
            self._core.traffic.refused(error.symbol)
            code = response_code(error)
        request.answer(
            code,
            "" if error is None else error.message,
            {
                **_SENT,
                "msgId": ",".join(_ids(outcome)),
                "queueId": str(queue_id),
                "queueOffset": str(outcome.queue_offset(0)),
                **({"transactionId": unique_key} if unique_key else {}),
            },
        )

    def _store_batch(self, request: Request, place: _Target, sys_flag: int) -> None:
        if place.config.name.startswith(RETRY_PREFIX):
            raise TroveError(errors.BATCH_ILLEGAL, "a batch is not sent to a retry topic")
        messages = list(self._messages(request.body))
        if not messages:
            raise TroveError(errors.BATCH_ILLEGAL, "the batch has no message")
        for message in messages:
            self._check_size(message.body)
        self._submit(request, place, messages, sys_flag)

    def _messages(self, body: bytes) -> Iterator[_Sent]:
        """TroveError BATCH_ILLEGAL; PROPERTIES_SIZE_EXCEEDED."""
        at, end, number = 0, len(body), 0
        while at < end:
            if (number := number + 1) > BATCH_MESSAGES_MAX:
                raise TroveError(errors.BATCH_ILLEGAL, f"a batch has {BATCH_MESSAGES_MAX} messages at most")
            if end - at < _BATCH_HEAD.size:
                raise TroveError(errors.BATCH_ILLEGAL, f"message {number} of the batch crosses its end")
            size, _magic, _crc, flag, body_size = _BATCH_HEAD.unpack_from(body, at)
            body_at = at + _BATCH_HEAD.size
            block_at = body_at + body_size
            if body_size < 0 or at + size > end or block_at + 2 > at + size:
                raise TroveError(errors.BATCH_ILLEGAL, f"message {number} of the batch crosses its end")
            block_size = int.from_bytes(body[block_at : block_at + 2])
            if block_at + 2 + block_size != at + size:
                raise TroveError(errors.BATCH_ILLEGAL, f"the sizes of message {number} of the batch differ")
            text = body[block_at + 2 : at + size]
            try:
                block = self._block(text.decode())
            except UnicodeDecodeError:
                text_ = f"the properties of message {number} of the batch are not UTF-8"
                raise TroveError(errors.BATCH_ILLEGAL, text_) from None
            if any(name in block for name in _SPECIAL):
                raise TroveError(errors.BATCH_ILLEGAL, "a delayed or half message is not sent in a batch")
            yield _Sent(body[body_at:block_at], block, flag)
            at += size

    def _store_retry(
        self, request: Request, place: _Target, message: _Sent, sys_flag: int, reconsume_times: int
    ) -> None:
        """A message that a consumer stores again itself: one that keeps the order does, after its last
        attempt, and others where CONSUMER_SEND_MSG_BACK has failed."""
        properties = parse_properties(message.block)
        record = NewRecord(
            place.config.name,
            QueueId(max(place.queue_id, 0)),
            message.body,
            properties,
            place.born_ms,
            place.born_host,
            message.flag,
            sys_flag,
            reconsume_times,
        )
        times_max = Fields(properties).int32(MAX_RECONSUME_TIMES, RETRY_MAX_DEFAULT)
        result = self._retries.store(record, deliver_time(properties, self._core.clock_ms()), times_max)
        self._answer_later(request, place, result, {"transactionId": properties[PROPERTY_UNIQ_KEY]})

    # --- delayed and half messages ------------------------------------------------------------------------
    def _store_special(self, request: Request, place: _Target, message: _Sent, sys_flag: int) -> bool:
        """Whether it is a delayed or a half message, which is stored; False: it is an ordinary one.
        TroveError."""
        properties = parse_properties(message.block)
        now_ms = self._core.clock_ms()
        if properties.get(PROPERTY_TRANSACTION) == "true":
            self._prepare(request, place, self._outgoing(place, message, sys_flag, properties), now_ms)
            return True
        deliver_ms = deliver_time(properties, now_ms)
        if deliver_ms is None:
            return False
        if place.config.message_type not in TAKES_NORMAL:
            check_kind(place.config, "DELAY")
        self._check_delay(deliver_ms, now_ms)
        for name in (PROPERTY_DELAY, TIMER_DELAY_MS, TIMER_DELAY_S, PROPERTY_TIMER_DELIVER_MS):
            properties.pop(name, None)
        scheduled = self._deferred.schedule(
            place.config.name,
            place.queue_id,
            self._outgoing(place, message, sys_flag, properties),
            deliver_ms,
            born_host=place.born_host,
            now_ms=now_ms,
        )
        handle = scheduled.recall_handle
        self._answer_later(request, place, scheduled.result, {"recallHandle": handle} if handle else {})
        return True

    def _outgoing(
        self, place: _Target, message: _Sent, sys_flag: int, properties: dict[str, str]
    ) -> OutgoingMessage:
        """The message for the timers or the transactions, without compression."""
        body = inflate_body(message.body, sys_flag, self._core.store.settings.body_size_max)
        return OutgoingMessage(
            body,
            unique_key=properties[PROPERTY_UNIQ_KEY],
            flag=message.flag,
            born_timestamp=place.born_ms,
            system_properties=properties,
        )

    def _prepare(self, request: Request, place: _Target, message: OutgoingMessage, now_ms: EpochMs) -> None:
        """Stores a half message. Its place in the answer is that of the half, by which it is ended."""
        check_kind(place.config, "TRANSACTION")
        group = message.system_properties.get(PROPERTY_PRODUCER_GROUP, "")
        if not group:
            raise TroveError(errors.TRANSACTION_ILLEGAL, f"a half message has no {PROPERTY_PRODUCER_GROUP}")
        immunity_s = Fields(message.system_properties).int32(PROPERTY_IMMUNITY_SECONDS, 0)
        result = self._deferred.prepare(
            place.config.name,
            place.queue_id,
            message,
            client_id_of_group(group),
            max(immunity_s, 0) * 1_000,
            born_host=place.born_host,
            now_ms=now_ms,
        )
        self._answer_later(request, place, result, {"transactionId": message.unique_key})

    def _check_delay(self, deliver_ms: EpochMs, now_ms: EpochMs) -> None:
        delay_max_ms = self._core.settings.delivery_delay_max_ms
        if deliver_ms > now_ms + delay_max_ms:
            text = f"the delivery time is more than {delay_max_ms} ms from now"
            raise TroveError(errors.DELIVERY_TIME_ILLEGAL, text)

    def _answer_later(
        self, request: Request, place: _Target, result: AppendResult, more: Mapping[str, str]
    ) -> None:
        """Answers when the append is as durable as an acknowledged message."""

        def answer(error: TroveError | None) -> None:
            request.answer(
                ResponseCode.SUCCESS if error is None else response_code(error),
                "" if error is None else error.message,
                {
                    **_SENT,
                    "msgId": ",".join(_ids(result)),
                    "queueId": str(max(place.queue_id, 0)),
                    "queueOffset": str(result.queue_offset(0)),
                    **more,
                },
            )

        self._core.appender.when_acknowledged(place.config.name)(result.end, answer)


def _begin_waiting(one: _WaitingSend) -> None:
    if one.request.is_open:
        try:
            one.context.run(one.store)
        except Exception as error:
            one.request.fail(error)


class _Target(NamedTuple):
    config: TopicConfig
    queue_id: QueueId
    born_host: bytes
    born_ms: EpochMs


def deliver_time(properties: dict[str, str], now_ms: EpochMs) -> EpochMs | None:
    """When a message is due; None: at once. FieldError: its property is not a number."""
    for name, scale in ((PROPERTY_TIMER_DELIVER_MS, 1), (TIMER_DELAY_MS, 1), (TIMER_DELAY_S, 1_000)):
        if name in properties:
            value = Fields(properties).int64(name) * scale
            return EpochMs(value if name == PROPERTY_TIMER_DELIVER_MS else now_ms + value)
    level = Fields(properties).int32(PROPERTY_DELAY, 0)
    if level <= 0:
        return None
    seconds = DELAY_LEVELS_SECONDS[min(level, len(DELAY_LEVELS_SECONDS)) - 1]
    return EpochMs(now_ms + seconds * 1_000)


def _unique_key_of(block: bytes) -> str:
    begin = 0 if block.startswith(_UNIQ_KEY) else block.index(_SEPARATOR + _UNIQ_KEY) + 1
    begin += len(_UNIQ_KEY)
    return block[begin : block.index(_SEPARATOR, begin)].decode(errors="replace")


def _marked(head: bytes, sys_flag: int, flag: int) -> bytes:
    """The head of a record with these fields, which are 0 in it."""
    marked = bytearray(head)
    flags = int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4]) | sys_flag
    marked[SYS_FLAG_AT : SYS_FLAG_AT + 4] = flags.to_bytes(4)
    marked[FLAG_AT : FLAG_AT + 4] = _I32.pack(flag)
    return bytes(marked)


def _ids(result: AppendResult) -> list[str]:
    if result.record_count and not result.duplicates:
        return result.offset_msg_ids()
    places = [one.physical_offset for one in result.duplicates.values()]
    places += [PhysicalOffset(result.physical_offset + int(at)) for at in result.positions]
    return [encode_offset_msg_id(result.store_host, place) for place in places]
