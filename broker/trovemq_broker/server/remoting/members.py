"""The clients that have sent a heartbeat: members of consumer groups, and producers.

Clients share the queues of a group among themselves, by the list of its members. So the list has every member
from the moment its heartbeat is answered, and all members are notified of each change at once.

Invariants
- A member is a connection and a client id; it is gone with its connection, or when it unregisters.
- A group has SUBSCRIPTIONS_MAX topics at most, a connection GROUPS_MAX groups.
- Of several subscriptions of a group for one topic the one with the highest version counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.bodies import read_body
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.json_text import json_text
from trovemq_store.topics.names import RETRY_PREFIX

GROUPS_MAX: Final = 1_024
SUBSCRIPTIONS_MAX: Final = 1_024
HEARTBEAT_TOPICS_MAX: Final = 4_096
"""For each the rules of the user are looked at."""
CLIENT_ID_SIZE_MAX: Final = 255
TAG: Final = "TAG"
CLUSTERING: Final = "CLUSTERING"


class SubscriptionData(msgspec.Struct, rename="camel"):
    """Of a heartbeat."""

    topic: str
    sub_string: str = "*"
    expression_type: str | None = TAG
    sub_version: int = 0


class ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []


class ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


class HeartbeatData(msgspec.Struct):
    client_id: str = msgspec.field(name="clientID")
    consumers: list[ConsumerData] = msgspec.field(name="consumerDataSet", default_factory=list)
    producers: list[ProducerData] = msgspec.field(name="producerDataSet", default_factory=list)


class CheckData(msgspec.Struct, rename="camel"):
    """Of CHECK_CLIENT_CONFIG."""

    subscription_data: SubscriptionData


_HEARTBEATS: Final = msgspec.json.Decoder(HeartbeatData, strict=False)
_CHECKS: Final = msgspec.json.Decoder(CheckData, strict=False)


class Subscription(NamedTuple):
    filter: Filter
    version: int


class Heard(NamedTuple):
    """The last heartbeat of a client. `version`: RocketMQ's index of its release."""

    language: str
    version: int
    time_ms: EpochMs


class Member(NamedTuple):
    """`user`: the access key of a producer; "" where callers are not authenticated."""

    connection: Connection
    client_id: str
    user: str = ""


class _Refused(NamedTuple):
    """The heartbeat of a consumer that its group did not take."""

    member: Member
    data: ConsumerData
    heard: Heard


class Group:
    """The members of one consumer group, and its subscriptions by topic. `data`: of its last heartbeat."""

    def __init__(self, data: ConsumerData) -> None:
        self.members: dict[Member, Heard] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.data = data

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(one.client_id for one in self.members))


