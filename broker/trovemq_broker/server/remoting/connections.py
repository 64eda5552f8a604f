"""The connected clients, for RocketMQ's tools: members of groups of both protocols, and producers.

A client of RocketMQ 5's protocol has no release of RocketMQ; it is shown with that of the first release which
served it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client
from trovemq_broker.server.remoting.hosts import address_of
from trovemq_broker.server.remoting.members import Group, Heard, Member, Members
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.bodies import topic_list
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.headers import LANGUAGES, OTHER
from trovemq_proto.remoting.json_text import json_text

VERSION_5_0_0: Final = 413
CONNECTIONS_MAX: Final = 10_000
"""Of one answer."""
_ACTIVE: Final = "CONSUME_ACTIVELY"
_PASSIVE: Final = "CONSUME_PASSIVELY"
_KINDS: Final = {"tag": "TAG", "sql": "SQL92"}


class Connections:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, calls: NativeCalls, members: Members) -> None:
        self._core = core
        self._calls = calls
        self._members = members

    def of_group(self, request: Request) -> None:
        """GET_CONSUMER_CONNECTION_LIST. Tools decide by the code whether a group has members."""
        name = request.fields.text("consumerGroup")
        group, clients = self._members.group(name), self._core.registry.members(name)
        if group is None and not clients:
            raise TroveError(errors.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:200]}] not online")
        shown = [*(_members(group) if group is not None else ()), *map(_client, clients)]
        request.answer(
            body=json_text(
                {
                    "connectionSet": shown[:CONNECTIONS_MAX],
                    "subscriptionTable": self._subscriptions(request, name),
                    **_kind(group, clients),
                }
            )
        )

    def _subscriptions(self, request: Request, name: str) -> dict[str, object]:
        table: dict[str, object] = {}
        for (_, topic), wanted in self._core.registry.subscriptions(group=name).items():
            table[topic] = _subscription(topic, _KINDS.get(wanted.kind.lower(), "TAG"), wanted.expression)
        group = self._members.group(name)
        for topic, one in group.subscriptions.items() if group is not None else ():
            table[topic] = _subscription(topic, _KINDS[one.filter.kind], one.filter.expression, one.version)
        return {topic: table[topic] for topic in self._calls.seen(request, Kind.TOPIC, table)}

    def of_producers(self, request: Request) -> None:
        """GET_PRODUCER_CONNECTION_LIST."""
        name = request.fields.text("producerGroup")
        members = self._members.producers.get(name)
        if not members:
            text = f"the producer group[{name[:200]}] not exist"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        shown = list(_connections(members))
        request.answer(body=json_text({"connectionSet": shown[:CONNECTIONS_MAX]}))

    def all_producers(self, request: Request) -> None:
        """GET_ALL_PRODUCER_INFO."""
        data: dict[str, list[object]] = {}
        left = CONNECTIONS_MAX
        for name, members in self._members.producers.items():
            data[name] = [_producer(one, heard) for one, heard in list(members.items())[:left]]
            left -= len(data[name])
        request.answer(body=json_text({"data": {name: found for name, found in data.items() if found}}))

    def topics(self, request: Request) -> None:
        """QUERY_TOPICS_BY_CONSUMER: with an offset, or subscribed."""
        name = request.fields.text("group")
        found = {*self._core.group_changes.topics_of(name), *self._subscriptions(request, name)}
        request.answer(body=json_text(topic_list(self._calls.seen(request, Kind.TOPIC, found))))

    def subscription(self, request: Request) -> None:
        """QUERY_SUBSCRIPTION_BY_CONSUMER."""
        name, topic = request.fields.text("group"), request.fields.text("topic")
        body: dict[str, object] = {"group": name, "topic": topic}
        if (found := self._subscriptions(request, name).get(topic)) is not None:
            body["subscriptionData"] = found
        request.answer(body=json_text(body))


def _connections(members: Mapping[Member, Heard]) -> Iterator[dict[str, object]]:
    for member, heard in members.items():
        yield {
            "clientAddr": address_of(member.connection.peer),
            "clientId": member.client_id,
            "language": _language(heard.language),
            "version": heard.version,
        }


def _members(group: Group) -> Iterable[dict[str, object]]:
    return _connections(group.members)


def _producer(member: Member, heard: Heard) -> dict[str, object]:
    return {
        "clientId": member.client_id,
        "language": _language(heard.language),
        "lastUpdateTimestamp": heard.time_ms,
        "remoteIP": address_of(member.connection.peer),
        "version": heard.version,
    }


def _client(client: Client) -> dict[str, object]:
    description = client.description
    return {
        "clientAddr": address_of(description.peer),
        "clientId": client.client_id,
        "language": _language(description.language),
        "version": VERSION_5_0_0,
    }


def _kind(group: Group | None, clients: Iterable[Client]) -> dict[str, str]:
    """Tools fail where one of these is missing."""
    if group is not None:
        return {
            "consumeFromWhere": group.data.consume_from_where,
            "consumeType": group.data.consume_type,
            "messageModel": group.data.message_model,
        }
    passive = any(one.description.client_type is ClientType.PUSH_CONSUMER for one in clients)
    return {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": _PASSIVE if passive else _ACTIVE,
        "messageModel": "CLUSTERING",
    }


def _language(name: str) -> str:
    return name if name in LANGUAGES else OTHER


def _subscription(topic: str, kind: str, expression: str, version: int = 0) -> dict[str, object]:
    tags = [tag.strip() for tag in expression.split("||") if tag.strip() not in ("", "*")]
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": kind,
        "subString": expression,
        "subVersion": version,
        "tagsSet": tags if kind == "TAG" else [],
        "topic": topic,
    }
