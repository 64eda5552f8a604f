"""A broker's own topics, groups, users, rules and quotas follow the cluster's table."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.engine import NOW_MS, record, send
from tests.unit.cluster_config.local_bench import ClusterTable, LocalBench
from trovemq_broker.admin.config_texts import user_secrets, user_texts
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Kind
from trovemq_broker.security import changes
from trovemq_broker.security.quotas import Quota
from trovemq_daemon.users import User, UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.config_marks import placed_version
from trovemq_store.topics.subscription_groups import (
    SUBSCRIPTION_GROUPS_PATH,
    SubscriptionGroup,
    SubscriptionGroups,
)
from trovemq_store.topics.topics import TopicTable
from trovemq_store.topics.topics_file import TOPICS_PATH

pytestmark = pytest.mark.asyncio

OPTIONS = {"retention": "until_acknowledged", "retention_age_max": "60m"}
TOPIC, GROUP, USER, RULE, QUOTA = Kind.TOPIC, Kind.GROUP, Kind.USER, Kind.RULE, Kind.QUOTA


def made_user(name: str, secret: bytes = b"secret-0", kind: UserKind = UserKind.NORMAL) -> User:
    return new_user(name, kind, secret, salt=b"0123456789abcdef", now_ms=NOW_MS)


def user_change(user: User) -> ConfigChange:
    return ConfigChange(
        ChangeKind.CREATE,
        USER,
        user.access_key,
        settings=user_texts(user),
        secrets=user_secrets(user),
    )


# --- topics -----------------------------------------------------------------------------------------------
async def test_a_topic_is_created_with_its_settings_and_the_id_of_its_entry() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 3, "a": 8}, message_type="FIFO", indexed_properties="a,b", perm="4")
    await bench.follow()
    config = TopicTable.load(bench.files).require("orders")
    assert (config.queue_count, config.write_queue_count, config.perm) == (3, 3, 4)
    assert (config.message_type, config.options.indexed_properties) == ("FIFO", ("a", "b"))
    assert config.attributes["trovemq.config.id"] == "1.0123456789abcdef.1"


async def test_a_topic_without_queues_on_this_broker_is_not_created() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"a": 8})
    assert (await bench.follow()).actions == []
    assert bench.topics == []


async def test_alterations_reach_the_topic_and_leave_its_other_attributes() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2}, indexed_properties="a")
    await bench.follow()
    files = bench.disk.after_process_kill()
    document = json.loads(files.read_bytes(TOPICS_PATH))
    document["topicConfigTable"]["orders"]["attributes"]["cleanup.policy"] = "COMPACTION"
    files.write_atomic(TOPICS_PATH, json.dumps(document).encode())
    again = LocalBench(cluster, files=files)
    cluster.alter(TOPIC, "orders", {"b": 5}, order="priority")
    await again.follow()
    config = again.store.topics.require("orders")
    assert (config.queue_count, config.write_queue_count) == (5, 5)
    assert (config.options.order, config.options.indexed_properties) == ("priority", ())
    assert config.attributes["cleanup.policy"] == "COMPACTION"
    assert config.attributes["trovemq.config.id"] == "1.0123456789abcdef.1"


async def test_a_smaller_placement_leaves_the_other_queues_to_be_read() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 4})
    await bench.follow()
    cluster.alter(TOPIC, "orders", {"b": 1})
    await bench.follow()
    config = bench.store.topics.require("orders")
    assert (config.queue_count, config.write_queue_count, config.perm) == (4, 1, 6)
    cluster.alter(TOPIC, "orders", {"b": 3})
    await bench.follow()
    config = bench.store.topics.require("orders")
    assert (config.queue_count, config.write_queue_count) == (4, 3)


async def test_a_topic_placed_elsewhere_takes_no_messages_until_it_is_back() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2})
    await bench.follow()
    send(bench.store, record(b"kept"))
    cluster.alter(TOPIC, "orders", {"a": 2}, order="priority")
    await bench.follow()
    config = bench.store.topics.require("orders")
    assert (config.readable, config.writable, config.options.order) == (True, False, "priority")
    assert bench.closed_topics == ["orders"], "calls that wait for it look again"
    queue = bench.store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert queue.max_offset == 1
    cluster.alter(TOPIC, "orders", {"b": 2})
    await bench.follow()
    assert bench.store.topics.require("orders").perm == 6


async def test_a_read_only_topic_stays_so_when_it_is_placed_here_again() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2}, perm="4")
    await bench.follow()
    cluster.alter(TOPIC, "orders", {}, perm="4")
    await bench.follow()
    cluster.alter(TOPIC, "orders", {"b": 2}, perm="4")
    await bench.follow()
    assert bench.store.topics.require("orders").perm == 4


async def placed(cluster: ClusterTable, bench: LocalBench, name: str = "orders") -> int | None:
    await bench.follow()
    return placed_version(bench.store.topics.require(name).attributes)


async def test_a_topic_notes_when_it_came_here_after_it_was_made() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 1})
    assert await placed(cluster, bench) is None, "it was here from its beginning"
    cluster.alter(TOPIC, "orders", {"a": 1})
    await bench.follow()
    cluster.alter(TOPIC, "orders", {"a": 1, "b": 1})
    assert await placed(cluster, bench) == 3, "it was away meanwhile"
    cluster.create(TOPIC, "spread", {"a": 1})
    cluster.alter(TOPIC, "spread", {"a": 1, "b": 1})
    assert await placed(cluster, bench, "spread") == 5
    joining = LocalBench(cluster)
    cluster.create(TOPIC, "other", {"b": 1})
    cluster.create(TOPIC, "last", {"b": 1})
    assert await placed(cluster, joining, "other") == 7, "others may have read it before this one joined"


async def test_a_deleted_topic_is_deleted_here_and_one_made_again_is_another_one() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2})
    await bench.follow()
    send(bench.store, record(b"gone"))
    cluster.delete(TOPIC, "orders")
    cluster.create(TOPIC, "orders", {"b": 3})
    await bench.follow()
    assert bench.deleted_topics == ["orders"]
    assert bench.store.consume_queues.get("orders", QueueId(0)) is None
    config = bench.store.topics.require("orders")
    assert (config.queue_count, config.attributes["trovemq.config.id"]) == (3, "1.0123456789abcdef.3")
    cluster.delete(TOPIC, "orders")
    await bench.follow()
    assert bench.topics == []


async def test_a_creation_over_a_topic_whose_deletion_failed_kept_its_messages() -> None:
    cluster = ClusterTable()
    fault: int | None = None
    bench = LocalBench(cluster, files=FaultyFileSystem(MemoryFileSystem(), lambda *_: fault))
    cluster.create(TOPIC, "orders", {"b": 2})
    await bench.follow()
    cluster.delete(TOPIC, "orders")
    cluster.create(TOPIC, "orders", {"b": 2})
    planned = bench.plan()
    fault = errno.ENOSPC
    (failure,) = await bench.refused(planned)
    assert (failure.action.kind, failure.error.symbol) == ("delete", "DISK_FULL")
    kept = bench.store.topics.require("orders")
    assert kept.attributes["trovemq.config.id"].endswith(".1")
    with pytest.raises(TroveError) as refused:
        kept.check_open()
    assert refused.value.spec is errors.TOPIC_CLOSED, "new messages would be deleted with it"
    fault = None
    await bench.follow()
    made = bench.store.topics.require("orders")
    assert made.attributes["trovemq.config.id"].endswith(".3")
    made.check_open()


async def test_a_topic_made_here_before_is_adopted_if_equal_else_reported() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    for name in ("equal", "other", "unlisted"):
        bench.store.topics.create(name, 2, options=OPTIONS)
    kept = {"retention": "until_acknowledged"}
    cluster.create(TOPIC, "equal", {"b": 2}, retention_age_max="1h", creator="alice", **kept)
    cluster.create(TOPIC, "other", {"b": 2}, retention_age_max="2h", **kept)
    made = await bench.follow()
    assert [(action.kind, action.key.name) for action in made.actions] == [("adopt", "equal")]
    assert [error.symbol for error in made.differing] == ["CONFIG_SETTINGS_DIFFER"]
    assert [key.name for key in made.unlisted] == ["unlisted"]
    attributes = bench.store.topics.require("equal").attributes
    assert attributes["trovemq.config.id"] == "1.0123456789abcdef.1"
    assert attributes["trovemq.creator"] == "alice"
    assert "trovemq.config.id" not in bench.store.topics.require("other").attributes


async def test_a_topic_made_here_between_plan_and_creation_is_not_replaced() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2})
    planned = bench.plan()
    bench.store.topics.create("orders", 7)
    (failure,) = await bench.refused(planned)
    assert failure.error.symbol == "TOPIC_EXISTS"
    assert bench.store.topics.require("orders").queue_count == 7


async def test_a_topic_whose_deletion_was_forgotten_is_withheld_not_deleted() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2})
    cluster.create(GROUP, "billing", consume_from_min="false")
    await bench.follow()
    cluster.delete(TOPIC, "orders")
    cluster.delete(GROUP, "billing")
    cluster.forget()
    await bench.follow()
    assert bench.store.topics.require("orders").perm == 0
    assert not bench.model.groups.require("billing").consume_enable
    assert [str(key) for key in bench.local.withheld()] == ["group billing", "topic orders"]
    assert [action.kind for action in bench.plan().actions] == ["withhold", "withhold"]
    await bench.follow()
    again = LocalBench(cluster, files=bench.disk.after_process_kill())
    assert again.store.topics.require("orders").perm == 0, "after a restart, too"


async def test_a_withheld_topic_is_served_again_when_the_table_has_it() -> None:
    cluster, without = ClusterTable(), ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(TOPIC, "orders", {"b": 2})
    cluster.create(GROUP, "billing", orderly="true")
    await bench.follow()
    without.create(QUOTA, "Address:*", calls_max="1")
    without.create(QUOTA, "Client:*", calls_max="1")
    bench.cluster = without
    await bench.follow()
    assert len(bench.local.withheld()) == 2
    bench.cluster = cluster
    await bench.follow()
    assert bench.local.withheld() == []
    assert bench.store.topics.require("orders").perm == 6
    assert bench.model.groups.require("billing").consume_enable


async def test_system_and_retry_topics_are_the_broker_s_own() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    for name in ("%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX"):
        bench.store.topics.ensure_internal(name, 1)
    assert bench.local.entries() == {}
    assert bench.local.founding() == []
    cluster.create(TOPIC, "%DLQ%other", {"b": 1})
    assert {failure.error.symbol for failure in await bench.refused()} == {"TOPIC_ILLEGAL"}


# --- groups -----------------------------------------------------------------------------------------------
async def test_groups_are_created_altered_and_deleted_with_their_offsets() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.create(GROUP, "billing", retry_max="3", orderly="true")
    await bench.follow()
    assert SubscriptionGroups.load(bench.files).require("billing").retry_max == 3
    bench.store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(0))
    cluster.alter(GROUP, "billing", retry_policy="customized 1000,2000")
    await bench.follow()
    group = bench.model.groups.require("billing")
    assert (group.retry_max, group.orderly, group.retry_policy.next_ms) == (16, False, (1000, 2000))
    cluster.delete(GROUP, "billing")
    await bench.follow()
    assert bench.deleted_groups == ["billing"]
    assert list(bench.store.offsets.pairs()) == []


async def test_a_group_that_its_first_use_made_takes_the_cluster_s_settings() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    bench.model.groups.for_use("billing", auto_create=True, now_ms=NOW_MS)
    bench.model.groups.for_use("other", auto_create=True, now_ms=NOW_MS)
    bench.store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(5))
    assert bench.local.founding() == []
    cluster.create(GROUP, "billing", orderly="true")
    made = await bench.follow()
    assert (made.differing, made.unlisted) == ([], [])
    group = bench.model.groups.require("billing")
    assert (group.orderly, group.made_by_use) == (True, False)
    assert group.attributes["trovemq.config.id"] == "1.0123456789abcdef.1"
    assert bench.store.offsets.get("billing", "orders", QueueId(0)) == 5
    assert bench.model.groups.require("other").made_by_use


# --- users, rules, quotas ---------------------------------------------------------------------------------
async def test_users_rules_and_quotas_come_in_one_change_and_go() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    assert bench.security is not None
    alice = made_user("alice")
    cluster.make(user_change(alice))
    rule = {"subject": "User:alice", "decision": "Allow", "actions": "Pub", "resource": "Topic:orders"}
    cluster.create(RULE, "7", None, **rule)
    cluster.create(QUOTA, "User:alice", requests_per_s="5")
    before = bench.security.table.generation
    await bench.follow()
    state = bench.security.table.state
    assert state.users == {"alice": alice}
    assert [str(rule) for rule in state.rules.values()] == ["rule 7: allow Pub on Topic:orders to User:alice"]
    assert (state.next_rule, state.quotas) == (8, {"User:alice": Quota(5)})
    assert bench.security.table.generation is not before
    cluster.delete(RULE, "7")
    cluster.delete(QUOTA, "User:alice")
    cluster.delete(USER, "alice")
    await bench.follow()
    state = bench.security.table.state
    assert (state.users, state.rules, state.quotas, state.next_rule) == ({}, {}, {}, 8)


async def test_a_user_made_here_otherwise_takes_the_cluster_s_secrets() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    assert bench.security is not None
    for user in (made_user("alice", b"local-secret", UserKind.SUPER), made_user("gone"), made_user("mine")):
        await bench.security.apply(lambda state, user=user: changes.add_user(state, user))  # type: ignore[misc]
    alice = made_user("alice")
    cluster.make(user_change(alice), user_change(made_user("gone")))
    cluster.delete(USER, "gone")
    made = await bench.follow()
    assert sorted(bench.security.table.state.users) == ["alice", "mine"]
    assert bench.security.table.user("alice") == alice
    assert [str(key) for key in made.unlisted] == ["user mine"]


async def test_an_admin_whom_the_cluster_replaced_was_shut_out_without_a_word() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    assert bench.security is not None
    own = replace(made_user("admin", kind=UserKind.SUPER), salt=b"another-salt-012")
    await bench.security.apply(lambda state: changes.add_user(state, own))
    (entry,) = cluster.make(user_change(made_user("admin", kind=UserKind.SUPER)))
    with capture_logs() as lines:
        await bench.follow()
    assert [line["user"] for line in lines if line["event"] == "config.user_replaced"] == ["admin"]
    rotated = changes.rotate_secret(bench.security.table.state, "admin", b"another-secret", NOW_MS)
    user = rotated.require_user("admin")
    change = replace(user_change(user), action=ChangeKind.ALTER, seen=entry.version)
    cluster.make(change)
    with capture_logs() as lines:
        await bench.follow()
    assert bench.security.table.user("admin") == user
    assert not [line for line in lines if line["event"] == "config.user_replaced"], "it is the same user"


async def test_rules_of_a_deleted_user_were_left_for_the_next_one_of_its_name() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    assert bench.security is not None
    cluster.make(user_change(made_user("alice")))
    await bench.follow()
    await bench.security.apply(
        lambda state: changes.add_rule(state, "alice", allow=True, actions="All", resource="*")[0]
    )
    cluster.delete(USER, "alice")
    await bench.follow()
    assert bench.security.table.state.rules == {}


async def test_a_broker_without_authentication_skips_users() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster, authenticated=False)
    cluster.make(user_change(made_user("alice")))
    cluster.create(TOPIC, "orders", {"b": 1})
    assert await bench.refused() == []
    assert bench.topics == ["orders"]


async def test_one_entry_that_cannot_be_made_stops_no_other() -> None:
    cluster = ClusterTable()
    bench = LocalBench(cluster)
    cluster.make(user_change(made_user("alice")))
    cluster.create(TOPIC, "newer", {"b": 1}, colour="red")
    cluster.create(TOPIC, "orders", {"b": 1})
    cluster.create(GROUP, "newer", colour="red")
    cluster.create(GROUP, "billing")
    cluster.create(USER, "newer", colour="red")
    failures = await bench.refused()
    assert {str(one.action.key) for one in failures} == {"topic newer", "group newer", "user newer"}
    assert {one.error.symbol for one in failures} <= {"STORE_NEWER", "REQUEST_ILLEGAL"}
    assert bench.topics == ["orders"]
    assert bench.model.groups.names() == ["billing"]
    assert bench.security is not None
    assert list(bench.security.table.state.users) == ["alice"]


@pytest.mark.parametrize(("path", "kind"), [(TOPICS_PATH, TOPIC), (SUBSCRIPTION_GROUPS_PATH, GROUP)])
async def test_a_full_disk_refuses_each_entry_and_the_next_plan_makes_it(path: str, kind: Kind) -> None:
    cluster = ClusterTable()
    fault: int | None = errno.ENOSPC

    def decide(operation: str, at: str) -> int | None:
        return fault if operation == "write_atomic" and at == path else None

    bench = LocalBench(cluster, files=FaultyFileSystem(MemoryFileSystem(), decide))
    for name in ("one", "two"):
        cluster.create(kind, name, {"b": 1} if kind is TOPIC else None)
    assert [failure.error.symbol for failure in await bench.refused()] == ["DISK_FULL", "DISK_FULL"]
    assert bench.local.entries() == {}
    fault = None
    await bench.follow()
    assert len(bench.local.entries()) == 2


# --- founding ---------------------------------------------------------------------------------------------
async def test_all_that_a_founder_has_is_made_equally_on_an_empty_broker() -> None:
    cluster = ClusterTable()
    founder = LocalBench(cluster, "a")
    assert founder.security is not None
    founder.store.topics.create("orders", 3, "FIFO", options={"retention": "until_acknowledged"})
    founder.store.topics.create("audit", 2, options={"indexed_properties": " a, b"})
    founder.store.topics.alter("audit", perm=4)
    founder.model.groups.create(SubscriptionGroup("billing", orderly=True, retry_max=3))
    await founder.security.apply(lambda state: changes.add_user(state, made_user("alice")))
    await founder.security.apply(
        lambda state: changes.add_rule(
            state, "alice", allow=False, actions="sub,pub", resource="*", sources=["::1", "10.0.0.0/8"]
        )[0]
    )
    await founder.security.apply(lambda state: changes.set_quota(state, "Address:*", Quota(calls_max=9)))
    cluster.make(*founder.local.founding())
    made = await founder.follow()
    assert {action.kind for action in made.actions} == {"adopt"}, "the founder's own get their ids"
    for entry in list(cluster.table):
        if entry.kind is TOPIC:
            cluster.alter(TOPIC, entry.name, {**entry.placement, "b": entry.placement["a"]}, **entry.settings)
    other = LocalBench(cluster, "b")
    await other.follow()
    assert other.local.entries() == founder.local.entries()
    assert len(other.local.entries()) == 6
