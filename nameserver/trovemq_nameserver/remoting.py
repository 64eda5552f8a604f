"""Routes by RocketMQ's remoting protocol, for its clients and tools.

A topic of a draining broker may only be read there: producers leave it, consumers stay. A tool can ask for
the same at this nameserver (wipeWritePerm). That is for clients of this protocol, until the tool takes it
back or this process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import peer_of
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.remoting.server import Handler
from trovemq_daemon.turns import Steps
from trovemq_nameserver.key_values import ORDER, KeyValues
from trovemq_nameserver.routes import BrokerRoute
from trovemq_nameserver.service import Registry
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.bodies import (
    PERM_READ,
    PERM_READ_WRITE,
    REPLY_SUFFIX,
    RoutedBroker,
    RoutedQueues,
    cluster_info,
    topic_list,
    topic_route_data,
)
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.json_text import json_text

NO_SETTINGS: Final[Mapping[str, str]] = {}
STARTING_MS: Final = 3_000
"""A nameserver that has just started knows no brokers yet: its answer says so, and not that topics do not
exist, for as long as brokers need to register."""


class RemotingRoutes:
    """For use on the event loop only."""

    def __init__(self, registry: Registry, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        """`settings`: of this nameserver, as texts."""
        self._registry = registry
        self._settings = settings
        self._entries = KeyValues()
        self._closed: set[str] = set()
        """Brokers whose topics may only be read."""
        self.handlers: Final[Mapping[int, Handler]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system,
            RequestCode.GET_UNIT_TOPIC_LIST: self.none,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.none,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.none,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.forget,
            RequestCode.PUT_KV_CONFIG: self.put,
            RequestCode.GET_KV_CONFIG: self.get,
            RequestCode.DELETE_KV_CONFIG: self.delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.close_writes,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.open_writes,
            RequestCode.GET_NAMESRV_CONFIG: self.settings,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.keep_settings,
        }

    def topic(self, request: Request) -> None:
        """GET_ROUTEINFO_BY_TOPIC."""
        request.run(self._topic(request, request.fields.text("topic")))

    async def _topic(self, request: Request, name: str) -> None:
        registry = self._registry
        routes = await registry.turns.run_from_now(registry.table.routes_of([name]))
        if routes:
            data = topic_route_data([self._queues(one, name) for one in routes])
            if (order := self._entries.get(ORDER, name)) is not None:
                data["orderTopicConf"] = order
            request.answer(body=json_text(data))
        elif name.endswith(REPLY_SUFFIX) and (queues := self._of_replies(name)):
            request.answer(body=json_text(topic_route_data(queues)))
        elif registry.clock() - registry.started < STARTING_MS:
            request.answer(ResponseCode.SYSTEM_ERROR, "name server not ready")
        else:
            text = f"No topic route info in name server for the topic: {name}"
            request.answer(ResponseCode.TOPIC_NOT_EXIST, text)

    def _queues(self, route: BrokerRoute, topic: str) -> RoutedQueues:
        broker, count = route.broker, route.topics[topic].queue_count
        is_closed = broker.draining or broker.name in self._closed
        perm = PERM_READ if is_closed else PERM_READ_WRITE
        return RoutedQueues(broker.cluster, broker.name, broker.address, perm, count, count)

    def _of_replies(self, name: str) -> list[RoutedQueues]:
        """Of the topic of a cluster's replies, which no broker stores."""
        brokers = (one.broker for one in self._registry.table.routes())
        return [
            RoutedQueues(one.cluster, one.name, one.address, PERM_READ_WRITE, 1, 1)
            for one in brokers
            if one.cluster + REPLY_SUFFIX == name
        ]

    def cluster(self, request: Request) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        brokers = [one.broker for one in self._registry.table.routes()]
        found = cluster_info(RoutedBroker(one.cluster, one.name, one.address) for one in brokers)
        request.answer(body=json_text(found))

    def topics(self, request: Request) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        request.answer(body=json_text(topic_list(self._registry.table.names)))

    def of_cluster(self, request: Request) -> None:
        """GET_TOPICS_BY_CLUSTER."""
        request.run(self._of_cluster(request, request.fields.text("cluster")))

    async def _of_cluster(self, request: Request, cluster: str) -> None:
        names = await self._registry.turns.run_from_now(self._names_of(cluster))
        request.answer(body=json_text(topic_list(names)))

    def _names_of(self, cluster: str) -> Steps[set[str]]:
        names: set[str] = set()
        for route in list(self._registry.table.routes()):
            if route.broker.cluster == cluster:
                names.update(route.topics)
                yield
        return names

    def system(self, request: Request) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS: the names of clusters and brokers, and the address of a broker,
        which the tool asks for its system topics."""
        brokers = [one.broker for one in self._registry.table.routes()]
        body = topic_list({name for one in brokers for name in (one.cluster, one.name)})
        request.answer(body=json_text({**body, **({"brokerAddr": brokers[0].address} if brokers else {})}))

    @staticmethod
    def none(request: Request) -> None:
        """Lists of topics of units, which nothing here has."""
        request.answer(body=json_text(topic_list(())))

    @staticmethod
    def forget(request: Request) -> None:
        """DELETE_TOPIC_IN_NAMESRV: a topic leaves the routes when its brokers have deleted it."""
        request.answer()

    # --- tools ------------------------------------------------------------------------------------------
    def close_writes(self, request: Request) -> None:
        """WIPE_WRITE_PERM_OF_BROKER, from this machine: producers leave the broker. TroveError
        ACCESS_DENIED."""
        name, count = self._topics_of(request)
        self._closed = {one for one in self._closed if self._registry.table.route_named(one) is not None}
        if count:
            self._closed.add(name)
        get_logger().info("broker.writes_closed", broker=name, topics=count, peer=request.connection.peer)
        request.answer(fields={"wipeTopicCount": str(count)})

    def open_writes(self, request: Request) -> None:
        """ADD_WRITE_PERM_OF_BROKER, from this machine. TroveError ACCESS_DENIED."""
        name, count = self._topics_of(request)
        self._closed.discard(name)
        get_logger().info("broker.writes_opened", broker=name, topics=count, peer=request.connection.peer)
        request.answer(fields={"addTopicCount": str(count)})

    def _topics_of(self, request: Request) -> tuple[str, int]:
        """The broker that the request names, and the number of its topics; 0 for one that is not here."""
        name = request.fields.text("brokerName")
        _check_is_local(request)
        route = self._registry.table.route_named(name)
        return name, 0 if route is None else len(route.topics)

    def settings(self, request: Request) -> None:
        """GET_NAMESRV_CONFIG, from this machine. TroveError ACCESS_DENIED."""
        _check_is_local(request)
        lines = (f"{name}={value}\n" for name, value in sorted(self._settings.items()))
        request.answer(body="".join(lines).encode())

    @staticmethod
    def keep_settings(request: Request) -> None:
        """UPDATE_NAMESRV_CONFIG: none of them changes while the process runs."""
        text = "settings of a nameserver change when it is started again: --set NAME=VALUE, or its file"
        request.answer(ResponseCode.NO_PERMISSION, text)

    # --- entries ----------------------------------------------------------------------------------------
    def put(self, request: Request) -> None:
        """PUT_KV_CONFIG, from this machine. TroveError ACCESS_DENIED."""
        fields = request.fields
        namespace, key, value = fields.text("namespace"), fields.text("key"), fields.text("value")
        _check_is_local(request)
        self._entries.put(namespace, key, value)
        get_logger().info(
            "entry.put", namespace=namespace, key=key, value=value, peer=request.connection.peer
        )
        request.answer()

    def get(self, request: Request) -> None:
        fields = request.fields
        namespace, key = fields.text("namespace"), fields.text("key")
        value = self._entries.get(namespace, key)
        if value is None:
            text = f"No config item, Namespace: {namespace} Key: {key}"
            request.answer(ResponseCode.QUERY_NOT_FOUND, text)
        else:
            request.answer(fields={"value": value})

    def delete(self, request: Request) -> None:
        """DELETE_KV_CONFIG, from this machine. TroveError ACCESS_DENIED."""
        fields = request.fields
        namespace, key = fields.text("namespace"), fields.text("key")
        _check_is_local(request)
        self._entries.delete(namespace, key)
        get_logger().info("entry.deleted", namespace=namespace, key=key, peer=request.connection.peer)
        request.answer()

    def list(self, request: Request) -> None:
        namespace = request.fields.text("namespace")
        found = self._entries.of(namespace)
        if found:
            request.answer(body=json_text({"table": found}))
        else:
            text = f"No config item, Namespace: {namespace}"
            request.answer(ResponseCode.QUERY_NOT_FOUND, text)


def _check_is_local(request: Request) -> None:
    """Callers of this protocol do not log in here, and a change is for all clients. TroveError
    ACCESS_DENIED."""
    if not peer_of(request.connection.peer, {}).is_private:
        text = "this is for callers on the nameserver's machine: run mqadmin there, with -n 127.0.0.1:PORT"
        raise TroveError(errors.ACCESS_DENIED, text)
