"""Acknowledgements, and the refusals of owner, follower and take-over, one by one."""

from __future__ import annotations

import pytest

from tests.unit.cluster_config.config_parts import (
    LATER,
    MARK,
    START,
    altered,
    connect,
    created,
    deleted,
    deliver,
    follower,
    founded,
    make,
    stream,
)
from trovemq_broker.cluster_config import table, take_over
from trovemq_broker.cluster_config.entries import (
    COUNT_MAX,
    ENTRY_SIZE_MAX,
    ClockMs,
    ConfigChange,
    Generation,
    Kind,
)
from trovemq_broker.cluster_config.follower import Follower, Serving
from trovemq_broker.cluster_config.owner import LACKING_MAX, REPORT_TIMEOUT_MS, Owner
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import HISTORY_MAX
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_store.files.memory import MemoryFileSystem

OTHER_MARK = "f" * 16


def refused(error: pytest.ExceptionInfo[TroveError]) -> ErrorSpec:
    return error.value.spec


def test_a_single_broker_acknowledges_alone_at_once() -> None:
    owner = founded()
    (entry,) = make(owner, created("orders", n="1"))
    result = owner.result(entry)
    assert result is not None
    assert (result.held_by, result.pending) == (("a",), ())


def test_a_change_waits_for_one_other_live_broker_and_names_the_pending() -> None:
    owner, b, c = founded(), follower("b"), follower("c")
    connect(owner, b)
    connect(owner, c)
    deliver(owner, b)
    (entry,) = make(owner, created("orders"))
    assert owner.result(entry) is None
    deliver(owner, c)
    result = owner.result(entry)
    assert result is not None
    assert (result.held_by, result.pending) == (("a", "c"), ("b",))


def test_no_change_waits_for_a_broker_that_lacks_many() -> None:
    owner, one = founded(), follower()
    connect(owner, one)
    owner.disconnected(stream(owner, "b"), START)
    for number in range(LACKING_MAX):
        make(owner, created(f"missed{number}"))
    opened = owner.connected(one.hello(), START)
    stored = deliver(owner, one, report=False)
    make(owner, created("first"))
    for number in range(LACKING_MAX):
        make(owner, created(f"meanwhile{number}"))
    assert stored is not None
    owner.reported(opened, stored.report, START)
    assert owner.live == []
    deliver(owner, one)
    assert owner.live == ["b"]


def test_a_broker_that_does_not_report_is_overdue_and_no_error() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    (entry,) = make(owner, created("orders"))
    deliver(owner, b, report=False)
    assert owner.overdue(ClockMs(START + REPORT_TIMEOUT_MS - 1)) == []
    assert owner.overdue(ClockMs(START + REPORT_TIMEOUT_MS)) == [stream(owner, "b")]
    owner.disconnected(stream(owner, "b"), START)
    assert owner.result(entry) is None, "it may connect again in a moment"
    owner.tick(LATER)
    result = owner.result(entry)
    assert result is not None
    assert (result.held_by, result.pending) == (("a",), ("b",))


def test_an_owner_that_starts_waits_before_it_acknowledges_alone() -> None:
    files = MemoryFileSystem()
    connect(founded(files), follower("b"))
    owner = Owner(StoredTable.load(files), "a", START)
    (entry,) = make(owner, created("orders"))
    assert owner.result(entry) is None
    owner.tick(LATER)
    assert owner.result(entry) is not None


def test_a_creation_whose_answer_was_lost_succeeds_when_repeated() -> None:
    owner = founded()
    assert make(owner, created("orders", n="1")) == make(owner, created("orders", n="1"))
    with pytest.raises(TroveError) as error:
        make(owner, created("orders", n="2"))
    assert refused(error) is errors.TOPIC_EXISTS


