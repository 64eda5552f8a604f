"""The calls that change the cluster's configuration: on the owner, on a follower, on a broker alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support import fake_loop
from tests.support.engine import flush, read_queue
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from tests.unit.cluster_config.config_parts import make
from tests.unit.server.shared_cluster import ADMIN, Broker, Cluster, open_cluster, request_bytes
from trovemq._admin.creations import stated_topic
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.cluster_config.owner import ChangeResult, _update
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.server.access.gate import Gate
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_QUEUE_ID, AUDIT_TOPIC, decode_audit
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.topics import NewTopic

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("CreateTopic", {"topic": "orders", "queue_count": 3, "message_type": "DELAY"}),
    ("AlterTopic", {"topic": "orders", "queue_count": 5}),
    ("DeleteTopic", {"topic": "orders"}),
    ("CreateGroup", {"group": "billing"}),
    ("AlterGroup", {"group": "billing", "settings": {"orderly": True, "retry_max": 3}}),
    ("DeleteGroup", {"group": "billing"}),
    ("CreateUser", {"access_key": "bob", "secret": "secret-of-bob"}),
    ("AlterUser", {"access_key": "bob", "enabled": False}),
    ("RotateSecret", {"access_key": "bob"}),
    ("CreateRule", {"access_key": "bob", "allow": True, "actions": "Pub", "resource": "Topic:orders"}),
    ("SetQuota", {"subject": "User:bob", "quota": {"requests_per_s": 7}}),
    ("DeleteRule", {"number": 1}),
    ("DeleteUser", {"access_key": "bob"}),
)
"""In an order in which each one is possible."""


def run(test: Callable[[Cluster], Awaitable[None]], *names: str) -> None:
    async def opened() -> None:
        async with open_cluster(*(names or ("a", "b", "c"))) as cluster:
            await test(cluster)

    fake_loop.run(opened())


async def refusal(asked: Awaitable[Any]) -> TroveError:
    with pytest.raises(TroveError) as caught:
        await asked
    return caught.value


def held(broker: Broker) -> dict[str, object]:
    """The content of the broker's own tables."""
    state, topics = broker.state, broker.core.store.topics
    return {
        "topics": {name: (topics.require(name).queue_count) for name in topics.names()},
        "groups": {name: broker.core.groups.require(name).orderly for name in broker.core.groups.names()},
        "users": {name: (user.enabled, len(user.secrets)) for name, user in state.users.items()},
        "rules": sorted(state.rules),
        "quotas": {subject: quota.requests_per_s for subject, quota in state.quotas.items()},
    }


AFTER: dict[str, dict[str, object]] = {
    "CreateTopic": {"topics": {"orders": 3}},
    "AlterTopic": {"topics": {"orders": 5}},
    "DeleteTopic": {"topics": {}},
    "CreateGroup": {"groups": {"billing": False}},
    "AlterGroup": {"groups": {"billing": True}},
    "DeleteGroup": {"groups": {}},
    "CreateUser": {"users": {ADMIN: (True, 1), "bob": (True, 1)}},
    "AlterUser": {"users": {ADMIN: (True, 1), "bob": (False, 1)}},
    "RotateSecret": {"users": {ADMIN: (True, 1), "bob": (False, 2)}},
    "CreateRule": {"rules": [1]},
    "SetQuota": {"quotas": {"User:bob": 7}},
    "DeleteRule": {"rules": []},
    "DeleteUser": {"users": {ADMIN: (True, 1)}, "quotas": {}},
}


@pytest.mark.parametrize("asked", ["a", "b"])
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_each_call_is_made_by_the_owner_and_on_every_broker(asked: str, names: tuple[str, ...]) -> None:
    async def test(cluster: Cluster) -> None:
        for rpc, fields in CALLS:
            await cluster.brokers[asked].ask(rpc, **fields)
            for broker in cluster.brokers.values():
                assert held(broker).items() >= AFTER[rpc].items(), f"{rpc} on {broker.name}"
        forwarded = [method.rpartition("/")[2] for method, _, _ in cluster.forwarded]
        assert forwarded == ([] if asked == "a" else [rpc for rpc, _ in CALLS])
        assert {(caller, source) for _, caller, source in cluster.forwarded} <= {
            (ADMIN, "127.0.0.1 through b")
        }

    run(test, *names)


