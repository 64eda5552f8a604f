"""Converts consumer groups to protobuf messages and back."""

from __future__ import annotations

from typing import Final

from trovemq_broker.fetch.offsets import ResetEntry, ResetTarget
from trovemq_broker.groups.lag.filtered import QueueLag
from trovemq_broker.server.core.clients import Client
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import group_pb2
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from trovemq_store.topics.subscription_groups import RETRY_MAX_DEFAULT, SubscriptionGroup

NO_OFFSET: Final = -1


def group_of(name: str, settings: group_pb2.GroupSettings | None) -> SubscriptionGroup:
    """The group with these settings; without any it has the defaults. TroveError REQUEST_ILLEGAL."""
    if settings is None:
        return SubscriptionGroup(name)
    retry_max = RETRY_MAX_DEFAULT if settings.retry_max == -1 else settings.retry_max
    return SubscriptionGroup(name, settings.orderly, retry_max, _retry_policy(settings))


def _retry_policy(settings: group_pb2.GroupSettings) -> RetryPolicy:
    if settings.exponential:
        if settings.backoff_ms:
            text = "a back-off is given by steps or is exponential, not both"
            raise TroveError(errors.REQUEST_ILLEGAL, text, field="backoff_ms")
        return RetryPolicy(
            "exponential",
            initial_ms=settings.backoff_initial_ms or DEFAULT_RETRY_POLICY.initial_ms,
            max_ms=settings.backoff_max_ms or DEFAULT_RETRY_POLICY.max_ms,
            multiplier=settings.backoff_multiplier or DEFAULT_RETRY_POLICY.multiplier,
        )
    return RetryPolicy(next_ms=tuple(settings.backoff_ms)) if settings.backoff_ms else DEFAULT_RETRY_POLICY


def settings_to_wire(group: SubscriptionGroup) -> group_pb2.GroupSettings:
    policy = group.retry_policy
    if policy.kind == "exponential":
        return group_pb2.GroupSettings(
            orderly=group.orderly,
            retry_max=max(group.retry_max, 0),
            exponential=True,
            backoff_initial_ms=policy.initial_ms,
            backoff_max_ms=policy.max_ms,
            backoff_multiplier=policy.multiplier,
        )
    return group_pb2.GroupSettings(
        orderly=group.orderly, retry_max=max(group.retry_max, 0), backoff_ms=policy.next_ms
    )


def member_to_wire(client: Client, in_flight: int) -> group_pb2.GroupMember:
    description = client.description
    return group_pb2.GroupMember(
        client_id=client.client_id,
        client_type=v2.ClientType.Name(description.client_type),
        language=description.language,
        version=description.version,
        address=description.peer,
        last_heartbeat=client.last_heartbeat_ms,
        subscriptions={topic: wanted.expression for topic, wanted in description.subscriptions.items()},
        in_flight=in_flight,
    )


def lag_to_wire(lag: QueueLag) -> group_pb2.QueueLag:
    committed = lag.position.committed
    return group_pb2.QueueLag(
        topic=lag.topic,
        queue_id=lag.queue_id,
        min_offset=lag.min_offset,
        max_offset=lag.max_offset,
        committed=NO_OFFSET if committed is None else committed,
        next_offset=lag.position.next_offset,
        in_flight=lag.position.in_flight,
        lag=lag.lag,
        lag_ms=lag.lag_ms,
        estimated=lag.estimated,
    )


def reset_target(request: group_pb2.ResetGroupRequest) -> ResetTarget:
    """The target of a reset. Raises TroveError REQUEST_ILLEGAL if there is none."""
    match request.WhichOneof("target"):
        case "timestamp":
            return ResetTarget(timestamp=EpochMs(request.timestamp))
        case "offset":
            return ResetTarget(offset=QueueOffset(request.offset))
        case "to_min" if request.to_min:
            return ResetTarget(to_min=True)
        case "to_max" if request.to_max:
            return ResetTarget(to_max=True)
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give a timestamp, an offset, to_min or to_max")


def reset_entry_to_wire(entry: ResetEntry) -> group_pb2.ResetGroupReply.Entry:
    return group_pb2.ResetGroupReply.Entry(
        queue_id=entry.queue_id,
        offset_before=NO_OFFSET if entry.offset_before is None else entry.offset_before,
        offset=entry.offset,
        in_flight=entry.in_flight,
    )
