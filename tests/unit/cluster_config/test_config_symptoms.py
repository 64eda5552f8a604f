"""Faults that were found by reading, one test for each symptom."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.cluster_config.config_parts import (
    LATER,
    MARK,
    START,
    connect,
    created,
    deleted,
    deliver,
    follower,
    founded,
    make,
    stream,
)
from trovemq_broker.admin.shared_topics import SharedTopics
from trovemq_broker.cluster_config import messages, table
from trovemq_broker.cluster_config.entries import COUNT_MAX, ClockMs, ConfigChange, Generation, Kind
from trovemq_broker.cluster_config.follower import Follower
from trovemq_broker.cluster_config.owner import Owner
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.cluster_config.take_over import begin_take_over
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.topics import NewTopic

OTHER_MARK = "f" * 16


def test_a_deletion_is_missed_by_a_broker_that_was_removed_while_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq_broker.cluster_config.owner.FORGET_FROM", 1)
    owner, b, c = founded(), follower("b"), follower("c")
    connect(owner, c)
    (entry,) = make(owner, created("orders"))
    connect(owner, b)
    member = owner._stored.table.live(Kind.BROKER, "b")
    assert member is not None
    make(owner, deleted(entry), deleted(member))
    deliver(owner, c)
    owner.take_acknowledged()
    work = owner.begin_forgetting()
    assert work is not None
    work.run()
    owner.finish(work, START)
    deliver(owner, b)
    assert b._stored.table.image() == owner._stored.table.image()


def test_a_removed_broker_alone_acknowledges_a_change() -> None:
    owner, b, c = founded(), follower("b"), follower("c")
    connect(owner, b)
    connect(owner, c)
    deliver(owner, b)
    before = owner._stored.table.live(Kind.BROKER, "c")
    assert before is not None
    owner.take_acknowledged()
    (removal,) = make(owner, deleted(before))
    (entry,) = make(owner, created("orders"))
    deliver(owner, c)  # its stream is open until the owner or c itself ends it
    assert owner.live == ["b"]
    assert owner.result(removal) is None
    assert owner.result(entry) is None
    assert owner.take_acknowledged() == ()
    owner.disconnected(stream(owner, "c"), START)
    owner.tick(LATER)
    assert owner.result(entry) is None
    deliver(owner, b)
    for one in (removal, entry):
        result = owner.result(one)
        assert result is not None
        assert (result.held_by, result.pending) == (("a", "b"), ())


def test_changes_wait_for_a_broker_that_was_removed() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    member = owner._stored.table.live(Kind.BROKER, "b")
    assert member is not None
    (removal,) = make(owner, deleted(member))
    result = owner.result(removal)
    assert result is not None
    assert (result.held_by, result.pending) == (("a",), ())


def test_no_broker_can_be_removed_when_too_many_deletions_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "DELETIONS_MAX", 1)
    owner = founded()
    connect(owner, follower("b"))
    one, two = make(owner, created("1"), created("2"))
    make(owner, deleted(one))
    with pytest.raises(TroveError, match="trovemq broker remove"):
        make(owner, deleted(two))
    member = owner._stored.table.live(Kind.BROKER, "b")
    assert member is not None
    make(owner, deleted(member))
    assert owner._stored.table.members() == ["a"]


def test_one_batch_goes_over_the_limits_and_no_broker_can_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "COUNT_MAX", {**COUNT_MAX, Kind.GROUP: 2})
    monkeypatch.setattr(table, "DELETIONS_MAX", 1)
    owner = founded()
    one, two = make(owner, created("1"), created("2"))

    def refusals(*changes: ConfigChange) -> list[bool]:
        work = owner.begin(changes)
        work.run()
        owner.finish(work, START)
        return [refusal is not None for refusal in work.refusals]

    assert refusals(*(created(name, Kind.GROUP) for name in "ghi")) == [False, False, True]
    assert refusals(deleted(one), deleted(two)) == [False, True]
    limit = owner._stored.table.size + 150
    monkeypatch.setattr(table, "TABLE_SIZE_MAX", limit)
    assert refusals(created("3", text="x" * 100), created("4", text="x" * 100)) == [False, True]
    monkeypatch.setattr(messages, "TABLE_SIZE_MAX", limit)
    b = follower("b")
    owner.connected(b.hello(), START)
    deliver(owner, b)
    assert b._stored.table.image() == owner._stored.table.image()


def test_a_superseded_owner_acknowledges_alone_and_deletes_its_topic() -> None:
    owner, b = founded(), follower("b")
    (entry,) = make(owner, created("orders"))
    connect(owner, b)
    owner.take_acknowledged()
    (deletion,) = make(owner, deleted(entry))
    work = owner._stored.begin_promise(Generation(2, OTHER_MARK), "c1")
    work.run()
    owner._stored.finish(work)
    owner.disconnected(stream(owner, "b"), START)
    owner.tick(LATER)
    assert owner.take_acknowledged() == ()
    with pytest.raises(TroveError) as error:
        owner.result(deletion)
    assert error.value.in_doubt


def test_an_owner_of_an_older_copy_leaves_its_callers_without_an_answer() -> None:
    files = MemoryFileSystem()
    owner, b = founded(files), follower("b")
    connect(owner, b)
    copy = files.after_process_kill()
    make(owner, created("orders"))
    deliver(owner, b)
    old = Owner(StoredTable.load(copy), "a", START)
    (entry,) = make(old, created("other"))
    with pytest.raises(TroveError):
        old.connected(b.hello(), START)
    old.tick(LATER)
    with pytest.raises(TroveError) as error:
        old.result(entry)
    assert error.value.spec is errors.CONFIG_OWNER_OLD
    assert error.value.in_doubt


def test_a_follower_whose_disk_is_full_blocks_all_changes() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    (entry,) = make(owner, created("orders"))
    now_ms = START
    for _ in range(8):  # it cannot store the update, ends the stream, and connects again
        owner.disconnected(stream(owner, "b"), now_ms)
        b.disconnected()
        now_ms = ClockMs(now_ms + 1_000)
        owner.connected(b.hello(), now_ms)
        owner.parts_for(stream(owner, "b"), now_ms)
        owner.tick(now_ms)
    result = owner.result(entry)
    assert result is not None
    assert (result.held_by, result.pending) == (("a",), ("b",))


def test_a_table_that_takes_long_to_store_is_never_received() -> None:
    owner, b = founded(), follower("b")
    owner.connected(b.hello(), START)
    assert owner.parts_for(stream(owner, "b"), START)
    assert owner.overdue(ClockMs(START + 60_000)) == []


def test_the_late_end_of_a_stream_ends_the_one_that_has_replaced_it() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    first = stream(owner, "b")
    owner.connected(b.hello(), START)
    owner.disconnected(first, START)
    (entry,) = make(owner, created("orders"))
    assert owner.parts_for(first, START) == []
    deliver(owner, b)
    result = owner.result(entry)
    assert result is not None
    assert result.held_by == ("a", "b")


def test_a_late_report_counts_for_a_disk_that_was_lost() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    first = stream(owner, "b")
    (entry,) = make(owner, created("orders"))
    stored = deliver(owner, b, report=False)
    assert stored is not None
    owner.disconnected(first, START)
    lost = Follower(StoredTable.load(MemoryFileSystem()), "b", "store-2", START)
    again = owner.connected(lost.hello(), START)
    assert owner.parts_for(again, START)
    with pytest.raises(TroveError) as error:
        owner.reported(first, stored.report, START)
    assert error.value.spec is errors.CONFIG_GAP
    assert owner.result(entry) is None


def test_a_take_over_leaves_another_cluster_without_an_owner() -> None:
    other = founded(cluster="c2", name="x")
    with pytest.raises(TroveError) as error:
        other._stored.begin_promise(Generation(2, OTHER_MARK), "c1")
    assert error.value.spec is errors.CONFIG_OTHER_CLUSTER
    joining = follower("b")
    work = joining._stored.begin_promise(Generation(2, OTHER_MARK), "c1")
    work.run()
    joining._stored.finish(work)
    other.connected(joining.hello(), START)
    other.check()


def test_a_take_over_continues_a_copy_of_a_later_generation() -> None:
    """Two take-overs at once: the broker of the copy has taken part in the other one since."""
    one, other = founded(), founded()
    for owner, generation in ((one, Generation(2, MARK)), (other, Generation(2, OTHER_MARK))):
        work = owner._stored.begin_promise(generation, "c1")
        work.run()
        owner._stored.finish(work)
    work, _ = begin_take_over(other._stored, "a", other._stored.table.image(), Generation(2, OTHER_MARK))
    work.run()
    other._stored.finish(work)
    with pytest.raises(TroveError) as error:
        begin_take_over(one._stored, "a", other._stored.table.image(), Generation(2, MARK))
    assert error.value.spec is errors.CONFIG_GENERATION_OLD


def test_a_broker_that_joins_does_not_say_that_all_are_drained() -> None:
    class Joining:
        is_shared, is_owner, table = True, False, ConfigTable()

    topics = SharedTopics(cast(Any, Joining()), "b", cast(Any, {}), list)
    topics.check_free(NewTopic("orders"), ())
    topics.check_free(NewTopic("orders"), ("a",))
