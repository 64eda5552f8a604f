"""Users, rules and quotas as sealed records of the log: starts, other programs' files, followers, keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, SMALL_SYNC, flush, send
from tests.support.followers import commit, copy, follower
from tests.unit.security.test_table import CANARY, KEY, numbered_bytes
from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.security import changes
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.quotas import Quota
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import PATH, SecurityTable
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.sealed_json import seal
from trovemq_store.topics.table_notes import NOTES_PATH

SETTINGS = replace(SMALL_SYNC, tables_in_log=True)
FILES = tuple(path for name in (PATH, NOTES_PATH) for path in (name, f"{name}.bak"))
OTHER_KEY = SealingKey(bytes(32))


class Opened:
    """An open store and its users."""

    def __init__(self, files: MemoryFileSystem | None = None, key: SealingKey = KEY) -> None:
        self.files = files or MemoryFileSystem()
        self.store = MessageStore.open(self.files, SETTINGS, NOW_MS)
        self.table = table_of(self.store, key)

    def apply(self, after: SecurityState) -> None:
        apply(self.table, after)

    def add(self, *names: str) -> None:
        for name in names:
            self.apply(with_user(self.table.state, name))

    def write_files(self) -> None:
        flush(self.store)
        assert self.store.tables is not None
        self.store.tables.write_now()

    def cut(self) -> MemoryFileSystem:
        flush(self.store)
        return self.files.after_power_cut()

    def close(self) -> MemoryFileSystem:
        self.store.close(NOW_MS)
        return self.files

    @property
    def names(self) -> list[str]:
        return sorted(self.table.state.users)


def table_of(store: MessageStore, key: SealingKey = KEY) -> SecurityTable:
    assert store.security is not None
    return SecurityTable.of(store.security, key, numbered_bytes())


def apply(table: SecurityTable, after: SecurityState) -> None:
    change = table.begin(after)
    try:
        change.run()
    finally:
        table.finish(change)


def with_user(state: SecurityState, name: str) -> SecurityState:
    kind = UserKind.SUPER if name == "admin" else UserKind.NORMAL
    return changes.add_user(state, new_user(name, kind, CANARY, salt=bytes(16), now_ms=EpochMs(1)))


def remove(files: MemoryFileSystem, *paths: str) -> None:
    for path in paths or FILES:
        if files.exists(path):
            files.remove(path)


def edit(files: MemoryFileSystem, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(files.read_bytes(PATH))
    change(document)
    del document["crc32"]
    for path in (PATH, f"{PATH}.bak"):
        files.write_atomic(path, seal(json.dumps(document).encode()))


def damage(files: MemoryFileSystem) -> None:
    for path in (PATH, f"{PATH}.bak"):
        files.write_atomic(path, b"{")


def full_state(state: SecurityState) -> SecurityState:
    for name in ("admin", "alice", "bob"):
        state = with_user(state, name)
    state, _ = changes.add_rule(state, "alice", allow=True, actions="Pub", resource="Topic:a*")
    state, _ = changes.add_rule(state, "bob", allow=False, actions="Sub", resource="*")
    return changes.set_quota(state, "User:alice", Quota(requests_per_s=7))


def test_users_and_rules_are_records_and_the_file_follows() -> None:
    opened = Opened()
    opened.apply(full_state(opened.table.state))
    flush(opened.store)
    assert not opened.files.exists(PATH)
    log = bytes(opened.store.log.read(LOG_ORIGIN, int(opened.store.end_offset)))
    assert b"alice" in log
    assert CANARY not in log
    opened.write_files()
    assert list(json.loads(opened.files.read_bytes(PATH))["users"]) == ["admin", "alice", "bob"]
    assert opened.files.read_bytes(PATH) == opened.files.read_bytes(f"{PATH}.bak")
    again = Opened(opened.cut())
    assert again.table.state == opened.table.state
    assert [secret.value for secret in again.table.state.users["bob"].secrets] == [CANARY]


@pytest.mark.parametrize("lost", [(), FILES])
def test_a_power_cut_takes_no_synced_change(lost: tuple[str, ...]) -> None:
    opened = Opened()
    opened.add("admin", "alice", "bob")
    opened.write_files()
    opened.apply(changes.delete_user(opened.table.state, "alice"))
    opened.apply(changes.rotate_secret(opened.table.state, "bob", b"second-secret", EpochMs(2)))
    files, state = opened.cut(), opened.table.state
    if lost:
        remove(files)
    assert Opened(files).table.state == state


def test_a_change_that_was_not_synced_is_gone() -> None:
    opened = Opened()
    opened.add("admin")
    flush(opened.store)
    opened.add("alice")
    assert Opened(opened.files.after_power_cut()).names == ["admin"]
    assert Opened(opened.files.after_process_kill()).names == ["admin", "alice"]


def test_a_change_is_one_record() -> None:
    opened = Opened()
    opened.add("admin", "alice")
    for number in range(50):
        state, _ = changes.add_rule(
            opened.table.state, "alice", allow=True, actions="Pub", resource=f"Topic:a{number}"
        )
        opened.apply(state)
    queue = ("rmq_sys_trovemq_meta", 0)
    flush(opened.store)
    before = opened.store.consume_queues.next_offset(*queue)  # type: ignore[arg-type]
    opened.apply(changes.delete_user(opened.table.state, "alice"))
    flush(opened.store)
    assert opened.store.consume_queues.next_offset(*queue) == before + 1  # type: ignore[arg-type]
    assert Opened(opened.cut()).table.state == opened.table.state


def test_old_users_are_converted_and_the_version_before_opens_ours() -> None:
    files = MemoryFileSystem()
    before = SecurityTable.load(files, KEY, numbered_bytes())
    apply(before, full_state(before.state))
    opened = Opened(files)
    assert opened.table.state == before.state
    remove(only_log := opened.cut())
    assert Opened(only_log).table.state == before.state
    opened.apply(changes.delete_user(opened.table.state, "bob"))
    again = SecurityTable.load(opened.close(), KEY, numbered_bytes())
    assert again.state == opened.table.state
    end = opened.store.end_offset
    assert Opened(files).store.end_offset == end, "a start of this file appends nothing"


def test_a_damaged_file_brings_no_deleted_user_back() -> None:
    opened = Opened()
    opened.add("admin", "alice")
    opened.write_files()
    old = opened.files.read_bytes(PATH)
    opened.apply(changes.delete_user(opened.table.state, "alice"))
    opened.write_files()
    files = opened.cut()
    files.write_atomic(PATH, b"{")
    files.write_atomic(f"{PATH}.bak", old)
    assert Opened(files).names == ["admin"]


def test_a_file_without_a_good_copy_kept_the_store_from_opening() -> None:
    opened = Opened()
    opened.apply(full_state(opened.table.state))
    opened.write_files()
    opened.apply(changes.delete_user(opened.table.state, "bob"))
    files = opened.cut()
    damage(files)
    again = Opened(files)
    assert again.table.state == opened.table.state
    (said,) = again.store.recovery.second_copies
    assert f"{PATH}: " in said
    assert "the log has its content" in said
    assert Opened(again.cut()).store.recovery.second_copies == (), "the file was written again"


def test_users_that_the_log_lacks_are_not_replaced_by_none() -> None:
    """Else the broker would make its first user in a store that has some."""
    files = MemoryFileSystem()
    before = SecurityTable.load(files, KEY, numbered_bytes())
    apply(before, full_state(before.state))
    damage(files)
    with pytest.raises(TroveError, match="STORE_FAILED"):
        Opened(files)


def test_a_follower_without_a_good_copy_of_the_file_has_the_users() -> None:
    leader, table = led_users()
    files = MemoryFileSystem()
    store = follower(files, LOG_ORIGIN, replace(SEGMENT, tables_in_log=True))
    copy(leader, store)
    commit(store, leader.end_offset)
    assert store.tables is not None
    store.tables.write_now()
    files = files.after_power_cut()
    damage(files)
    again = follower(files, leader.end_offset, replace(SEGMENT, tables_in_log=True))
    assert table_of(again).state == table.state
    assert again.recovery.second_copies


def test_an_edited_file_counts_and_undoes_no_later_record() -> None:
    opened = Opened()
    opened.add("admin", "alice", "bob")
    opened.write_files()
    opened.apply(changes.delete_user(opened.table.state, "bob"))
    files = opened.cut()
    edit(files, lambda document: document["users"]["alice"].update(enabled=False))
    again = Opened(files)
    assert again.names == ["admin", "alice"]
    assert not again.table.state.users["alice"].enabled
    remove(only_log := again.cut())
    assert Opened(only_log).table.state == again.table.state


def test_users_are_appended_again_before_their_segment_goes() -> None:
    opened = Opened()
    opened.apply(full_state(opened.table.state))
    store, state = opened.store, opened.table.state
    store.topics.create("orders", 1)
    for _ in range(12):
        send(store, b"x" * 4_000)
        flush(store)
    store.flush_projections()
    end = store.closed_segments()[-1].end
    assert store.tables is not None
    while store.tables.reappend_before(end):
        pass
    opened.write_files()
    trim_now(store.trim(end))
    remove(files := opened.cut())
    assert Opened(files).table.state == state


def test_a_restored_store_needs_its_key() -> None:
    opened = Opened()
    opened.add("admin")
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        Opened(opened.cut(), OTHER_KEY)


# --- a node that follows ------------------------------------------------------------------------------
def led_users(names: tuple[str, ...] = ("admin", "alice")) -> tuple[MessageStore, SecurityTable]:
    leader = MessageStore.open(MemoryFileSystem(), replace(SEGMENT, tables_in_log=True), NOW_MS)
    table = table_of(leader)
    for name in names:
        apply(table, with_user(table.state, name))
    flush(leader)
    return leader, table


def test_a_follower_has_each_committed_user_and_serves_them_when_it_leads() -> None:
    leader, table = led_users()
    store = follower(MemoryFileSystem(), LOG_ORIGIN, replace(SEGMENT, tables_in_log=True))
    assert store.security is not None
    heard: list[int] = []
    store.security.add_change_listener(lambda: heard.append(1))
    copy(leader, store)
    assert table_of(store).state == SecurityState()
    commit(store, leader.end_offset)
    assert heard
    assert table_of(store).state == table.state
    apply(table, changes.delete_user(table.state, "alice"))
    flush(leader)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert table_of(store).state == table.state


def test_a_follower_with_another_key_keeps_the_users_and_says_so() -> None:
    leader, table = led_users()
    files = MemoryFileSystem()
    store = follower(files, LOG_ORIGIN, replace(SEGMENT, tables_in_log=True))
    assert store.security is not None
    of_follower = SecurityTable.of(store.security, OTHER_KEY, numbered_bytes())
    copy(leader, store)
    commit(store, leader.end_offset)
    of_follower.follow(store.security)
    assert "another key" in of_follower.problem
    assert of_follower.state == SecurityState()
    assert table_of(store).state == table.state, "with the right key they are there"
    with pytest.raises(TroveError, match="SEALING_KEY_MISMATCH"):
        SecurityTable.of(store.security, OTHER_KEY, numbered_bytes())
    of_follower = SecurityTable.of(store.security, KEY, numbered_bytes())
    of_follower.follow(store.security)
    assert of_follower.problem == ""


def test_users_that_cannot_be_opened_change_nothing() -> None:
    """The leader's key was replaced."""
    leader, table = led_users()
    store = follower(MemoryFileSystem(), LOG_ORIGIN, replace(SEGMENT, tables_in_log=True))
    copy(leader, store)
    commit(store, leader.end_offset)
    of_follower = table_of(store)
    assert leader.security is not None
    resealed = SecurityTable(leader.security, OTHER_KEY, numbered_bytes())
    apply(resealed, with_user(table.state, "bob"))
    flush(leader)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert store.security is not None
    of_follower.follow(store.security)
    assert "another key" in of_follower.problem
    assert of_follower.state == table.state


