"""Sorted trees: LMDB's and those in memory behave alike; and cases of LMDB alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.small_disks import mounted_disk
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.guarded import GuardedFileSystem
from trovemq_store.files.lmdb_trees import LOCK_FILE_SIZE, MAP_SIZE_MIN, PAGE_SIZE, LmdbTrees
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.files.trees import LONG_RUN, TreeChange, TreeReader, Trees, key_after

NAMES = ("a", "b")
KEYS = st.binary(min_size=1, max_size=4)
CHANGES = st.builds(
    lambda tree, puts, removals, keys: TreeChange(tree, sorted(puts.items()), removals, sorted(keys)),
    st.sampled_from(NAMES),
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=6),
    st.lists(KEYS, max_size=4),
    st.lists(KEYS, max_size=4),
)


def _all(reader: TreeReader, tree: str) -> list[tuple[bytes, bytes]]:
    return list(reader.items(tree, b""))


@pytest.fixture(params=["lmdb", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return RealFileSystem(tmp_path) if request.param == "lmdb" else MemoryFileSystem()


@pytest.fixture
def trees(files: FileSystem) -> Iterator[Trees]:
    opened = files.open_trees("trees", NAMES)
    yield opened
    opened.close()


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=8), KEYS, st.none() | KEYS)
def test_both_kinds_of_trees_answer_as_a_dictionary_does(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[TreeChange]], begin: bytes, end: bytes | None
) -> None:
    model: dict[str, dict[bytes, bytes]] = {name: {} for name in NAMES}
    kinds = [
        RealFileSystem(tmp_path_factory.mktemp("lmdb")).open_trees("trees", NAMES),
        MemoryFileSystem().open_trees("trees", NAMES),
    ]
    try:
        for changes in commits:
            for trees in kinds:
                trees.commit(changes)
            for change in changes:
                entries = model[change.tree]
                for key in change.removals:
                    entries.pop(key, None)
                entries.update(change.puts)
                entries.update(dict.fromkeys(change.keys, b""))
        for trees in kinds:
            with trees.read() as reader:
                for name in NAMES:
                    found = sorted(model[name].items())
                    assert _all(reader, name) == found
                    assert list(reader.items(name, b"", reverse=True)) == found[::-1]
                    inside = [(k, v) for k, v in found if begin <= k and (end is None or k < end)]
                    assert list(reader.items(name, begin, end)) == inside
                    assert list(reader.items(name, begin, end, reverse=True)) == inside[::-1]
                    assert reader.count(name) == len(found)
                    asked = sorted({begin, end or begin, *list(model[name])[:3]})
                    assert reader.get_all(name, asked) == {
                        k: model[name][k] for k in asked if k in model[name]
                    }
                    assert reader.get(name, begin) == model[name].get(begin)
                    behind = end or b"\xff" * 5
                    some = [k for k, _ in found if begin <= k < behind]
                    for most in (0, 2, 100):
                        assert reader.keys(name, begin, behind, most) == some[:most]
                    cursor = reader.cursor(name)
                    for key in asked:
                        assert cursor.at_least(key) == next((e for e in found if e[0] >= key), None)
                        assert cursor.below(key) == next((e for e in found[::-1] if e[0] < key), None)
    finally:
        for trees in kinds:
            trees.close()


def test_a_reader_sees_the_commit_before_it_was_opened(trees: Trees) -> None:
    trees.commit([TreeChange("a", [(b"k", b"1")])])
    with trees.read() as reader:
        trees.commit([TreeChange("a", [(b"k", b"2")])])
        assert reader.get("a", b"k") == b"1"
    with trees.read() as reader:
        assert reader.get("a", b"k") == b"2"


@pytest.mark.parametrize("long", [LONG_RUN, LONG_RUN - 1])
def test_long_runs_of_keys_come_to_lie_where_a_dictionary_would_have_them(trees: Trees, long: int) -> None:
    """After everything, between two neighbours, across others, again, and beside large values."""
    model: dict[bytes, bytes] = {}
    runs = [
        [b"m%05d" % n for n in range(long)],
        [b"x%05d" % n for n in range(long)],
        [b"m%05d" % n for n in range(long, 3 * long)],
        [b"m%05d" % n for n in range(2 * long, 4 * long)],
        [b"a%05d" % n for n in range(long)],
        [b"z%05d" % (n // 2) for n in range(long)],
        [b"m%05d+" % n for n in range(long)],
    ]
    for number, keys in enumerate(runs):
        large = [(b"n%05d" % number, bytes(1_500)), (b"n%05d+" % number, b"-")]
        trees.commit([TreeChange("a", keys=keys), TreeChange("a", large)])
        model.update({**dict.fromkeys(keys, b""), **dict(large)})
        with trees.read() as reader:
            assert _all(reader, "a") == sorted(model.items())


def test_keys_are_put_with_their_values_or_all_with_empty_ones(trees: Trees) -> None:
    keys, values = [b"k%03d" % n for n in range(300)], [b"v%d" % n for n in range(300)]
    trees.commit([TreeChange("a", keys=keys, values=values), TreeChange("b", keys=keys)])
    with trees.read() as reader:
        assert _all(reader, "a") == list(zip(keys, values, strict=True))
        assert _all(reader, "b") == [(key, b"") for key in keys]


def test_ids_that_rise_in_front_of_other_entries_fill_their_pages(tmp_path: Path) -> None:
    trees = RealFileSystem(tmp_path).open_trees("trees", NAMES)
    count, steps = 500, 40
    trees.commit([TreeChange("a", keys=[b"a", *(b"z%039d" % n for n in range(count))])])
    for step in range(steps):
        trees.commit([TreeChange("a", keys=[b"m%039d" % n for n in range(step * count, (step + 1) * count)])])
    trees.close()
    with lmdb.open(str(tmp_path / "trees"), max_dbs=2) as environment, environment.begin() as transaction:
        found = transaction.stat(environment.open_db(b"a", transaction))
    assert found["entries"] == 1 + count + count * steps
    assert found["leaf_pages"] * PAGE_SIZE < 1.2 * found["entries"] * (40 + 8 + 2)


def test_what_was_committed_is_there_after_it_was_opened_again(files: FileSystem) -> None:
    first = files.open_trees("trees", NAMES)
    first.commit([TreeChange("a", [(b"k", b"1")]), TreeChange("b", [(b"l", b"2")])])
    first.close()
    assert files.list("trees")[0] == "data.mdb"
    again = files.open_trees("trees", (*NAMES, "new"))
    with again.read() as reader:
        assert (_all(reader, "a"), _all(reader, "b"), _all(reader, "new")) == (
            [(b"k", b"1")],
            [(b"l", b"2")],
            [],
        )
    assert again.size_bytes > 0
    again.close()


@pytest.mark.slow
def test_the_trees_grow_beyond_their_first_mapping_and_wait_for_readers(tmp_path: Path) -> None:
    trees = RealFileSystem(tmp_path).open_trees("trees", NAMES)
    value = bytes(1 << 20)
    count = 2 * MAP_SIZE_MIN // len(value)
    trees.commit([TreeChange("a", [(b"%04d" % n, value) for n in range(count)])])
    with trees.read() as reader:
        assert reader.count("a") == count
    assert trees.size_bytes > MAP_SIZE_MIN
    trees.close()


def test_a_power_cut_leaves_what_was_committed() -> None:
    files = MemoryFileSystem()
    trees = files.open_trees("trees", NAMES)
    files.sync_directory("trees")
    trees.commit([TreeChange("a", [(b"k", b"1")])])
    for after in (files.after_power_cut(), files.after_process_kill()):
        trees.commit([TreeChange("a", [(b"k", b"2")])])
        with after.open_trees("trees", NAMES).read() as reader:
            assert reader.get("a", b"k") in (b"1", b"2")
    assert files.after_power_cut().exists("trees/data.mdb")


def _garbage(path: Path) -> None:
    path.write_bytes(b"no tree" * 3_000)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


@pytest.mark.parametrize("damage", [_garbage, _cut])
def test_a_file_that_is_not_a_whole_one_of_lmdb_is_refused(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    files = RealFileSystem(tmp_path)
    trees = files.open_trees("trees", NAMES)
    trees.commit([TreeChange("a", [(b"%05d" % n, bytes(100)) for n in range(5_000)])])
    trees.close()
    damage(tmp_path / "trees" / "data.mdb")
    with pytest.raises(StorageError) as caught:
        files.open_trees("trees", NAMES)
    assert (caught.value.errno, caught.value.operation) == (errno.EINVAL, "open_trees")


def test_the_lock_file_has_its_blocks_so_that_a_full_disk_is_not_a_sigbus(tmp_path: Path) -> None:
    RealFileSystem(tmp_path).open_trees("trees", NAMES).close()
    status = (tmp_path / "trees" / "lock.mdb").stat()
    assert status.st_size >= LOCK_FILE_SIZE
    assert status.st_blocks * 512 >= LOCK_FILE_SIZE


def test_a_commit_of_a_key_that_is_too_long_fails_and_changes_nothing(tmp_path: Path) -> None:
    trees = RealFileSystem(tmp_path).open_trees("trees", NAMES)
    with pytest.raises(StorageError):
        trees.commit([TreeChange("a", [(b"k", b"1"), (bytes(512), b"2")])])
    with trees.read() as reader:
        assert reader.count("a") == 0
    trees.close()


@pytest.mark.parametrize("free_pages", [0, 2, 5])
def test_a_commit_that_a_full_disk_cut_short_ended_the_broker(tmp_path: Path, free_pages: int) -> None:
    with mounted_disk("tmpfs", tmp_path, 1 << 20) as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        trees = RealFileSystem(disk).open_trees("trees", NAMES)
        trees.commit([TreeChange("a", [(b"k", b"1")])])
        status, filler = os.statvfs(disk), disk / "filler"
        filler.write_bytes(bytes((status.f_bavail - free_pages) * status.f_frsize))
        change = TreeChange("a", [(bytes([key]) * 8, bytes(1_000)) for key in range(100)])
        with pytest.raises(StorageError) as caught:
            trees.commit([change])
        assert caught.value.disk_full
        assert not caught.value.sync_failed
        filler.unlink()
        trees.commit([change])
        with trees.read() as reader:
            assert reader.count("a") == 101
        trees.close()


def test_a_commit_that_fails_on_a_disk_with_space_is_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = LmdbTrees(str(tmp_path), "trees", NAMES)

    def fail(_changes: Sequence[TreeChange]) -> None:
        failure = lmdb.Error("mdb_txn_commit")
        vars(failure)["code"] = errno.EIO
        raise failure

    monkeypatch.setattr(trees, "_commit", fail)
    with pytest.raises(StorageError) as caught:
        trees.commit([])
    assert caught.value.sync_failed
    trees.close()


def test_a_failed_commit_sync_is_remembered_by_the_stores_file_system() -> None:
    faulty = FaultyFileSystem(MemoryFileSystem(), fail_at("commit", 1, errno.EIO))
    guarded = GuardedFileSystem(_CommitsAsSyncs(faulty), 4096)
    trees = guarded.open_trees("trees", NAMES)
    with pytest.raises(StorageError):
        trees.commit([])
    assert guarded.sync_failure is not None
    trees.commit([])
    assert trees.size_bytes == 0


class _CommitsAsSyncs(FaultyFileSystem):
    """Where a commit fails, it is its sync: as LmdbTrees says of EIO."""

    def __init__(self, inner: FaultyFileSystem) -> None:
        super().__init__(inner)

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        return _Syncing(self.inner.open_trees(directory, names))


class _Syncing:
    def __init__(self, inner: Trees) -> None:
        self._inner = inner
        self.read = inner.read
        self.close = inner.close
        self.size_bytes = 0

    def commit(self, changes: Sequence[TreeChange]) -> None:
        try:
            self._inner.commit(changes)
        except StorageError as error:
            raise StorageError("sync", error.path, error.errno) from error


def test_faults_are_injected_into_opening_committing_and_reading() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    trees = files.open_trees("trees", NAMES)
    for operation, call in (("commit", lambda: trees.commit([])), ("read_trees", trees.read)):
        files.decide = fail_at(operation, 1, errno.ENOSPC)
        with pytest.raises(StorageError) as caught:
            call()
        assert caught.value.disk_full
    assert trees.size_bytes == 0
    trees.close()


def test_trees_are_read_where_nothing_may_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        ReadOnlyFileSystem(tmp_path).open_trees("trees", NAMES)
    trees = RealFileSystem(tmp_path).open_trees("trees", NAMES)
    trees.commit([TreeChange("a", [(b"k", b"1")])])
    trees.close()
    (tmp_path / "trees" / "lock.mdb").unlink()
    readable = ReadOnlyFileSystem(tmp_path).open_trees("trees", NAMES)
    with readable.read() as reader:
        assert reader.get("a", b"k") == b"1"
    with pytest.raises(StorageError):
        readable.commit([TreeChange("a", [(b"k", b"2")])])
    assert not (tmp_path / "trees" / "lock.mdb").exists()
    readable.close()
    with pytest.raises(StorageError):
        LmdbTrees(str(tmp_path / "trees"), "trees", ("unknown",), read_only=True)


@pytest.mark.parametrize(
    ("prefix", "after"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"", None), (b"\x00", b"\x01")],
)
def test_the_key_after_a_prefix(prefix: bytes, after: bytes | None) -> None:
    assert key_after(prefix) == after
