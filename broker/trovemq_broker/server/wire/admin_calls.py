"""RocketMQ's v2 Admin service: requests to commands, results to replies. The calls about a
group's progress are in group_progress.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from trovemq_broker.query.key_query import TIME_MAX
from trovemq_broker.server.wire.client_commands import Answer
from trovemq_broker.server.wire.filters import filter_expression
from trovemq_broker.server.wire.resources import group_name, message_types, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import Record, fill_message, timestamp_ms
from trovemq_broker.server.wire.send_requests import ReadSend, reading
from trovemq_broker.server.wire.statuses import OK_STATUS, STATUS_TEXT_SIZE_MAX
from trovemq_daemon.logging import LogLevel
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.topics.topics import TopicConfig

_LEVELS: Final[dict[int, LogLevel]] = {
    admin_pb2.ChangeLogLevelRequest.TRACE: "debug",
    admin_pb2.ChangeLogLevelRequest.DEBUG: "debug",
    admin_pb2.ChangeLogLevelRequest.INFO: "info",
    admin_pb2.ChangeLogLevelRequest.WARN: "warning",
    admin_pb2.ChangeLogLevelRequest.ERROR: "error",
}


# --- the process ----------------------------------------------------------------------------------------
class RuntimeStats(NamedTuple):
    """Rates are messages per second."""

    broker: str
    version: str
    in_rate: float
    out_rate: float
    connections: int
    producers: int
    consumers: int


def log_level(request: admin_pb2.ChangeLogLevelRequest) -> LogLevel:
    """Raises TroveError REQUEST_ILLEGAL."""
    level = _LEVELS.get(request.level)
    if level is None:
        raise TroveError(errors.REQUEST_ILLEGAL, f"level {request.level} is unknown", field="level")
    return level


def log_level_reply(
    request: admin_pb2.ChangeLogLevelRequest, _result: None
) -> admin_pb2.ChangeLogLevelResponse:
    """It has no status."""
    return admin_pb2.ChangeLogLevelResponse(remark=f"the log level is {log_level(request)}")


def stats_reply(_request: object, stats: RuntimeStats) -> admin_pb2.GetProxyRuntimeStatsResponse:
    """OK, and the statistics."""
    return admin_pb2.GetProxyRuntimeStatsResponse(
        status=OK_STATUS,
        proxy_name=stats.broker,
        version=stats.version,
        in_tps=stats.in_rate,
        out_tps=stats.out_rate,
        connections=stats.connections,
        producers=stats.producers,
        consumers=stats.consumers,
    )


# --- topics ---------------------------------------------------------------------------------------------
def named_topic(request: admin_pb2.DescribeTopicStatusRequest | admin_pb2.GetTopicRouteRequest) -> str:
    """The stored name. Raises TroveError TOPIC_ILLEGAL."""
    return topic_to_read(request.topic)


def topic_status_reply(_request: object, config: TopicConfig) -> admin_pb2.DescribeTopicStatusResponse:
    """A topic for messages of all types has MESSAGE_TYPE_UNSPECIFIED, and a tag that says so."""
    types = message_types(config)
    return admin_pb2.DescribeTopicStatusResponse(
        status=OK_STATUS,
        topic_message_type=types[0] if len(types) == 1 else v2.MESSAGE_TYPE_UNSPECIFIED,
        tags={
            "message_type": config.message_type,
            "queue_count": str(config.queue_count),
            "write_queue_count": str(config.write_queue_count),
            "perm": str(config.perm),
        },
    )


def topic_route_reply(_request: object, route: str) -> admin_pb2.GetTopicRouteResponse:
    """route: RocketMQ's TopicRouteData as JSON."""
    return admin_pb2.GetTopicRouteResponse(status=OK_STATUS, topic_route_data=route)


# --- clients --------------------------------------------------------------------------------------------
class GroupAndTopic(NamedTuple):
    """Each is "" if the request omits it."""

    group: str
    topic: str


class MemberName(NamedTuple):
    """A client as a member of a group."""

    client_id: str
    group: str


class FilterText(Protocol):
    """The filter of a subscription."""

    @property
    def kind(self) -> str: ...

    @property
    def expression(self) -> str: ...


