"""Members of groups, and their settlements, as the wire has them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2

SERVICE: Final = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]

ConsumeFrame = consumer_pb2.ConsumeFrame
ConsumeReply = consumer_pb2.ConsumeReply
ConsumeStart = consumer_pb2.ConsumeStart
Settlement = consumer_pb2.Settlement
SettlementKind: Final = consumer_pb2.SettlementKind
SettlementResult = consumer_pb2.SettlementResult


def group_and_topic(frame: ConsumeFrame) -> tuple[str, str]:
    """The group and the topic of a stream's first frame. Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    return group_name(v2.Resource(name=frame.group)), topic_to_read(v2.Resource(name=frame.topic))


class ClientType(IntEnum):
    """RocketMQ's types of clients."""

    CLIENT_TYPE_UNSPECIFIED = v2.CLIENT_TYPE_UNSPECIFIED
    PRODUCER = v2.PRODUCER
    PUSH_CONSUMER = v2.PUSH_CONSUMER
    SIMPLE_CONSUMER = v2.SIMPLE_CONSUMER
    PULL_CONSUMER = v2.PULL_CONSUMER
    LITE_PUSH_CONSUMER = v2.LITE_PUSH_CONSUMER
    LITE_SIMPLE_CONSUMER = v2.LITE_SIMPLE_CONSUMER


def client_type(*, is_push: bool) -> ClientType:
    """The type of a consumer; `is_push`: the broker renews its leases."""
    return ClientType.PUSH_CONSUMER if is_push else ClientType.SIMPLE_CONSUMER
