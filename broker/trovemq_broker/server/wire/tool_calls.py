"""Calls of TroveMQ's services that the requests of RocketMQ's tools stand for (server/remoting).

A tool's request is admitted, audited and made as such a call, so that both protocols have one table of rights
(server/access/needs.py) and one way to change the cluster's configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from google.protobuf.descriptor import ServiceDescriptor

from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.server.wire.forwarded_calls import calls_of
from trovemq_broker.server.wire.native_calls import Request
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import admin_pb2, broker_pb2, group_pb2, query_pb2, security_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup

_ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
_GROUPS: Final = group_pb2.DESCRIPTOR.services_by_name["GroupService"]
_BROKER: Final = broker_pb2.DESCRIPTOR.services_by_name["BrokerService"]
_QUERIES: Final = query_pb2.DESCRIPTOR.services_by_name["QueryService"]
_SECURITY: Final = security_pb2.DESCRIPTOR.services_by_name["SecurityService"]
TOOL_SERVICES: Final = {one.name: one for one in (_ADMIN, _GROUPS, _BROKER, _SECURITY)}
"""The services whose methods are called."""
_KEY_TYPES: Final = {
    KeyType.KEY: query_pb2.KEY,
    KeyType.UNIQUE: query_pb2.UNIQUE,
    KeyType.TAG: query_pb2.TAG,
}


class NativeCall(NamedTuple):
    """`path`: as in `/trovemq.v1.AdminService/CreateTopic`. `message`: the call's request."""

    path: str
    message: Request


def methods_of(service: ServiceDescriptor) -> Iterator[tuple[str, str]]:
    """The paths of a service's calls with one reply, and the names of their methods."""
    for call in calls_of(service):
        yield call.path, call.name


# --- topics ---------------------------------------------------------------------------------------------
def create_topic(
    topic: str, queue_count: int, message_type: str, options: Mapping[str, str], broker: str
) -> NativeCall:
    """On this broker, where the cluster has several."""
    request = admin_pb2.CreateTopicRequest(
        topic=topic, queue_count=queue_count, message_type=message_type, options=options, brokers=[broker]
    )
    return NativeCall(f"/{_ADMIN.full_name}/CreateTopic", request)


def alter_topic(
    topic: str,
    *,
    queue_count: int = 0,
    message_type: str = "",
    options: Mapping[str, str] | None = None,
    queues_on: Mapping[str, int] | None = None,
) -> NativeCall:
    """A value that is not given stays. `queues_on`: of these brokers; others keep theirs."""
    request = admin_pb2.AlterTopicRequest(
        topic=topic,
        queue_count=queue_count,
        message_type=message_type,
        options=options,
        queues_on=queues_on,
    )
    return NativeCall(f"/{_ADMIN.full_name}/AlterTopic", request)


def delete_topic(topic: str) -> NativeCall:
    return NativeCall(f"/{_ADMIN.full_name}/DeleteTopic", admin_pb2.DeleteTopicRequest(topic=topic))


# --- groups ---------------------------------------------------------------------------------------------
def create_group(group: SubscriptionGroup) -> NativeCall:
    request = group_pb2.CreateGroupRequest(group=group.name, settings=_settings(group))
    return NativeCall(f"/{_GROUPS.full_name}/CreateGroup", request)


def alter_group(group: SubscriptionGroup) -> NativeCall:
    request = group_pb2.AlterGroupRequest(group=group.name, settings=_settings(group))
    return NativeCall(f"/{_GROUPS.full_name}/AlterGroup", request)


def _settings(group: SubscriptionGroup) -> group_pb2.GroupSettings:
    policy = group.retry_policy
    settings = group_pb2.GroupSettings(orderly=group.orderly, retry_max=group.retry_max)
    if policy.kind == "exponential":
        settings.exponential = True
        settings.backoff_initial_ms = policy.initial_ms
        settings.backoff_max_ms = policy.max_ms
        settings.backoff_multiplier = policy.multiplier
    else:
        settings.backoff_ms.extend(policy.next_ms)
    return settings


def delete_group(group: str) -> NativeCall:
    return NativeCall(f"/{_GROUPS.full_name}/DeleteGroup", group_pb2.DeleteGroupRequest(group=group))


def reset_group(
    group: str,
    topic: str,
    queue_id: QueueId | None = None,
    *,
    offset: int | None = None,
    time_ms: int | None = None,
) -> NativeCall:
    """To an offset, to the first message at or after a time, or else to the end."""
    request = group_pb2.ResetGroupRequest(group=group, topic=topic, queue_id=queue_id)
    if offset is not None:
        request.offset = offset
    elif time_ms is not None:
        request.timestamp = time_ms
    else:
        request.to_max = True
    return NativeCall(f"/{_GROUPS.full_name}/ResetGroup", request)


def reset_offsets(reply: group_pb2.ResetGroupReply) -> dict[QueueId, int]:
    """The new offsets by queue."""
    return {QueueId(entry.queue_id): entry.offset for entry in reply.entries}


def consume_directly(group: str, client_id: str, topic: str, message_id: str) -> NativeCall:
    request = group_pb2.ConsumeDirectlyRequest(
        client_id=client_id, group=group, topic=topic, message=message_id
    )
    return NativeCall(f"/{_GROUPS.full_name}/ConsumeDirectly", request)


def consumed(reply: group_pb2.ConsumeDirectlyReply) -> tuple[str, str]:
    """The client's answer, as our status, and its text."""
    return reply.result, reply.message


def print_stacks(group: str, client_id: str) -> NativeCall:
    request = group_pb2.PrintStackTraceRequest(client_id=client_id, group=group)
    return NativeCall(f"/{_GROUPS.full_name}/PrintThreadStackTrace", request)


def stacks(reply: group_pb2.PrintStackTraceReply) -> str:
    return reply.stack_trace


# --- messages, settings ---------------------------------------------------------------------------------
def query_by_key(query: KeyQuery) -> NativeCall:
    request = query_pb2.QueryByKeyRequest(topic=query.topic, key=query.key, type=_KEY_TYPES[query.type])
    return NativeCall(f"/{_QUERIES.full_name}/QueryByKey", request)


def get_message_at(topic: str, queue_id: QueueId, queue_offset: int) -> NativeCall:
    location = query_pb2.QueueLocation(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
    return NativeCall(f"/{_QUERIES.full_name}/GetMessage", query_pb2.GetMessageRequest(location=location))


def list_settings() -> NativeCall:
    return NativeCall(f"/{_BROKER.full_name}/ListSettings", broker_pb2.ListSettingsRequest())


def settings_texts(reply: broker_pb2.ListSettingsReply) -> dict[str, str]:
    """The values by our names, as texts; of a secret one nothing."""
    return {one.name: _text(one.value) for one in reply.settings}


def _text(value: str) -> str:
    read = tomllib.loads(f"value = {value}")["value"] if value else ""
    if isinstance(read, bool):
        return str(read).lower()
    return ",".join(map(str, read)) if isinstance(read, list) else str(read)


def set_setting(name: str, value: str) -> NativeCall:
    request = broker_pb2.SetSettingRequest(name=name, value=value)
    return NativeCall(f"/{_BROKER.full_name}/SetSetting", request)
