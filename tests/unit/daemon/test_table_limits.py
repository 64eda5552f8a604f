"""Random group names fill the table of groups: the broker warns before it is full, and says what to do."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.engine import NOW_MS
from tests.support.fake_loop import fake_time
from trovemq_broker.maintenance import limits
from trovemq_broker.maintenance.limits import CHECK_INTERVAL_S, watch_limits
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics import subscription_groups
from trovemq_store.topics.subscription_groups import SubscriptionGroups

REMEDY = (
    "delete those that no program uses (trovemq group list, trovemq group delete), and give each application "
    "one fixed group name; group_expiry_ms forgets unused ones"
)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> SubscriptionGroups:
    """A table of at most ten groups."""
    monkeypatch.setattr(subscription_groups, "GROUP_COUNT_MAX", 10)
    return SubscriptionGroups.load(MemoryFileSystem())


def use(groups: SubscriptionGroups, count: int) -> None:
    for number in range(count):
        groups.for_use(f"app-{number}", auto_create=True, now_ms=NOW_MS)


def test_new_groups_were_refused_without_a_warning_before(groups: SubscriptionGroups) -> None:
    use(groups, 7)
    assert groups.limit_warning() == ""
    use(groups, 8)
    assert groups.limit_warning() == f"8 of at most 10 groups exist: {REMEDY}"


def test_the_remedy_of_a_full_table_named_a_setting_that_does_not_exist(groups: SubscriptionGroups) -> None:
    with pytest.raises(TroveError) as refused:
        use(groups, 11)
    assert refused.value.spec is errors.LIMIT_EXCEEDED
    assert refused.value.message == f"this broker has 10 groups, and that is the most: {REMEDY}"
    assert "message says" in refused.value.spec.what_to_do
    groups.delete("app-3")
    use(groups, 4)


@fake_time
async def test_the_log_warns_once_each_time_that_a_table_comes_near_its_limit(
    groups: SubscriptionGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []

    class Logger:
        def warning(self, event: str, *, table: str, detail: str) -> None:
            logged.append(f"{event} {table} {detail[:12]}")

    monkeypatch.setattr(limits, "get_logger", Logger)
    task = asyncio.ensure_future(watch_limits({"groups": groups.limit_warning}))
    use(groups, 8)
    await asyncio.sleep(3 * CHECK_INTERVAL_S)
    groups.delete("app-1")
    await asyncio.sleep(3 * CHECK_INTERVAL_S)
    use(groups, 8)
    await asyncio.sleep(3 * CHECK_INTERVAL_S)
    task.cancel()

    assert logged == ["limit.near groups 8 of at most"] * 2
