"""The removal of a broker from the cluster: no topic lies on it any more, and it is no member."""

from __future__ import annotations

from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX
from trovemq_broker.cluster_config.table import ConfigTable


def member_removal(table: ConfigTable, broker: str) -> list[ConfigChange]:
    """The next changes, as many as one write may have; the last one deletes the member. None if it is none.

    A topic that lies on no other broker keeps its placement: it is there again if the broker joins again.
    """
    member = table.live(Kind.BROKER, broker)
    if member is None:
        return []
    changes = [
        ConfigChange(
            ChangeKind.ALTER,
            Kind.TOPIC,
            topic.name,
            topic.version,
            topic.settings,
            {name: queues for name, queues in topic.placement.items() if name != broker},
        )
        for topic in table
        if topic.kind is Kind.TOPIC
        and not topic.deleted
        and broker in topic.placement
        and len(topic.placement) > 1
    ]
    if len(changes) >= CHANGES_AT_ONCE_MAX:
        return changes[:CHANGES_AT_ONCE_MAX]
    return [*changes, ConfigChange(ChangeKind.DELETE, Kind.BROKER, broker, member.version)]
