"""The table of the permissions that each remoting request needs; a test compares it with the handlers.

The rows are those of `trovemq_broker.server.access.needs`. A request that stands for a call of one of
TroveMQ's services has NATIVE here: every user may send it, and its handler has the call admitted by the
call's row in that table, and audited (native_calls.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trovemq_broker.security.actions import Action, Kind
from trovemq_broker.server.access.needs import EVERY, KNOW, PUB, SEE, SUB, THIS_CLUSTER, Level, Need, Row
from trovemq_broker.server.remoting.members import consumers_of
from trovemq_broker.server.remoting.queue_locks import read_locks
from trovemq_daemon.remoting.request import Request
from trovemq_proto.remoting.codes import RequestCode
from trovemq_store.topics.names import RETRY_PREFIX


def _topic(request: Request, names: tuple[str, ...], actions: Action) -> Need:
    fields = request.header.fields
    topic = next((fields[name] for name in names if name in fields), "")
    if topic.startswith(RETRY_PREFIX):
        return Need(Kind.GROUP, topic.removeprefix(RETRY_PREFIX), SUB)
    return Need(Kind.TOPIC, topic, actions)


def _group(request: Request, names: tuple[str, ...], actions: Action) -> Need:
    fields = request.header.fields
    return Need(Kind.GROUP, next((fields[name] for name in names if name in fields), ""), actions)


def _send(request: Request) -> Iterator[Need]:
    """By the same field as the handler: a request may have both, with different topics."""
    yield _topic(request, ("topic",), PUB)


def _send_short(request: Request) -> Iterator[Need]:
    yield _topic(request, ("b",), PUB)


def _send_batch(request: Request) -> Iterator[Need]:
    yield _topic(request, ("b", "topic"), PUB)


def _pull(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB)
    yield _topic(request, ("topic",), SUB)


def _update(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB | Action.UPDATE)
    yield _topic(request, ("topic",), SUB | Action.UPDATE)


def _see(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB | Action.GET)
    if "topic" in request.header.fields:
        yield _topic(request, ("topic",), SUB | Action.GET)


def _send_back(request: Request) -> Iterator[Need]:
    """Of any message of the log: without the topic a rule for all is needed."""
    yield _group(request, ("group",), SUB)
    if request.header.fields.get("originTopic"):
        yield _topic(request, ("originTopic",), SUB)
    else:
        yield Need(Kind.TOPIC, EVERY, SUB)


def _end(request: Request) -> Iterator[Need]:
    """A client of 4.x names no topic: then a rule for all is needed."""
    yield Need(Kind.TOPIC, request.header.fields.get("topic") or EVERY, PUB)


def _know(request: Request) -> Iterator[Need]:
    yield _topic(request, ("topic",), KNOW)


def _heartbeat(request: Request) -> Iterator[Need]:
    for group, topics in consumers_of(request):
        yield Need(Kind.GROUP, group, SUB)
        for topic in topics:
            if not topic.startswith(RETRY_PREFIX):
                yield Need(Kind.TOPIC, topic, SUB)


def _locks(request: Request) -> Iterator[Need]:
    """The group is in the body, which the handler reads; a lock of another group keeps its members out."""
    yield Need(Kind.GROUP, read_locks(request).consumer_group, SUB)


def _see_topic(request: Request) -> Iterator[Need]:
    yield _topic(request, ("topic",), SEE | PUB)


def _see_group(request: Request) -> Iterator[Need]:
    """By the same field as the handler, as in each of these functions."""
    yield _group(request, ("group",), SEE)
    if request.header.fields.get("topic"):
        yield _topic(request, ("topic",), KNOW)


def _see_consumers(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SEE)
    if request.header.fields.get("topic"):
        yield _topic(request, ("topic",), KNOW)


def _reset(request: Request) -> Iterator[Need]:
    yield _group(request, ("group",), Action.UPDATE)
    yield _topic(request, ("topic",), SEE)


def _command(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), Action.COMMAND)


def _clone(request: Request) -> Iterator[Need]:
    """Its writes are admitted by the calls that make them."""
    yield _group(request, ("srcGroup",), SEE)


def _cluster(actions: Action) -> Row:
    return Row(lambda _request: (Need(Kind.CLUSTER, THIS_CLUSTER, actions),))


NATIVE: Final = Row(Level.USER)
"""Its calls have rows in needs.py."""
SHOWN: Final = Row(Level.USER)
"""The answer has the names alone that the caller may know."""

ROWS: Final[Mapping[int, Row]] = {
    RequestCode.SEND_MESSAGE: Row(_send),
    RequestCode.SEND_MESSAGE_V2: Row(_send_short),
    RequestCode.SEND_BATCH_MESSAGE: Row(_send_batch),
    RequestCode.SEND_REPLY_MESSAGE: Row(_send),
    RequestCode.SEND_REPLY_MESSAGE_V2: Row(_send_short),
    RequestCode.PULL_MESSAGE: Row(_pull),
    RequestCode.LITE_PULL_MESSAGE: Row(_pull),
    RequestCode.QUERY_CONSUMER_OFFSET: Row(_see),
    RequestCode.UPDATE_CONSUMER_OFFSET: Row(_update),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Row(_know),
    RequestCode.GET_MAX_OFFSET: Row(_know),
    RequestCode.GET_MIN_OFFSET: Row(_know),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Row(_know),
    RequestCode.HEART_BEAT: Row(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Row(Level.USER),
    RequestCode.CONSUMER_SEND_MSG_BACK: Row(_send_back),
    RequestCode.END_TRANSACTION: Row(_end),
    RequestCode.RECALL_MESSAGE: Row(_send),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Row(_see),
    RequestCode.CHECK_CLIENT_CONFIG: Row(Level.USER),
    RequestCode.LOCK_BATCH_MQ: Row(_locks),
    RequestCode.UNLOCK_BATCH_MQ: Row(_locks),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Row(_know),
    RequestCode.GET_BROKER_CLUSTER_INFO: Row(Level.USER),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: SHOWN,
    RequestCode.GET_TOPICS_BY_CLUSTER: SHOWN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Row(Level.USER),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Row(Level.USER),  # changes nothing
    RequestCode.DELETE_KV_CONFIG: Row(Level.USER),  # changes nothing
    RequestCode.GET_KV_CONFIG: Row(Level.USER),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Row(Level.USER),
    RequestCode.UPDATE_AND_CREATE_TOPIC: NATIVE,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: NATIVE,
    RequestCode.DELETE_TOPIC_IN_BROKER: NATIVE,
    RequestCode.GET_TOPIC_CONFIG: Row(_see_topic),
    RequestCode.GET_ALL_TOPIC_CONFIG: SHOWN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: SHOWN,
    RequestCode.GET_TOPIC_STATS_INFO: Row(_see_topic),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Row(_see_topic),  # and the groups that the caller may know
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: NATIVE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: NATIVE,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: NATIVE,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Row(_see_group),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SHOWN,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Row(_see_consumers),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _cluster(Action.GET),
    RequestCode.GET_ALL_PRODUCER_INFO: _cluster(Action.GET),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Row(_see_group),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Row(_see_group),
    RequestCode.GET_CONSUME_STATS: Row(_see_consumers),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Row(_see_group),
    RequestCode.GET_BROKER_CONSUME_STATS: _cluster(Action.GET),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Row(_reset),
    RequestCode.CLONE_GROUP_OFFSET: Row(_clone),
    RequestCode.QUERY_MESSAGE: NATIVE,
    RequestCode.VIEW_MESSAGE_BY_ID: NATIVE,
    RequestCode.QUERY_CONSUME_QUEUE: Row(_see_topic),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Row(_command),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Row(_command),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Row(_see_group),
    RequestCode.GET_BROKER_RUNTIME_INFO: _cluster(Action.GET),
    RequestCode.GET_BROKER_HA_STATUS: _cluster(Action.GET),
    RequestCode.VIEW_BROKER_STATS_DATA: _cluster(Action.GET),
    RequestCode.GET_BROKER_CONFIG: NATIVE,
    RequestCode.UPDATE_BROKER_CONFIG: NATIVE,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(Action.UPDATE),
    RequestCode.DELETE_EXPIRED_COMMITLOG: _cluster(Action.UPDATE),
    RequestCode.CLEAN_UNUSED_TOPIC: _cluster(Action.UPDATE),
    RequestCode.AUTH_CREATE_USER: NATIVE,
    RequestCode.AUTH_UPDATE_USER: NATIVE,
    RequestCode.AUTH_DELETE_USER: NATIVE,
    RequestCode.AUTH_GET_USER: NATIVE,
    RequestCode.AUTH_LIST_USER: NATIVE,
    RequestCode.AUTH_CREATE_ACL: NATIVE,
    RequestCode.AUTH_UPDATE_ACL: NATIVE,
    RequestCode.AUTH_DELETE_ACL: NATIVE,
    RequestCode.AUTH_GET_ACL: NATIVE,
    RequestCode.AUTH_LIST_ACL: NATIVE,
}
