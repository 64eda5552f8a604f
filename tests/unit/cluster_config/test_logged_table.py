"""The table of a replica group's leader, as records of its log (cluster_config/logged.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, flush, send
from tests.support.followers import commit, copy, follower
from tests.unit.cluster_config.config_parts import (
    MARK,
    SEAL,
    START,
    altered,
    created,
    deleted,
    founded,
    make,
)
from trovemq_broker.cluster_config import logged_entries, table_file
from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ConfigChange,
    Entry,
    Generation,
    Kind,
    SecretSeal,
)
from trovemq_broker.cluster_config.logged import LoggedTable
from trovemq_broker.cluster_config.logged_entries import names_of
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX, Owner, _update, begin_founding
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_broker.cluster_config.table import Update
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

SETTINGS: Final = replace(SEGMENT, tables_in_log=True)
ROOMY: Final = replace(SETTINGS, commit_log_file_size=4 << 20, batch_size_max=1 << 20)
"""A change of hundreds of entries is no larger than a run."""
FILES: Final = (
    logged_entries.PATH,
    logged_entries.BACKUP_PATH,
    table_file.PATH,
    table_file.BACKUP_PATH,
)


class Node:
    """The store of a group's leader, whose changes are committed when they are on disk."""

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        seal: SecretSeal | None = None,
        settings: StoreSettings = SETTINGS,
    ) -> None:
        self.files = MemoryFileSystem() if files is None else files
        self.store = MessageStore.open(self.files, settings, NOW_MS, commit_limit=LOG_ORIGIN)
        commit(self.store, self.store.end_offset)
        self.table = LoggedTable.open(self.store, seal)
        assert self.store.tables is not None
        self.store.tables.follows = False

    def save(self, work: StoredWork) -> None:
        work.run()
        self.commit()
        self.table.finish(work)

    def commit(self) -> None:
        flush(self.store)
        commit(self.store, self.store.end_offset)

    def make(self, *changes: ConfigChange) -> None:
        leading = Owner(self.table, "a", START)
        work = leading.begin(changes)
        assert work.refusals == [None] * len(changes)
        work.run()
        self.commit()
        leading.finish(work, START)

    def found(self) -> None:
        self.table.store_id = "0123456789abcdef"
        self.save(begin_founding(self.table, "a", self.table.store_id, cluster="c1", mark=MARK))

    def write_files(self) -> None:
        assert self.store.tables is not None
        self.store.tables.write_now()

    def stop(self) -> None:
        self.store.close(NOW_MS)

    def next_leader(self, seal: SecretSeal | None = None) -> Node:
        """Another node, whose log is that of this one up to the commit."""
        files = MemoryFileSystem()
        store = follower(files, settings=SETTINGS)
        copy(self.store, store, self.store.commit_limit)
        commit(store, self.store.commit_limit)
        store.close(NOW_MS)
        return Node(files, seal)


def image(table: StoredTable) -> tuple[object, ...]:
    return table.table.image(), table.promised, table.removed


def entry(node: Node, name: str, kind: Kind = Kind.TOPIC) -> Entry:
    found = node.table.table.get(kind, name)
    assert found is not None
    return found


def lacks_records(node: Node) -> bool:
    return node.table.must_be_recorded


def user(name: str, secrets: bytes) -> ConfigChange:
    return ConfigChange(ChangeKind.CREATE, Kind.USER, name, secrets=secrets)


def test_a_store_without_a_configuration_gets_no_record_and_no_file() -> None:
    node = Node()
    end = node.store.end_offset
    assert not lacks_records(node)
    node.write_files()
    node.stop()
    assert node.store.end_offset == end
    assert not any(node.files.exists(path) for path in FILES)


