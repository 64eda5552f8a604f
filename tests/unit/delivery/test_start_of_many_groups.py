"""A start with many groups: its work grows with the queues that they read, and not with their square."""

from __future__ import annotations

import pytest

from tests.support.delivery import Engine
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_proto.positions import QueueId

QUEUES = 8
GROUPS = 5


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_looked_at_all_queues_of_a_group_for_each_of_them(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 groups of 8 queues it took 10 s."""
    engine = Engine(queue_count=QUEUES)
    for queue_id in range(QUEUES):
        engine.send(f"m{queue_id}", queue_id=QueueId(queue_id))
    for group in range(GROUPS):
        assert len(engine.receive(f"g{group}", count=2)) == 2
    asked: list[tuple[str, str]] = []
    whole = GroupTopicTable.pair

    def pair(self: GroupTopicTable, group: str, topic: str) -> GroupTopic:
        asked.append((group, topic))
        return whole(self, group, topic)

    monkeypatch.setattr(GroupTopicTable, "pair", pair)
    engine.crash(flushed=True) if killed else engine.restart()
    # once for each pair, and once for each lease
    assert sorted(set(asked)) == [(f"g{group}", "orders") for group in range(GROUPS)]
    leases = sum(len(pair.leases) for _, pair in engine.delivery.group_topics.items())
    assert len(asked) <= GROUPS + leases < GROUPS * QUEUES
