"""Bodies of routes, in RocketMQ's JSON (TopicRouteData, ClusterInfo, TopicList), before they are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MASTER: Final = "0"
"""The id of the only broker of a name that clients write to."""
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Of the topic of a cluster, by whose route clients send replies to requests. No message is stored there."""
PERM_READ: Final = 4
PERM_READ_WRITE: Final = 6


class RoutedQueues(NamedTuple):
    """The queues of a topic on one broker. `address`: HOST:PORT, the one in the records' STOREHOST."""

    cluster: str
    broker: str
    address: str
    perm: int
    read_queue_count: int
    write_queue_count: int
    topic_sys_flag: int = 0


class RoutedBroker(NamedTuple):
    """`address`: HOST:PORT."""

    cluster: str
    name: str
    address: str


def topic_route_data(queues: Sequence[RoutedQueues]) -> dict[str, object]:
    return {
        "brokerDatas": [_broker_data(RoutedBroker(one.cluster, one.broker, one.address)) for one in queues],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": one.broker,
                "perm": one.perm,
                "readQueueNums": one.read_queue_count,
                "topicSysFlag": one.topic_sys_flag,
                "writeQueueNums": one.write_queue_count,
            }
            for one in queues
        ],
    }


def cluster_info(brokers: Iterable[RoutedBroker]) -> dict[str, object]:
    found = sorted(brokers)
    clusters: dict[str, list[str]] = {}
    for one in found:
        clusters.setdefault(one.cluster, []).append(one.name)
    return {
        "brokerAddrTable": {one.name: _broker_data(one) for one in found},
        "clusterAddrTable": clusters,
    }


def topic_list(names: Iterable[str]) -> dict[str, object]:
    return {"topicList": sorted(names)}


def _broker_data(one: RoutedBroker) -> dict[str, object]:
    return {
        "brokerAddrs": {MASTER: one.address},
        "brokerName": one.name,
        "cluster": one.cluster,
        "enableActingMaster": False,
    }