def test_the_next_leader_has_the_same_table_from_the_log_alone() -> None:
    node = Node()
    node.found()
    node.make(created("orders", message_type="FIFO"), created("bills"))
    node.make(deleted(entry(node, "bills")))
    node.make(altered(entry(node, "orders"), message_type="DELAY"))
    then = node.next_leader()
    assert image(then.table) == image(node.table)
    assert not lacks_records(then)
    then.make(created("late"))
    assert image(then.next_leader().table) == image(then.table)


def test_promise_removal_and_the_stores_id_are_the_groups() -> None:
    node = Node()
    node.found()
    promised = Generation(7, "f" * 16)
    node.save(node.table.begin_promise(promised, "c1"))
    node.save(node.table.begin_removal())
    then = node.next_leader().table
    assert (then.promised, then.removed, then.store_id) == (promised, True, "0123456789abcdef")


def test_secrets_are_sealed_in_the_log_and_in_the_files() -> None:
    node = Node(seal=SEAL)
    node.found()
    node.make(user("alice", b"the plain secret"))
    node.write_files()
    written = b"".join(bytes(node.files._files[path].data) for path in node.files._files)
    assert b"the plain secret" not in written
    then = node.next_leader(SEAL)
    assert then.table.table.get(Kind.USER, "alice") == entry(node, "alice", Kind.USER)
    with pytest.raises(TroveError) as raised:
        node.next_leader(None)
    assert raised.value.spec is errors.SEALING_KEY_MISMATCH


def test_a_later_start_reads_the_file_and_the_records_after_it() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    node.write_files()
    node.make(created("bills"))
    node.stop()
    again = Node(node.files)
    assert image(again.table) == image(node.table)
    assert not lacks_records(again)


def test_a_store_that_leaves_its_group_has_the_table_in_its_file() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    node.make(deleted(entry(node, "orders")), created("bills"))
    node.stop()
    assert image(StoredTable.load(node.files)) == image(node.table)


def test_the_file_of_a_single_broker_becomes_records_when_it_gets_a_group() -> None:
    files = MemoryFileSystem()
    single = founded(files)
    make(single, created("orders"), created("bills"))
    node = Node(files)
    assert lacks_records(node)
    node.write_files()
    assert lacks_records(node), "its file is no reason to think that the log has the table"
    node.save(node.table.begin_recording())
    assert not lacks_records(node)
    then = node.next_leader()
    assert then.table.table.image() == single._stored.table.image()


def test_the_first_change_of_a_table_that_is_not_recorded_records_all() -> None:
    files = MemoryFileSystem()
    make(founded(files), created("orders"))
    node = Node(files)
    node.make(created("bills"))
    assert image(node.next_leader().table) == image(node.table)


def test_a_file_that_a_single_broker_has_changed_is_later() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    node.stop()
    single = Owner(StoredTable.load(node.files), "a", START)
    make(single, created("bills"))
    again = Node(node.files)
    assert again.table.table.image() == single._stored.table.image()
    assert lacks_records(again)
    again.save(again.table.begin_recording())
    assert again.next_leader().table.table.image() == single._stored.table.image()


def test_an_older_file_or_that_of_another_cluster_counts_for_nothing() -> None:
    for cluster, topics in (("c1", 1), ("c2", 9)):
        node = Node()
        node.found()
        node.make(created("orders"), created("bills"))
        for path in (table_file.PATH, table_file.BACKUP_PATH):
            if node.files.exists(path):
                node.files.remove(path)
        other = founded(node.files, cluster=cluster)
        make(other, *(created(f"other-{n}") for n in range(topics)))
        node.commit()
        assert image(node.next_leader().table) == image(node.table)
        store = node.files.after_power_cut()
        assert image(Node(store).table) == image(node.table), cluster


@pytest.mark.parametrize("damaged", range(4))
def test_a_damaged_file_is_made_again_from_the_log(damaged: int) -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    node.stop()
    data = node.files._files[FILES[damaged]].data
    data[40] ^= 1
    again = Node(node.files)
    assert image(again.table) == image(node.table)
    assert again.table.fault or FILES[damaged] == logged_entries.BACKUP_PATH, "the first copy is whole"
    again.make(created("bills"))
    again.write_files()
    assert image(StoredTable.load(node.files)) == image(again.table)


