"""The part of a reply that a caller may see, and the request of a caller who may not see all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from trovemq_broker.security.actions import Kind
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import admin_pb2, cluster_config_pb2, group_pb2, route_pb2, transaction_pb2

MaySee: TypeAlias = Callable[[Kind, str], bool]
"""Whether the caller may know that the resource exists."""

_SHOWN_KINDS: Final = {"topic": Kind.TOPIC, "group": Kind.GROUP}


def show_topics(reply: admin_pb2.ListTopicsReply, may_see: MaySee) -> admin_pb2.ListTopicsReply:
    """The topics that the caller may know."""
    return admin_pb2.ListTopicsReply(topics=[one for one in reply.topics if may_see(Kind.TOPIC, one.topic)])


def show_statistics(reply: admin_pb2.Statistics, may_see: MaySee) -> admin_pb2.Statistics:
    """The same statistics, with the topics that the caller may know."""
    kept = [one for one in reply.topics if may_see(Kind.TOPIC, one.topic)]
    del reply.topics[:]
    reply.topics.extend(kept)
    return reply


def show_groups(reply: group_pb2.ListGroupsReply, may_see: MaySee) -> group_pb2.ListGroupsReply:
    """The groups that the caller may know, each with such topics only."""
    seen = group_pb2.ListGroupsReply(groups=[one for one in reply.groups if may_see(Kind.GROUP, one.group)])
    for group in seen.groups:
        show_group(group, may_see)
    return seen


def show_group(group: group_pb2.GroupDescription, may_see: MaySee) -> group_pb2.GroupDescription:
    """The same description, with the topics that the caller may know."""
    group.topics[:] = [topic for topic in group.topics if may_see(Kind.TOPIC, topic)]
    group.unordered_topics[:] = [topic for topic in group.unordered_topics if may_see(Kind.TOPIC, topic)]
    return group


def show_routes(reply: route_pb2.ClusterReply, may_see: MaySee) -> route_pb2.ClusterReply:
    """All brokers, with the topics that the caller may know."""
    seen = route_pb2.ClusterReply(version=reply.version)
    for broker in reply.brokers:
        shown = seen.brokers.add()
        shown.CopyFrom(broker)
        del shown.topics[:]
        del shown.removed_topics[:]
        shown.topics.extend(one for one in broker.topics if may_see(Kind.TOPIC, one.topic))
    return seen


def show_config_status(
    status: cluster_config_pb2.ConfigStatus, may_see: MaySee
) -> cluster_config_pb2.ConfigStatus:
    """The same status, without users, rules and quotas, which super users list alone, and without topics and
    groups that the caller may not know."""
    for names in (status.unlisted, status.differing, status.withheld, status.dropped, status.failed):
        kept = [one for one in names if _may_see_name(one, may_see)]
        del names[:]
        names.extend(kept)
    return status


def _may_see_name(one: cluster_config_pb2.ConfigName, may_see: MaySee) -> bool:
    if one.kind in _SHOWN_KINDS:
        return may_see(_SHOWN_KINDS[one.kind], one.name)
    return one.kind == "broker"


def without_changes(request: route_pb2.WatchRoutesRequest) -> None:
    """A change of rules may change what the caller sees, so each reply has the whole state."""
    request.changes = False


def show_transaction(
    reply: transaction_pb2.TransactionReply, may_see: MaySee
) -> transaction_pb2.TransactionReply:
    """A transaction with a topic that the caller may not know is reported as unknown."""
    if not all(may_see(Kind.TOPIC, topic) for topic in reply.topics):
        raise TroveError(errors.TRANSACTION_NOT_FOUND)
    return reply
