"""Checks a client's settings, and merges the broker's values into them.

(docs/rocketmq-protocol.md, "Settings")

| field                              | producer                  | push consumer       | simple consumer  |
|------------------------------------|---------------------------|---------------------|------------------|
| backoff_policy                     | 3, exponential 10 ms..1 s | the group's         | the group's      |
| publishing.max_body_size           | the store's limit         |                     |                  |
| publishing.validate_message_type   | true                      |                     |                  |
| subscription.fifo                  |                           | the group's orderly | the same         |
| subscription.receive_batch_size    |                           | 32                  | 32               |
| subscription.long_polling_timeout  |                           | 20 s                | its own, or 20 s |
| metric.on                          | false                     | false               | false            |

All other fields are returned as the client sent them.

Clients throw if a producer's policy is not exponential or a consumer has no policy, and apply a body limit or
a batch size of 0: so none of these fields may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from google.protobuf.duration_pb2 import Duration

from trovemq_broker.server.wire.consumers import ClientType
from trovemq_broker.server.wire.resources import check_endpoints, group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration
from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import TelemetryCommand
from trovemq_store.topics.subscription_groups import RetryPolicy, SubscriptionGroup

SETTINGS_SIZE_MAX: Final = 262_144
TOPICS_MAX: Final = 1_024  # of one client, to produce to or to subscribe
EXPRESSION_SIZE_MAX: Final = 8_192

CLIENT_PROPERTIES_MAX: Final = 32
CLIENT_PROPERTIES_SIZE_MAX: Final = 4_096
CLIENT_PROPERTY_VALUE_SIZE_MAX: Final = 256
_CLIENT_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")

RECEIVE_BATCH_SIZE: Final = 32
LONG_POLLING_MS: Final = 20_000
PRODUCER_ATTEMPTS_MAX: Final = 3
PRODUCER_BACKOFF_INITIAL_MS: Final = 10
PRODUCER_BACKOFF_MAX_MS: Final = 1_000
PRODUCER_BACKOFF_MULTIPLIER: Final = 2.0

_DURATION_MS_MAX: Final = 315_576_000_000_000  # protobuf's own limit of a Duration
_CONSUMERS: Final = (v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER)
_LANGUAGES: Final = {number: name for name, number in v2.Language.items() if number}
_FILTER_KINDS: Final = {v2.SQL: "sql"}  # all other kinds are read as tag expressions


class ClientTypeError(Exception):
    """The type of the client is not served; the stream ends with gRPC's INTERNAL."""


class StatedFilter(NamedTuple):
    """The filter of a subscription. kind: that of filters.parse_filter; it is parsed when messages are
    received."""

    kind: str
    expression: str


class ClientSettings(NamedTuple):
    """A producer's settings, which have topics, or a consumer's, which have a group and the filter of each
    topic. Texts that the client omits are empty. request_timeout_ms: 0 if it is omitted. dialled: the
    addresses that the client was given; () if it names none, or illegal ones."""

    client_type: ClientType
    group: str
    topics: frozenset[str]
    subscriptions: Mapping[str, StatedFilter]
    language: str
    version: str
    hostname: str
    request_timeout_ms: int
    dialled: Sequence[Address]
    given: v2.Settings


def milliseconds(duration: Duration) -> int:
    """The duration in ms: at most protobuf's own limit, even for a hostile one; negative ones are
    unchanged."""
    ms = duration.seconds * 1000 + duration.nanos // 1_000_000
    return max(-_DURATION_MS_MAX, min(ms, _DURATION_MS_MAX))


def client_settings(settings: v2.Settings) -> ClientSettings:
    """The settings of a client.

    Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL, CLIENT_PROPERTIES_ILLEGAL, REQUEST_ILLEGAL,
    FILTER_ILLEGAL; ClientTypeError.
    """
    _check_common(settings)
    branch = settings.WhichOneof("pub_sub")
    if branch == "publishing":
        return _described(settings, ClientType.PRODUCER, topics=_published(settings.publishing))
    if branch == "subscription":
        name = group_name(settings.subscription.group)
        subscriptions = _subscribed(settings.subscription)
        client_type = ClientType(settings.client_type)
        return _described(settings, client_type, group=name, subscriptions=subscriptions)
    raise TroveError(errors.REQUEST_ILLEGAL, "the settings have neither publishing nor subscription")


def producer_settings(settings: ClientSettings, body_size_max: int) -> TelemetryCommand:
    """The answer to a producer's settings. body_size_max: bytes."""
    merged = _unmetered(settings)
    merged.publishing.max_body_size = body_size_max
    merged.publishing.validate_message_type = True
    merged.backoff_policy.Clear()
    merged.backoff_policy.max_attempts = PRODUCER_ATTEMPTS_MAX
    _set_exponential(
        merged.backoff_policy.exponential_backoff,
        PRODUCER_BACKOFF_INITIAL_MS,
        PRODUCER_BACKOFF_MAX_MS,
        PRODUCER_BACKOFF_MULTIPLIER,
    )
    return TelemetryCommand(status=OK_STATUS, settings=merged)