class OfItsOwn:
    """The SharedConfig of a broker whose configuration is its own."""

    is_shared = False

    @property
    def is_owner(self) -> bool:
        raise AssertionError("it is not shared")

    @property
    def table(self) -> ConfigTable:
        raise AssertionError("it is not shared")

    async def change(self, make: Callable[[ConfigTable], Sequence[ConfigChange]]) -> list[ChangeResult]:
        raise AssertionError("it is not shared")

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        raise AssertionError("it is not shared")


def test_a_broker_of_its_own_makes_each_call_alone() -> None:
    async def test() -> None:
        with in_process():
            services = BrokerServices(MemoryFileSystem(), small_broker_settings(), OfItsOwn())
            async with services.working():
                methods = {name.rpartition(".")[2]: name for name in services.methods}
                for rpc, fields in (("CreateUser", {"access_key": ADMIN, "kind": "Super"}), *CALLS):
                    request = request_bytes(services, methods[rpc], fields)
                    outcome = await services.call(methods[rpc], [request])
                    assert outcome.code == "OK", f"{rpc}: {outcome}"
                    reply = services.parse(methods[rpc], outcome.replies[0])
                    assert not getattr(reply, "pending", ()), rpc
                    assert not getattr(reply, "placement", ()), rpc

    fake_loop.run(test())


# --- topics -----------------------------------------------------------------------------------------------
def test_a_topic_lies_on_the_named_brokers_and_is_described_by_all() -> None:
    async def test(cluster: Cluster) -> None:
        a, b = cluster.brokers["a"], cluster.brokers["b"]
        made = await b.ask("CreateTopic", topic="orders", queue_count=2, brokers=["b", "c"])
        assert (dict(made.placement), made.queue_count, list(made.queues)) == ({"b": 2, "c": 2}, 2, [])
        assert "orders" not in a.core.store.topics
        elsewhere = await a.ask("DescribeTopic", topic="orders")
        assert (dict(elsewhere.placement), list(elsewhere.queues)) == ({"b": 2, "c": 2}, [])
        there = await b.ask("DescribeTopic", topic="orders")
        assert (dict(there.placement), len(there.queues)) == ({"b": 2, "c": 2}, 2)
        assert [topic.topic for topic in (await a.ask("ListTopics")).topics] == [], "no empty description"
        assert [topic.topic for topic in (await b.ask("ListTopics")).topics] == ["orders"]
        for broker, name in ((a, ""), (b, "b")):
            (listed,) = (await broker.ask("ListTopics", elsewhere=True)).topics
            assert (listed.broker, dict(listed.placement)) == (name, {"b": 2, "c": 2}), "of all by one port"
        deleted = await a.ask("DeleteTopic", topic="orders")
        assert (list(deleted.deleted_on), list(deleted.pending)) == (["b", "c"], [])
        assert "orders" not in b.core.store.topics

    run(test)


def test_a_change_names_the_brokers_that_make_it_later() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.away.add("c")
        made = await cluster.brokers["b"].ask("CreateTopic", topic="orders")
        assert (sorted(made.placement), list(made.pending)) == (["a", "b", "c"], ["c"])
        group = await cluster.brokers["a"].ask("CreateGroup", group="billing")
        assert list(group.pending) == ["c"]
        assert "orders" not in cluster.brokers["c"].core.store.topics
        await cluster.back("c")
        assert "orders" in cluster.brokers["c"].core.store.topics
        cluster.away.add("b")
        deleted = await cluster.brokers["a"].ask("DeleteTopic", topic="orders")
        assert (list(deleted.deleted_on), list(deleted.pending)) == (["a", "c"], ["b"])
        assert list((await cluster.brokers["a"].ask("DeleteGroup", group="billing")).pending) == ["b"]

    run(test)


