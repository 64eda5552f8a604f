"""A call to every broker while some are away: it answers without them, and names them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.event_loop import EventLoop
from trovemq._admin.creations import Created, found_there, groups_created, topics_created
from trovemq._net.all_brokers import NOT_ANSWERED, ask_brokers
from trovemq._net.routes import RouteTable
from trovemq.models.all_brokers import BrokerAnswers, TopicDeletion
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, LostBroker, TopicDescription
from trovemq.models.group import GroupDescription, GroupSettings
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

NAMES = ("a", "b", "c")
ABSENT, OTHER = errors.TOPIC_NOT_FOUND, errors.DISK_FULL


class Pool:
    """Three brokers; `lost` had the topic."""

    def __init__(self, lost: tuple[str, ...] = ()) -> None:
        self.routes = RouteTable()
        infos = [BrokerInfo("c", name, "127.0.0.1:1") for name in NAMES]
        gone = tuple(LostBroker(name, "c", "127.0.0.1:2", 5, 1, 1) for name in lost)
        self.routes.apply(ClusterState(tuple(BrokerRoute(info, ()) for info in infos), 1, gone))
        self.asked_for: list[str] = []

    async def explained(self, error: TroveError) -> TroveError:
        return error

    async def lost_brokers_of(self, topic: str) -> list[LostBroker]:
        self.asked_for.append(topic)
        return list(self.routes.state.lost[:1])


def ask(pool: Pool, outcomes: tuple[ErrorSpec | None, ...], **more: Any) -> BrokerAnswers[str]:
    by_name = dict(zip(NAMES, outcomes, strict=True))

    async def one(info: BrokerInfo) -> str:
        if (spec := by_name[info.name]) is not None:
            raise TroveError(spec, f"{info.name} says so")
        return info.name

    found: BrokerAnswers[str] = run(
        lambda: ask_brokers(
            cast(Any, pool), pool.routes.brokers(), one, absent=(ABSENT,), **{"broker": None, **more}
        )
    )
    return found


def run(call: Callable[[], Awaitable[Any]]) -> Any:
    loop = EventLoop()
    try:
        return loop.run_until_complete(call())
    finally:
        loop.close()


OUTCOMES = st.tuples(*(st.sampled_from([None, ABSENT, OTHER, *NOT_ANSWERED]) for _ in NAMES))


@given(outcomes=OUTCOMES, change=st.booleans())
def test_one_broker_that_is_away_hides_no_other(outcomes: tuple[ErrorSpec | None, ...], change: bool) -> None:
    """The table of `_net/all_brokers`, for every combination of three brokers."""
    away = tuple(name for name, one in zip(NAMES, outcomes, strict=True) if one in NOT_ANSWERED)
    there = [name for name, one in zip(NAMES, outcomes, strict=True) if one is None]
    if OTHER not in outcomes and there:
        found = ask(Pool(), outcomes, change=change)
        assert (found, found.pending, found.missing) == (
            there,
            away if change else (),
            () if change else away,
        )
        return
    with pytest.raises(TroveError) as caught:
        ask(Pool(), outcomes, change=change)
    if OTHER in outcomes:
        assert caught.value.spec is OTHER
    elif away and ABSENT in outcomes:
        assert (caught.value.spec, caught.value.fields["brokers"]) == (
            errors.BROKER_UNREACHABLE,
            ", ".join(away),
        )
    else:
        assert caught.value.spec in outcomes


def test_a_lost_broker_is_missing_in_an_answer_of_all() -> None:
    pool = Pool(lost=("x", "y"))
    assert ask(pool, (None, None, None)).missing == ("x", "y")
    assert pool.asked_for == [], "the routes have their names"
    assert ask(pool, (None, ABSENT, None), topic="orders", change=True).pending == ("x",), (
        "the one that had it"
    )
    assert ask(pool, (None, None, None), broker="a").missing == ()


def topic(broker: str, queues: int = 4, **options: str) -> TopicDescription:
    return TopicDescription("orders", queues, "NORMAL", False, (), broker, options)


EXISTS = TroveError(errors.TOPIC_EXISTS, "the broker's words", topic="orders")


def created(*found: Created[TopicDescription], pending: tuple[str, ...] = ()) -> Any:
    return topics_created("orders", BrokerAnswers(found, pending=pending), exist_ok=False)


def test_a_topic_that_one_broker_had_is_made_on_the_other() -> None:
    found = created(Created(topic("a"), EXISTS), Created(topic("b")), pending=("c",))
    assert [one.broker for one in found] == ["a", "b"]
    assert (found.existing, found.pending) == (("a",), ("c",))


def test_a_topic_with_other_settings_elsewhere_is_an_error() -> None:
    with pytest.raises(TroveError) as caught:
        created(Created(topic("a", 8, order="priority"), EXISTS), Created(topic("b")))
    assert caught.value.spec is errors.TOPIC_SETTINGS_DIFFER
    assert caught.value.message == (
        "topic orders is created on b; with other settings it exists on a"
        " (queues 8 instead of 4, options order priority instead of none)"
    )


def test_a_topic_that_every_broker_has_exists() -> None:
    with pytest.raises(TroveError) as caught:
        created(Created(topic("a"), EXISTS), Created(topic("b", 8), EXISTS))
    assert (caught.value.spec, caught.value.message) == (
        errors.TOPIC_EXISTS,
        "topic orders exists already on a, b",
    )
    with pytest.raises(TroveError) as caught:
        created(Created(topic("a"), EXISTS))
    assert caught.value is EXISTS, "of one broker its own words"
    with pytest.raises(TroveError, match="on a, and c did not answer"):
        created(Created(topic("a"), EXISTS), pending=("c",))


def test_a_user_who_may_only_create_was_not_told_that_a_topic_exists() -> None:
    async def denied() -> TopicDescription:
        raise TroveError(errors.ACCESS_DENIED, "may not Get Topic:orders")

    with pytest.raises(TroveError) as caught:
        run(lambda: found_there(denied(), EXISTS))
    assert caught.value is EXISTS


def test_a_topic_that_the_owner_has_and_a_follower_not_yet_was_not_found() -> None:
    async def behind() -> TopicDescription:
        raise TroveError(errors.TOPIC_NOT_FOUND, "it does not exist here")

    with pytest.raises(TroveError) as caught:
        run(lambda: found_there(behind(), EXISTS))
    assert caught.value is EXISTS


def test_what_exists_stays_where_that_is_allowed() -> None:
    answers = BrokerAnswers([Created(topic("a", 8), EXISTS), Created(topic("b"))])
    assert [one.broker for one in topics_created("orders", answers, exist_ok=True)] == ["a", "b"]


def test_a_group_with_other_settings_elsewhere_is_an_error() -> None:
    there = GroupDescription("g", GroupSettings(orderly=True), 0, (), "a")
    here = GroupDescription("g", GroupSettings(), 0, (), "b")
    answers = BrokerAnswers([Created(there, EXISTS), Created(here)])
    with pytest.raises(TroveError, match="orderly True instead of False"):
        groups_created("g", answers, exist_ok=False)


def test_a_deletion_was_no_mapping_any_more() -> None:
    """Callers of `delete_topic` read a dict of offsets, as they did before it had `pending`."""
    found = TopicDeletion({"a": 5}, pending=("c", "b"))
    assert (found, found["a"], list(found.items())) == ({"a": 5}, 5, [("a", 5)])
    assert found.pending == ("b", "c")
    assert (copy.copy(found), pickle.loads(pickle.dumps(found)).pending) == (found, ("b", "c"))
    answers = BrokerAnswers(["x"], missing=("b",))
    assert (answers, pickle.loads(pickle.dumps(answers)).missing) == (["x"], ("b",))