def consumer_settings(settings: ClientSettings, group: SubscriptionGroup) -> TelemetryCommand:
    """The answer to a consumer's settings."""
    merged = _unmetered(settings)
    subscription = merged.subscription
    subscription.fifo = group.orderly
    subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    if merged.client_type == v2.PUSH_CONSUMER or milliseconds(subscription.long_polling_timeout) <= 0:
        subscription.long_polling_timeout.CopyFrom(duration(LONG_POLLING_MS))
    merged.backoff_policy.CopyFrom(group_backoff(group))
    return TelemetryCommand(status=OK_STATUS, settings=merged)


def _unmetered(settings: ClientSettings) -> v2.Settings:
    merged = v2.Settings()
    merged.CopyFrom(settings.given)
    merged.metric.CopyFrom(v2.Metric(on=False))
    return merged


def _check_common(settings: v2.Settings) -> None:
    size = settings.ByteSize()
    if size > SETTINGS_SIZE_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"settings of {size} bytes, the limit is {SETTINGS_SIZE_MAX}"
        )
    _check_client_type(settings)
    _check_client_properties(dict(settings.client_properties))


def _check_client_type(settings: v2.Settings) -> None:
    """Lite consumers need lite topics, which are not served; pull consumers send no settings."""
    kind = settings.client_type
    if settings.HasField("subscription"):
        if kind not in _CONSUMERS:
            raise ClientTypeError(f"client type {kind} cannot subscribe here")
    elif kind not in (v2.PRODUCER, v2.CLIENT_TYPE_UNSPECIFIED):
        raise ClientTypeError(f"client type {kind} cannot publish")


def _check_client_properties(properties: dict[str, str]) -> None:
    fault = ""
    if len(properties) > CLIENT_PROPERTIES_MAX:
        fault = f"{len(properties)} client properties, the limit is {CLIENT_PROPERTIES_MAX}"
    size = 0
    for name, value in properties.items():
        size += len(name.encode()) + len(value.encode())
        if not _CLIENT_PROPERTY_NAME.fullmatch(name):
            fault = f"the client property's name {name[:80]!a} is illegal"
        elif len(value) > CLIENT_PROPERTY_VALUE_SIZE_MAX:
            fault = f"client property {name} has more than {CLIENT_PROPERTY_VALUE_SIZE_MAX} characters"
    if size > CLIENT_PROPERTIES_SIZE_MAX:
        fault = f"client properties of {size} bytes, the limit is {CLIENT_PROPERTIES_SIZE_MAX}"
    if fault:
        raise TroveError(errors.CLIENT_PROPERTIES_ILLEGAL, fault)


def _published(publishing: v2.Publishing) -> frozenset[str]:
    _check_topic_count(len(publishing.topics))
    return frozenset(topic_to_read(topic) for topic in publishing.topics)


def _subscribed(subscription: v2.Subscription) -> dict[str, StatedFilter]:
    _check_topic_count(len(subscription.subscriptions))
    return {topic_to_read(entry.topic): filter_of(entry.expression) for entry in subscription.subscriptions}


def filter_of(expression: v2.FilterExpression) -> StatedFilter:
    """Raises TroveError FILTER_ILLEGAL if it is too long."""
    if len(expression.expression) > EXPRESSION_SIZE_MAX:
        raise TroveError(
            errors.FILTER_ILLEGAL, f"the expression has more than {EXPRESSION_SIZE_MAX} characters"
        )
    return StatedFilter(_FILTER_KINDS.get(expression.type, "tag"), expression.expression)


def _check_topic_count(count: int) -> None:
    if count > TOPICS_MAX:
        raise ProtocolError(v2.BAD_REQUEST, f"{count} topics, the limit of one client is {TOPICS_MAX}")


def group_backoff(group: SubscriptionGroup) -> v2.RetryPolicy:
    """The group's retry policy in the form of the protocol."""
    policy: RetryPolicy = group.retry_policy
    wire = v2.RetryPolicy(max_attempts=group.max_attempts)
    if policy.kind == "exponential":
        _set_exponential(wire.exponential_backoff, policy.initial_ms, policy.max_ms, policy.multiplier)
    else:
        wire.customized_backoff.next.extend(duration(ms) for ms in policy.next_ms)
    return wire


def _set_exponential(backoff: v2.ExponentialBackoff, initial_ms: int, max_ms: int, multiplier: float) -> None:
    backoff.initial.CopyFrom(duration(initial_ms))
    backoff.max.CopyFrom(duration(max_ms))
    backoff.multiplier = multiplier


def _dialled(endpoints: v2.Endpoints) -> Sequence[Address]:
    try:
        check_endpoints(endpoints)
    except ProtocolError:
        return ()
    return [Address(one.host, one.port) for one in endpoints.addresses]


def _described(
    settings: v2.Settings,
    client_type: ClientType,
    *,
    group: str = "",
    topics: frozenset[str] = frozenset(),
    subscriptions: Mapping[str, StatedFilter] | None = None,
) -> ClientSettings:
    agent = settings.user_agent
    return ClientSettings(
        client_type,
        group,
        topics,
        subscriptions or {},
        _LANGUAGES.get(agent.language, ""),
        agent.version,
        agent.hostname,
        max(0, milliseconds(settings.request_timeout)),
        _dialled(settings.access_point),
        settings,
    )
