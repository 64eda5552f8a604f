"""A SendMessage request by protobuf alone, field by field, to compare the readers of server/wire with."""

from __future__ import annotations

from typing import Any

from trovemq_broker.server.wire.resources import topic_to_send
from trovemq_broker.server.wire.rocketmq_messages import BORN_MS_MAX, duration_ms, timestamp_ms
from trovemq_broker.server.wire.routes import AWAY_FIRST
from trovemq_broker.server.wire.send_checks import check_message, kind_of
from trovemq_broker.server.wire.statuses import Malformed, reader
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import encode_properties
from trovemq_proto.records.keys import key_sizes
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

_parse: Any = reader(service.SendMessageRequest)


def read(data: bytes, body_size_max: int, delivery_ms_max: int) -> list[Any]:
    """The topic, and the fields of each message. Raises the errors of read_send()."""
    request = _parse(data)
    if isinstance(request, Malformed):
        raise TroveError(errors.REQUEST_ILLEGAL, request.reason)
    if not request.messages:
        raise TroveError(errors.BATCH_ILLEGAL)
    found: list[Any] = []
    for message in request.messages:
        topic = topic_to_send(message.topic)
        if found and topic != found[0]:
            raise TroveError(errors.BATCH_ILLEGAL)
        found = found or [topic]
        check_message(message, body_size_max, delivery_ms_max)
        if message.system_properties.message_group and message.system_properties.queue_id >= AWAY_FIRST:
            raise TroveError(errors.FIFO_BROKER_AWAY)
        found.append(_fields(message))
    return found


def _fields(message: v2.Message) -> tuple[Any, ...]:
    system = message.system_properties
    born_ms = timestamp_ms(system.born_timestamp)
    digest = (
        (system.body_digest.type, system.body_digest.checksum) if system.HasField("body_digest") else None
    )
    gzip = system.body_encoding == v2.GZIP
    return (
        system.message_id,
        v2.MessageType.Name(kind_of(message)),
        message.body,
        encode_properties(_properties(message)),
        born_ms if 0 < born_ms <= BORN_MS_MAX else 0,
        system.message_group,
        timestamp_ms(system.delivery_timestamp),
        duration_ms(system.orphaned_transaction_recovery_duration),
        (gzip, digest) if gzip or digest else None,
    )


def _properties(message: v2.Message) -> dict[str, str]:
    system = message.system_properties
    names = {"UNIQ_KEY": system.message_id, "KEYS": " ".join(system.keys), "TAGS": system.tag}
    names.update(message.user_properties)
    names[PROPERTY_KEY_SIZES] = key_sizes(system.keys)
    names["__SHARDINGKEY"] = system.message_group
    names["_SYS_MSG_PRIORITY_"] = str(system.priority) if system.HasField("priority") else ""
    names["__BORNHOST"], names["TRACE_CONTEXT"] = (
        text if len(text) <= 1_024 and text.isprintable() else ""
        for text in (system.born_host, system.trace_context)
    )
    return {name: value for name, value in names.items() if name and value}
