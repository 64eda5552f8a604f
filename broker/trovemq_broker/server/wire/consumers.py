"""Members of groups, and their settlements, as the wire has them."""

from __future__ import annotations

from typing import Final

from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2

ConsumeStart = consumer_pb2.ConsumeStart
Settlement = consumer_pb2.Settlement
SettlementKind: Final = consumer_pb2.SettlementKind
SettlementResult = consumer_pb2.SettlementResult


def client_type(*, is_push: bool) -> v2.ClientType:
    """The type of a consumer; `is_push`: the broker renews its leases."""
    return v2.PUSH_CONSUMER if is_push else v2.SIMPLE_CONSUMER
