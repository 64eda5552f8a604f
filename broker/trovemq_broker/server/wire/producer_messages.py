"""Reads the requests of ProducerService as commands, and makes its replies.

The checks of a message are those of send_checks.py: copies of delayed and half messages have more properties
than the messages, so their limits are lower than those of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_broker.produce.append import Durability
from trovemq_broker.produce.outgoing import INT32_MAX, INT32_MIN, OutgoingMessage
from trovemq_broker.server.wire.client_commands import RecoverTransaction
from trovemq_broker.server.wire.native_messages import wire_copies, wire_durability
from trovemq_broker.server.wire.rocketmq_messages import stored_born_ms
from trovemq_broker.server.wire.send_checks import (
    check_body,
    check_delivery,
    check_order,
    check_recovery,
    check_texts,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import PROPERTY_SHARDING_KEY
from trovemq_proto.records.keys import key_sizes
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.v1 import message_pb2, producer_pb2
from trovemq_store.topics.names import check_topic_name

SERVICE: Final = producer_pb2.DESCRIPTOR.services_by_name["ProducerService"]
TOPICS_MAX: Final = 1_024  # of one producer's checks
CONNECTED: Final = producer_pb2.CheckHalvesReply(connected=True).SerializeToString()


@dataclass(frozen=True, slots=True)
class DelayedSend:
    """A message to be delivered at deliver_ms (epoch ms). `message_group`: "" for none."""

    topic: str
    message: OutgoingMessage
    message_group: str
    deliver_ms: EpochMs


@dataclass(frozen=True, slots=True)
class HalfSend:
    """A half message. `check_after_ms`: 0 for the time in the settings."""

    topic: str
    message: OutgoingMessage
    check_after_ms: int


@dataclass(frozen=True, slots=True)
class Recall:
    """A delayed message, by the handle in the reply to its SendDelayed, is not to be delivered."""

    topic: str
    recall_handle: str


@dataclass(frozen=True, slots=True)
class EndHalf:
    """The end of the transaction of a half message."""

    topic: str
    transaction_id: str
    commit: bool


def delayed_send(
    request: producer_pb2.SendDelayedRequest, body_size_max: int, now_ms: EpochMs, delay_max_ms: int
) -> DelayedSend:
    """The checked command of a SendDelayed, which came at now_ms. Raises TroveError by the table of
    send_checks.py; TOPIC_ILLEGAL, REQUEST_ILLEGAL."""
    check_topic_name(request.topic)
    priority = request.priority if request.HasField("priority") else None
    _check(request.message, body_size_max)
    deliver_ms = _deliver_ms(request, now_ms)
    check_delivery(deliver_ms, now_ms + delay_max_ms)
    check_order(request.message_group, priority)
    message = _outgoing(request.message, now_ms, request.message_group, priority)
    return DelayedSend(request.topic, message, request.message_group, deliver_ms)


def _deliver_ms(request: producer_pb2.SendDelayedRequest, now_ms: EpochMs) -> EpochMs:
    if not request.HasField("deliver_after_ms"):
        return EpochMs(request.deliver_timestamp)
    if request.deliver_timestamp:
        text = "a message has a delivery time or a delay, not both"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="deliver_after_ms")
    if request.deliver_after_ms < 0:
        text = f"a delay of {request.deliver_after_ms} ms is negative"
        raise TroveError(errors.DELIVERY_TIME_ILLEGAL, text)
    return EpochMs(now_ms + request.deliver_after_ms)


def half_send(request: producer_pb2.PrepareHalfRequest, body_size_max: int, now_ms: EpochMs) -> HalfSend:
    """The checked command of a PrepareHalf. Raises TroveError by the table of send_checks.py; TOPIC_ILLEGAL,
    REQUEST_ILLEGAL."""
    check_topic_name(request.topic)
    _check(request.message, body_size_max)
    check_recovery(request.check_after_ms)
    return HalfSend(request.topic, _outgoing(request.message, now_ms), request.check_after_ms)


def _check(message: message_pb2.OutgoingMessage, body_size_max: int) -> None:
    check_body(message.body, body_size_max)
    check_texts(message.unique_key, message.tag, message.keys, message.properties)
    if not INT32_MIN <= message.flag <= INT32_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"flag {message.flag} is not a 32-bit number")


def _outgoing(
    message: message_pb2.OutgoingMessage,
    now_ms: EpochMs,
    message_group: str = "",
    priority: int | None = None,
) -> OutgoingMessage:
    system = {}
    if sizes := key_sizes(message.keys):
        system[PROPERTY_KEY_SIZES] = sizes
    if message_group:
        system[PROPERTY_SHARDING_KEY] = message_group
    if priority is not None:
        system[PROPERTY_PRIORITY] = str(priority)
    return OutgoingMessage(
        message.body,
        message.tag,
        tuple(message.keys),
        message.unique_key,
        # the stored form has no empty names and values
        {name: value for name, value in message.properties.items() if name and value},
        message.flag,
        stored_born_ms(EpochMs(message.born_timestamp), now_ms),
        system,
    )


def recall_of(request: producer_pb2.RecallRequest) -> Recall:
    """The command of a Recall. Raises TroveError TOPIC_ILLEGAL."""
    check_topic_name(request.topic)
    return Recall(request.topic, request.recall_handle)


def end_of(request: producer_pb2.EndHalfRequest) -> EndHalf:
    """The command of an EndHalf. Raises TroveError TOPIC_ILLEGAL."""
    check_topic_name(request.topic)
    return EndHalf(request.topic, request.transaction_id, request.commit)


def leaves(frame: producer_pb2.CheckHalvesFrame) -> bool:
    """Whether the producer ends CheckHalves with this frame."""
    return frame.leave


def topics_to_check(frame: producer_pb2.CheckHalvesFrame) -> frozenset[str]:
    """The topics of the first frame of CheckHalves. Raises TroveError REQUEST_ILLEGAL, TOPIC_ILLEGAL."""
    if not frame.HasField("start"):
        raise TroveError(errors.REQUEST_ILLEGAL, "the first frame of a stream must have its start")
    topics = frozenset(frame.start.topics)
    if len(topics) > TOPICS_MAX:
        text = f"{len(topics)} topics, the limit of one client is {TOPICS_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    for topic in topics:
        check_topic_name(topic)
    return topics


# --- replies --------------------------------------------------------------------------------------------
def delayed_reply(
    recall_handle: str, durability: Durability, copies: int = 1
) -> producer_pb2.SendDelayedReply:
    return producer_pb2.SendDelayedReply(
        recall_handle=recall_handle, durability=wire_durability(durability), copies=wire_copies(copies)
    )


def half_reply(transaction_id: str, durability: Durability, copies: int = 1) -> producer_pb2.PrepareHalfReply:
    return producer_pb2.PrepareHalfReply(
        transaction_id=transaction_id, durability=wire_durability(durability), copies=wire_copies(copies)
    )


def recall_reply(unique_key: str) -> producer_pb2.RecallReply:
    return producer_pb2.RecallReply(unique_key=unique_key)


def end_reply() -> producer_pb2.EndHalfReply:
    return producer_pb2.EndHalfReply()


def check_reply(command: RecoverTransaction) -> bytes:
    """The question about an open transaction, serialised."""
    half = command.message
    check = producer_pb2.HalfCheck(
        topic=half.topic,
        transaction_id=command.transaction_id,
        queue_id=half.queue_id,
        queue_offset=half.queue_offset,
        record=bytes(half.record),
    )
    return producer_pb2.CheckHalvesReply(check=check).SerializeToString()
