"""Decides at the first use of a consumer group whether it is orderly; warns of groups that do not keep the
order of FIFO topics.

| the topics of a group's first settings (or of its first receive) | the new group               |
|------------------------------------------------------------------|-----------------------------|
| none is FIFO                                                     | delivers in any order       |
| all are FIFO                                                     | orderly                     |
| FIFO ones and others                                             | orderly, also on the others |

The last row prefers order to throughput: from a queue of another type's topic, an orderly group delivers
messages without a message group one at a time. For both, use two groups, or create the group with its order
set. An existing group is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trovemq_broker.security.creators import present_creator
from trovemq_daemon.logging import get_logger
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups
from trovemq_store.topics.topics import TopicTable

FIFO: Final = "FIFO"
WARNED_MAX: Final = 10_000


def fifo_topics(topics: TopicTable, names: Iterable[str]) -> list[str]:
    """The FIFO topics among the names, sorted."""
    return sorted(
        name for name in names if (config := topics.get(name)) is not None and config.message_type == FIFO
    )


class GroupOrder:
    """The groups of one broker. `fifo_orderly`: whether new groups are orderly by the table above; else none
    is."""

    def __init__(
        self, topics: TopicTable, groups: SubscriptionGroups, *, auto_create: bool, fifo_orderly: bool
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._auto_create = auto_create
        self._fifo_orderly = fifo_orderly
        self._warned: set[tuple[str, str]] = set()

    def for_use(self, name: str, topics: Iterable[str], now_ms: EpochMs) -> SubscriptionGroup:
        """The group, which reads these topics; an unknown one is created if settings allow that. TroveError
        GROUP_NOT_FOUND, GROUP_ILLEGAL, LIMIT_EXCEEDED."""
        group = self._groups.get(name)
        fifo = fifo_topics(self._topics, topics)
        if group is None:
            orderly = bool(fifo) and self._fifo_orderly
            group = self._groups.for_use(
                name,
                auto_create=self._auto_create,
                now_ms=now_ms,
                orderly=orderly,
                creator=present_creator(),
            )
            if orderly:
                get_logger().info("group.made_orderly", group=name, fifo_topics=fifo)
        if not group.orderly:
            for topic in fifo:
                self._warn(name, topic)
        return group

    def _warn(self, group: str, topic: str) -> None:
        """Warns once per group and topic, as long as there is space to remember that."""
        if (group, topic) in self._warned or len(self._warned) >= WARNED_MAX:
            return
        self._warned.add((group, topic))
        get_logger().warning(
            "group.order_not_kept",
            group=group,
            topic=topic,
            advice="the topic is FIFO and the group is not orderly: trovemq group alter GROUP --orderly",
        )
