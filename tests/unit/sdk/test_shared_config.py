"""Changes where brokers share a configuration: one of them is asked, and the results name the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from trovemq._admin.users import Quotas, Rules
from trovemq._net.configurations import units_of
from trovemq._net.routes import RouteTable
from trovemq._wire.convert import broker_info, topic_deletion
from trovemq.admin import Admin
from trovemq.models.all_brokers import TopicDeletion
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    ClusterState,
    ConfigSummary,
    LostBroker,
    TopicDescription,
    TopicQueue,
    TopicRoute,
)
from trovemq.models.security import Quota
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.v1 import admin_pb2, common_pb2, security_pb2

SHARED = ConfigSummary("0123456789abcdef", "b", 2)
OLD = ConfigSummary("0123456789abcdef", "c", 1)
UNREACHABLE, NOT_FOUND = errors.BROKER_UNREACHABLE, errors.TOPIC_NOT_FOUND


@dataclass
class Broker:
    """One broker's connection. `fails`: the error of each call; `topics`: its descriptions."""

    name: str
    asked: list[tuple[str, str, Any]]
    fails: ErrorSpec | None = None
    fails_create: ErrorSpec | None = None
    topics: dict[str, TopicDescription] = field(default_factory=dict)
    elsewhere: tuple[TopicDescription, ...] = ()
    placement: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[str, ...] = ()

    def _called(self, what: str, details: Any) -> None:
        self.asked.append((self.name, what, details))
        if self.fails is not None:
            raise TroveError(self.fails, f"{self.name} says so")

    def _description(self, topic: str) -> TopicDescription:
        count = self.placement.get(self.name, 8)
        placed = dict(self.placement)
        return TopicDescription(topic, count, "NORMAL", False, (), self.name, {}, None, placed, self.pending)

    async def create_topic(
        self, topic: str, count: int, kind: str, options: Mapping[str, str], brokers: Sequence[str]
    ) -> TopicDescription:
        self._called("create", list(brokers))
        if self.fails_create is not None:
            raise TroveError(self.fails_create, f"{self.name} says so")
        return self._description(topic)

    async def alter_topic(
        self, topic: str, count: int, kind: str, options: Mapping[str, str], placement: Mapping[str, int]
    ) -> TopicDescription:
        self._called("alter", dict(placement))
        return self._description(topic)

    async def describe_topic(self, topic: str, with_sizes: bool = False) -> TopicDescription:
        self._called("describe", topic)
        if topic not in self.topics:
            raise TroveError(NOT_FOUND, f"{topic} is not there")
        return self.topics[topic]

    async def list_topics(self, include_system: bool, *, elsewhere: bool = False) -> list[TopicDescription]:
        self._called("list", include_system)
        return [*self.topics.values(), *(self.elsewhere if elsewhere else ())]

    async def delete_topic(self, topic: str, broker: str) -> TopicDeletion:
        self._called("delete", topic)
        return TopicDeletion(dict.fromkeys(self.placement, 0) or {broker: 7}, later=self.pending)

    async def ask(self, method: str, request: Any, _decode: Any) -> Any:
        self._called(method, request)
        if "Quota" in method:
            return security_pb2.QuotaDescription(subject="User:bob", broker=self.name)
        return security_pb2.DeleteRuleReply()


class Pool:
    """The brokers `a`, `b`, `c` share a configuration that `b` owns; `d` has its own."""

    def __init__(self, topics: Mapping[str, Sequence[str]] = {}, away: Sequence[str] = ()) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.unseen_count = 0
        self.brokers = {name: Broker(name, self.asked) for name in "abcd"}
        self.routes = RouteTable()
        configs = {"a": SHARED, "b": SHARED, "c": OLD, "d": None}
        routes = tuple(
            BrokerRoute(
                BrokerInfo("k", name, "127.0.0.1:1", config=config),
                tuple(TopicRoute(topic, 8) for topic, there in topics.items() if name in there),
            )
            for name, config in configs.items()
            if name not in away
        )
        self.routes.apply(ClusterState(routes, 1, (LostBroker("x", "k", "127.0.0.1:2", 5, 1, 1),)))

    def connection(self, info: BrokerInfo) -> Broker:
        return self.brokers[info.name]

    def unseen(self) -> int:
        return self.unseen_count

    async def explained(self, error: TroveError) -> TroveError:
        return error

    @asynccontextmanager
    async def explaining(self) -> AsyncIterator[None]:
        yield

    async def lost_brokers_of(self, topic: str) -> list[LostBroker]:
        return []

    @property
    def admin(self) -> Admin:
        return Admin(cast(Any, self))

    def calls(self) -> list[tuple[str, str]]:
        return [(name, what) for name, what, _ in self.asked]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trovemq.admin.ROUTE_WAIT_SECONDS", 0.0)