def test_a_change_for_an_older_version_is_a_conflict() -> None:
    owner = founded()
    (entry,) = make(owner, created("orders", n="1"))
    (after,) = make(owner, altered(entry, n="2"))
    with pytest.raises(TroveError) as error:
        make(owner, deleted(entry))
    assert refused(error) is errors.CONFIG_VERSION_CONFLICT
    assert error.value.fields["version"] == str(after.version)


def test_a_refused_change_stops_no_other_one_of_its_batch() -> None:
    owner = founded()
    (entry,) = make(owner, created("orders"))
    work = owner.begin(
        [altered(entry, owner.head.position._replace(version=99), n="3"), created("g", Kind.GROUP)]
    )
    work.run()
    owner.finish(work, START)
    assert [refusal is None for refusal in work.refusals] == [False, True]
    assert owner.result(work.entries[1] or entry) is not None


def test_a_topic_that_is_made_again_has_a_new_id() -> None:
    owner = founded()
    (first,) = make(owner, created("orders"))
    make(owner, deleted(first))
    (again,) = make(owner, created("orders"))
    assert again.id != first.id


@pytest.mark.parametrize(
    "change",
    [
        created(""),
        created("x" * 513),
        created("x", text="y" * ENTRY_SIZE_MAX),
        ConfigChange(created("x").action, Kind.GROUP, "x", placement={"a": 1}),
        ConfigChange(created("x").action, Kind.TOPIC, "x", placement={"a": 0}),
        ConfigChange(created("x").action, Kind.TOPIC, "x", secrets=b"x"),
        ConfigChange(created("x").action, Kind.TOPIC, "x", placement={f"b{n}": 1 for n in range(1_001)}),
    ],
)
def test_an_illegal_change_is_refused(change: ConfigChange) -> None:
    with pytest.raises(TroveError) as error:
        make(founded(), change)
    assert refused(error) is errors.REQUEST_ILLEGAL


def test_the_table_has_limits_that_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = founded()
    monkeypatch.setattr(table, "DELETIONS_MAX", 1)
    monkeypatch.setattr(table, "COUNT_MAX", {**COUNT_MAX, Kind.GROUP: 1})
    one, two, group = make(owner, created("1"), created("2"), created("g", Kind.GROUP))
    make(owner, deleted(one))
    monkeypatch.setattr(table, "TABLE_SIZE_MAX", 100)
    for change, remedy in (
        (deleted(two), "trovemq broker remove"),
        (created("h", Kind.GROUP), "delete"),
        (created("3", text="x" * 100), "delete"),
    ):
        with pytest.raises(TroveError, match=remedy) as error:
            make(owner, change)
        assert refused(error) is errors.LIMIT_EXCEEDED
    assert group.kind is Kind.GROUP


def test_another_clusters_table_is_refused_unless_an_operator_says_so() -> None:
    owner, other = founded(cluster="c1"), founded(cluster="c2", name="x")
    files = MemoryFileSystem()
    b = follower("b", files)
    connect(other, b)
    with pytest.raises(TroveError) as error:
        owner.connected(b.hello(), START)
    assert refused(error) is errors.CONFIG_OTHER_CLUSTER
    owner.connected(follower("b").hello(), START)
    with pytest.raises(TroveError) as error:
        b.begin(owner.parts_for(stream(owner, "b"), START)[0])
    assert refused(error) is errors.CONFIG_OTHER_CLUSTER
    owner.disconnected(stream(owner, "b"), START)
    allowed = Follower(StoredTable.load(files), "b", "store-b", START, replaced_cluster="c2")
    stored = connect(owner, allowed)
    assert stored is not None
    assert {entry.name for entry in stored.dropped} == {"x", "b"}
    assert StoredTable.load(files).head.cluster == "c1"


def test_two_live_brokers_of_one_name_are_refused_and_a_lost_disk_is_not() -> None:
    owner = founded()
    connect(owner, follower("b"))
    twin = Follower(StoredTable.load(MemoryFileSystem()), "b", "store-2", START)
    for hello in (twin.hello(), Follower(StoredTable.load(MemoryFileSystem()), "a", "x", START).hello()):
        with pytest.raises(TroveError) as error:
            owner.connected(hello, START)
        assert refused(error) is errors.BROKER_NAME_TAKEN
    owner.disconnected(stream(owner, "b"), START)
    connect(owner, twin)
    assert owner.positions()["b"] == owner.head.version


