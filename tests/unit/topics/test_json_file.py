"""The two copies of a small file, over damage, failing writes and power cuts."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, open_store, scan_bodies, send
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import render

PATH = "config/x.json"
BACKUP = "config/x.json.bak"


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_nothing_there(files: MemoryFileSystem) -> None:
    assert JsonFile(files, PATH).load() is None


def test_the_backup_holds_what_was_there_before(files: MemoryFileSystem) -> None:
    file = JsonFile(files, PATH)
    file.save({"n": 1})
    assert not files.exists(BACKUP)
    file.save({"n": 2})
    assert JsonFile(files, PATH).load() == {"n": 2}
    files.remove(PATH)
    assert JsonFile(files, PATH).load() == {"n": 1}


def test_a_mirror_holds_the_same(files: MemoryFileSystem) -> None:
    file = JsonFile(files, PATH, mirror=True)
    file.save({"n": 1})
    file.save({"n": 2})
    assert files.read_bytes(PATH) == files.read_bytes(BACKUP)


@pytest.mark.parametrize("broken", [b"{", b"\xff\xfe", b"[]", b""])
def test_a_broken_file_gives_way_to_its_backup(files: MemoryFileSystem, broken: bytes) -> None:
    file = JsonFile(files, PATH)
    file.save({"n": 1})
    file.save({"n": 2})
    files.write_atomic(PATH, broken)
    reread = JsonFile(files, PATH)
    assert reread.load() == {"n": 1}
    reread.save({"n": 3})
    assert JsonFile(files, PATH).load() == {"n": 3}
    files.remove(PATH)
    assert JsonFile(files, PATH).load() == {"n": 1}, "the damaged copy never replaces the good one"


def test_both_broken_names_the_file(files: MemoryFileSystem) -> None:
    files.write_atomic(PATH, b"{")
    files.write_atomic(BACKUP, b"[]")
    with pytest.raises(
        TroveError, match=r"STORE_FAILED.*config/x\.json cannot be read.*x\.json\.bak"
    ) as raised:
        JsonFile(files, PATH).load()
    assert raised.value.fields == {"file": PATH}


def test_an_unreadable_copy_counts_as_broken(files: MemoryFileSystem) -> None:
    file = JsonFile(files, PATH)
    file.save({"n": 1})
    file.save({"n": 2})
    faulty = FaultyFileSystem(files, fail_at("read_bytes", 1, errno.EIO))
    assert JsonFile(faulty, PATH).load() == {"n": 1}


def test_an_empty_file_is_a_missing_one(files: MemoryFileSystem) -> None:
    files.write_atomic(PATH, b"")
    assert JsonFile(files, PATH).load() is None


@pytest.mark.parametrize(
    ("error_number", "symbol"), [(errno.ENOSPC, "DISK_FULL"), (errno.EIO, "UNKNOWN_ERROR")]
)
def test_a_failed_save_says_so_and_keeps_the_old_content(
    files: MemoryFileSystem, error_number: int, symbol: str
) -> None:
    file = JsonFile(files, PATH)
    file.save({"n": 1})
    for nth in (1, 2):
        faulty = FaultyFileSystem(files)
        file = JsonFile(faulty, PATH)
        file.load()
        faulty.decide = fail_at("write_atomic", nth, error_number)
        with pytest.raises(TroveError) as raised:
            file.save({"n": 2})
        assert raised.value.symbol == symbol
        assert JsonFile(files, PATH).load() == {"n": 1}


def test_a_refused_change_was_left_in_the_second_copy(files: MemoryFileSystem) -> None:
    """Of one save with a mirror, as a large table of topics makes it."""
    faulty = FaultyFileSystem(files)
    file = JsonFile(faulty, PATH)
    file.save({"n": 1})
    faulty.decide = fail_at("write_atomic", 2, errno.EIO)
    with pytest.raises(TroveError):
        file.save_content(render({"n": 2}), mirror=True)
    files.write_atomic(PATH, b"broken")
    assert JsonFile(files, PATH).load() == {"n": 1}


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(0, 20), st.booleans())
def test_after_a_power_cut_the_last_saved_document_is_there(
    values: list[int], fail_at_call: int, mirror: bool
) -> None:
    """Writes stop at some call: the last document whose save returned loads, or the one being saved."""
    files = MemoryFileSystem()
    faulty = FaultyFileSystem(files, fail_at("write_atomic", fail_at_call, errno.EIO))
    file = JsonFile(faulty, PATH, mirror=mirror)
    saved: object = None
    attempted: object = None
    for value in values:
        attempted = {"n": value}
        try:
            file.save({"n": value})
        except TroveError:
            break
        saved = attempted
    assert JsonFile(files.after_power_cut(), PATH).load() in (saved, attempted)


def test_equal_content_is_not_written_again(files: MemoryFileSystem) -> None:
    faulty = FaultyFileSystem(files)
    file = JsonFile(faulty, PATH)
    file.save({"n": 1})
    faulty.decide = lambda operation, path: errno.EIO
    file.save({"n": 1})
    with pytest.raises(StorageError):
        faulty.write_atomic(PATH, b"")


def test_a_start_with_unreadable_topics_did_not_say_what_to_do(files: MemoryFileSystem) -> None:
    files.write_atomic("config/topics.json", b"{")
    files.write_atomic("config/topics.json.bak", b"[]")
    with pytest.raises(TroveError, match=r"config/topics\.json cannot be read .*from a backup") as refused:
        open_store(files)
    assert refused.value.symbol == "STORE_FAILED"


def test_the_broker_starts_again_once_unreadable_topics_were_moved_away(files: MemoryFileSystem) -> None:
    """As the error says."""
    store = open_store(files)
    for body in (b"a", b"b"):
        send(store, body)
    store.close(NOW_MS)
    for path in ("config/topics.json", "config/topics.json.bak"):
        if files.exists(path):
            files.remove(path)
    assert scan_bodies(MessageStore.open(files, SMALL, NOW_MS)) == [b"a", b"b"]
