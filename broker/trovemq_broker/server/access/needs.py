"""The table of the permissions that each RPC needs; a test compares it with the services' descriptors.

| a row               | meaning                                                                        |
|---------------------|--------------------------------------------------------------------------------|
| OPEN                | every caller, also without credentials                                         |
| USER                | every user                                                                     |
| SUPER               | super users                                                                    |
| a function          | the needs of one request, or of one message of a stream; all must be met       |

A need names a resource and actions, one of which must be allowed. EVERY stands for all resources of its kind:
an RPC whose reply can have any of them (a look-up by id) needs a rule that allows all of them, and no rule
that denies one. Names are read as the service itself reads them.

`show` of a row removes names that the caller may not see from a reply: listings, routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from trovemq_broker.security.actions import Action, Kind
from trovemq_broker.server.access import producer_ids
from trovemq_broker.server.wire.producer_ids import asked_producer, producers_of_send
from trovemq_broker.server.wire.resources import group_name, topic_to_read, topic_to_send
from trovemq_broker.server.wire.shown_replies import (
    MaySee,
    show_config_status,
    show_group,
    show_groups,
    show_routes,
    show_statistics,
    show_topics,
    show_transaction,
    without_changes,
)

EVERY: Final = "*"
THIS_CLUSTER: Final = ""

PUB: Final = Action.PUB
SUB: Final = Action.SUB
SEE: Final = Action.GET | Action.SUB
READ: Final = Action.READ | Action.SUB
KNOW: Final = Action.LIST | Action.GET | Action.PUB | Action.SUB


class Need(NamedTuple):
    """A need: one of `actions` on the resource."""

    kind: Kind
    name: str
    actions: Action


class Level(Enum):
    """Needs that no rule can meet."""

    OPEN = "open"
    USER = "user"
    SUPER = "super"


class Audit(Enum):
    """How calls are audited (audit.py)."""

    ACT = "act"
    READ = "read"


Needs: TypeAlias = Callable[[Any], Iterable[Need]]


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one RPC. `needs`: those of a request. `marks`: the service answers a refused message of its
    stream, which continues. `show`: returns the part of a reply that the caller may see. `producers`: the
    producer ids in a request, which must be the caller's own. `narrow`: changes the request of a caller who
    may not see all. `audit`: how calls are audited. `is_query`: the time of the calls counts as query work.
    `by_topic`: the needs depend only on `request.topic`, for each message of a stream. `creates`: `topic` or
    `group`, and the name of the one that a request creates. `key`: the texts of a request on which alone its
    needs depend, which takes less time than the needs; empty: it has too many of them. `waits`: its one reply
    may come much later than the request."""

    needs: Level | Needs
    marks: bool = False
    show: Callable[[Any, MaySee], Any] | None = None
    producers: Callable[[Any], Iterable[str]] | None = None
    narrow: Callable[[Any], None] | None = None
    audit: Audit | None = None
    is_query: bool = False
    by_topic: bool = False
    creates: Callable[[Any], tuple[str, str]] | None = None
    key: Callable[[Any], tuple[str, ...]] | None = None
    waits: bool = False


# --- needs ----------------------------------------------------------------------------------------------
def _topic(actions: Action) -> Needs:
    return lambda request: (Need(Kind.TOPIC, request.topic, actions),)


def _group(actions: Action) -> Needs:
    return lambda request: (Need(Kind.GROUP, request.group, actions),)


def _cluster(actions: Action) -> Needs:
    return lambda _request: (Need(Kind.CLUSTER, THIS_CLUSTER, actions),)


def _both(group_actions: Action, topic_actions: Action) -> Needs:
    return lambda request: (
        Need(Kind.GROUP, request.group, group_actions),
        Need(Kind.TOPIC, request.topic, topic_actions),
    )


def _lag(request: Any) -> Iterator[Need]:
    yield Need(Kind.GROUP, request.group, SEE)
    if request.topic:
        yield Need(Kind.TOPIC, request.topic, KNOW)


def _identifier(request: Any) -> Iterator[Need]:
    """An id can lead to a message of any topic, whatever topic the request names."""
    where = request.location.topic if request.WhichOneof("identifier") == "location" else EVERY
    yield Need(Kind.TOPIC, where, READ)


def _track(request: Any) -> Iterator[Need]:
    """The reply shows every group that reads the message."""
    where = request.location.topic if request.WhichOneof("identifier") == "location" else EVERY
    yield Need(Kind.TOPIC, where, Action.READ)


def _transaction(frame: Any) -> Iterator[Need]:
    kind = frame.WhichOneof("frame")
    if kind == "messages":
        yield Need(Kind.TOPIC, frame.messages.topic, PUB)
    elif kind == "acknowledgements":
        yield Need(Kind.GROUP, frame.acknowledgements.group, SUB)
        yield Need(Kind.TOPIC, frame.acknowledgements.topic, SUB)


