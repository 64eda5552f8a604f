"""The part of the log that a leader keeps for members that lag or are away."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.replication.test_leader import Group, open_group
from trovemq_broker.replication.frames import Identity
from trovemq_broker.replication.kept_log import KeptLimits

A, B, C = (Identity(name, f"store of {name}", 0) for name in "abc")
LIMITS = KeptLimits(bytes_max=1_000, away_max_ms=5_000)


def kept(group: Group, now_ms: int) -> tuple[int, list[str]]:
    found = group.leader.kept_log(now_ms)
    return found.begin, sorted(found.not_kept)


def limited(group: Group) -> Group:
    group.leader.settings = replace(group.leader.settings, kept=LIMITS)
    return group


def test_the_log_is_kept_from_the_end_of_the_follower_that_lags() -> None:
    group = limited(open_group())
    group.hello(2, C)
    group.report(2, 110)
    end = group.append()
    group.report(1, end, version=5)
    assert kept(group, 0) == (110, [])
    group.report(2, end)
    assert kept(group, 0) == (end, [])


def test_the_log_is_kept_for_a_member_that_is_away_and_for_how_long() -> None:
    group = limited(open_group())
    group.hello(2, C)
    group.report(2, 110)
    group.take(group.leader.closed(2, 1_000), 1_000)
    end = group.append(now_ms=1_000)
    group.report(1, end, version=5, now_ms=1_000)
    assert kept(group, 6_000) == (110, [])
    assert kept(group, 6_001) == (end, ["c"])
    group.hello(3, C, end=110, now_ms=7_000)
    assert kept(group, 7_000) == (100, []), "it is back, and was cut to the former epoch's end"


def test_a_member_that_lags_by_more_is_named_and_holds_nothing() -> None:
    group = limited(open_group())
    group.hello(2, C)
    group.report(2, 110)
    for _ in range(20):
        end = group.append()
        group.report(1, end, version=5)
    assert end - 110 == 1_000
    assert kept(group, 0) == (110, [])
    end = group.append()
    group.report(1, end, version=5)
    assert kept(group, 0) == (end, ["c"])


def test_a_new_leader_keeps_all_for_members_that_it_has_not_heard() -> None:
    group = limited(Group(A, B))
    assert kept(group, 5_000) == (0, []), "where their logs end is not known"
    assert kept(group, 5_001) == (110, ["b", "c"])
    for _ in range(30):
        group.append()
    assert kept(group, 5_000) == (group.log.end - 1_000, []), "the newest part, if it is too much"
