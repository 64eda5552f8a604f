"""The table of the remoting requests that a broker answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.broker_admin import BrokerAdmin, Surroundings
from trovemq_broker.server.remoting.client_commands import PassedOn
from trovemq_broker.server.remoting.connections import Connections
from trovemq_broker.server.remoting.group_admin import GroupAdmin
from trovemq_broker.server.remoting.lock_records import LockRecords
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_broker.server.remoting.progress import Progress
from trovemq_broker.server.remoting.pulling import Pulls
from trovemq_broker.server.remoting.queries import OneMore, Queries
from trovemq_broker.server.remoting.queue_locks import QueueLocks
from trovemq_broker.server.remoting.recalls import Recalls
from trovemq_broker.server.remoting.replies import Replies
from trovemq_broker.server.remoting.retries import Retries
from trovemq_broker.server.remoting.routing import RouteAnswers, RouteData
from trovemq_broker.server.remoting.sending import Sends
from trovemq_broker.server.remoting.stats import GroupCounts, Stats
from trovemq_broker.server.remoting.topic_admin import PlacementOf, TopicAdmin
from trovemq_broker.server.remoting.transactions import Transactions
from trovemq_broker.server.remoting.user_admin import UserAdmin
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.remoting.server import Handler
from trovemq_proto.remoting.codes import RequestCode


class ForTools(NamedTuple):
    """The needs of tools' requests beside the core. `placement_of`: queues by broker of a topic of the
    cluster's configuration; `one_more`: a block around a query; `around`: of the broker."""

    placement_of: PlacementOf
    one_more: OneMore
    around: Surroundings


class RemotingService:
    """`route_data`: returns the TopicRouteData of a topic; `addresses`: of the brokers, by name."""

    def __init__(
        self,
        core: BrokerCore,
        route_data: RouteData,
        addresses: Callable[[], Mapping[str, str]],
        tools: ForTools,
    ) -> None:
        self.members: Final = Members(core)
        self.calls: Final = NativeCalls()
        self.transactions: Final = Transactions(core, self.members)
        self.admin: Final = BrokerAdmin(core, self.calls, tools.around)
        self._counts: Final = GroupCounts()
        self._stats: Final = Stats(core, self._counts, core.clock_ms, tools.around.started_ms)
        self.handlers: Final[Mapping[int, Handler]] = {
            **self._of_clients(core),
            **self._of_routes(RouteAnswers(core, self.calls, route_data, addresses)),
            **self._of_topics(TopicAdmin(core, self.calls, self.members, tools.placement_of)),
            **self._of_groups(core),
            **self._of_messages(core, Queries(core, self.calls, tools.one_more)),
            **self._of_broker(),
            **self._of_users(UserAdmin(self.calls)),
        }

    def _of_clients(self, core: BrokerCore) -> dict[int, Handler]:
        retries = Retries(core, self._counts)
        sends = Sends(core, retries)
        sends.on_request = self.members.requests
        replies = Replies(core, self.members)
        offsets = Offsets(core, self.members)
        pulls = Pulls(core, self.members, offsets, self._counts)

        def check_order(request: Request, group: str) -> None:
            self.members.check_kind(request.connection, group)
            if (check := core.delivery.check_delivery) is not None:
                check(in_order=True)

        records = LockRecords(core)
        locks = QueueLocks(core.clock_ms, check_order, records)
        records.present = locks.of_group
        self.members.on_gone = locks.release
        return {
            RequestCode.SEND_MESSAGE: sends.send,
            RequestCode.SEND_MESSAGE_V2: sends.send_short,
            RequestCode.SEND_BATCH_MESSAGE: sends.send_batch,
            RequestCode.SEND_REPLY_MESSAGE: replies.send,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.send_short,
            RequestCode.PULL_MESSAGE: pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: pulls.pull,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
            RequestCode.GET_MAX_OFFSET: offsets.maximum,
            RequestCode.GET_MIN_OFFSET: offsets.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
            RequestCode.HEART_BEAT: self.members.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.members.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members.list_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.members.check_config,
            RequestCode.CONSUMER_SEND_MSG_BACK: retries.send_back,
            RequestCode.END_TRANSACTION: self.transactions.end,
            RequestCode.RECALL_MESSAGE: Recalls(core).recall,
            RequestCode.LOCK_BATCH_MQ: locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
        }

    @staticmethod
    def _of_routes(routes: RouteAnswers) -> dict[int, Handler]:
        """Of a nameserver: a client may name the broker instead."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: routes.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: routes.topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: routes.system,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: routes.forget,
            RequestCode.DELETE_KV_CONFIG: routes.forget,
            RequestCode.GET_KV_CONFIG: routes.no_entry,
            RequestCode.GET_KVLIST_BY_NAMESPACE: routes.no_entry,
        }

    @staticmethod
    def _of_topics(topics: TopicAdmin) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.GET_TOPIC_CONFIG: topics.one,
            RequestCode.GET_ALL_TOPIC_CONFIG: topics.all,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system,
            RequestCode.GET_TOPIC_STATS_INFO: topics.statistics,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.groups,
        }

    def _of_groups(self, core: BrokerCore) -> dict[int, Handler]:
        groups = GroupAdmin(core, self.calls)
        progress = Progress(core, self.calls, self.members)
        connections = Connections(core, self.calls, self.members)
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.one,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_group,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.of_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: connections.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: connections.topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.subscription,
            RequestCode.GET_CONSUME_STATS: progress.statistics,
            RequestCode.QUERY_CONSUME_TIME_SPAN: progress.time_span,
            RequestCode.GET_BROKER_CONSUME_STATS: progress.of_broker,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: progress.reset,
            RequestCode.CLONE_GROUP_OFFSET: progress.clone,
        }

    def _of_messages(self, core: BrokerCore, queries: Queries) -> dict[int, Handler]:
        passed_on = PassedOn(core, self.calls, self.members, queries)
        return {
            RequestCode.QUERY_MESSAGE: queries.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: queries.by_place,
            RequestCode.QUERY_CONSUME_QUEUE: queries.units,
            RequestCode.GET_CONSUMER_RUNNING_INFO: passed_on.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: passed_on.consume,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: passed_on.offsets,
        }

    def _of_broker(self) -> dict[int, Handler]:
        admin = self.admin
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: admin.runtime,
            RequestCode.GET_BROKER_HA_STATUS: admin.copies,
            RequestCode.VIEW_BROKER_STATS_DATA: self._stats.view,
            RequestCode.GET_BROKER_CONFIG: admin.settings,
            RequestCode.UPDATE_BROKER_CONFIG: admin.update_settings,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: admin.nothing_to_do,
            RequestCode.DELETE_EXPIRED_COMMITLOG: admin.nothing_to_do,
            RequestCode.CLEAN_UNUSED_TOPIC: admin.nothing_to_do,
        }

    @staticmethod
    def _of_users(users: UserAdmin) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: users.create_user,
            RequestCode.AUTH_UPDATE_USER: users.update_user,
            RequestCode.AUTH_DELETE_USER: users.delete_user,
            RequestCode.AUTH_GET_USER: users.get_user,
            RequestCode.AUTH_LIST_USER: users.list_users,
            RequestCode.AUTH_CREATE_ACL: users.put_acl,
            RequestCode.AUTH_UPDATE_ACL: users.put_acl,
            RequestCode.AUTH_DELETE_ACL: users.delete_acl,
            RequestCode.AUTH_GET_ACL: users.get_acl,
            RequestCode.AUTH_LIST_ACL: users.list_acls,
        }