def test_a_deletion_after_a_spread_named_only_the_new_place_of_the_topic() -> None:
    async def test(cluster: Cluster) -> None:
        a, b = cluster.brokers["a"], cluster.brokers["b"]
        await b.ask("CreateTopic", topic="orders", queue_count=2, brokers=["a", "b"])
        await b.ask("AlterTopic", topic="orders", placement={"c": 2})
        assert "orders" in a.core.store.topics, "its messages are there"
        topics = a.services.all._admin._cluster
        topics._holding = lambda topic: [
            one.name for one in cluster.brokers.values() if one is not a and topic in one.core.store.topics
        ]
        cluster.away.add("b")
        deleted = await a.ask("DeleteTopic", topic="orders")
        assert (list(deleted.deleted_on), list(deleted.pending)) == (["a", "c"], ["b"])
        assert "orders" not in a.core.store.topics

    run(test)


def test_the_owner_describes_an_existing_topic_where_a_follower_lags() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.away.add("b")
        await cluster.brokers["a"].ask("CreateTopic", topic="orders", queue_count=3, brokers=["a", "c"])
        with pytest.raises(TroveError) as caught:
            await cluster.brokers["b"].ask("CreateTopic", topic="orders", queue_count=2)
        assert caught.value.spec is errors.TOPIC_EXISTS
        with pytest.raises(TroveError) as caught:
            await cluster.brokers["a"].services.all._admin._cluster.create(NewTopic("orders", 2), [])
        stated = stated_topic(caught.value, "b")
        assert stated is not None
        assert (stated.topic, stated.queue_count, dict(stated.placement)) == ("orders", 3, {"a": 3, "c": 3})

    run(test)


def test_a_topic_on_brokers_of_long_names_is_refused_before_a_write() -> None:
    async def test(cluster: Cluster) -> None:
        names = [f"{number:0>127}" for number in range(1_000)]
        version = cluster.owner.head.version
        for rpc, fields in (
            ("CreateTopic", {"topic": "wide", "brokers": names}),
            ("AlterTopic", {"topic": "orders", "placement": dict.fromkeys(names, 1)}),
        ):
            if rpc == "AlterTopic":
                await cluster.brokers["a"].ask("CreateTopic", topic="orders")
                version = cluster.owner.head.version
            with pytest.raises(TroveError, match=r"127,000 characters.*--brokers A,B") as caught:
                await cluster.brokers["b"].ask(rpc, **fields)
            assert caught.value.spec is errors.LIMIT_EXCEEDED
            assert cluster.owner.head.version == version

    run(test)


CREATE = {"topic": "orders", "queue_count": 2}
REFUSED: tuple[tuple[str, dict[str, Any], ErrorSpec], ...] = (
    ("CreateTopic", {"topic": "there"}, errors.TOPIC_EXISTS),
    ("CreateTopic", {"topic": "no spaces"}, errors.TOPIC_ILLEGAL),
    ("CreateTopic", {"topic": "b"}, errors.TOPIC_ILLEGAL),
    ("CreateTopic", {**CREATE, "queue_count": 1_025}, errors.REQUEST_ILLEGAL),
    ("CreateTopic", {**CREATE, "message_type": "ODD"}, errors.MESSAGE_TYPE_UNSUPPORTED),
    ("CreateTopic", {**CREATE, "options": {"odd": "1"}}, errors.TOPIC_OPTION_ILLEGAL),
    ("CreateTopic", {**CREATE, "brokers": ["x"]}, errors.BROKER_NOT_FOUND),
    ("AlterTopic", {"topic": "none", "queue_count": 2}, errors.TOPIC_NOT_FOUND),
    ("AlterTopic", {"topic": "there", "queue_count": 1}, errors.REQUEST_ILLEGAL),
    ("AlterTopic", {"topic": "there", "placement": {"a": 1}}, errors.REQUEST_ILLEGAL),
    ("AlterTopic", {"topic": "there", "placement": {"a": 0, "b": 0}}, errors.REQUEST_ILLEGAL),
    ("AlterTopic", {"topic": "there", "placement": {"x": 4}}, errors.BROKER_NOT_FOUND),
    ("AlterTopic", {"topic": "there", "placement": {"a": 3}, "queue_count": 4}, errors.REQUEST_ILLEGAL),
    ("DeleteTopic", {"topic": "none"}, errors.TOPIC_NOT_FOUND),
    ("CreateGroup", {"group": "known"}, errors.GROUP_EXISTS),
    ("CreateGroup", {"group": "no spaces"}, errors.GROUP_ILLEGAL),
    ("AlterGroup", {"group": "none"}, errors.GROUP_NOT_FOUND),
    ("DeleteGroup", {"group": "none"}, errors.GROUP_NOT_FOUND),
    ("CreateUser", {"access_key": ADMIN}, errors.USER_EXISTS),
    ("DeleteUser", {"access_key": "none"}, errors.USER_NOT_FOUND),
    ("DeleteUser", {"access_key": ADMIN}, errors.REQUEST_ILLEGAL),
    ("AlterUser", {"access_key": ADMIN, "enabled": False}, errors.REQUEST_ILLEGAL),
    ("RotateSecret", {"access_key": "none"}, errors.USER_NOT_FOUND),
    ("CreateRule", {"access_key": ADMIN, "actions": "Odd", "resource": "*"}, errors.RULE_ILLEGAL),
    ("DeleteRule", {"number": 9}, errors.RULE_NOT_FOUND),
    ("SetQuota", {"subject": "User:none", "quota": {"calls_max": 1}}, errors.USER_NOT_FOUND),
)


