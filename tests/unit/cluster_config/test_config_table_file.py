"""The file of the table: damage, refused writes, and the cost of a change."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from tests.unit.cluster_config.config_parts import START, created, deleted, founded, make
from trovemq_broker.cluster_config import table_file
from trovemq_broker.cluster_config.entries import Entry, Kind
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX, Owner
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table_file import BACKUP_PATH, PATH, TableFile
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.memory import MemoryFileSystem


@pytest.fixture(autouse=True)
def small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "CHANGES_SIZE_MIN", 1_024)


def filled(files: MemoryFileSystem) -> Owner:
    owner = founded(files)
    for number in range(3):
        make(owner, created(f"topic-{number}", n="1"))
    return owner


def flip(files: MemoryFileSystem, path: str, at: int) -> None:
    data = bytearray(files.read_bytes(path))
    data[at] ^= 1
    files.write_atomic(path, bytes(data))


def test_a_flipped_byte_anywhere_is_found_and_the_other_copy_is_read() -> None:
    files = MemoryFileSystem()
    image = filled(files)._stored.table.image()
    end = len(files.read_bytes(PATH).rstrip(b"\0"))
    for path in (PATH, BACKUP_PATH):
        for at in range(0, end, 7):
            damaged = files.after_process_kill()
            flip(damaged, path, at)
            loaded = StoredTable.load(damaged)
            assert loaded.table.image() == image, at


@pytest.mark.parametrize("older", [PATH, BACKUP_PATH])
def test_the_copy_with_the_later_change_is_read(older: str) -> None:
    files = MemoryFileSystem()
    owner = filled(files)
    data = files.read_bytes(older)
    make(owner, created("later"))
    files.write_atomic(older, data)
    assert StoredTable.load(files).table.image() == owner._stored.table.image()


def test_with_both_copies_damaged_the_broker_does_not_start() -> None:
    files = MemoryFileSystem()
    filled(files)
    for path in (PATH, BACKUP_PATH):
        flip(files, path, 30)
    with pytest.raises(TroveError, match="config-owner NAME") as error:
        StoredTable.load(files)
    assert error.value.spec is errors.STORE_FAILED


def test_a_newer_format_is_not_read() -> None:
    files = MemoryFileSystem()
    file = TableFile(files)
    file.replace(b'{"format": 2}')
    with pytest.raises(TroveError) as error:
        StoredTable.load(files)
    assert error.value.spec is errors.STORE_NEWER


@pytest.mark.parametrize("operation", ["write", "write_atomic", "sync"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_refused_write_changes_nothing_and_the_next_one_counts(operation: str, nth: int) -> None:
    """Also after a power cut: the table is the one before the refused change, or that with it."""
    inner = MemoryFileSystem()
    owner = filled(inner)
    faulty = FaultyFileSystem(inner, fail_at(operation, nth, errno.ENOSPC), tear=True)
    owner = Owner(StoredTable.load(faulty), "a", START)
    for number in range(12):
        before = owner.head
        with suppress(TroveError):
            make(owner, created(f"later-{number}", text="x" * 200))
        if owner.head == before:
            found = StoredTable.load(inner.after_power_cut()).head.version
            assert found in (before.version, before.version + 1)
            make(owner, created(f"again-{number}"))
        loaded = StoredTable.load(inner.after_power_cut())
        assert loaded.table.image() == owner._stored.table.image()


def test_records_that_a_power_cut_tore_are_not_there() -> None:
    files = MemoryFileSystem()
    owner = filled(files)
    whole = files.read_bytes(PATH)
    end = len(whole.rstrip(b"\0"))
    begin = whole.rfind(table_file.MAGIC.to_bytes(4, "little"), 0, end)
    for cut in range(begin + 1, end, 11):
        torn = files.after_process_kill()
        for path in (PATH, BACKUP_PATH):
            torn.write_atomic(path, whole[:cut].ljust(len(whole), b"\0"))
        assert StoredTable.load(torn).head.version == owner.head.version - 1


def test_a_change_of_a_large_table_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    owner = founded(MemoryFileSystem())
    for kind in (Kind.TOPIC, Kind.GROUP):
        fill(owner, kind, 2_000)
    written: list[int] = []
    append = TableFile.append

    def counting(file: TableFile, body: bytes) -> None:
        written.append(len(body))
        append(file, body)

    monkeypatch.setattr(TableFile, "append", counting)
    replaced: list[int] = []
    replace = TableFile.replace

    def counting_replace(file: TableFile, body: bytes) -> None:
        replaced.append(len(body))
        replace(file, body)

    monkeypatch.setattr(TableFile, "replace", counting_replace)
    for number in range(50):
        (entry,) = make(owner, created(f"new-{number}"))
        make(owner, deleted(entry))
    assert len(replaced) <= 1
    assert max(written) < 400


def fill(owner: Owner, kind: Kind, count: int) -> list[Entry]:
    made: list[Entry] = []
    for begin in range(0, count, CHANGES_AT_ONCE_MAX):
        numbers = range(begin, min(count, begin + CHANGES_AT_ONCE_MAX))
        made += make(owner, *(created(f"{kind}-{n}", kind, message_type="NORMAL") for n in numbers))
    return made


def test_a_change_is_lost_by_a_kill_before_its_sync_and_a_power_cut_later() -> None:
    """The owner started with it meanwhile, and may have acknowledged it."""

    class KilledError(Exception):
        pass

    def decide(operation: str, _path: str) -> int | None:
        if operation == "sync":
            raise KilledError
        return None

    files = MemoryFileSystem()
    filled(files)
    with suppress(KilledError):
        make(Owner(StoredTable.load(FaultyFileSystem(files, decide)), "a", START), created("last"))
    started = files.after_process_kill()
    image = StoredTable.load(started).table.image()
    assert StoredTable.load(started.after_power_cut()).table.image() == image
    assert image.entries[-1].name == "last"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"kind":"topic"', b'"kind":"schema"'),
        (b'"kind":"topic"', b'"labels":"x","kind":"topic"'),
        (b'"format":1', b'"format":1,"zone":"x"'),
        (b'"owner":"a"', b'"owner":"a","second":"b"'),
    ],
)
def test_entries_of_a_newer_version_lose_members_when_the_file_is_replaced(old: bytes, new: bytes) -> None:
    files = MemoryFileSystem()
    stored = filled(files)._stored
    work = stored.begin(stored.table.image())
    work.run()
    stored.finish(work)
    body = files.read_bytes(PATH).rstrip(b"\0")[20:]
    TableFile(files).replace(body.replace(old, new, 1))
    with pytest.raises(TroveError, match=r"schema|labels|zone|second") as error:
        StoredTable.load(files)
    assert error.value.spec is errors.STORE_NEWER


def test_damage_at_any_byte_gives_an_acknowledged_table_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one copy, and of both at the same place: a prefix of the acknowledged changes, or a refusal."""
    monkeypatch.setattr(table_file, "CHANGES_SIZE_MIN", 2_048)
    files = MemoryFileSystem()
    owner = founded(files)
    acknowledged = [owner._stored.table.image()]
    for name in "xy":
        make(owner, created(name))
        acknowledged.append(owner._stored.table.image())
    whole = files.read_bytes(PATH)
    end = len(whole.rstrip(b"\0"))
    damaged = [whole[:cut].ljust(len(whole), b"\0") for cut in range(end)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(end + 32)]
    refused = 0
    for data in damaged:
        broken = files.after_process_kill()
        broken.write_atomic(PATH, data)
        assert StoredTable.load(broken).table.image() == acknowledged[-1]
        broken.write_atomic(BACKUP_PATH, data)
        try:
            loaded = StoredTable.load(broken)
        except DamagedError:
            refused += 1
        else:
            assert loaded.table.image() in acknowledged
    assert 0 < refused < len(damaged)
