"""Checks names and addresses of RocketMQ's v2 protocol, and converts them to the stored form.

| field            | limit                                                           | error                |
|------------------|-----------------------------------------------------------------|----------------------|
| topic            | 1..127 of letters, digits, %, |, - and _; no system topic       | TOPIC_ILLEGAL        |
| %RETRY%…, %DLQ%… | 1..255 of these; for reading only                               | TOPIC_ILLEGAL        |
| group            | 1..120 of these; no system group                                | GROUP_ILLEGAL        |
| endpoints        | 1..64 addresses, a known scheme, one address only for a domain  | ILLEGAL_ACCESS_POINT |

A namespace that is not empty becomes part of the name, as RocketMQ stores it: `NAMESPACE%NAME`, and
`%RETRY%NAMESPACE%NAME` for a retry or dead-letter topic. System names stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from trovemq_broker.server.wire.statuses import ProtocolError
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.topics.message_kinds import accepted_kinds
from trovemq_store.topics.names import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    check_topic_name,
    check_user_group_name,
    is_system_group,
    is_system_topic,
)
from trovemq_store.topics.topics import TopicConfig

INTERNAL_TOPIC_SIZE_MAX: Final = 255
NAMESPACE_SIZE_MAX: Final = 127
ADDRESSES_MAX: Final = 64
HOST_SIZE_MAX: Final = 255
NAMES_KEPT: Final = 16_384  # of each kind: 6 MB at most

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SEPARATOR: Final = "%"
_SCHEMES: Final = (v2.IPv4, v2.IPv6, v2.DOMAIN_NAME)


def topic_to_read(resource: v2.Resource) -> str:
    """The stored name of a topic in a route or for consumers. Raises TroveError TOPIC_ILLEGAL."""
    if not resource.resource_namespace:
        return _readable_topic(resource.name)
    return _readable_topic(_full_name(resource, errors.TOPIC_ILLEGAL, is_system_topic))


def topic_to_send(resource: v2.Resource) -> str:
    """The stored name of a topic that users may send to. Raises TroveError TOPIC_ILLEGAL."""
    if not resource.resource_namespace:
        return sendable_topic(resource.name)
    return sendable_topic(_full_name(resource, errors.TOPIC_ILLEGAL, is_system_topic))


def group_name(resource: v2.Resource) -> str:
    """The stored name of a consumer group. Raises TroveError GROUP_ILLEGAL."""
    if not resource.resource_namespace:
        return _user_group(resource.name)
    return _user_group(_full_name(resource, errors.GROUP_ILLEGAL, is_system_group))


# The result for a name does not change; only legal names are cached.
@lru_cache(maxsize=NAMES_KEPT)
def _readable_topic(name: str) -> str:
    if name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        if len(name) > INTERNAL_TOPIC_SIZE_MAX or not _NAME.fullmatch(name):
            raise TroveError(errors.TOPIC_ILLEGAL, f"topic {name[:160]!a} is too long or malformed")
        return name
    check_topic_name(name)
    return name


@lru_cache(maxsize=NAMES_KEPT)
def sendable_topic(name: str) -> str:
    """The name, if users may send to such a topic. Raises TroveError TOPIC_ILLEGAL."""
    check_topic_name(name)
    return name


@lru_cache(maxsize=NAMES_KEPT)
def _user_group(name: str) -> str:
    check_user_group_name(name)
    return name


def _full_name(resource: v2.Resource, spec: errors.ErrorSpec, is_system: Callable[[str], bool]) -> str:
    """The name in its namespace, which is not empty."""
    name, namespace = resource.name, resource.resource_namespace
    if len(namespace) > NAMESPACE_SIZE_MAX or not _NAME.fullmatch(namespace):
        raise TroveError(spec, f"namespace {namespace[:160]!a} is too long or has an illegal character")
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix + _wrapped(namespace, name.removeprefix(prefix))
    return name if is_system(name) else _wrapped(namespace, name)


def _wrapped(namespace: str, name: str) -> str:
    start = namespace + _SEPARATOR
    return name if name.startswith(start) or not name else start + name


def message_types(config: TopicConfig) -> tuple[v2.MessageType, ...]:
    """The types of messages that a topic accepts (message_kinds.py)."""
    return _numbers(accepted_kinds(config))


@lru_cache
def _numbers(kinds: tuple[str, ...]) -> tuple[v2.MessageType, ...]:
    return tuple(getattr(v2, kind) for kind in kinds)


def check_endpoints(endpoints: v2.Endpoints) -> None:
    """Raises ProtocolError ILLEGAL_ACCESS_POINT. The hosts are not compared with the scheme: the client has
    reached this broker by them."""
    fault = _endpoints_fault(endpoints)
    if fault:
        raise ProtocolError(v2.ILLEGAL_ACCESS_POINT, f"endpoints: {fault}", field="endpoints")


def _endpoints_fault(endpoints: v2.Endpoints) -> str:
    count = len(endpoints.addresses)
    if endpoints.scheme not in _SCHEMES:
        return f"scheme {endpoints.scheme} is unknown"
    if not 1 <= count <= ADDRESSES_MAX:
        return f"{count} addresses; there may be 1 to {ADDRESSES_MAX}"
    if endpoints.scheme == v2.DOMAIN_NAME and count > 1:
        return "a domain has one address only"
    for address in endpoints.addresses:
        host = address.host
        if not 1 <= len(host) <= HOST_SIZE_MAX or not host.isprintable() or " " in host:
            return "a host is empty, too long, or has an illegal character"
        if not 1 <= address.port <= 65_535:
            return f"port {address.port} is not 1 to 65535"
    return ""


def endpoints_of(address: Address) -> v2.Endpoints:
    """The endpoints of one address."""
    ip = address.ip
    scheme = v2.DOMAIN_NAME if ip is None else v2.IPv6 if ip.version == 6 else v2.IPv4
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=address.host, port=address.port)])