class Subscribed(NamedTuple):
    """A group's subscription. online: a member has it. consistent: all members have the same."""

    group: str
    topic: str
    filter: FilterText
    updated_ms: int
    online: bool
    consistent: bool


class Connected(NamedTuple):
    """A connected client."""

    client_id: str
    version: str
    language: str
    hostname: str
    address: str


class Running(NamedTuple):
    """The broker's information about a consumer. subscriptions: by topic. committed: topic, queue id and
    offset."""

    properties: dict[str, str]
    subscriptions: Mapping[str, FilterText]
    committed: Sequence[tuple[str, QueueId, QueueOffset]]


def group_and_topic(
    request: admin_pb2.ListSubscriptionRequest | admin_pb2.DescribeSubscriptionRequest,
) -> GroupAndTopic:
    """Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    group = group_name(request.group) if request.HasField("group") else ""
    return GroupAndTopic(group, topic_to_read(request.topic) if request.HasField("topic") else "")


def connection_query(request: admin_pb2.ListConsumerConnectionRequest) -> GroupAndTopic:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL."""
    topic = topic_to_read(request.topic) if request.HasField("topic") else ""
    return GroupAndTopic(group_name(request.group), topic)


def member_name(
    request: admin_pb2.GetConsumerRunningInfoRequest | admin_pb2.PrintThreadStackTraceRequest,
) -> MemberName:
    """Raises TroveError GROUP_ILLEGAL."""
    return MemberName(request.client_id, group_name(request.group))


def subscriptions_reply(
    _request: object, subscriptions: Sequence[Subscribed]
) -> admin_pb2.ListSubscriptionResponse:
    """OK, and the subscriptions."""
    found = [_subscription_info(one) for one in subscriptions]
    return admin_pb2.ListSubscriptionResponse(status=OK_STATUS, subscription_info=found)


def described_reply(
    _request: object, found: Sequence[tuple[Connected, Subscribed]]
) -> admin_pb2.DescribeSubscriptionResponse:
    """OK, and the subscriptions of each client."""
    entry = admin_pb2.DescribeSubscriptionResponse.ClientSubscriptionInfo
    return admin_pb2.DescribeSubscriptionResponse(
        status=OK_STATUS,
        client_subscription_info=[
            entry(client_info=_client_info(client), subscription_info=_subscription_info(one))
            for client, one in found
        ],
    )


def connections_reply(
    _request: object, clients: Sequence[Connected]
) -> admin_pb2.ListConsumerConnectionResponse:
    """OK, and the clients."""
    found = [_client_info(client) for client in clients]
    return admin_pb2.ListConsumerConnectionResponse(status=OK_STATUS, client_info=found)


def running_reply(_request: object, running: Running) -> admin_pb2.GetConsumerRunningInfoResponse:
    """OK, and the information."""
    info = admin_pb2.ConsumerRunningInfo(properties=running.properties)
    for topic, one in running.subscriptions.items():
        info.subscriptions[topic].CopyFrom(filter_expression(one.kind, one.expression))
    for topic, queue_id, committed in running.committed:
        item = info.message_queue_table.add()
        item.message_queue.topic.name = topic
        item.message_queue.id = queue_id
        item.process_queue_info.commit_offset = committed
    return admin_pb2.GetConsumerRunningInfoResponse(status=OK_STATUS, consumer_running_info=info)


def _subscription_info(one: Subscribed) -> admin_pb2.SubscriptionInfo:
    info = admin_pb2.SubscriptionInfo(
        group=v2.Resource(name=one.group),
        topic=v2.Resource(name=one.topic),
        expression=filter_expression(one.filter.kind, one.filter.expression),
        online=one.online,
        message_model=admin_pb2.CLUSTERING,
        subscription_consistency=one.consistent,
    )
    info.last_update_timestamp.FromMilliseconds(one.updated_ms)
    return info


def _client_info(client: Connected) -> admin_pb2.ClientInfo:
    return admin_pb2.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=client.language,
        hostname=client.hostname,
        egress_ip=client.address,
        message_model=admin_pb2.CLUSTERING,
    )


# --- commands to clients --------------------------------------------------------------------------------
class Verification(NamedTuple):
    """A member of the group is to consume the message now."""

    client_id: str
    group: str
    message_id: str
    topic: str