def _half_checks(frame: Any) -> Iterator[Need]:
    for topic in frame.start.topics:
        yield Need(Kind.TOPIC, topic, PUB)


def _resend(request: Any) -> Iterator[Need]:
    """The letters name the topics to which they are sent."""
    yield Need(Kind.GROUP, request.group, Action.UPDATE)
    yield Need(Kind.TOPIC, EVERY, PUB)


def _command(request: Any) -> Iterator[Need]:
    yield Need(Kind.GROUP, request.group, Action.COMMAND)


def _consume_directly(request: Any) -> Iterator[Need]:
    yield Need(Kind.GROUP, request.group, Action.COMMAND)
    yield Need(Kind.TOPIC, EVERY, Action.READ)


# --- needs of RocketMQ's requests -----------------------------------------------------------------------
def _v2_topic(actions: Action) -> Needs:
    return lambda request: (Need(Kind.TOPIC, topic_to_read(request.topic), actions),)


def _v2_group(actions: Action) -> Needs:
    return lambda request: (Need(Kind.GROUP, group_name(request.group), actions),)


def _v2_both(group_actions: Action, topic_actions: Action) -> Needs:
    return lambda request: (
        Need(Kind.GROUP, group_name(request.group), group_actions),
        Need(Kind.TOPIC, topic_to_read(request.topic), topic_actions),
    )


def _v2_queue(request: Any) -> Iterator[Need]:
    yield Need(Kind.GROUP, group_name(request.group), SUB)
    yield Need(Kind.TOPIC, topic_to_read(request.message_queue.topic), SUB)


def _v2_query_offset(request: Any) -> Iterator[Need]:
    yield Need(Kind.TOPIC, topic_to_read(request.message_queue.topic), SEE)


def _v2_send(request: Any) -> Iterator[Need]:
    for topic in {topic_to_send(message.topic) for message in request.messages}:
        yield Need(Kind.TOPIC, topic, PUB)


def _v2_send_key(request: Any) -> tuple[str, ...]:
    messages = request.messages
    if len(messages) != 1:
        return ()
    topic = messages[0].topic
    return topic.resource_namespace, topic.name


def _v2_both_key(request: Any) -> tuple[str, ...]:
    group, topic = request.group, request.topic
    return group.resource_namespace, group.name, topic.resource_namespace, topic.name


def _v2_queue_key(request: Any) -> tuple[str, ...]:
    group, topic = request.group, request.message_queue.topic
    return group.resource_namespace, group.name, topic.resource_namespace, topic.name


def _v2_admin_send(request: Any) -> Iterator[Need]:
    yield Need(Kind.TOPIC, topic_to_send(request.topic), PUB)


def _v2_client(request: Any) -> Iterator[Need]:
    """A producer names no group."""
    if request.HasField("group") and request.group.name:
        yield Need(Kind.GROUP, group_name(request.group), SUB)


def _v2_telemetry(command: Any) -> Iterator[Need]:
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        for topic in settings.publishing.topics:
            yield Need(Kind.TOPIC, topic_to_read(topic), PUB)
    elif kind == "subscription":
        subscription = settings.subscription
        if subscription.group.name:
            yield Need(Kind.GROUP, group_name(subscription.group), SUB)
        for entry in subscription.subscriptions:
            yield Need(Kind.TOPIC, topic_to_read(entry.topic), SUB)


def _v2_subscriptions(request: Any) -> Iterator[Need]:
    """Without a group the reply is about all groups."""
    group = group_name(request.group) if request.HasField("group") else EVERY
    yield Need(Kind.GROUP, group, Action.GET)
    if request.HasField("topic"):
        yield Need(Kind.TOPIC, topic_to_read(request.topic), SEE)


def _v2_query_message(request: Any) -> Iterator[Need]:
    by_id = request.WhichOneof("search_key") == "message_id"
    yield Need(Kind.TOPIC, EVERY if by_id else topic_to_read(request.topic), READ)


def _v2_verify(request: Any) -> Iterator[Need]:
    yield Need(Kind.GROUP, group_name(request.group), Action.COMMAND)
    yield Need(Kind.TOPIC, EVERY, Action.READ)


_OPEN: Final = Row(Level.OPEN)
_USER: Final = Row(Level.USER)
_SUPER: Final = Row(Level.SUPER)
_SUPER_ACT: Final = Row(Level.SUPER, audit=Audit.ACT)
_UPDATE: Final = Action.UPDATE

