"""Members of groups, and their settlements, as the wire has them."""

from __future__ import annotations

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


def client_type(*, is_push: bool) -> v2.ClientType:
    """The type of a consumer; `is_push`: the broker renews its leases."""
    return v2.PUSH_CONSUMER if is_push else v2.SIMPLE_CONSUMER
