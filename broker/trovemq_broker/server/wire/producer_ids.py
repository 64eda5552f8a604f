"""The producer ids in requests of the native protocol."""

from __future__ import annotations

from collections.abc import Iterable

from trovemq_proto.records.layout import PROPERTY_PRODUCER
from trovemq_proto.v1 import message_pb2


def producers_of_send(request: message_pb2.SendRequest) -> Iterable[str]:
    """Of the request's messages."""
    found = (message.properties.get(PROPERTY_PRODUCER) for message in request.messages)
    return {each for each in found if each is not None}


def asked_producer(request: message_pb2.GetProducerRequest) -> Iterable[str]:
    """The one that is asked about."""
    return (request.producer_id,)