@pytest.mark.parametrize("asked", ["a", "b"])
def test_the_owner_refuses_what_a_broker_of_its_own_refuses(asked: str) -> None:
    async def test(cluster: Cluster) -> None:
        broker = cluster.brokers[asked]
        await broker.ask("CreateTopic", topic="there", queue_count=2)
        await broker.ask("CreateGroup", group="known")
        before = cluster.owner.head.version
        for rpc, fields, spec in REFUSED:
            error = await refusal(broker.ask(rpc, **fields))
            assert error.spec is spec, f"{rpc} {fields}: {error}"
        assert cluster.owner.head.version == before

    run(test)


def test_a_placement_adds_queues_and_takes_brokers_out() -> None:
    async def test(cluster: Cluster) -> None:
        a = cluster.brokers["a"]
        await a.ask("CreateTopic", topic="orders", queue_count=2, brokers=["a", "b"])
        altered = await a.ask("AlterTopic", topic="orders", placement={"a": 3, "b": 0, "c": 4})
        assert dict(altered.placement) == {"a": 3, "c": 4}
        assert cluster.brokers["c"].core.store.topics.require("orders").queue_count == 4
        more = await a.ask("AlterTopic", topic="orders", queue_count=6)
        assert dict(more.placement) == {"a": 6, "c": 6}

    run(test)


def test_an_open_fifo_topic_got_other_queues() -> None:
    async def test(cluster: Cluster) -> None:
        a = cluster.brokers["a"]
        before = {"a": 2, "b": 2}
        await a.ask("CreateTopic", topic="steps", queue_count=2, message_type="FIFO", brokers=["a", "b"])
        for change in ({"queue_count": 4}, {"placement": {"b": 2}}):
            error = await refusal(a.ask("AlterTopic", topic="steps", **change))
            assert error.spec is errors.FIFO_TOPIC_OPEN
            assert "topic spread steps" in error.message
        same = await a.ask("AlterTopic", topic="steps", placement=before, queue_count=0)
        assert dict(same.placement) == before
        await a.ask("AlterTopic", topic="steps", options={"writes": "closed"})
        moved = await a.ask("AlterTopic", topic="steps", placement={"b": 3})
        assert dict(moved.placement) == {"b": 3}
        await a.ask("AlterTopic", topic="steps", options={"writes": "open"})
        more = {"a": 2, "b": 3}
        accepted = await a.ask("AlterTopic", topic="steps", placement=more, options={"writes": "open"})
        assert dict(accepted.placement) == more

    run(test)