def _large(node: Node) -> list[ConfigChange]:
    """Changes that do not fit in one run of the log."""
    text = "x" * (node.table._run_size_max // 3)
    return [created(f"large-{n}", note=text) for n in range(8)]


def test_a_change_larger_than_a_run_of_the_log_is_whole_or_not_made() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    assert _made_of_the_first_records(node, SETTINGS, lambda: node.make(*_large(node))) == {False, True}


@pytest.mark.parametrize("kind", ["create", "alter", "forget"])
def test_of_a_change_of_hundreds_of_entries_the_log_kept_some(kind: str) -> None:
    """The next leader then had no table, or one of two versions."""
    node = Node(settings=ROOMY)
    node.found()
    for part in range(5):
        names = [f"{part}-{number}" for number in range(CHANGES_AT_ONCE_MAX)]
        create = [created(name) for name in names]
        if kind == "create" and part == 4:
            break
        node.make(*create)
        if kind == "forget":
            node.make(*(deleted(entry(node, name)) for name in names))

    def change() -> None:
        if kind == "create":
            node.make(*create)
        elif kind == "alter":
            node.make(*(altered(entry(node, name), message_type="FIFO") for name in names))
        else:
            node.save(node.table.begin(_update(node.table.head, [], node.table.head.version)))

    assert _made_of_the_first_records(node, ROOMY, change) == {False, True}


def _made_of_the_first_records(node: Node, settings: StoreSettings, change: Callable[[], None]) -> set[bool]:
    """Whether a next leader has the change, of whose records the first ones are in its log; for each number
    of these."""
    before, begin = image(node.table), node.store.end_offset
    change()
    end, after = node.store.end_offset, image(node.table)
    seen = set()
    for limit in _record_ends(node, begin, end):
        files = MemoryFileSystem()
        store = follower(files, settings=settings)
        copy(node.store, store, limit)
        store.close(NOW_MS)
        found = image(Node(files, settings=settings).table)
        assert found in (before, after)
        seen.add(found == after)
    return seen


def _record_ends(node: Node, begin: PhysicalOffset, end: PhysicalOffset) -> list[PhysicalOffset]:
    ends, at = [], begin
    while at < end:
        at = PhysicalOffset(at + int.from_bytes(node.store.log.read(at, 4)))
        ends.append(at)
    return ends


def test_after_half_an_image_the_next_leader_makes_changes() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    begin = node.store.end_offset
    node.make(*_large(node))
    middle = _record_ends(node, begin, node.store.end_offset)[2]
    files = MemoryFileSystem()
    store = follower(files, settings=SETTINGS)
    copy(node.store, store, middle)
    store.close(NOW_MS)
    then = Node(files)
    then.make(*_large(then)[:1], created("bills"))
    then.make(*_large(then)[1:])
    last = then.next_leader()
    assert image(last.table) == image(then.table)
    assert not names_of(last.table._entries.values, 2), "half an image goes with the next one"
    assert len(names_of(last.table._entries.values, 3)) == last.table.table.entry_count


def test_forgotten_deletions_go_from_the_log_too() -> None:
    node = Node()
    node.found()
    node.make(created("orders"), created("bills"))
    node.make(deleted(entry(node, "orders")))
    head = node.table.head
    update = _update(head, [], head.version)
    node.save(node.table.begin(update))
    assert node.table.table.get(Kind.TOPIC, "orders") is None
    assert image(node.next_leader().table) == image(node.table)


def test_a_whole_table_of_another_owner_replaces_all_entries() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    other = founded(cluster="c2", name="b")
    make(other, created("bills"))
    node.save(node.table.begin(replace(other._stored.table.image(), base=None)))
    then = node.next_leader().table
    assert then.table.image() == other._stored.table.image()
    assert isinstance(then.table.image(), Update)


def test_a_change_of_unknown_commit_is_not_made() -> None:
    node = Node()
    node.found()
    before = image(node.table)
    leading = Owner(node.table, "a", START)
    work = leading.begin([created("orders")])
    work.run()
    node.table.lose()
    leading.finish(work, START)
    assert image(node.table) == before
    with pytest.raises(TroveError) as raised:
        leading.begin([created("bills")])
    assert raised.value.spec is errors.SERVICE_NOT_AVAILABLE
    node.commit()
    node.stop()
    assert image(StoredTable.load(node.files)) == before, "its file has the committed changes"
    assert Node(node.files).table.table.get(Kind.TOPIC, "orders") is not None, "the log has it"


def test_records_that_an_older_version_has_let_go_are_no_table() -> None:
    node = Node()
    node.found()
    node.make(created("orders"), created("bills"))
    change = node.table._entries.begin_change([("1/topic/orders", None)])
    change.run()
    node.commit()
    node.table._entries.finish(change)
    then = node.next_leader().table
    assert not then.table.exists
    assert "2 of 3" in then.fault


def test_a_table_with_holes_was_replaced_by_an_older_file() -> None:
    node = Node()
    node.found()
    node.make(created("orders"))
    node.write_files()
    older = node.files.read_bytes(table_file.PATH)
    node.make(created("bills"))
    change = node.table._entries.begin_change([("1/topic/orders", None)])
    change.run()
    node.commit()
    node.table._entries.finish(change)
    then = node.next_leader()
    then.stop()
    then.files.write_atomic(table_file.PATH, older)
    again = Node(then.files)
    assert not again.table.table.exists
    assert "2 of 3" in again.table.fault


def test_a_former_leader_that_led_again_had_its_old_table() -> None:
    """Its file had entries whose deletions were removed from the log meanwhile."""
    node = Node()
    node.found()
    node.make(*(created(f"t{number}") for number in range(10)))
    node.write_files()
    other = node.next_leader()
    node.stop()
    other.make(*(deleted(entry(other, f"t{number}")) for number in range(10)))
    other.make(*(created(f"late-{number}") for number in range(5)))
    other.save(other.table.begin(_update(other.table.head, [], other.table.head.version)))
    other.save(other.table.begin_promise(Generation(9, "f" * 16), "c1"))
    end = _let_go(other)
    store = follower(node.files, commit_limit=None, settings=SETTINGS)
    copy(other.store, store)
    commit(store, other.store.end_offset)
    assert store.tables is not None
    store.tables.follows = True
    store.tables.write_now()
    store.flush_projections()
    trim_now(store.trim(end))
    store.close(NOW_MS)
    again = follower(node.files, commit_limit=None, settings=SETTINGS)
    assert again.tables is not None
    again.tables.follows = True
    assert image(LoggedTable.open(again)) == image(other.table)


def _let_go(node: Node) -> PhysicalOffset:
    """Appends messages until all records of the table lie in segments that may go; the end of these."""
    store, until = node.store, node.store.end_offset + 3 * SETTINGS.commit_log_file_size
    store.topics.create("orders", queue_count=1)
    while store.end_offset < until:
        send(store, b"x" * 4_000)
    node.commit()
    store.flush_projections()
    end = store.closed_segments()[-1].end
    assert store.tables is not None
    while store.tables.reappend_before(end):
        pass
    node.commit()
    node.write_files()
    assert not store.tables.lack_below(end)
    return PhysicalOffset(end)


def test_a_power_cut_at_any_sync_loses_no_committed_change() -> None:
    node = Node()
    node.found()
    made = [image(node.table)]
    for number in range(3):
        node.make(created(f"topic-{number}"))
        made.append(image(node.table))
        cut = node.files.after_power_cut()
        assert image(Node(cut).table) == made[-1]
        node.write_files()
        assert image(Node(node.files.after_power_cut()).table) == made[-1]