def test_an_owner_that_was_put_back_from_an_older_copy_changes_nothing() -> None:
    files = MemoryFileSystem()
    owner, b = founded(files), follower("b")
    connect(owner, b)
    copy = files.after_process_kill()
    make(owner, created("orders"))
    deliver(owner, b)
    b.disconnected()
    old = Owner(StoredTable.load(copy), "a", START)
    with pytest.raises(TroveError) as error:
        old.connected(b.hello(), START)
    assert refused(error) is errors.CONFIG_OWNER_OLD
    with pytest.raises(TroveError) as error:
        old.begin([created("other")])
    assert refused(error) is errors.CONFIG_OWNER_OLD


def test_a_follower_refuses_another_table_of_its_own_position() -> None:
    files = MemoryFileSystem()
    owner, b = founded(files), follower("b")
    connect(owner, b)
    copy = files.after_process_kill()
    make(owner, created("orders", n="1"))
    deliver(owner, b)
    old = Owner(StoredTable.load(copy), "a", START)
    make(old, created("orders", n="2"))
    with pytest.raises(TroveError) as error:
        old.connected(b.hello(), START)
    assert refused(error) is errors.CONFIG_OWNER_OLD
    old = Owner(StoredTable.load(copy), "a", START)
    old.connected(follower("b").hello(), START)
    with pytest.raises(TroveError) as error:
        b.begin(old.parts_for(stream(old, "b"), START)[0])
    assert refused(error) is errors.CONFIG_OWNER_OLD


def test_copies_that_contradict_each_other_need_an_operators_choice() -> None:
    one, other = founded(cluster="c1"), founded(cluster="c2")
    generation = Generation(5, OTHER_MARK)
    copies = [take_over.CopyStatus(name, o.head, generation) for name, o in (("a", one), ("b", other))]
    with pytest.raises(TroveError, match="cluster c1: a; cluster c2: b") as error:
        take_over.choose_cluster(copies)
    assert refused(error) is errors.CONFIG_OTHER_CLUSTER
    assert take_over.choose_copy(copies, generation, "c2").broker == "b"
    with pytest.raises(TroveError) as error:
        take_over.choose_copy(copies, Generation(6, MARK), "c1")
    assert refused(error) is errors.BROKER_NOT_FOUND
    contradicting = founded(cluster="c1")
    make(one, created("x"))
    make(contradicting, created("y"))
    copies = [take_over.CopyStatus(n, o.head, generation) for n, o in (("a", one), ("b", contradicting))]
    with pytest.raises(TroveError, match="put back from an older copy") as error:
        take_over.choose_copy(copies, generation, "c1")
    assert refused(error) is errors.CONFIG_OWNER_OLD
    assert take_over.choose_copy(copies, generation, "c1", source="b").broker == "b"


def test_a_take_over_needs_the_promise_of_its_generation() -> None:
    files = MemoryFileSystem()
    owner = founded(files)
    stored = owner._stored
    with pytest.raises(TroveError) as error:
        take_over.begin_take_over(stored, "a", stored.table.image(), Generation(9, MARK))
    assert refused(error) is errors.CONFIG_GENERATION_OLD
    with pytest.raises(TroveError) as error:
        stored.begin_promise(owner.head.generation, "c1")
    assert refused(error) is errors.CONFIG_GENERATION_OLD