# --- changes of a running broker ----------------------------------------------------------------------
class Bench(Opened):
    """The log is synced by sync(); until then the waits for it last, or end with a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = SecurityChanges(self.table)
        self.changes.durable = self._durable
        self.synced = asyncio.Event()
        self.failures: list[TroveError] = []

    async def _durable(self, end: PhysicalOffset) -> None:
        if self.failures:
            raise self.failures.pop(0)
        await self.synced.wait()
        flush(self.store)
        assert self.store.flushed_offset >= end


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.001)


@pytest.mark.asyncio
async def test_a_user_exists_when_the_record_is_on_disk() -> None:
    bench = Bench()
    adding = asyncio.ensure_future(bench.changes.apply(lambda state: with_user(state, "admin")))
    await until(lambda: bench.store.end_offset > 0)
    assert bench.names == []
    bench.synced.set()
    await adding
    assert bench.names == ["admin"]
    assert Opened(bench.files.after_power_cut()).names == ["admin"]
    await bench.changes.settle(bench.store.commit_limit)


@pytest.mark.asyncio
async def test_a_user_whose_wait_timed_out_is_there_when_the_log_is_on_disk() -> None:
    bench = Bench()
    bench.failures.append(TroveError(errors.REPLICA_TIMEOUT))
    with pytest.raises(TroveError, match="REPLICA_TIMEOUT"):
        await bench.changes.apply(lambda state: with_user(state, "admin"))
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await bench.changes.apply(lambda state: with_user(state, "alice"))
    bench.synced.set()
    await until(lambda: bench.names == ["admin"])
    await bench.changes.apply(lambda state: with_user(state, "alice"))
    assert bench.names == ["admin", "alice"]
