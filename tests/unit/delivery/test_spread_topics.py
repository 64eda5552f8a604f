"""A topic that the cluster spreads to a broker is read from its beginning by the groups that were there."""

from __future__ import annotations

import pytest

from tests.support.delivery import Engine, bodies
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_store.topics.config_marks import ConfigId, marked
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.topics import TopicConfig

MARK = "0123456789abcdef"


def received(placed: int | None, group: ConfigId | None, *, new_group_start: str = "end") -> list[str]:
    """What group `g` gets of topic `orders`, which had a message before the group first received here."""
    made = Engine(ConsumerSettings(new_group_start=new_group_start), topic="other")  # type: ignore[arg-type]
    attributes = marked({}, ConfigId(1, MARK, 5), placed=placed)
    change, _ = made.store.topics.begin_put_all([TopicConfig("orders", 1, 1, attributes=attributes)])
    assert change is not None
    change.run()
    made.store.topics.finish(change)
    made.groups.create(SubscriptionGroup("g", attributes=marked({}, group)))
    made.send("before")
    first = made.receive("g")
    made.send("after")
    return bodies([*first, *made.receive("g")])


@pytest.mark.parametrize(
    ("placed", "group", "expected"),
    [
        (9, ConfigId(1, MARK, 3), ["before", "after"]),  # it may have read the topic on another broker
        (9, None, ["before", "after"]),  # its first use made it: nobody knows how old it is
        (9, ConfigId(2, MARK, 12), ["after"]),  # a new group, by new_group_start
        (None, ConfigId(1, MARK, 3), ["after"]),  # the topic was here from its beginning
    ],
)
def test_messages_sent_to_a_spread_topic_before_the_first_receive_were_missed(
    placed: int | None, group: ConfigId | None, expected: list[str]
) -> None:
    assert received(placed, group) == expected
