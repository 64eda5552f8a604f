"""CONSUMER_SEND_MSG_BACK: a message that a consumer could not process is stored again for its group.

The copy goes to the group's retry topic after a delay that grows with its attempts, or to the group's
dead-letter topic after the last one. The consumer moves its offset when that is answered: so the copy is as
durable as an acknowledged message before the answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from trovemq_broker.groups.delivery.dead_letters import dead_letter_topic, with_reason
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import retry_topic
from trovemq_broker.server.remoting.stats import GroupCounts
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import Message, decode_stored
from trovemq_proto.records.dead_letter_reason import RETURNED, DeadLetterReason
from trovemq_proto.records.layout import (
    DELAY_LEVELS_SECONDS,
    PROPERTY_DEAD_ID,
    PROPERTY_DEAD_TOPIC,
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_WAIT,
)
from trovemq_proto.remoting.codes import response_code
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.topics.names import RETRY_PREFIX, is_brokers_own

FIRST_LEVEL: Final = 3
"""The delay level of the first attempt, where the consumer names none; each later one is one higher."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
NEVER_AGAIN: Final = -1
_QUEUE: Final = QueueId(0)
_OF_DELAYS: Final = (
    PROPERTY_DELAY,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QUEUE_ID,
)
"""Of an earlier delay: the copy has its own."""


class Retries:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, counts: GroupCounts | None = None) -> None:
        self._core = core
        self._counts = counts or GroupCounts()

    def send_back(self, request: Request) -> None:
        if self._core.group_commit.full:
            request.run(self._send_back_later(request))
        else:
            self._send_back(request)

    async def _send_back_later(self, request: Request) -> None:
        await self._core.group_commit.wait_for_capacity()
        self._send_back(request)

    def _send_back(self, request: Request) -> None:
        core, fields = self._core, request.fields
        name, level = fields.text("group"), fields.int32("delayLevel")
        group = core.groups.for_use(
            name,
            auto_create=core.settings.auto_create_group,
            now_ms=core.clock_ms(),
            creator=present_creator(),
        )
        message = self._message(fields.int64("offset"), fields.text("originTopic", ""))
        times = message.reconsume_times
        times_max = fields.int32("maxReconsumeTimes", group.retry_max)
        core.appender.check_accepting()
        if level <= NEVER_AGAIN or times >= times_max:
            result = self._store_dead(name, message)
        else:
            result = self._store_retry(name, message, level or FIRST_LEVEL + times)
        self._counts.sent_back(message.properties.get(RETRY_TOPIC, message.topic), name)
        when = core.appender.when_acknowledged(message.topic)
        when(result.end, partial(_answer, request))

    def _message(self, offset: int, topic: str) -> Message:
        """The message that begins there; RocketMQ checks neither that nor the topic. TroveError
        MESSAGE_NOT_FOUND."""
        record = self._core.store.record_at(PhysicalOffset(offset)) if offset >= 0 else None
        message = None if record is None else decode_stored(record)
        if message is None or (topic and topic not in (message.topic, message.properties.get(RETRY_TOPIC))):
            raise TroveError(errors.MESSAGE_NOT_FOUND, f"look message by offset failed, {offset}")
        if is_brokers_own(message.topic):
            raise TroveError(errors.MESSAGE_NOT_FOUND, f"look message by offset failed, {offset}")
        return message

    def _store_retry(self, group: str, message: Message, level: int) -> AppendResult:
        core, topic, now_ms = self._core, retry_topic(group), self._core.clock_ms()
        core.store.topics.ensure_internal(topic, 1, now_ms=now_ms)
        seconds = DELAY_LEVELS_SECONDS[min(level, len(DELAY_LEVELS_SECONDS)) - 1]
        record = _copy(message, topic)
        result = core.timers.schedule(record, EpochMs(now_ms + seconds * 1_000), now_ms)
        core.timer_task.changed()
        return result

    def _store_dead(self, group: str, message: Message) -> AppendResult:
        core, topic, now_ms = self._core, dead_letter_topic(group), self._core.clock_ms()
        core.store.topics.ensure_internal(topic, 1, now_ms=now_ms)
        origin = message.properties.get(RETRY_TOPIC, message.topic)
        writer = core.model.writer
        copy = writer.informed(_copy(message, topic), {PROPERTY_DEAD_TOPIC: origin})
        copy = writer.informed(copy, {PROPERTY_DEAD_ID: message.message_id})
        copy = with_reason(writer, copy, DeadLetterReason(RETURNED))
        (result,) = writer.append([writer.checked(copy)], now_ms)
        return result

    def store(self, record: NewRecord, deliver_ms: EpochMs | None, times_max: int) -> AppendResult:
        """Stores a message that a consumer has sent to its group's retry topic: there, at its time, or with
        the dead letters after `times_max` attempts. TroveError."""
        core, now_ms = self._core, self._core.clock_ms()
        group = record.topic.removeprefix(RETRY_PREFIX)
        core.groups.require(group)
        writer = core.model.writer
        if record.reconsume_times > times_max:
            topic = dead_letter_topic(group)
            core.store.topics.ensure_internal(topic, 1, now_ms=now_ms)
            letter = replace(record, topic=topic, queue_id=_QUEUE)
            (result,) = writer.append([writer.checked(letter)], now_ms)
            return result
        if deliver_ms is None:
            (result,) = writer.append([writer.checked(record)], now_ms, internal=False)
            return result
        result = core.timers.schedule(
            record.with_properties(dict.fromkeys(_OF_DELAYS, None)), deliver_ms, now_ms
        )
        core.timer_task.changed()
        return result


def _copy(message: Message, topic: str) -> NewRecord:
    """As the message is stored, with one attempt more, and where it comes from."""
    properties = message.properties
    copy = NewRecord.copy_of(message, topic, _QUEUE).with_properties(
        {
            **dict.fromkeys(_OF_DELAYS, None),
            RETRY_TOPIC: properties.get(RETRY_TOPIC, message.topic),
            ORIGIN_ID: properties.get(ORIGIN_ID, message.offset_msg_id),
            PROPERTY_WAIT: "false",
        }
    )
    return replace(copy, reconsume_times=message.reconsume_times + 1)


def _answer(request: Request, error: TroveError | None) -> None:
    if error is None:
        request.answer()
    else:
        request.answer(response_code(error), error.message)