def test_a_drained_broker_gets_no_new_topic() -> None:
    async def test(cluster: Cluster) -> None:
        a = cluster.brokers["a"]
        await a.ask("CreateTopic", topic="before", queue_count=2)
        await a.ask("Drain", grace_ms=0)
        made = await a.ask("CreateTopic", topic="orders")
        assert sorted(made.placement) == ["b", "c"]
        for brokers in (["a"], ["b", "a"]):
            error = await refusal(a.ask("CreateTopic", topic="x", brokers=brokers))
            assert error.spec is errors.BROKER_DRAINED
        placement = {"a": 8, "b": 8, "c": 8}
        error = await refusal(a.ask("AlterTopic", topic="orders", placement=placement))
        assert error.spec is errors.BROKER_DRAINED
        kept = await a.ask("AlterTopic", topic="before", placement={"a": 2, "b": 3})
        assert dict(kept.placement) == {"a": 2, "b": 3}, "it has its queues already"

    run(test)


def test_two_creations_at_once_make_one_topic() -> None:
    async def test(cluster: Cluster) -> None:
        asked = [cluster.brokers[name].ask("CreateTopic", topic="orders") for name in ("a", "b", "c")]
        results = await asyncio.gather(*asked, return_exceptions=True)
        refused = [result for result in results if isinstance(result, TroveError)]
        assert [error.spec for error in refused] == [errors.TOPIC_EXISTS] * 2
        others = [cluster.brokers[name].ask("CreateTopic", topic=f"t-{name}") for name in ("a", "b", "c")]
        made = await asyncio.gather(*others)
        assert [one.topic for one in made] == ["t-a", "t-b", "t-c"], "no version conflict"

    run(test)


# --- topics and groups of before --------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_topic_of_before_is_refused_unless_it_is_taken_in(name: str) -> None:
    async def test(cluster: Cluster) -> None:
        broker = cluster.brokers[name]
        await broker.core.topic_changes.create("old", 3, "FIFO", {"deduplicate": "60m"})
        error = await refusal(broker.ask("CreateTopic", topic="old", queue_count=3))
        assert error.spec is errors.TOPIC_EXISTS
        assert "trovemq topic adopt old" in error.message
        same: dict[str, Any] = {"queue_count": 3, "message_type": "FIFO", "options": {"deduplicate": "1h"}}
        assert (await refusal(broker.ask("CreateTopic", topic="old", brokers=["c"], **same))).spec is (
            errors.TOPIC_EXISTS
        ), "it would not lie where it is"
        made = await broker.ask("CreateTopic", topic="old", brokers=[name], **same)
        assert dict(made.placement) == {name: 3}
        assert not broker.differing
        await broker.ask("DeleteTopic", topic="old")
        assert "old" not in broker.core.store.topics

    run(test)


def test_a_topic_of_before_is_altered_and_deleted_on_its_broker_alone() -> None:
    async def test(cluster: Cluster) -> None:
        b = cluster.brokers["b"]
        await b.core.topic_changes.create("old", 3, "NORMAL")
        altered = await b.ask("AlterTopic", topic="old", queue_count=4)
        assert (altered.queue_count, dict(altered.placement)) == (4, {})
        await b.ask("DeleteTopic", topic="old")
        assert "old" not in b.core.store.topics
        assert not cluster.forwarded

    run(test)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_group_of_first_use_is_taken_in_by_its_alteration(name: str) -> None:
    async def test(cluster: Cluster) -> None:
        broker = cluster.brokers[name]
        for group in ("used", "other"):
            broker.core.groups.for_use(group, auto_create=True, now_ms=EpochMs(0))
        await broker.ask("AlterGroup", group="used", settings={"orderly": True, "retry_max": 2})
        for one in cluster.brokers.values():
            assert one.core.groups.require("used").orderly, one.name
        version = cluster.owner.head.version
        await broker.ask("DeleteGroup", group="other")
        assert "other" not in broker.core.groups
        assert cluster.owner.head.version == version, "the table never had it"

    run(test)


def test_the_first_send_creates_no_topic_of_a_cluster() -> None:
    async def test(cluster: Cluster) -> None:
        appender = cluster.brokers["b"].core.appender
        settings = small_broker_settings(auto_create_topic_enable=True)
        appender.apply(settings)
        with pytest.raises(TroveError, match="trovemq topic create") as caught:
            appender.topic_for_write("fresh")
        assert caught.value.spec is errors.TOPIC_NOT_FOUND

    run(test)