def test_the_owner_of_the_newest_generation_is_asked_first() -> None:
    units = [[info.name for info in unit] for unit in units_of(Pool().routes.brokers())]
    assert units == [["d"], ["b", "a", "c"]]
    units = [[info.name for info in unit] for unit in units_of(Pool(away="b").routes.brokers())]
    assert units == [["d"], ["a", "c"]]


def test_the_summary_of_a_configuration_is_read_from_the_routes() -> None:
    wire = common_pb2.BrokerInfo(name="a", address="127.0.0.1:1")
    assert broker_info(wire).config is None
    wire.config.id, wire.config.owner, wire.config.generation = "0123456789abcdef", "b", 2
    assert broker_info(wire).config == SHARED


@pytest.mark.asyncio
async def test_one_broker_of_a_configuration_creates_a_topic_for_all() -> None:
    pool = Pool()
    pool.brokers["b"].placement, pool.brokers["b"].pending = {"a": 8, "b": 8, "c": 8}, ("c",)
    made = await pool.admin.create_topic("orders")
    assert sorted(pool.calls()) == [("b", "create"), ("d", "create")]
    assert [one.broker for one in made] == ["d", "b"]
    assert (made.later, made.pending) == (("c",), ("c", "x")), "x shares none"


@pytest.mark.asyncio
async def test_each_change_by_a_client_of_one_broker_took_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for routes of the others, which it never gets."""
    pool = Pool({"orders": "b"}, away="acd")
    pool.brokers["b"].placement = {"a": 8, "b": 8, "c": 8}
    seen: list[bool] = []

    async def wait_until(condition: Callable[[], bool], _seconds: float) -> bool:
        seen.append(condition())
        return True

    monkeypatch.setattr(pool.routes, "wait_until", wait_until)
    await pool.admin.create_topic("orders")
    await pool.admin.alter_topic("orders", queue_count=8)
    assert seen == [True, True]
    await pool.admin.create_topic("others")
    assert seen == [True, True, False], "the route of the named broker is awaited"


@pytest.mark.asyncio
async def test_a_creation_said_not_found_when_the_topic_was_deleted_meanwhile() -> None:
    pool = Pool(away="acd")
    pool.brokers["b"].fails_create = errors.TOPIC_EXISTS
    with pytest.raises(TroveError) as caught:
        await pool.admin.create_topic("orders")
    assert caught.value.spec is errors.TOPIC_EXISTS


@pytest.mark.asyncio
async def test_a_topic_that_may_exist_is_an_error_where_a_follower_lags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client knows the follower alone, which has passed the creation on, and has no such topic yet."""
    monkeypatch.setattr("trovemq._admin.creations.ARRIVAL_S", (0.0,))
    pool = Pool(away="bcd")
    existed = TroveError(
        errors.TOPIC_EXISTS,
        "topic orders exists already",
        topic="orders",
        queue_count="3",
        message_type="FIFO",
        placement='{"b": 3}',
    )

    async def create(*_arguments: object) -> TopicDescription:
        raise existed

    monkeypatch.setattr(pool.brokers["a"], "create_topic", create)
    found = await pool.admin.create_topic("orders", exist_ok=True)
    assert [(one.topic, one.queue_count, one.message_type) for one in found] == [("orders", 3, "FIFO")]
    assert found.existing == ("a",)
    with pytest.raises(TroveError) as caught:
        await pool.admin.create_topic("orders")
    assert caught.value is existed


@pytest.mark.asyncio
async def test_a_spread_closed_a_fifo_topic_before_its_brokers_were_too_many() -> None:
    pool = Pool({"orders": "ab"})
    with pytest.raises(TroveError) as caught:
        await pool.admin.spread_topic("orders", [f"{number:0>127}" for number in range(1_000)])
    assert caught.value.spec is errors.LIMIT_EXCEEDED
    assert pool.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize("killed", ["a", "b"])
