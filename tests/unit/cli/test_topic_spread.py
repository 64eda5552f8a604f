"""`trovemq topic spread`: its steps as objects and as text; what `broker drain` says about FIFO topics."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from trovemq import (
    BrokerInfo,
    BrokerRoute,
    ClusterState,
    DrainStatus,
    QueueRemainder,
    TopicRoute,
    TopicSpread,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

BEFORE, AFTER = {"b1": 2}, {"b1": 2, "b2": 2}
LEFT = (QueueRemainder("workers", "b1", 1, 7), QueueRemainder("", "b3", -1, 0))
STEPS = [
    TopicSpread("steps", "closing", BEFORE),
    TopicSpread("steps", "waiting", BEFORE, left=LEFT),
    TopicSpread("steps", "waiting", BEFORE, left=LEFT),
    TopicSpread("steps", "moving", AFTER, pending=("b2",)),
    TopicSpread("steps", "settling", AFTER),
    TopicSpread("steps", "done", AFTER, pending=("b3",)),
]


class Cluster:
    """`breaks`: the state in which the spread fails, and its error; None is Ctrl-C."""

    def __init__(self, breaks: tuple[str, TroveError | None] = ("", None)) -> None:
        self.breaks = breaks
        self.asked: Any = None
        self.closed = 0

    @property
    def admin(self) -> Cluster:
        return self

    brokers = admin

    async def close(self) -> None:
        """It has no connection."""

    async def spreading(
        self, topic: str, brokers: Sequence[str], queue_count: int | None, **options: Any
    ) -> AsyncGenerator[TopicSpread]:
        self.asked = topic, brokers, queue_count, options
        try:
            for step in STEPS:
                yield step
                if step.state == self.breaks[0]:
                    if self.breaks[1] is not None:
                        raise self.breaks[1]
                    signal.raise_signal(signal.SIGINT)
                    await asyncio.sleep(60)
        finally:
            self.closed += 1

    async def cluster(self) -> ClusterState:
        topics = (
            TopicRoute("steps", 2, "FIFO", AFTER),
            TopicRoute("free", 2, "FIFO"),
            TopicRoute("orders", 2),
        )
        infos = [BrokerInfo("c", name, "10.0.0.1:8081") for name in ("b1", "b2", "b3")]
        return ClusterState(tuple(BrokerRoute(info, topics) for info in infos))

    async def awaited(self, _broker: str, *, within_s: float) -> ClusterState:
        return await self.cluster()

    async def drain(self, broker: str, **_: Any) -> DrainStatus:
        return DrainStatus(broker, "drained", False, 0)


def spread(run: Any, cluster: Cluster, *words: str) -> Any:
    run.client = cluster
    return run(*words, "topic", "spread", "steps", "--brokers", "b1, b2", "--settle", "1s")


def test_each_step_is_an_object(run: Any) -> None:
    cluster = Cluster()
    ran = spread(run, cluster, "--json")
    assert ran.code == 0
    assert [one["state"] for one in ran.objects] == ["closing", "waiting", "moving", "settling", "done"]
    assert ran.objects[1] == {
        "topic": "steps",
        "state": "waiting",
        "placement": BEFORE,
        "pending": [],
        "left": [
            {"group": "workers", "broker": "b1", "queueId": 1, "count": 7},
            {"group": None, "broker": "b3", "queueId": -1, "count": 0},
        ],
    }
    assert ran.note == {"pending": ["b3"]}
    assert cluster.asked == ("steps", ["b1", "b2"], None, {"settle_s": 1.0, "accept_disorder": False})


def test_people_see_where_the_topic_lies_now(run: Any) -> None:
    ran = spread(run, Cluster())
    assert ran.code == 0
    assert b"b1 2, b2 2" in ran.out
    assert b"b3" in ran.out, "it makes the change later"


@pytest.mark.parametrize(
    ("state", "said"), [("waiting", "open again"), ("moving", "still closed"), ("settling", "still closed")]
)
def test_ctrl_c_says_in_which_state_the_topic_is(run: Any, state: str, said: str) -> None:
    cluster = Cluster((state, None))
    ran = spread(run, cluster)
    assert (ran.code, cluster.closed) == (130, 1)
    assert said in ran.err


def test_an_error_of_the_spread_is_the_answer(run: Any) -> None:
    cluster = Cluster(("waiting", TroveError(errors.CONFIG_OWNER_UNREACHABLE, "the owner is away")))
    ran = spread(run, cluster, "--json")
    assert (ran.code, ran.note["error"]) == (1, "CONFIG_OWNER_UNREACHABLE")


@pytest.mark.parametrize("brokers", ["", ",", "b1,b1"])
def test_brokers_without_names_are_refused(run: Any, brokers: str) -> None:
    run.client = Cluster()
    ran = run("topic", "spread", "steps", "--brokers", brokers)
    assert ran.code == 2
    assert run.client.asked is None


def test_a_drain_did_not_say_that_fifo_topics_wait_for_the_broker(run: Any) -> None:
    run.client = Cluster()
    ran = run("broker", "drain", "b1")
    assert "trovemq topic spread steps --brokers b2,b3" in ran.err
    assert "free" not in ran.err, "its groups move: the cluster's configuration has no owner"
    assert run("--json", "broker", "drain", "b1").note == {"fifoTopics": ["steps"]}
    assert "spread" not in run("broker", "drain", "b3").err


def test_a_topic_that_is_closed_is_described_so(run: Any) -> None:
    run.client.topics["orders"] = 1
    run.client.topic_options["orders"] = {"writes": "closed"}
    assert b"orders is closed on broker-a: its senders wait" in run("topic", "describe", "orders").out