_SERVICES: Final[dict[str, dict[str, Row]]] = {
    "trovemq.v1.MessageService": {
        "Append": Row(_topic(PUB), marks=True, producers=producer_ids.of_frame, by_topic=True),
        "Fetch": Row(_topic(SUB), marks=True, by_topic=True),
        "Send": Row(_topic(PUB), producers=producers_of_send),
        "Pull": Row(_topic(SUB), waits=True),
        "GetProducer": Row(_topic(PUB), producers=asked_producer),
    },
    "trovemq.v1.ConsumerService": {"Consume": Row(_both(SUB, SUB))},
    "trovemq.v1.ProducerService": {
        "SendDelayed": Row(_topic(PUB)),
        "Recall": Row(_topic(PUB)),
        "PrepareHalf": Row(_topic(PUB)),
        "EndHalf": Row(_topic(PUB)),
        "CheckHalves": Row(_half_checks),
    },
    "trovemq.v1.TransactionService": {
        "Transact": Row(_transaction),
        "GetTransaction": Row(Level.USER, show=show_transaction),
    },
    "trovemq.v1.QueryService": {
        "GetMessage": Row(_identifier, audit=Audit.READ, is_query=True),
        "QueryByKey": Row(_topic(READ), audit=Audit.READ, is_query=True),
        "SearchOffset": Row(_topic(SEE)),
        "QueueOffsets": Row(_topic(SEE)),
    },
    "trovemq.v1.SearchService": {"Search": Row(_topic(READ), audit=Audit.READ, is_query=True)},
    "trovemq.v1.BiographyService": {"Biography": Row(_track, audit=Audit.READ, is_query=True)},
    "trovemq.v1.StoreService": {
        "Scrub": Row(_cluster(Action.BACKUP), audit=Audit.ACT),
        "Backup": Row(_cluster(Action.BACKUP), audit=Audit.ACT),
    },
    "trovemq.v1.AdminService": {
        "CreateTopic": Row(_topic(Action.CREATE), audit=Audit.ACT, creates=lambda one: ("topic", one.topic)),
        "AlterTopic": Row(_topic(_UPDATE), audit=Audit.ACT),
        "DescribeTopic": Row(_topic(SEE | PUB)),
        "ListTopics": Row(Level.USER, show=show_topics, is_query=True),
        "DeleteTopic": Row(_topic(Action.DELETE), audit=Audit.ACT),
        "CommitOffset": Row(_both(SUB, SUB)),
        "GetOffset": Row(_both(SEE, SEE)),
        "ResetOffset": Row(_both(_UPDATE, SEE), audit=Audit.ACT),
        "GetStatistics": Row(_cluster(Action.GET), show=show_statistics, is_query=True),
    },
    "trovemq.v1.BrokerService": {
        "Drain": Row(_cluster(_UPDATE), audit=Audit.ACT),
        "Undrain": Row(_cluster(_UPDATE), audit=Audit.ACT),
        "GetDrain": Row(_cluster(Action.GET)),
        "GetCondition": Row(_cluster(Action.GET)),
        "ListSettings": Row(_cluster(Action.GET)),
        "SetSetting": Row(_cluster(_UPDATE), audit=Audit.ACT),
    },
    "trovemq.v1.GroupService": {
        "CreateGroup": Row(_group(Action.CREATE), audit=Audit.ACT, creates=lambda one: ("group", one.group)),
        "AlterGroup": Row(_group(_UPDATE), audit=Audit.ACT),
        "DeleteGroup": Row(_group(Action.DELETE), audit=Audit.ACT),
        "ListGroups": Row(Level.USER, show=show_groups, is_query=True),
        "DescribeGroup": Row(_group(SEE), show=show_group),
        "ListMembers": Row(_group(SEE)),
        "GetLag": Row(_lag, is_query=True),
        "ResetGroup": Row(_both(_UPDATE, SEE), audit=Audit.ACT),
        "ResendDeadLetters": Row(_resend, audit=Audit.ACT, is_query=True),
        "FindResentDeadLetters": Row(_group(SEE), is_query=True),
        "ConsumeDirectly": Row(_consume_directly, audit=Audit.ACT, is_query=True),
        "PrintThreadStackTrace": Row(_command, audit=Audit.ACT),
        "FindDelayed": Row(_topic(READ), audit=Audit.READ, is_query=True),
    },
    "trovemq.v1.RouteService": {
        "GetServerInfo": _USER,
        "GetRoute": Row(_topic(KNOW)),
        "GetCluster": Row(Level.USER, show=show_routes),
        "WatchRoutes": Row(Level.USER, show=show_routes, narrow=without_changes),
    },
    "trovemq.v1.RegistrationService": {"Register": _SUPER, "Forget": _SUPER},  # of nameservers
    "trovemq.v1.ClusterConfigService": {
        "WatchConfig": _SUPER,
        "ForwardChange": _SUPER_ACT,
        "PromiseGeneration": _SUPER_ACT,
        "FetchConfig": _SUPER_ACT,
        "GetConfigStatus": Row(_cluster(Action.GET), show=show_config_status),
        "TakeOverConfig": _SUPER_ACT,
        "RemoveMember": _SUPER_ACT,
        "ClearDropped": _SUPER_ACT,
    },
    "trovemq.v1.ReplicaService": {
        "GetReplica": Row(_cluster(Action.GET)),
        "InitGroup": _SUPER_ACT,
        "LeaveGroup": _SUPER_ACT,
        "AddNode": _SUPER_ACT,
        "RemoveNode": _SUPER_ACT,
        "Promote": _SUPER_ACT,
        "SwitchOver": _SUPER_ACT,
        "PauseFailover": _SUPER_ACT,
        "ListCutRecords": Row(_cluster(Action.GET)),
        "ReadCutRecords": _SUPER_ACT,
    },
    # On another listener, whose callers are nodes: trovemq_broker.replica_streams.peers_allowed.
    "trovemq.v1.ReplicationService": {
        "Follow": _SUPER,
        "Promise": _SUPER_ACT,
        "ReadLog": _SUPER,
        "ReadConsumers": _SUPER,
        "GetStatus": _SUPER,
        "StoreMembers": _SUPER_ACT,
    },
    "trovemq.v1.ForwardingService": {"Forward": _SUPER, "ForwardTelemetry": _SUPER},
    "trovemq.v1.SecurityService": {
        "Authenticate": _OPEN,
        "CreateUser": _SUPER_ACT,
        "AlterUser": _SUPER_ACT,
        "RotateSecret": _SUPER_ACT,
        "DeleteUser": _SUPER_ACT,
        "ListUsers": _SUPER,
        "CreateRule": _SUPER_ACT,
        "DeleteRule": _SUPER_ACT,
        "ListRules": _SUPER,
        "TestAccess": _SUPER,
        "SetQuota": _SUPER_ACT,
        "ListQuotas": _SUPER,
    },
    "apache.rocketmq.v2.MessagingService": {
        "QueryRoute": Row(_v2_topic(KNOW)),
        "Heartbeat": Row(_v2_client),
        "SendMessage": Row(_v2_send, key=_v2_send_key),
        "QueryAssignment": Row(_v2_both(SUB, SUB)),
        "ReceiveMessage": Row(_v2_queue, key=_v2_queue_key),
        "AckMessage": Row(_v2_both(SUB, SUB), key=_v2_both_key),
        "ForwardMessageToDeadLetterQueue": Row(_v2_both(SUB, SUB)),
        "PullMessage": Row(_v2_queue),
        "UpdateOffset": Row(_v2_queue),
        "GetOffset": Row(_v2_queue),
        "QueryOffset": Row(_v2_query_offset),
        "EndTransaction": Row(_v2_topic(PUB)),
        "Telemetry": Row(_v2_telemetry),
        "NotifyClientTermination": Row(_v2_client),
        "ChangeInvisibleDuration": Row(_v2_both(SUB, SUB)),
        "RecallMessage": Row(_v2_topic(PUB)),
        "SyncLiteSubscription": Row(_v2_both(SUB, SUB)),
    },
    "apache.rocketmq.v2.Admin": {
        "ChangeLogLevel": Row(_cluster(_UPDATE), audit=Audit.ACT),
        "DescribeTopicStatus": Row(_v2_topic(SEE)),
        "ListSubscription": Row(_v2_subscriptions, is_query=True),
        "DescribeSubscription": Row(_v2_subscriptions, is_query=True),
        "DeleteSubscription": Row(_v2_group(_UPDATE), audit=Audit.ACT),
        "DescribeGroupAccumulation": Row(_v2_group(SEE), is_query=True),
        "ListConsumerConnection": Row(_v2_group(SEE)),
        "ResetGroupOffset": Row(_v2_both(_UPDATE, SEE), audit=Audit.ACT),
        "QueryMessage": Row(_v2_query_message, audit=Audit.READ, is_query=True),
        "PrintThreadStackTrace": Row(_v2_group(Action.COMMAND), audit=Audit.ACT),
        "VerifyMessage": Row(_v2_verify, audit=Audit.ACT, is_query=True),
        "AdminSendMessage": Row(_v2_admin_send, audit=Audit.ACT),
        "GetConsumerRunningInfo": Row(_v2_group(Action.GET | Action.COMMAND)),
        "GetTopicRoute": Row(_v2_topic(KNOW)),
        "QueryTimeSpan": Row(_v2_group(SEE), is_query=True),
        "GetProxyRuntimeStats": Row(_cluster(Action.GET)),
    },
    "grpc.health.v1.Health": {"Check": _OPEN, "List": _OPEN, "Watch": _OPEN},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": _USER},
}

ROWS: Final[dict[str, Row]] = {
    f"/{service}/{method}": row for service, methods in _SERVICES.items() for method, row in methods.items()
}