def test_a_caller_of_an_owner_that_was_replaced_is_in_doubt() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    (entry,) = make(owner, created("orders"))
    work = owner._stored.begin_promise(Generation(2, OTHER_MARK), "c1")
    work.run()
    owner._stored.finish(work)
    with pytest.raises(TroveError) as error:
        owner.result(entry)
    assert refused(error) is errors.CONFIG_OWNER_MOVED
    assert error.value.in_doubt
    with pytest.raises(TroveError) as error:
        owner.begin([created("other")])
    assert refused(error) is errors.CONFIG_OWNER_MOVED


def test_a_follower_without_its_owner_serves_and_forwards_nothing() -> None:
    owner, b = founded(), follower("b")
    with pytest.raises(TroveError) as error:
        b.check_owner()
    assert refused(error) is errors.CONFIG_OWNER_UNREACHABLE
    assert b.serving(ClockMs(START + 3_600_000)) is Serving.JOINING
    connect(owner, b)
    assert b.check_owner() == "a"
    assert b.serving(START) is Serving.CURRENT
    b.disconnected()
    assert b.serving(START) is Serving.STORED
    with pytest.raises(TroveError) as error:
        b.check_owner()
    assert refused(error) is errors.CONFIG_OWNER_UNREACHABLE


def test_parts_out_of_order_and_reports_of_what_was_not_sent_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq_broker.cluster_config.messages.PART_ENTRIES_MAX", 1)
    owner, b = founded(), follower("b")
    make(owner, *(created(f"t{n}") for n in range(4)))
    owner.connected(b.hello(), START)
    parts = owner.parts_for(stream(owner, "b"), START)
    assert len(parts) == 5
    assert b.begin(parts[0]) is None
    with pytest.raises(TroveError) as error:
        b.begin(parts[2])
    assert refused(error) is errors.CONFIG_GAP
    work = [b.begin(part) for part in parts][-1]
    assert work is not None
    work.run()
    stored = b.finish(work)
    assert stored is not None
    make(owner, created("later"))
    report = stored.report
    beyond = type(report)(report.position._replace(version=99))
    with pytest.raises(TroveError) as error:
        owner.reported(stream(owner, "b"), beyond, START)
    assert refused(error) is errors.CONFIG_GAP
    owner.reported(stream(owner, "b"), report, START)


def test_an_update_after_a_lost_one_is_refused() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    deliver(owner, b)
    make(owner, created("orders"))
    (_lost,) = owner.parts_for(stream(owner, "b"), START)
    make(owner, created("bills"))
    (part,) = owner.parts_for(stream(owner, "b"), START)
    with pytest.raises(TroveError) as error:
        b.begin(part)
    assert refused(error) is errors.CONFIG_GAP


def test_the_history_of_generations_is_bounded() -> None:
    head = founded().head
    for number in range(2, HISTORY_MAX + 10):
        head = head.taken_over(Generation(number, MARK), "a")
    assert len(head.history) == HISTORY_MAX


def test_a_follower_that_has_promised_does_not_obey_the_older_owner() -> None:
    owner, b = founded(), follower("b")
    connect(owner, b)
    work = b._stored.begin_promise(Generation(2, OTHER_MARK), "c1")
    work.run()
    b._stored.finish(work)
    make(owner, created("orders"))
    with pytest.raises(TroveError) as error:
        b.begin(owner.parts_for(stream(owner, "b"), START)[0])
    assert refused(error) is errors.CONFIG_GENERATION_OLD


def test_a_broker_away_for_longer_than_deletions_are_kept_gets_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq_broker.cluster_config.owner.FORGET_FROM", 1)
    owner, b = founded(), follower("b")
    (entry,) = make(owner, created("orders"))
    connect(owner, b)
    deliver(owner, b)
    owner.disconnected(stream(owner, "b"), START)
    member = owner._stored.table.live(Kind.BROKER, "b")
    assert member is not None
    make(owner, deleted(entry), deleted(member))
    owner.take_acknowledged()
    work = owner.begin_forgetting()
    assert work is not None
    work.run()
    owner.finish(work, START)
    owner.connected(b.hello(), START)
    assert owner.parts_for(stream(owner, "b"), START)[0].base is None