async def test_a_spread_failed_because_one_broker_had_just_died(killed: str) -> None:
    pool = Pool({"orders": "abc"}, away="d")
    for name in {*"abc"} - {killed}:
        broker = pool.brokers[name]
        broker.topics["orders"] = TopicDescription(
            "orders", 8, "NORMAL", False, (), name, {}, None, {"a": 8, "b": 8}
        )
    for broker in pool.brokers.values():
        broker.placement, broker.pending = {"c": 8}, (killed,)
    pool.brokers[killed].fails = UNREACHABLE  # the routes still name it
    done = await pool.admin.spread_topic("orders", ["c"])
    assert (done.state, done.pending) == ("done", (killed,))
    altered = [name for name, what in pool.calls() if what == "alter"]
    assert altered == {"a": ["b"], "b": ["b", "a"]}[killed], "the owner first, then another one"


@pytest.mark.asyncio
async def test_a_spread_asks_a_broker_that_says_that_it_shares() -> None:
    pool = Pool({"orders": "d"})
    description = TopicDescription("orders", 8, "NORMAL", False, (), "d", {}, None, {"d": 8})
    pool.brokers["d"].topics["orders"] = description  # just started: the routes have no configuration of it
    pool.brokers["b"].placement = {"c": 8}
    await pool.admin.spread_topic("orders", ["c"])
    assert pool.calls() == [("d", "describe"), ("b", "alter")]


@pytest.mark.asyncio
@pytest.mark.parametrize("given", [{"broker": "a"}, {"brokers": ["a"]}])
async def test_a_named_broker_is_the_place_of_the_topic(given: dict[str, Any]) -> None:
    pool = Pool()
    await pool.admin.create_topic("orders", **given)
    assert pool.asked == [("b", "create", ["a"])], "the owner is asked"


@pytest.mark.asyncio
async def test_several_named_brokers_are_each_of_their_configuration() -> None:
    pool = Pool()
    await pool.admin.create_topic("orders", brokers=["d", "a", "away"])
    assert sorted(pool.asked) == [("b", "create", ["a", "away"]), ("d", "create", [])]
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await pool.admin.create_topic("orders", broker="a", brokers=["b"])
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await pool.admin.create_topic("orders", brokers=[])


@pytest.mark.asyncio
async def test_another_broker_is_asked_if_the_owner_is_away() -> None:
    pool = Pool(away="d")
    pool.brokers["b"].fails = UNREACHABLE
    await pool.admin.create_topic("orders")
    assert pool.calls() == [("b", "create"), ("a", "create")]
    pool.brokers["a"].fails = errors.CONFIG_OWNER_UNREACHABLE
    with pytest.raises(TroveError) as caught:
        await pool.admin.create_topic("orders")
    assert caught.value.spec is errors.CONFIG_OWNER_UNREACHABLE
    assert "trovemq cluster config-owner" in caught.value.spec.what_to_do


@pytest.mark.asyncio
async def test_a_change_that_timed_out_is_not_sent_to_another_broker() -> None:
    pool = Pool(away="d")
    pool.brokers["b"].fails = errors.REQUEST_TIMEOUT
    with pytest.raises(TroveError, match="REQUEST_TIMEOUT"):
        await pool.admin.create_topic("orders")
    assert pool.calls() == [("b", "create")]


@pytest.mark.asyncio
async def test_a_topic_is_altered_and_deleted_once() -> None:
    pool = Pool({"orders": "ac"})
    pool.brokers["b"].placement, pool.brokers["b"].pending = {"a": 8, "c": 8}, ("c",)
    altered = await pool.admin.alter_topic("orders", placement={"a": 9, "c": 0})
    assert pool.asked == [("b", "alter", {"a": 9, "c": 0})]
    assert altered.pending == altered.later == ("c",)
    deleted = await pool.admin.delete_topic("orders")
    assert pool.calls()[1:] == [("b", "delete")]
    assert (dict(deleted), deleted.pending, deleted.later) == ({"a": 0, "c": 0}, ("c",), ("c",))


@pytest.mark.asyncio
async def test_a_topic_that_the_owner_lacks_is_sought_on_the_others() -> None:
    pool = Pool({"orders": "ac"})
    pool.brokers["b"].fails = NOT_FOUND
    await pool.admin.delete_topic("orders")
    assert pool.calls() == [("b", "delete"), ("a", "delete")]
    for broker in pool.brokers.values():
        broker.fails = NOT_FOUND
    pool.brokers["c"].fails = UNREACHABLE
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await pool.admin.alter_topic("orders", 9)


@pytest.mark.asyncio
async def test_a_placement_needs_a_shared_configuration() -> None:
    pool = Pool({"orders": "d"})
    with pytest.raises(TroveError, match="the configuration of d has no owner"):
        await pool.admin.alter_topic("orders", placement={"d": 1})
    for wrong in ({}, ["a"], {"a": "1"}, {1: 1}):
        with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
            await pool.admin.alter_topic("orders", placement=cast(Any, wrong))
    assert not pool.asked


