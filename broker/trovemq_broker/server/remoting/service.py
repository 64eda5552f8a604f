"""The table of the remoting requests that a broker answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import Members
from trovemq_broker.server.remoting.offsets import Offsets
from trovemq_broker.server.remoting.pulling import Pulls
from trovemq_broker.server.remoting.queue_locks import QueueLocks
from trovemq_broker.server.remoting.retries import Retries
from trovemq_broker.server.remoting.routing import RouteAnswers, RouteData
from trovemq_broker.server.remoting.sending import Sends
from trovemq_broker.server.remoting.transactions import Transactions
from trovemq_daemon.remoting.server import Handler
from trovemq_proto.remoting.codes import RequestCode


class RemotingService:
    """`route_data`: returns the TopicRouteData of a topic; `addresses`: of the brokers, by name."""

    def __init__(
        self, core: BrokerCore, route_data: RouteData, addresses: Callable[[], Mapping[str, str]]
    ) -> None:
        self.members: Final = Members(core)
        retries = Retries(core)
        sends = Sends(core, retries)
        offsets = Offsets(core)
        pulls = Pulls(core, self.members, offsets)

        def check_order() -> None:
            if (check := core.delivery.check_delivery) is not None:
                check(in_order=True)

        locks = QueueLocks(core.clock_ms, check_order)
        self.members.on_gone = locks.release
        self.transactions: Final = Transactions(core, self.members)
        routes = RouteAnswers(core, route_data, addresses)
        self.handlers: Final[Mapping[int, Handler]] = {
            RequestCode.SEND_MESSAGE: sends.send,
            RequestCode.SEND_MESSAGE_V2: sends.send_short,
            RequestCode.SEND_BATCH_MESSAGE: sends.send_batch,
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
            RequestCode.LOCK_BATCH_MQ: locks.lock,
            RequestCode.UNLOCK_BATCH_MQ: locks.unlock,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: routes.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.topics,
        }