class Members:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.groups: dict[str, Group] = {}
        self._of_connection: dict[Connection, dict[str, Member]] = {}
        """By group."""
        self._refused: dict[Connection, dict[str, _Refused]] = {}
        """By group: consumers that asked to be members while it had clients of the other kind."""
        core.kinds.has_remoting_members = self._has_clustering
        self.producers: dict[str, dict[Member, Heard]] = {}
        self._producing: dict[Connection, dict[str, Member]] = {}
        self._requesting: dict[Connection, set[str]] = {}
        self._by_client_id: dict[str, Member] = {}
        """Producers; of several with one id, of one user, the one that was heard last."""
        self._requesters: dict[str, Member] = {}
        """Clients that have sent a request, by id, as long as no producer with that id is heard."""
        self.on_gone: Callable[[str, str], None] = lambda _group, _client_id: None
        """Is called with the group and the client id of a member that is gone."""

    # --- requests ---------------------------------------------------------------------------------------
    def heartbeat(self, request: Request) -> None:
        """A group that may not have the member is left out: its consumer is refused, with the reason, when it
        asks for the members or pulls."""
        data = _heartbeat_of(request)
        names = [one.group_name for one in data.consumers if one.message_model == CLUSTERING]
        needed = [name for name in names if self._exists(name) and self._core.kinds.needs_conversion(name)]
        if needed:
            request.run(self._heard_later(request, data, needed))
        else:
            self._heard(request, data)

    async def _heard_later(self, request: Request, data: HeartbeatData, groups: Iterable[str]) -> None:
        for name in groups:
            with suppress(TroveError):
                await self._core.kinds.convert(name)
        self._heard(request, data)

    def _heard(self, request: Request, data: HeartbeatData) -> None:
        connection = request.connection
        self._know(connection)
        heard = Heard(request.header.language, request.header.version, self._core.clock_ms())
        for consumer in data.consumers:
            self._join(Member(connection, data.client_id), consumer, heard)
        producing = self._producing[connection]
        for producer in data.producers:
            name = producer.group_name
            if name not in producing and len(producing) < GROUPS_MAX:
                producing[name] = Member(connection, data.client_id, present_creator().name)
            if (member := producing.get(name)) is not None:
                self.producers.setdefault(name, {})[member] = heard
                self._is_heard(member)
        request.answer()

    def unregister(self, request: Request) -> None:
        fields, connection = request.fields, request.connection
        fields.text("clientID")
        consumer, producer = fields.text("consumerGroup", ""), fields.text("producerGroup", "")
        if consumer:
            self._leave(connection, consumer)
        if producer:
            self._stop_producing(connection, producer)
        request.answer()

    def list_ids(self, request: Request) -> None:
        """GET_CONSUMER_LIST_BY_GROUP: a group without members is an error, as in RocketMQ."""
        name = request.fields.text("consumerGroup")
        if self.is_refused(request.connection, name):
            request.run(self._list_later(request, name))
        else:
            self._list(request, name)

    async def _list_later(self, request: Request, name: str) -> None:
        await self.admit(request.connection, name)
        self._list(request, name)

    def _list(self, request: Request, name: str) -> None:
        group = self.groups.get(name)
        if group is None:
            request.answer(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        else:
            request.answer(body=json_text({"consumerIdList": group.client_ids}))

    def check_config(self, request: Request) -> None:
        """CHECK_CLIENT_CONFIG: whether a subscription can be parsed; start() of a client raises the text."""
        one = read_body(_CHECKS, request).subscription_data
        parse_filter(one.expression_type or TAG, one.sub_string)
        request.answer()

    # --- members ----------------------------------------------------------------------------------------
    def group(self, name: str) -> Group | None:
        return self.groups.get(name)

    def _has_clustering(self, name: str) -> bool:
        group = self.groups.get(name)
        return group is not None and group.data.message_model == CLUSTERING

    def is_refused(self, connection: Connection, group: str) -> bool:
        """Whether the connection has asked to be a member, and the group had clients of the other kind."""
        return group in self._refused.get(connection, ())

    async def admit(self, connection: Connection, name: str) -> None:
        """A consumer asks again, or without a heartbeat: its group is converted if need be. TroveError
        GROUP_CLIENTS_DIFFER, and those of GroupKinds.convert."""
        if self._core.kinds.needs_conversion(name):
            await self._core.kinds.convert(name)
        if (refused := self._refused.get(connection, {}).pop(name, None)) is not None:
            self._join(*refused)

    def check_kind(self, connection: Connection, name: str) -> None:
        """TroveError GROUP_CLIENTS_DIFFER: the group has members with leases, and the connection is not a
        member, as one that broadcasts."""
        if name not in self._of_connection.get(connection, ()):
            self._core.kinds.check_own_offsets(name)

    def _know(self, connection: Connection) -> None:
        if connection not in self._of_connection:
            self._of_connection[connection] = {}
            self._producing[connection] = {}
            self._requesting[connection] = set()
            connection.on_lost.append(lambda: self._lost(connection))

    def _is_heard(self, member: Member) -> None:
        """Another user's client does not take the replies to one that is connected: ids are not secret."""
        known = self._by_client_id.get(member.client_id)
        if known is None or known.user == member.user:
            self._by_client_id[member.client_id] = member

    def requests(self, connection: Connection, client_id: str) -> None:
        """A client waits for a reply. One that knew the topic's route has sent no heartbeat before, and its
        next one may be 30 s later."""
        known, user = self._requesters.get(client_id), present_creator().name
        if known is not None and (known.connection is connection or known.user != user):
            return
        self._know(connection)
        sent = self._requesting[connection]
        if 0 < len(client_id.encode()) <= CLIENT_ID_SIZE_MAX and len(sent) < GROUPS_MAX:
            sent.add(client_id)
            self._requesters[client_id] = Member(connection, client_id, user)

    def producer(self, client_id: str) -> Member | None:
        """The client that gets the replies for that id."""
        return self._by_client_id.get(client_id) or self._requesters.get(client_id)

    def groups_of(self, topic: str) -> list[str]:
        """The groups with members that read the topic."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]

    def _join(self, member: Member, data: ConsumerData, heard: Heard) -> None:
        """A group that does not exist, and is not made by its use, is left out without an error: the pulls
        of its consumer get one."""
        name = data.group_name
        if not self._exists(name):
            return
        own = self._of_connection[member.connection]
        if data.message_model == CLUSTERING and self._core.kinds.needs_conversion(name):
            refused = self._refused.setdefault(member.connection, {})
            if name in refused or len(refused) < GROUPS_MAX:
                refused[name] = _Refused(member, data, heard)
            return
        self._refused.get(member.connection, {}).pop(name, None)
        if name not in own and len(own) >= GROUPS_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"a client has {GROUPS_MAX} groups at most")
        if data.message_model == CLUSTERING:
            self._core.store.topics.ensure_internal(retry_topic(name), 1, now_ms=self._core.clock_ms())
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(data)
        group.data = msgspec.structs.replace(data, subscription_data_set=[])
        changed = self._subscribe(group, data.subscription_data_set)
        if (former := own.get(name)) is not None and former != member:
            del group.members[former]
        changed |= member not in group.members
        group.members[member], own[name] = heard, member
        if changed:
            self._notify(name, group)

    def _exists(self, name: str) -> bool:
        core = self._core
        try:
            core.groups.for_use(
                name,
                auto_create=core.settings.auto_create_group,
                now_ms=core.clock_ms(),
                creator=present_creator(),
            )
        except TroveError:
            return False
        return True

    def _subscribe(self, group: Group, given: Iterable[SubscriptionData]) -> bool:
        """Whether a topic came or went."""
        before = set(group.subscriptions)
        topics = set()
        for one in given:
            topics.add(one.topic)
            known = group.subscriptions.get(one.topic)
            if known is None or one.sub_version > known.version:
                try:
                    found = parse_filter(one.expression_type or TAG, one.sub_string or "*")
                except TroveError:
                    continue  # its pulls say why
                group.subscriptions[one.topic] = Subscription(found, one.sub_version)
        if len(group.members) <= 1:
            for topic in before - topics:
                del group.subscriptions[topic]
        while len(group.subscriptions) > SUBSCRIPTIONS_MAX:
            group.subscriptions.pop(next(iter(group.subscriptions)))
        return set(group.subscriptions) != before

    def _leave(self, connection: Connection, name: str) -> None:
        self._refused.get(connection, {}).pop(name, None)
        member = self._of_connection.get(connection, {}).pop(name, None)
        group = self.groups.get(name)
        if member is None or group is None:
            return
        group.members.pop(member, None)
        if member.client_id not in group.client_ids:
            self.on_gone(name, member.client_id)
        if group.members:
            self._notify(name, group)
        else:
            del self.groups[name]

    def _stop_producing(self, connection: Connection, name: str) -> None:
        member = self._producing.get(connection, {}).pop(name, None)
        remaining = self._producing.get(connection, {}).values()
        if member is not None and all(one.client_id != member.client_id for one in remaining):
            known = self._by_client_id.get(member.client_id)
            if known is not None and known.connection is connection:
                del self._by_client_id[member.client_id]
        others = self.producers.get(name)
        if member is not None and others is not None:
            others.pop(member, None)
            if not others:
                del self.producers[name]

    def _lost(self, connection: Connection) -> None:
        for name in list(self._of_connection.get(connection, ())):
            self._leave(connection, name)
        for name in list(self._producing.get(connection, ())):
            self._stop_producing(connection, name)
        for client_id in self._requesting.pop(connection, ()):
            requester = self._requesters.get(client_id)
            if requester is not None and requester.connection is connection:
                del self._requesters[client_id]
        self._of_connection.pop(connection, None)
        self._refused.pop(connection, None)
        self._producing.pop(connection, None)

    def _notify(self, name: str, group: Group) -> None:
        for connection in dict.fromkeys(member.connection for member in group.members):
            connection.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name})


def consumers_of(request: Request) -> Iterator[tuple[str, list[str]]]:
    """The groups of a heartbeat, with their topics. TroveError REQUEST_ILLEGAL, LIMIT_EXCEEDED."""
    for one in _heartbeat_of(request).consumers:
        yield one.group_name, [subscribed.topic for subscribed in one.subscription_data_set]


def _heartbeat_of(request: Request) -> HeartbeatData:
    """TroveError REQUEST_ILLEGAL, LIMIT_EXCEEDED."""
    data = read_body(_HEARTBEATS, request)
    if not 0 < len(data.client_id.encode()) <= CLIENT_ID_SIZE_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"a client id has 1 to {CLIENT_ID_SIZE_MAX} bytes")
    if len(data.consumers) > GROUPS_MAX or len(data.producers) > GROUPS_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"a client has {GROUPS_MAX} groups at most")
    counts = [len(one.subscription_data_set) for one in data.consumers]
    if max(counts, default=0) > SUBSCRIPTIONS_MAX:
        raise TroveError(errors.LIMIT_EXCEEDED, f"a group has {SUBSCRIPTIONS_MAX} topics at most")
    if sum(counts) > HEARTBEAT_TOPICS_MAX:
        text = f"a heartbeat has {HEARTBEAT_TOPICS_MAX} topics of all groups at most"
        raise TroveError(errors.LIMIT_EXCEEDED, text)
    return data


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group
