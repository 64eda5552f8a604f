"""A store's reasons at `/readyz`: which ones make the broker unready, and which ones only warn."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from trovemq_broker.daemon.readiness_reasons import add_store_reasons
from trovemq_daemon.ops_http import Readiness
from trovemq_store.files.files import StorageError
from trovemq_store.log.damage_counts import DamageCounts


def services() -> Any:
    """The parts that the reasons look at, all of them well."""
    damage = DamageCounts()
    trees = SimpleNamespace(report=SimpleNamespace(quarantined=""), lag_bytes=0)
    removal, index = (
        SimpleNamespace(removed=""),
        SimpleNamespace(create_failures=0, create_failure=None, name="index"),
    )
    reserve = SimpleNamespace(is_full=lambda: False)
    topics, groups = SimpleNamespace(limit_warning=lambda: ""), SimpleNamespace(limit_warning=lambda: "")
    store = SimpleNamespace(
        damage=damage,
        trees=trees,
        early_removal=removal,
        key_index=index,
        lagging=[],
        reserve=reserve,
        topics=topics,
        time=SimpleNamespace(future_ms=0),
    )
    counters = SimpleNamespace(disk_full=False, disk_used_percent=97.0)
    return SimpleNamespace(
        store=store,
        model=SimpleNamespace(groups=groups),
        group_commit=SimpleNamespace(failure=None),
        retention=SimpleNamespace(counters=counters),
        clock_trust=SimpleNamespace(stepped_ms=0, remaining_ms=0),
    )


def readiness_of(parts: Any) -> Readiness:
    readiness = Readiness()
    add_store_reasons(readiness, parts, parts)
    return readiness


def test_a_store_that_is_well_has_neither_reasons_nor_warnings() -> None:
    readiness = readiness_of(services())
    assert (readiness.ready, readiness.warnings()) == (True, {})


def test_a_failed_sync_and_a_missing_index_file_make_it_unready() -> None:
    parts = services()
    parts.store.key_index.create_failures, parts.store.lagging = 3, ["index"]
    parts.store.key_index.create_failure = StorageError("create", "index/.new", errno.EMFILE)
    problem = "no index file can be made (3 failures): create index/.new: EMFILE"
    assert readiness_of(parts).problems() == {"store": problem}
    parts.group_commit.failure = "EIO"
    assert readiness_of(parts).problems() == {"store": "failed: EIO"}


@pytest.mark.parametrize("name", ["retention", "damage", "trees", "topics", "groups", "clock"])
def test_other_trouble_only_warns(name: str) -> None:
    parts = services()
    if name == "retention":
        parts.retention.counters.disk_full = True
    elif name == "damage":
        parts.store.damage.ranges["torn"], parts.store.damage.bytes["torn"] = 2, 300
    elif name == "topics":
        parts.store.topics.limit_warning = lambda: "many topics"
    elif name == "groups":
        parts.model.groups.limit_warning = lambda: "many groups"
    elif name == "clock":
        parts.store.time.future_ms = 7_200_000
        parts.clock_trust.stepped_ms, parts.clock_trust.remaining_ms = -7_200_000, 90_000
    else:
        parts.store.trees.report.quarantined, parts.store.trees.lag_bytes = "another log", 4_096
    readiness = readiness_of(parts)
    words = {
        "retention": "97.0 % of the disk is used: new messages are refused",
        "damage": "2 damaged places of the log (300 bytes) were met",
        "clock": "messages were stored up to 7200 s in the future: the clock was ahead; the clock stepped by "
        "-7200 s: no message is removed for its age for 2 more minutes; run a time service (chrony, ntpd) on "
        "the broker's machine",
        "trees": "the search trees are rebuilt (another log); searches scan 4096 bytes",
        "topics": "many topics",
        "groups": "many groups",
    }
    assert (readiness.ready, readiness.warnings()) == (True, {name: words[name]})


def test_a_disk_that_refused_new_messages_below_the_limit_had_no_warning() -> None:
    """A small disk has no space for a segment long before the percentage from which messages are refused."""
    parts = services()
    parts.store.reserve.is_full = lambda: True
    readiness = readiness_of(parts)
    warning = "the disk has no space for a new segment: new messages are refused"
    assert (readiness.ready, readiness.warnings()) == (True, {"retention": warning})


def test_trees_that_have_caught_up_or_are_switched_off_warn_of_nothing() -> None:
    parts = services()
    parts.store.trees.report.quarantined = "another log"
    assert readiness_of(parts).warnings() == {}
    parts.store.trees = None
    assert readiness_of(parts).warnings() == {}
