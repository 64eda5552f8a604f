"""The steps in which a topic's placement changes; the cluster is a fake one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq._admin.spreading import Spreading, placement_on
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import QueueRemainder, TopicDescription, TopicQueue, TopicSpread
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

BEFORE = {"a": 2, "b": 2}


@dataclass
class FakeCluster:
    """Brokers that make each change `late` questions after it, and groups that consume one each time."""

    kind: str = "FIFO"
    placement: dict[str, int] = field(default_factory=lambda: dict(BEFORE))
    writes: str = "open"
    left: int = 3
    late: int = 0
    away: set[str] = field(default_factory=set)
    changes: list[tuple[dict[str, int], dict[str, str]]] = field(default_factory=list)
    now: float = 0.0
    looks: int = 0
    changed_at: int = 0
    seen: tuple[dict[str, int], str] = field(default_factory=lambda: (dict(BEFORE), "open"))
    failure: TroveError | None = None

    def spreading(self) -> Spreading:
        return Spreading(
            "steps",
            self.describe,
            self.alter,
            self.left_on,
            settle_s=1.0,
            clock_s=lambda: self.now,
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def description(self, broker: str, placement: Mapping[str, int], writes: str) -> TopicDescription:
        queues = tuple(TopicQueue(number, 0, 0, 0) for number in range(placement.get(broker, 2)))
        options = {} if writes == "open" else {"writes": writes}
        return TopicDescription(
            "steps", len(queues), self.kind, False, queues, broker, options, placement=placement
        )

    async def describe(self) -> BrokerAnswers[TopicDescription]:
        self.looks += 1
        if self.looks > self.changed_at + self.late:
            self.seen = dict(self.placement), self.writes
        live = sorted({*BEFORE, *self.seen[0]} - self.away)
        return BrokerAnswers([self.description(name, *self.seen) for name in live], missing=self.away)

    async def alter(self, placement: Mapping[str, int], options: Mapping[str, str]) -> TopicDescription:
        if self.failure is not None:
            raise self.failure
        self.changes.append((dict(placement), dict(options)))
        self.placement = dict(placement) or self.placement
        self.writes = options.get("writes", self.writes)
        self.changed_at = self.looks
        return self.description("a", self.placement, self.writes)

    async def left_on(self, broker: str) -> list[QueueRemainder]:
        if broker in self.away:
            raise TroveError(errors.BROKER_NOT_FOUND, broker)
        assert self.seen[1] == "closed", "else more messages come"
        self.left = max(0, self.left - 1)
        return [QueueRemainder("workers", broker, 0, self.left)] if self.left else []


async def steps_of(cluster: FakeCluster, *brokers: str, **options: Any) -> list[TopicSpread]:
    queue_count = options.pop("queue_count", None)
    steps = cluster.spreading().run(
        brokers, queue_count, accept_disorder=options.pop("accept_disorder", False)
    )
    return [step async for step in steps]


def states(steps: list[TopicSpread]) -> list[str]:
    return list(dict.fromkeys(step.state for step in steps))


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    st.lists(st.sampled_from("abcde"), min_size=1, unique=True),
)
def test_new_brokers_get_as_many_queues_as_the_others_have(
    present: dict[str, int], brokers: list[str]
) -> None:
    placed = placement_on(present, brokers, None)
    assert placed.keys() == set(brokers)
    for broker, queues in placed.items():
        assert queues == present.get(broker, max(present.values()))
    assert set(placement_on(present, brokers, 7).values()) == {7}


@pytest.mark.asyncio
async def test_a_normal_topic_is_spread_at_once() -> None:
    cluster = FakeCluster(kind="NORMAL")
    (step,) = await steps_of(cluster, "b", "c")
    assert (step.state, step.placement) == ("done", {"b": 2, "c": 2})
    assert cluster.changes == [({"b": 2, "c": 2}, {})]
    assert states(await steps_of(cluster, "b", "c")) == ["done"]
    assert len(cluster.changes) == 1, "it is so already"


@pytest.mark.asyncio
async def test_a_fifo_topic_is_closed_consumed_changed_and_opened() -> None:
    cluster = FakeCluster(late=2)
    steps = await steps_of(cluster, "b", "c", queue_count=3)
    assert states(steps) == ["closing", "waiting", "moving", "settling", "done"]
    wanted = {"b": 3, "c": 3}
    assert cluster.changes == [({}, {"writes": "closed"}), (wanted, {}), ({}, {"writes": "open"})]
    assert next(step.left for step in steps if step.left)[0] == QueueRemainder("workers", "a", 0, 2)
    assert all(step.placement == BEFORE for step in steps if step.state in ("closing", "waiting"))
    assert cluster.now >= 1.0


@pytest.mark.asyncio
async def test_a_fifo_topic_waits_for_a_broker_that_is_away() -> None:
    """It may still take messages when it is back, and has some that are not consumed."""
    cluster = FakeCluster(left=0, away={"b"})
    steps = cluster.spreading().run(["a"], None, accept_disorder=False)
    async with aclosing(steps):
        seen = [await anext(steps) for _ in range(5)]
        assert seen[-1].pending == ("b",)
        cluster.away.clear()
        rest = [step async for step in steps]
    assert states(rest)[-1] == "done"
    assert cluster.placement == {"a": 2}


@pytest.mark.asyncio
@pytest.mark.parametrize("cancelled", [True, False])
async def test_an_interrupted_spread_left_the_topic_closed(cancelled: bool) -> None:
    cluster = FakeCluster(left=1_000)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == "waiting":
            break
    if cancelled:
        task = asyncio.ensure_future(anext(steps))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await steps.aclose()
    assert (cluster.writes, cluster.placement) == ("open", BEFORE)


@pytest.mark.asyncio
async def test_a_spread_that_was_killed_goes_on() -> None:
    for changed in (False, True):
        cluster = FakeCluster(writes="closed", left=1)
        cluster.placement = {"c": 2} if changed else dict(BEFORE)
        cluster.seen = dict(cluster.placement), "closed"
        assert states(await steps_of(cluster, "c"))[-1] == "done"
        assert (cluster.writes, cluster.placement) == ("open", {"c": 2})
        assert ({}, {"writes": "closed"}) not in cluster.changes


@pytest.mark.asyncio
async def test_a_spread_that_cannot_open_the_topic_says_so() -> None:
    cluster = FakeCluster(left=1_000)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == "waiting":
            break
    cluster.failure = TroveError(errors.CONFIG_OWNER_UNREACHABLE, "the owner is away")
    cluster.left = 0
    with pytest.raises(TroveError) as failed:
        async for _ in steps:
            pass
    assert failed.value.spec is errors.CONFIG_OWNER_UNREACHABLE
    assert "still closed" in failed.value.message
    assert "run the command again" in failed.value.message


@pytest.mark.asyncio
async def test_a_fifo_topic_may_be_changed_at_once() -> None:
    cluster = FakeCluster()
    assert states(await steps_of(cluster, "c", accept_disorder=True)) == ["done"]
    assert cluster.changes == [({"c": 2}, {"writes": "open"})], "so the owner knows that it is meant"


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["waiting", "settling"])
async def test_an_interrupted_spread_opened_the_topic_that_another_moved(state: str) -> None:
    cluster = FakeCluster(left=3)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == state:
            break
    cluster.placement = {"d": 2}
    cluster.seen = dict(cluster.placement), "closed"
    await steps.aclose()
    assert cluster.writes == "closed"


@pytest.mark.asyncio
async def test_the_first_of_two_spreads_opened_the_topic_too_early() -> None:
    cluster = FakeCluster(left=0)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == "settling":
            break
    cluster.placement = {"d": 2}
    with pytest.raises(TroveError) as failed:
        async for _ in steps:
            pass
    assert failed.value.spec is errors.CONFIG_VERSION_CONFLICT
    assert "still closed" in failed.value.message
    assert cluster.writes == "closed"
    assert states(await steps_of(cluster, "d"))[-1] == "done"


@pytest.mark.asyncio
async def test_an_interrupt_before_clients_knew_the_queues_opened_the_topic() -> None:
    cluster = FakeCluster(left=0)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == "settling":
            break
    await steps.aclose()
    assert (cluster.writes, cluster.placement) == ("closed", {"c": 2})


@pytest.mark.asyncio
async def test_the_owner_died_before_the_topic_was_opened_and_nothing_said_so() -> None:
    cluster = FakeCluster(left=0)
    steps = cluster.spreading().run(["c"], None, accept_disorder=False)
    async for step in steps:
        if step.state == "settling":
            break
    cluster.failure = TroveError(errors.CONFIG_OWNER_UNREACHABLE, "the owner is away")
    with pytest.raises(TroveError, match="still closed"):
        async for _ in steps:
            pass


@pytest.mark.asyncio
async def test_a_cluster_without_an_owner_cannot_spread() -> None:
    cluster = FakeCluster(placement={}, seen=({}, "open"))
    with pytest.raises(TroveError, match="config_owner"):
        await steps_of(cluster, "c")
    assert cluster.changes == []