# --- users and rules --------------------------------------------------------------------------------------
async def add_rule(broker: Broker, resource: str, *, allow: bool = True) -> int:
    fields: dict[str, Any] = {"access_key": "bob", "allow": allow, "actions": "Pub", "resource": resource}
    return int((await broker.ask("CreateRule", **fields)).number)


def test_the_number_of_a_rule_is_never_used_again() -> None:
    async def test(cluster: Cluster) -> None:
        b = cluster.brokers["b"]
        await b.ask("CreateUser", access_key="bob")
        numbers = [await add_rule(b, f"Topic:t{number}") for number in range(3)]
        assert numbers == [1, 2, 3]
        assert await add_rule(b, "Topic:t1") == 2, "the same rule again"
        await b.ask("DeleteRule", number=3)
        assert await add_rule(b, "Topic:t9") == 4
        await b.ask("DeleteUser", access_key="bob")
        work = cluster.owner._stored.begin(_forgetting(cluster))
        work.run()
        cluster.owner._stored.finish(work)
        await cluster._deliver()
        assert [entry.name for entry in cluster.table if entry.kind is Kind.RULE] == ["4"], "the last one"
        await b.ask("CreateUser", access_key="bob")
        assert await add_rule(b, "Topic:t1") == 5

    run(test)


def _forgetting(cluster: Cluster) -> Any:
    head = cluster.owner.head
    return _update(head, [], head.version)


def test_a_user_with_more_rules_than_one_write_takes_is_deleted() -> None:
    async def test(cluster: Cluster) -> None:
        a = cluster.brokers["a"]
        await a.ask("CreateUser", access_key="bob")
        for number in range(300):
            allow = number % 3 != 0
            resource, decision = f"Topic:t{number}", "Allow" if allow else "Deny"
            settings = {"subject": "User:bob", "decision": decision, "actions": "Pub", "resource": resource}
            change = ConfigChange(ChangeKind.CREATE, Kind.RULE, str(number + 1), settings=settings)
            make(cluster.owner, change)
        await cluster._deliver()
        before = cluster.owner.head.version
        await cluster.brokers["b"].ask("DeleteUser", access_key="bob")
        assert [entry for entry in cluster.table if entry.kind is Kind.RULE and not entry.deleted] == []
        assert "bob" not in cluster.brokers["c"].state.users
        gone = [entry for entry in cluster.table.since(before) if entry.kind is Kind.RULE]
        denies = [int(entry.name) % 3 == 1 for entry in gone]
        assert denies == sorted(denies), "while a deny is there, nothing is allowed that it denied"

    run(test)


# --- forwarded calls --------------------------------------------------------------------------------------
def test_an_unreachable_owner_is_an_error_and_changes_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.unreachable = True
        for rpc, fields in (CALLS[0], CALLS[3], CALLS[6]):
            error = await refusal(cluster.brokers["b"].ask(rpc, **fields))
            assert error.spec is errors.CONFIG_OWNER_UNREACHABLE, rpc
        await cluster.brokers["a"].ask("CreateTopic", topic="orders")

    run(test)


def test_an_owner_that_stands_still_is_named_before_the_deadline() -> None:
    """The caller got REQUEST_TIMEOUT of the broker that it had called, which works."""

    async def test(cluster: Cluster) -> None:
        cluster.silent = True
        began = asyncio.get_running_loop().time()
        error = await refusal(cluster.brokers["b"].ask("CreateTopic", topic="orders"))
        assert error.spec is errors.CONFIG_OWNER_UNREACHABLE
        assert "owner a of the cluster's configuration did not answer in time" in error.message
        assert asyncio.get_running_loop().time() - began < 30

    run(test)


def test_a_call_is_forwarded_once() -> None:
    async def test(cluster: Cluster) -> None:
        shared = cluster.brokers["b"].services.all.shared_changes
        method = "/trovemq.v1.AdminService/DeleteTopic"
        error = await refusal(shared.handle(method, b"\n\x06orders", ADMIN, "127.0.0.1"))
        assert error.spec is errors.CONFIG_OWNER_MOVED
        owner = cluster.brokers["a"].services.all.shared_changes
        for other in ("/trovemq.v1.AdminService/ListTopics", "/trovemq.v1.SecurityService/Authenticate", "x"):
            assert (await refusal(owner.handle(other, b"", ADMIN, ""))).spec is errors.REQUEST_ILLEGAL
        assert (await refusal(owner.handle(method, b"\xff", ADMIN, ""))).spec is errors.REQUEST_ILLEGAL
        assert len(owner.paths) == len(CALLS)

    run(test)


