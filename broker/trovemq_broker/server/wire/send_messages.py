"""Reads the requests of MessageService with one reply each (Send, GetProducer) as commands, and makes
GetProducer's reply. native_messages.py makes Send's."""

from __future__ import annotations

from typing import Final, NamedTuple

from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.server.wire.native_messages import outgoing_message
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import message_pb2

SERVICE: Final = message_pb2.DESCRIPTOR.services_by_name["MessageService"]
SEND_MESSAGES_MAX: Final = 1_024


class SendMessages(NamedTuple):
    """Messages that the broker encodes. `queue_id`: -1 if the broker chooses."""

    topic: str
    queue_id: QueueId
    messages: list[OutgoingMessage]


class GetProducer(NamedTuple):
    """A look-up of the next sequence number of a producer."""

    topic: str
    producer_id: bytes


def read_send(request: message_pb2.SendRequest) -> SendMessages:
    """The command of a Send. Raises TroveError REQUEST_ILLEGAL."""
    messages = request.messages
    count = len(messages)
    if not count:
        raise TroveError(errors.REQUEST_ILLEGAL, "a send needs at least one message")
    if count > SEND_MESSAGES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{count} messages, the limit is {SEND_MESSAGES_MAX}")
    return SendMessages(
        request.topic, QueueId(request.queue_id), [outgoing_message(message) for message in messages]
    )


def producer_of(request: message_pb2.GetProducerRequest) -> GetProducer:
    """The command of a GetProducer."""
    return GetProducer(request.topic, request.producer_id.encode())


def producer_reply(next_sequence: int) -> message_pb2.GetProducerReply:
    return message_pb2.GetProducerReply(next_sequence=next_sequence)
