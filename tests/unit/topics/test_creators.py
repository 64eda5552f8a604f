"""Who made a topic or a group, and how many of them are there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import CREATOR_ATTRIBUTE, Creator, creator_of
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups
from trovemq_store.topics.topics import NewTopic, TopicTable


def limited(name: str, count_max: int) -> Creator:
    def check(noun: str, count: int) -> None:
        if count >= count_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{count} {noun}s")

    return Creator(name, check)


@dataclass(frozen=True)
class Kind:
    """One of the two tables."""

    load: Callable[[Any], Any]
    create: Callable[[Any, str, Creator], Any]


def _create_group(table: SubscriptionGroups, name: str, creator: Creator) -> None:
    change = table.begin_create(SubscriptionGroup(name), creator=creator)
    try:
        change.run()
    finally:
        table.finish(change)


KINDS = {
    "topics": Kind(TopicTable.load, lambda table, name, who: table.create(name, 1, creator=who)),
    "groups": Kind(SubscriptionGroups.load, _create_group),
    "groups by use": Kind(
        SubscriptionGroups.load,
        lambda table, name, who: table.for_use(name, auto_create=True, now_ms=0, creator=who),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_a_creator_makes_so_many_and_no_more(kind: Kind) -> None:
    table = kind.load(MemoryFileSystem())
    alice = limited("alice", 2)
    for name in ("a", "b"):
        kind.create(table, name, alice)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        kind.create(table, "c", alice)
    assert "c" not in table
    kind.create(table, "c", Creator("bob"))
    table.delete("a")
    kind.create(table, "d", alice)
    assert (table.made_by("alice"), table.made_by("bob"), table.made_by("")) == (2, 1, 0)


def test_a_creator_is_known_after_a_restart_and_an_alteration(kind: Kind) -> None:
    files = MemoryFileSystem()
    table = kind.load(files)
    kind.create(table, "a", Creator("alice"))
    if isinstance(table, TopicTable):
        table.alter("a", queue_count=3, options={"order": "priority"})
    else:
        table.alter("a", retry_max=3)
    again = kind.load(files)
    assert creator_of(again.require("a").attributes) == "alice"
    assert again.made_by("alice") == 1


def test_callers_without_a_name_leave_no_attribute(kind: Kind) -> None:
    table = kind.load(MemoryFileSystem())
    kind.create(table, "a", Creator())
    assert CREATOR_ATTRIBUTE not in table.require("a").attributes


def test_one_change_of_many_topics_keeps_to_the_limit() -> None:
    table = TopicTable.load(MemoryFileSystem())
    alice = limited("alice", 3)
    change, refusals = table.begin_create_all([NewTopic(name, 1, creator=alice) for name in "abbcde"])
    assert change is not None
    change.run()
    table.finish(change)
    symbols = [refusal and refusal.symbol for refusal in refusals]
    assert symbols == [None, None, "TOPIC_EXISTS", None, "LIMIT_EXCEEDED", "LIMIT_EXCEEDED"]
    assert table.made_by("alice") == 3


def healthy(_operation: str, _path: str) -> int | None:
    return None


def full(operation: str, _path: str) -> int | None:
    return errno.ENOSPC if operation in ("create", "write", "write_atomic", "sync") else None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"), st.sampled_from(["alice", "bob", ""]), st.booleans(), st.booleans()
        ),
        max_size=20,
    )
)
def test_the_counts_are_those_of_the_table(steps: list[tuple[str, str, bool, bool]]) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    table = TopicTable.load(files)
    for name, who, deletes, fails in steps:
        files.decide = full if fails else healthy
        with suppress(TroveError):
            if deletes:
                table.delete(name)
            else:
                table.create(name, 1, creator=Creator(who))
        names = table.names(include_system=True)
        for one in ("alice", "bob", ""):
            own = [each for each in names if creator_of(table.require(each).attributes) == one]
            assert table.made_by(one) == len(own)
