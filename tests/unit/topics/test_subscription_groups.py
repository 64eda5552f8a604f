"""The consumer groups and their file."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import golden
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics import subscription_groups
from trovemq_store.topics.retry_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from trovemq_store.topics.subscription_groups import (
    MADE_BY_USE_ATTRIBUTE,
    SUBSCRIPTION_GROUPS_PATH,
    SubscriptionGroup,
    SubscriptionGroups,
    check_user_group_name,
)

NOW_MS = EpochMs(1_700_000_000_000)

ROCKETMQ_FILE = b"""{
	"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795264009788},
	"forbiddenTable":{"orders":{"T":3}},
	"futureMember":{0:1},
	"subscriptionGroupTable":{
		"orders":{"attributes":{"a":"b"},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":false,
			"consumeFromMinEnable":false,"consumeMessageOrderly":true,"consumeTimeoutMinute":9,
			"groupName":"orders","groupSysFlag":4,"later":[1],"notifyConsumerIdsChangedEnable":false,
			"groupRetryPolicy":{"type":"EXPONENTIAL","later":1,
				"exponentialRetryPolicy":{"initial":100,"max":900,"multiplier":3}},
			"retryMaxTimes":2,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1},
		"steps":{"groupName":"steps","groupRetryPolicy":{"type":"CUSTOMIZED",
			"customizedRetryPolicy":{"next":[10,20]}}},
		"old":{"brokerId":0,"consumeEnable":true,"groupName":"old","retryMaxTimes":-1},
		"TOOLS_CONSUMER":{"groupName":"TOOLS_CONSUMER"}
	}
}"""


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def rocketmq_files(files: MemoryFileSystem) -> MemoryFileSystem:
    files.write_atomic(SUBSCRIPTION_GROUPS_PATH, ROCKETMQ_FILE)
    return files


def document(files: MemoryFileSystem) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(files.read_bytes(SUBSCRIPTION_GROUPS_PATH))
    return read


def test_a_fresh_store_has_no_groups_and_writes_nothing(files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(files)
    assert (groups.names(include_system=True), groups.data_version, len(groups)) == ([], 0, 0)
    assert groups.save_work() is None
    assert not files.exists(SUBSCRIPTION_GROUPS_PATH)


def test_a_created_group_is_durable_in_rocketmqs_shape(files: MemoryFileSystem) -> None:
    made = SubscriptionGroups.load(files).create(SubscriptionGroup("billing"), now_ms=NOW_MS)
    survivor = files.after_power_cut()
    assert SubscriptionGroups.load(survivor).require("billing") == made
    assert document(survivor) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS},
        "forbiddenTable": {},
        "subscriptionGroupTable": {
            "billing": {
                "attributes": {},
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "consumeMessageOrderly": False,
                "consumeTimeoutMinute": 15,
                "groupName": "billing",
                "groupRetryPolicy": {"type": "CUSTOMIZED"},
                "groupSysFlag": 0,
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        },
    }


@pytest.mark.parametrize("name", golden.CLEAN_NAMES)
def test_a_golden_stores_file_is_written_back_as_rocketmq_wrote_it(name: str, tmp_path: Path) -> None:
    path = golden.unpack(name, tmp_path) / SUBSCRIPTION_GROUPS_PATH
    files = MemoryFileSystem()
    files.write_atomic(SUBSCRIPTION_GROUPS_PATH, path.read_bytes())
    before = document(files)
    groups = SubscriptionGroups.load(files)
    assert set(groups.names(include_system=True)) == set(before["subscriptionGroupTable"])
    groups.create(SubscriptionGroup("one-more"))
    after = document(files)
    made = after["subscriptionGroupTable"].pop("one-more")
    assert after["subscriptionGroupTable"] == before["subscriptionGroupTable"]
    own = before["subscriptionGroupTable"]["TOOLS_CONSUMER"]
    assert made == {**own, "groupName": "one-more"}, "a new group has what RocketMQ gives one"


def test_rocketmqs_groups_are_read(rocketmq_files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(rocketmq_files)
    assert groups.require("orders") == SubscriptionGroup(
        "orders",
        orderly=True,
        retry_max=2,
        retry_policy=RetryPolicy("exponential", initial_ms=100, max_ms=900, multiplier=3.0),
        consume_enable=False,
        consume_from_min=False,
        broadcast_enable=False,
        attributes={"a": "b"},
    )
    assert groups.require("steps").retry_policy == RetryPolicy(next_ms=(10, 20))
    assert groups.require("old").retry_policy == DEFAULT_RETRY_POLICY
    assert groups.require("old").max_attempts == 1
    assert groups.names() == ["old", "orders", "steps"]
    assert groups.names(include_system=True) == ["TOOLS_CONSUMER", "old", "orders", "steps"]
    assert groups.data_version == 7


def test_unknown_members_and_the_version_continue(rocketmq_files: MemoryFileSystem) -> None:
    before = json.loads(ROCKETMQ_FILE.replace(b"{0:1}", b"{}"))["subscriptionGroupTable"]
    SubscriptionGroups.load(rocketmq_files).alter("orders", retry_max=5)
    after = document(rocketmq_files)
    assert after["futureMember"] == {"0": 1}
    assert after["forbiddenTable"] == {"orders": {"T": 3}}
    assert after["dataVersion"] == {"counter": 8, "stateVersion": 0, "timestamp": 1795264009788}
    changed = {**before["orders"], "retryMaxTimes": 5}
    assert after["subscriptionGroupTable"] == {**before, "orders": changed}


def test_the_default_policy_has_rocketmqs_eighteen_steps() -> None:
    seconds = [DEFAULT_RETRY_POLICY.delay_ms(attempt) // 1000 for attempt in range(1, 21)]
    minutes = [60 * minute for minute in (*range(1, 11), 20, 30, 60, 120)]
    assert seconds == [1, 5, 10, 30, *minutes, 7200, 7200]


def test_an_exponential_policy_grows_up_to_its_most() -> None:
    policy = RetryPolicy("exponential", initial_ms=5_000, max_ms=7_200_000, multiplier=2.0)
    assert [policy.delay_ms(attempt) for attempt in (1, 2, 3, 11, 12, 10_000)] == [
        5_000, 10_000, 20_000, 5_120_000, 7_200_000, 7_200_000,
    ]  # fmt: skip


@given(
    st.one_of(
        st.builds(RetryPolicy, next_ms=st.lists(st.integers(0, 43_200_000), min_size=1).map(tuple)),
        st.builds(
            RetryPolicy,
            kind=st.just("exponential"),
            initial_ms=st.integers(0, 10**6),
            max_ms=st.integers(0, 10**8),
            multiplier=st.sampled_from([1.0, 1.5, 2.0, 7.0]),
        ),
    )
)
def test_a_policy_is_read_back_from_its_json(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(json.loads(json.dumps(policy.to_json({})))) == policy


@pytest.mark.parametrize(
    "name",
    [
        "", "a b", "ä", "x" * 121, "../g", "g\n", "CID_RMQ_SYS_", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL", "CID_ONS-HTTP-PROXY",
        "CID_SYS_RMQ_TRANS",
    ],
)  # fmt: skip
def test_names_that_users_cannot_have(files: MemoryFileSystem, name: str) -> None:
    groups = SubscriptionGroups.load(files)
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        check_user_group_name(name)
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        groups.create(SubscriptionGroup(name))
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        groups.for_use(name, auto_create=True, now_ms=NOW_MS)
    assert len(groups) == 0


@pytest.mark.parametrize("name", ["g", "x" * 120, "%RETRY%g", "a|b", "_-_", "CID_RMQ_SYS", "tools_consumer"])
def test_names_that_users_can_have(files: MemoryFileSystem, name: str) -> None:
    SubscriptionGroups.load(files).create(SubscriptionGroup(name))
    assert SubscriptionGroups.load(files).names() == [name]


@pytest.mark.parametrize(
    "group",
    [
        SubscriptionGroup("g", retry_max=-1),
        SubscriptionGroup("g", retry_max=10_001),
        SubscriptionGroup("g", retry_policy=RetryPolicy(next_ms=())),
        SubscriptionGroup("g", retry_policy=RetryPolicy(next_ms=(1,) * 65)),
        SubscriptionGroup("g", retry_policy=RetryPolicy(next_ms=(1, -1))),
        SubscriptionGroup("g", retry_policy=RetryPolicy(next_ms=(43_200_001,))),
        SubscriptionGroup("g", retry_policy=RetryPolicy("exponential", initial_ms=2, max_ms=1)),
        SubscriptionGroup("g", retry_policy=RetryPolicy("exponential", multiplier=0.5)),
        SubscriptionGroup("g", retry_policy=RetryPolicy("exponential", multiplier=float("nan"))),
    ],
)
def test_values_that_users_cannot_give(rocketmq_files: MemoryFileSystem, group: SubscriptionGroup) -> None:
    groups = SubscriptionGroups.load(rocketmq_files)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        groups.create(group)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        groups.alter("orders", retry_max=group.retry_max, retry_policy=group.retry_policy)
    assert rocketmq_files.read_bytes(SUBSCRIPTION_GROUPS_PATH) == ROCKETMQ_FILE


def test_alterations(rocketmq_files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(rocketmq_files)
    policy = RetryPolicy(next_ms=(7, 8))
    groups.alter(
        "orders",
        orderly=False,
        retry_max=0,
        retry_policy=policy,
        consume_enable=True,
        broadcast_enable=True,
    )
    read = SubscriptionGroups.load(rocketmq_files.after_power_cut()).require("orders")
    assert read == SubscriptionGroup(
        "orders", retry_max=0, retry_policy=policy, consume_from_min=False, attributes={"a": "b"}
    )
    assert read.max_attempts == 1
    with pytest.raises(TroveError, match="GROUP_NOT_FOUND"):
        groups.alter("missing", orderly=True)
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        groups.alter("TOOLS_CONSUMER", orderly=True)


def test_an_alteration_that_changes_nothing_writes_nothing(rocketmq_files: MemoryFileSystem) -> None:
    SubscriptionGroups.load(rocketmq_files).alter("orders", orderly=True, retry_max=2)
    assert rocketmq_files.read_bytes(SUBSCRIPTION_GROUPS_PATH) == ROCKETMQ_FILE


def test_deletion(rocketmq_files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(rocketmq_files)
    groups.delete("orders")
    assert "orders" not in groups
    assert "orders" not in SubscriptionGroups.load(rocketmq_files.after_power_cut())
    with pytest.raises(TroveError, match="GROUP_NOT_FOUND"):
        groups.delete("orders")
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        groups.delete("TOOLS_CONSUMER")


def test_creating_twice_is_refused(rocketmq_files: MemoryFileSystem) -> None:
    with pytest.raises(TroveError, match="GROUP_EXISTS"):
        SubscriptionGroups.load(rocketmq_files).create(SubscriptionGroup("orders"))


def test_a_group_made_by_use_is_on_disk_with_the_next_save(files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(files)
    with pytest.raises(TroveError, match="GROUP_NOT_FOUND"):
        groups.for_use("g", auto_create=False, now_ms=NOW_MS)
    made = groups.for_use("g", auto_create=True, now_ms=NOW_MS)
    by_use = SubscriptionGroup("g", attributes={MADE_BY_USE_ATTRIBUTE: "true"})
    assert made == by_use == groups.for_use("g", auto_create=False, now_ms=NOW_MS)
    assert groups.unsaved == {"g"}
    assert not files.exists(SUBSCRIPTION_GROUPS_PATH)
    groups.persist(now_ms=NOW_MS)
    assert groups.unsaved == frozenset()
    assert groups.save_work() is None
    assert SubscriptionGroups.load(files.after_power_cut()).names() == ["g"]


def test_any_change_saves_what_came_to_be_by_use(files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(files)
    groups.for_use("used", auto_create=True, now_ms=NOW_MS)
    groups.alter("used", retry_max=3)
    groups.for_use("used-too", auto_create=True, now_ms=NOW_MS)
    groups.create(SubscriptionGroup("made"))
    assert groups.unsaved == frozenset()
    read = SubscriptionGroups.load(files)
    assert read.names() == ["made", "used", "used-too"]
    assert read.require("used").retry_max == 3


def test_a_group_used_while_the_file_is_written_is_kept_for_the_next_save(files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(files)
    groups.for_use("first", auto_create=True, now_ms=NOW_MS)
    work = groups.save_work()
    assert work is not None
    groups.for_use("second", auto_create=True, now_ms=NOW_MS)
    assert groups.save_work() is None, "one at a time"
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        groups.create(SubscriptionGroup("third"))
    work.run()
    groups.finish(work)
    assert groups.unsaved == {"second"}
    groups.persist()
    assert SubscriptionGroups.load(files).names() == ["first", "second"]


def test_a_group_used_again_while_it_is_deleted_is_new(rocketmq_files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(rocketmq_files)
    change = groups.begin_delete("orders")
    by_use = SubscriptionGroup("orders", attributes={MADE_BY_USE_ATTRIBUTE: "true"})
    assert groups.for_use("orders", auto_create=True, now_ms=NOW_MS) == by_use
    change.run()
    groups.finish(change)
    groups.persist()
    assert SubscriptionGroups.load(rocketmq_files).require("orders") == by_use


def test_a_change_that_cannot_be_saved_is_not_made(rocketmq_files: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(rocketmq_files)
    groups = SubscriptionGroups.load(faulty)
    groups.for_use("used", auto_create=True, now_ms=NOW_MS)
    changes: list[int] = []
    groups.add_change_listener(lambda: changes.append(groups.data_version))
    faulty.decide = fail_always("write_atomic", errno.ENOSPC, SUBSCRIPTION_GROUPS_PATH)
    before = {name: groups.require(name) for name in groups.names(include_system=True)}
    for change in (
        lambda: groups.create(SubscriptionGroup("new")),
        lambda: groups.alter("orders", retry_max=7),
        lambda: groups.delete("orders"),
        lambda: groups.delete("used"),
        groups.persist,
    ):
        with pytest.raises(TroveError, match="DISK_FULL"):
            change()
        assert {name: groups.require(name) for name in groups.names(include_system=True)} == before
        assert (groups.data_version, groups.unsaved) == (7, frozenset({"used"}))
    assert changes == []
    faulty.decide = lambda operation, path: None
    groups.create(SubscriptionGroup("new"))
    assert changes == [8]
    assert SubscriptionGroups.load(rocketmq_files).names() == ["new", "old", "orders", "steps", "used"]


def test_the_number_of_groups_is_bounded(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_groups, "GROUP_COUNT_MAX", 1)
    groups = SubscriptionGroups.load(files)
    groups.create(SubscriptionGroup("a"))
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        groups.create(SubscriptionGroup("b"))
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        groups.for_use("b", auto_create=True, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "group",
    [
        b"1",
        b'{"retryMaxTimes":"x"}',
        b'{"attributes":[]}',
        b'{"groupRetryPolicy":{"type":"X"}}',
        b'{"groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":["x"]}}}',
        b'{"groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"multiplier":0}}}',
        b'{"groupRetryPolicy":{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":-1}}}',
    ],
)
def test_a_file_of_another_shape_names_itself(files: MemoryFileSystem, group: bytes) -> None:
    files.write_atomic(SUBSCRIPTION_GROUPS_PATH, b'{"subscriptionGroupTable":{"a":%s}}' % group)
    with pytest.raises(TroveError, match=r"STORE_FAILED.*config/subscriptionGroup\.json"):
        SubscriptionGroups.load(files)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "alter", "delete", "use", "save", "restart"]),
            st.sampled_from("abc"),
            st.integers(0, 4),
        ),
        max_size=16,
    )
)
def test_the_table_is_a_dictionary_that_survives_power_cuts(steps: list[tuple[str, str, int]]) -> None:
    files = MemoryFileSystem()
    groups = SubscriptionGroups.load(files)
    model: dict[str, int] = {}
    saved: dict[str, int] = {}
    for operation, name, retry_max in steps:
        match operation:
            case "restart":
                files = files.after_power_cut()
                groups = SubscriptionGroups.load(files)
                model = dict(saved)
            case "use":
                groups.for_use(name, auto_create=True, now_ms=NOW_MS)
                model.setdefault(name, 16)
            case "save":
                groups.persist()
                saved = dict(model)
            case _:
                possible = (name in model) != (operation == "create")
                try:
                    if operation == "create":
                        groups.create(SubscriptionGroup(name, retry_max=retry_max))
                    elif operation == "alter":
                        groups.alter(name, retry_max=retry_max)
                    else:
                        groups.delete(name)
                except TroveError:
                    assert not possible
                else:
                    assert possible
                    changed = operation != "alter" or model[name] != retry_max
                    model = {**model, name: retry_max}
                    if operation == "delete":
                        del model[name]
                    saved = dict(model) if changed else saved
        assert {name: groups.require(name).retry_max for name in groups.names()} == model


def test_a_group_that_a_user_has_altered_counts_as_the_users(files: MemoryFileSystem) -> None:
    groups = SubscriptionGroups.load(files)
    assert groups.for_use("g", auto_create=True, now_ms=NOW_MS).made_by_use
    groups.alter("g")
    groups.persist()
    assert SubscriptionGroups.load(files).require("g").made_by_use, "nothing was altered"
    groups.alter("g", retry_max=3)
    assert not SubscriptionGroups.load(files).require("g").made_by_use
    assert not groups.create(SubscriptionGroup("other")).made_by_use