def described(broker: str, placement: Mapping[str, int], queues: int = 0, **more: Any) -> TopicDescription:
    parts = tuple(TopicQueue(number, 0, 0, 0) for number in range(queues))
    kind, options = more.get("kind", "NORMAL"), more.get("options", {})
    return TopicDescription("orders", queues, kind, False, parts, broker, options, None, placement)


@pytest.mark.asyncio
async def test_one_broker_is_named_and_others_would_lose_their_messages() -> None:
    pool = Pool({"orders": "ab"})
    pool.brokers["a"].topics["orders"] = described("a", {"a": 8, "b": 8}, 8)
    with pytest.raises(TroveError, match="orders lies on b, too"):
        await pool.admin.delete_topic("orders", broker="a")
    pool.brokers["a"].topics["orders"] = described("a", {"a": 8}, 8)
    assert dict(await pool.admin.delete_topic("orders", broker="a")) == {"a": 7}
    assert pool.calls() == [("a", "describe"), ("a", "describe"), ("a", "delete")]


@pytest.mark.asyncio
async def test_a_topic_of_brokers_that_are_away_is_described_once() -> None:
    pool = Pool()
    for name in "abc":
        pool.brokers[name].topics["orders"] = described(name, {"away": 4})
    found = await pool.admin.describe_topic("orders")
    assert [(one.broker, dict(one.placement)) for one in found] == [("a", {"away": 4})]
    assert found.missing == ("away",)


@pytest.mark.asyncio
async def test_topics_of_before_are_taken_in_where_they_are() -> None:
    pool = Pool({"orders": "ac"})
    pool.brokers["a"].topics["orders"] = described("a", {}, 3)
    pool.brokers["c"].topics["orders"] = described("c", {}, 5)
    await pool.admin.adopt_topics()
    changes = [one for one in pool.asked if one[1] not in ("list", "describe")]
    assert changes == [("b", "create", ["a"]), ("b", "alter", {"a": 3, "c": 5})]

    pool = Pool({"orders": "ac"})
    pool.brokers["a"].topics["orders"] = described("a", {"a": 3}, 3)
    pool.brokers["c"].topics["orders"] = described("c", {"a": 3}, 5)
    await pool.admin.adopt_topics(["orders"])
    assert pool.asked[-1] == ("b", "alter", {"a": 3, "c": 5})

    pool.brokers["c"].topics["orders"] = described("c", {"a": 3}, 5, kind="FIFO")
    with pytest.raises(TroveError, match="TOPIC_SETTINGS_DIFFER"):
        await pool.admin.adopt_topics(["orders"])


@pytest.mark.asyncio
async def test_topics_of_brokers_to_which_no_address_leads_are_listed() -> None:
    """As through forwarded ports of some brokers. The lists of these count for themselves."""
    pool = Pool({"orders": "ac"})
    pool.brokers["a"].topics["orders"] = described("a", {"a": 3, "b": 1, "y": 4}, 3)
    for name in "ac":
        pool.brokers[name].elsewhere = (described("", {"z": 5}, 5),)
    assert [one.broker for one in await pool.admin.list_topics()] == ["a"]
    pool.unseen_count = 1
    found = await pool.admin.list_topics()
    assert [(one.broker, one.queue_count) for one in found] == [("a", 3), ("y", 4), ("z", 5)]
    assert [one.broker for one in await pool.admin.list_topics(broker="a")] == ["a"]


@pytest.mark.asyncio
async def test_users_and_quotas_are_changed_once_and_rules_have_one_number() -> None:
    pool = Pool(away="d")
    assert len(await Quotas(cast(Any, pool)).set("User:bob", Quota(calls_max=3))) == 1
    await Rules(cast(Any, pool)).delete(4)
    assert [name for name, _ in pool.calls()] == ["b", "b"]
    with pytest.raises(TroveError, match="BROKER_AMBIGUOUS"):
        await Rules(cast(Any, Pool())).delete(4)


def test_a_deletion_says_where_it_is_made_and_where_later() -> None:
    own = topic_deletion(admin_pb2.DeleteTopicReply(physical_offset=9), "a")
    assert (dict(own), own.pending) == ({"a": 9}, ())
    reply = admin_pb2.DeleteTopicReply(physical_offset=9, deleted_on=["a", "b"], pending=["c"])
    shared = topic_deletion(reply, "a")
    assert (dict(shared), shared.pending, shared.later) == ({"a": 9, "b": 0}, ("c",), ("c",))
