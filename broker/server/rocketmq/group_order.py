"""Whether a consumer group keeps the order of FIFO topics: decided at its first use; warned of where not.

| the topics of a group's first settings (or of its first receive) | the group that is made      |
|------------------------------------------------------------------|-----------------------------|
| none is FIFO                                                     | delivers in any order       |
| all are FIFO                                                     | orderly                     |
| FIFO ones and others                                             | orderly, also on the others |

The last row puts order before throughput: of a topic of another type, an orderly group delivers the messages
without a message group one at a time, a queue. For both, use two groups, or create one with its order set. A
group that is there already is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.security.creators import present_creator
from trovemq_daemon.logging import get_logger
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups
from trovemq_store.topics.topics import TopicTable

FIFO: Final = "FIFO"
WARNED_MAX: Final = 10_000


def fifo_topics(topics: TopicTable, names: Iterable[str]) -> list[str]:
    """The topics of type FIFO among the names, sorted."""
    return sorted(
        name for name in names if (config := topics.get(name)) is not None and config.message_type == FIFO
    )


class GroupOrder:
    """The groups of one broker. `fifo_orderly`: groups are made orderly as above; else never."""

    def __init__(
        self, topics: TopicTable, groups: SubscriptionGroups, *, auto_create: bool, fifo_orderly: bool
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._auto_create = auto_create
        self._fifo_orderly = fifo_orderly
        self._warned: set[tuple[str, str]] = set()

    def for_use(self, name: str, topics: Iterable[str], now_ms: EpochMs) -> SubscriptionGroup:
        """The group, which reads these topics; made where it is new. As SubscriptionGroups.for_use()."""
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
        """Once each, as long as there is space to remember it."""
        if (group, topic) in self._warned or len(self._warned) >= WARNED_MAX:
            return
        self._warned.add((group, topic))
        get_logger().warning(
            "group.order_not_kept",
            group=group,
            topic=topic,
            advice="the topic is FIFO and the group is not orderly: trovemq group alter GROUP --orderly",
        )
