"""The losses of a broker's removal, where messages move or hide while they are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trovemq._admin import removal
from trovemq._admin.removal import remainders
from trovemq.models.broker import Remainder
from trovemq.models.cluster import BrokerInfo, BrokerStatistics, ClusterState, TopicDescription
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

INFO = BrokerInfo("c", "b1", "127.0.0.1:1")


class Broker:
    """Answers `statistics` with one set of counters after the other; its topics are empty."""

    def __init__(self, *counters: dict[str, int], topics: Sequence[str] = ()) -> None:
        self._counters = [*counters]
        self._topics = topics

    async def statistics(self) -> BrokerStatistics:
        counters = self._counters.pop(0) if len(self._counters) > 1 else self._counters[0]
        return cast(BrokerStatistics, SimpleNamespace(counters=counters))

    async def list_topics(self, include_system: bool) -> list[TopicDescription]:
        assert include_system
        return [TopicDescription(name, 1, "NORMAL", True, (), "b1", {}) for name in self._topics]

    async def list_all(self) -> list[Any]:
        return []


def counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[Remainder, ...]:
    pool = SimpleNamespace(
        connection=lambda info: broker, routes=SimpleNamespace(state=ClusterState((), 1, ()))
    )
    monkeypatch.setattr(removal, "GroupCalls", lambda connection, name: connection)
    return asyncio.run(remainders(cast(Any, pool), INFO))


@pytest.mark.parametrize(
    ("counter", "kind"),
    [("timers_pending", "delayed"), ("half_messages", "half_messages"), ("atomic_open", "transactions")],
)
def test_a_message_that_moved_while_it_was_counted_was_in_no_count(
    counter: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for looks in ((1, 0), (0, 1)):
        assert counted(Broker(*({counter: count} for count in looks)), monkeypatch) == (Remainder(kind, 1),)
    assert counted(Broker({counter: 0}), monkeypatch) == ()


def test_a_broker_looked_empty_to_a_user_who_does_not_see_its_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TroveError, match="sees 1 of the 2 topics on b1") as caught:
        counted(Broker({"topics": 2}, topics=("a",)), monkeypatch)
    assert caught.value.spec is errors.ACCESS_DENIED
    assert counted(Broker({"topics": 2}, {"topics": 1}, topics=("a",)), monkeypatch) == (), "one was deleted"


def test_a_group_of_more_queues_than_one_answer_has_ended_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of its topics are put together; one that was deleted meanwhile is empty."""

    class Large(Broker):
        async def list_all(self) -> list[Any]:
            return [SimpleNamespace(group="billing", topics=("a", "b", "gone"))]

        async def lag(self, group: str, topic: str) -> list[Any]:
            if not topic:
                raise TroveError(errors.LIMIT_EXCEEDED, "the group reads more than 10000 queues")
            if topic == "gone":
                raise TroveError(errors.TOPIC_NOT_FOUND, topic)
            return [SimpleNamespace(topic=topic, lag=2)] * 2

    broker = Large({"topics": 0})
    expected = [Remainder("unconsumed", 4, topic, "billing") for topic in ("a", "b")]
    assert [one for one in counted(broker, monkeypatch) if one.kind == "unconsumed"] == expected
