"""Members of groups as the wire has them."""

from __future__ import annotations

from enum import IntEnum

from trovemq_proto.rocketmq.v2 import definition_pb2 as v2


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
