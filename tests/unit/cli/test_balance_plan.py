"""The plan that evens out the load of brokers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trovemq._admin.spreading import placement_on
from trovemq.cli.balance_plan import EVEN, PlacedTopic, distance, loads_of, plan, weights_of

BROKERS = ["a", "b", "c", "d"]
PLACEMENTS = st.dictionaries(st.sampled_from(BROKERS), st.integers(1, 8), min_size=1)
NUMBERS = st.floats(0, 1e6) | st.just(0.0)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PlacedTopic], set[str]]:
    names = [f"t{number}" for number in range(draw(st.integers(0, 12)))]
    topics = [
        PlacedTopic(name, draw(PLACEMENTS), draw(NUMBERS), draw(NUMBERS), draw(st.booleans()))
        for name in names
    ]
    return topics, draw(st.sets(st.sampled_from(BROKERS)))


@given(clusters(), st.booleans())
def test_a_plan_makes_nothing_worse(cluster: tuple[list[PlacedTopic], set[str]], fifo: bool) -> None:
    topics, drained = cluster
    found = plan(topics, BROKERS, drained, fifo=fifo)
    by_name = {one.name: one for one in topics}
    assert len({move.topic for move in found.moves}) == len(found.moves), "each topic once"
    placements = {one.name: dict(one.placement) for one in topics}
    for move in found.moves:
        assert fifo or not by_name[move.topic].is_fifo
        assert not drained.intersection(move.brokers)
        assert move.brokers
        assert set(move.brokers) != set(by_name[move.topic].placement)
        placements[move.topic] = placement_on(by_name[move.topic].placement, move.brokers, None)
    serving = set(BROKERS) - drained
    assert found.after == loads_of(placements, weights_of(topics), serving), "the commands do it"
    assert distance(found.after) <= distance(found.before) + 1e-6


def topic(name: str, rate: float, *brokers: str, fifo: bool = False) -> PlacedTopic:
    return PlacedTopic(name, dict.fromkeys(brokers, 4), rate, 0, fifo)


def test_one_large_topic_is_moved_rather_than_many_small_ones() -> None:
    topics = [topic(f"small{number}", 1, "a") for number in range(10)]
    found = plan([*topics, topic("large", 10, "a")], ["a", "b"])
    assert [(move.topic, move.brokers) for move in found.moves] == [("large", ("b",))]
    assert distance(found.after) < 1e-6


def test_a_topic_that_is_all_of_the_load_is_spread() -> None:
    (move,) = plan([topic("all", 10, "a")], ["a", "b", "c"]).moves
    assert move.brokers == ("a", "b", "c")


def test_even_loads_need_no_plan() -> None:
    found = plan([topic("x", 10, "a"), topic("y", 10 + EVEN / 2, "b")], ["a", "b"])
    assert found.moves == ()


def test_a_topic_on_drained_brokers_alone_gets_others() -> None:
    topics = [topic("x", 1, "c"), topic("steps", 1, "c", fifo=True)]
    assert [move.topic for move in plan(topics, ["a", "b", "c"], ["c"]).moves] == ["x"]
    moves = plan(topics, ["a", "b", "c"], ["c"], fifo=True).moves
    assert {(move.topic, move.brokers) for move in moves} == {("x", ("a", "b")), ("steps", ("a", "b"))}


def test_sizes_count_like_rates() -> None:
    topics = [PlacedTopic("full", {"a": 1}, 0, 100), PlacedTopic("busy", {"a": 1}, 100, 0)]
    found = plan(topics, ["a", "b"])
    assert len(found.moves) == 1
    assert distance(found.after) < 1e-6


def test_nothing_is_planned_without_a_serving_broker() -> None:
    assert plan([topic("x", 1, "a")], ["a"], ["a"]).moves == ()