def test_the_owner_refuses_a_caller_it_does_not_know() -> None:
    async def test(cluster: Cluster) -> None:
        b = cluster.brokers["b"]
        await b.ask("CreateUser", access_key="bob")
        await b.ask("AlterUser", access_key="bob", enabled=False)
        for caller in ("", "nobody", "bob"):
            error = await refusal(b.ask("CreateTopic", caller, topic="orders"))
            assert error.spec is errors.ACCESS_DENIED, caller

    run(test)


def test_a_right_that_was_taken_away_was_used_through_a_follower() -> None:
    """The follower's disk was full, for one: its rules were older than the owner's."""

    async def test(cluster: Cluster) -> None:
        a, b = cluster.brokers["a"], cluster.brokers["b"]
        users = a.services.all._users._security
        gate = Gate(authorization=True, cluster="c", clock_ms=lambda: EpochMs(0))
        gate.open(users.table, users.sessions)
        a.services.all.shared_changes._security = replace(users, admit=gate.admit_forwarded)
        await b.ask("CreateUser", access_key="bob")
        rule: dict[str, Any] = {
            "access_key": "bob",
            "allow": True,
            "actions": "Create",
            "resource": "Topic:*",
        }
        number = (await b.ask("CreateRule", sources=["127.0.0.1"], **rule)).number
        await b.ask("CreateTopic", "bob", topic="mine")
        cluster.away.add("b")
        await a.ask("DeleteRule", number=number)
        assert number in b.state.rules
        for rpc, fields in (("CreateTopic", {"topic": "more"}), ("AlterUser", {"access_key": "bob"})):
            error = await refusal(b.ask(rpc, "bob", **fields))
            assert error.spec is errors.ACCESS_DENIED, rpc
        assert cluster.table.live(Kind.TOPIC, "more") is None
        assert sum(gate.refusals.counts.values()) == 2

    run(test)


def test_a_forwarded_topic_is_its_callers_and_is_audited_so() -> None:
    async def test(cluster: Cluster) -> None:
        a, b = cluster.brokers["a"], cluster.brokers["b"]
        await b.ask("CreateUser", access_key="bob")
        await b.ask("CreateTopic", "bob", topic="mine")
        entry = cluster.table.live(Kind.TOPIC, "mine")
        assert entry is not None
        assert entry.settings["creator"] == "bob"
        acts = [record for record in audited(a) if record.method.endswith("CreateTopic")]
        assert [(act.user, act.source, act.phase, act.outcome) for act in acts] == [
            ("bob", "127.0.0.1 through b", "begun", ""),
            ("bob", "127.0.0.1 through b", "ended", "OK"),
        ]

    run(test)


def test_topics_of_a_creator_are_counted_in_the_whole_table() -> None:
    counted: list[tuple[str, int]] = []

    def check(noun: str, count: int) -> None:
        counted.append((noun, count))
        if count >= 1:
            raise TroveError(errors.LIMIT_EXCEEDED, "the quota")

    async def test(cluster: Cluster) -> None:
        a, creator = cluster.brokers["a"], Creator("bob", check)
        await a.ask("CreateTopic", creator, topic="mine", brokers=["b"])
        error = await refusal(a.ask("CreateTopic", creator, topic="more", brokers=["c"]))
        assert error.spec is errors.LIMIT_EXCEEDED
        await a.ask("CreateGroup", creator, group="mine")
        assert counted == [("topic", 0), ("topic", 1), ("group", 0)]

    run(test)


def audited(broker: Broker) -> list[Any]:
    flush(broker.core.store)
    broker.core.store.dispatch()
    return [
        decode_audit(bytes(one.body)) for one in read_queue(broker.core.store, AUDIT_TOPIC, AUDIT_QUEUE_ID)
    ]