def verification(request: admin_pb2.VerifyMessageRequest) -> Verification:
    """Raises TroveError GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    group, topic = group_name(request.group), topic_to_read(request.topic)
    return Verification(request.client_id, group, request.message_id, topic)


def verified_reply(_request: object, answer: Answer) -> admin_pb2.VerifyMessageResponse:
    """The status is the result of the client's listener."""
    text = answer.text[:STATUS_TEXT_SIZE_MAX]
    return admin_pb2.VerifyMessageResponse(status=v2.Status(code=answer.code, message=text))


def stacks_reply(_request: object, answer: Answer) -> admin_pb2.PrintThreadStackTraceResponse:
    """The client's status, and its text."""
    return admin_pb2.PrintThreadStackTraceResponse(
        status=v2.Status(code=answer.code), thread_stack_trace=answer.text
    )


# --- messages -------------------------------------------------------------------------------------------
class MessageQuery(NamedTuple):
    """By id or by key. count_max: 0 for the default. begin_ms, end_ms: of a look-up by key."""

    topic: str
    message_id: str | None
    key: str
    count_max: int
    begin_ms: EpochMs
    end_ms: EpochMs
    cursor: str


class QueriedMessages:
    """The messages of a reply. Each is converted and serialised when it is added."""

    def __init__(self) -> None:
        self.cursor = ""
        """Continues the query; "" at its end."""
        self._parts: list[bytes] = []

    def add(self, record: Record, topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> None:
        """A stored record."""
        part = admin_pb2.ListMessageResponse()
        message = part.messages.add()
        fill_message(message, record, topic, queue_id, queue_offset)
        message.system_properties.delivery_attempt = 1
        self._parts.append(part.SerializeToString())

    def reply(self) -> bytes:
        """OK, and the messages: a serialised ListMessageResponse, which is its parts one after the other."""
        end = admin_pb2.ListMessageResponse(status=OK_STATUS, scroll_id=self.cursor)
        return b"".join([*self._parts, end.SerializeToString()])


def message_query(request: admin_pb2.ListMessageRequest) -> MessageQuery:
    """Raises TroveError TOPIC_ILLEGAL, REQUEST_ILLEGAL, NOT_IMPLEMENTED."""
    topic = topic_to_read(request.topic)
    kind = request.WhichOneof("search_key")
    if request.max_message_nums < 0:
        text = f"{request.max_message_nums} messages"
        raise TroveError(errors.REQUEST_ILLEGAL, text, field="max_message_nums")
    if kind not in ("message_id", "message_key"):
        raise TroveError(errors.NOT_IMPLEMENTED, "messages are looked up by message_id or message_key")
    return MessageQuery(
        topic,
        request.message_id if kind == "message_id" else None,
        request.message_key,
        request.max_message_nums,
        timestamp_ms(request.begin_timestamp),
        timestamp_ms(request.end_timestamp) if request.HasField("end_timestamp") else TIME_MAX,
        request.scroll_id,
    )


def messages_reply(_request: object, found: QueriedMessages) -> bytes:
    """OK, and the messages."""
    return found.reply()


class AdminSend:
    """A message to send."""

    def __init__(self, request: admin_pb2.AdminSendMessageRequest) -> None:
        self._request = request

    def reading(self, next_id: Callable[[], str]) -> ReadSend:
        """Reads the send. next_id: makes the id of a message that has none."""
        request = self._request
        message = v2.Message(topic=request.topic, body=request.body, user_properties=request.user_properties)
        system = message.system_properties
        system.CopyFrom(request.system_properties)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.HasField("key"):
            system.keys.append(request.key)
        system.message_id = system.message_id or next_id()
        return reading(service_pb2.SendMessageRequest(messages=[message]))


def admin_send_reply(_request: object, reply: object) -> admin_pb2.AdminSendMessageResponse:
    """reply: the one of SendMessage, which may be serialised."""
    if isinstance(reply, bytes):
        reply = service_pb2.SendMessageResponse.FromString(reply)
    assert isinstance(reply, service_pb2.SendMessageResponse), "a send is answered with its reply"
    entry = reply.entries[0]
    return admin_pb2.AdminSendMessageResponse(status=entry.status, message_id=entry.message_id)
