"""The links of an archive while files are merged: killed at any step, a glob sees each row once."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.archive_logs import Watcher
from trovemq_spark.archive import swap
from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.manifest import Manifest, new_file_name
from trovemq_spark.archive.swap import exchange
from trovemq_spark.archive.view import link_name
from trovemq_spark.storage import StoragePath

ROWS: Final = [*range(1, 10), *range(20, 24)]
DAYS: Final = ("2026-01-01", "2026-01-02")
FOLDER: Final = f"topic=T/date={DAYS[0]}"


def write_file(place: StoragePath, day: str, rows: list[int]) -> FileEntry:
    name = new_file_name()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"row": rows}), sink)
    data = sink.getvalue().to_pybytes()
    place.write(name, data)
    return FileEntry(name, len(rows), len(data), "T", day, {0: (rows[0], rows[-1])}, (0, 1), (0, 1))


def make_archive(out: Path) -> None:
    """Two days: on the first three small files and a large one, on the second two small ones."""
    with Manifest.writing(out, "archive") as manifest:
        parts = [[1, 2], [3, 4], [5, 6], [7, 8, 9]]
        entries = [write_file(manifest.place, DAYS[0], rows) for rows in parts]
        entries += [write_file(manifest.place, DAYS[1], rows) for rows in ([20, 21], [22, 23])]
        manifest.commit(entries)


def merge(out: Path) -> None:
    """Merges the small files of each day, if that is not done."""
    with Manifest.writing(out, "compact") as manifest:
        small = [entry for entry in manifest.files() if entry.rows == 2]
        if small:
            days = [write_file(manifest.place, DAYS[0], [*range(1, 7)])]
            days.append(write_file(manifest.place, DAYS[1], [*range(20, 24)]))
            manifest.commit(days, [entry.file for entry in small])


def run_again(out: Path) -> None:
    """The beginning of any job, which ends the changes of a killed one."""
    with Manifest.writing(out, "archive"):
        pass


def glob_rows(out: Path) -> list[int]:
    paths = out.glob("topic=*/**/*.parquet")
    return sorted(row for path in paths for row in pq.ParquetFile(path).read()["row"].to_pylist())


def folder_of(out: Path) -> Path:
    return out / FOLDER


class Killed(BaseException):
    """Raised at a step and at each later one: nothing more happens, as after a kill."""


class Steps:
    """Runs functions up to their n-th step on the file system."""

    def __init__(self, directory: Path) -> None:
        self._look: Callable[[int], None] = lambda _: None
        self._watcher = Watcher(directory, lambda _: self._look(self._watcher.count))

    def killed_at(self, run: Callable[[], None], step: int) -> bool:
        """Whether it came as far as that step, counted from 0."""

        def look(at: int) -> None:
            if at >= step:
                raise Killed

        try:
            self.watch(run, look)
        except Killed:
            return True
        return False

    def watch(self, run: Callable[[], None], look: Callable[[int], None]) -> None:
        """Calls `look` before each step, with its number."""
        self._look = look
        self._watcher.count = 0
        with self._watcher.watching():
            run()


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "archive"
    make_archive(out)
    return out


@pytest.fixture
def exchanges(tmp_path: Path) -> None:
    """Only where folders can be exchanged."""
    for name in "ab":
        (tmp_path / name).mkdir()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system does not exchange folders")


def states_after_kills(out: Path, steps: Steps) -> Iterator[Path]:
    """A copy of the archive after a kill at each step of a merge, and after each of the next runs: killed at
    its first step, at its second one, and so on to the one that ends."""
    for step in count():
        copy = out.with_name(f"copy-{step}")
        shutil.copytree(out, copy, copy_function=os.link)
        killed = steps.killed_at(lambda copy=copy: merge(copy), step)  # type: ignore[misc]
        yield copy
        for later in count():
            if not steps.killed_at(lambda copy=copy: run_again(copy), later):  # type: ignore[misc]
                break
            yield copy
        assert glob_rows(copy) == ROWS
        links = {str(path.relative_to(copy)) for path in copy.glob("**/*.parquet")}
        assert links == {link_name(entry) for entry in Manifest.open(copy).files()}
        assert not (copy / swap.STAGE).exists()
        if not killed:
            assert step > 25
            return


@pytest.mark.slow
@pytest.mark.usefixtures("exchanges")
def test_after_a_kill_within_a_swap_a_glob_saw_no_row_of_a_day(out: Path, steps: Steps) -> None:
    for copy in states_after_kills(out, steps):
        assert glob_rows(copy) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("why", ["no exchange", "own file"])
def test_where_folders_are_not_exchanged_no_row_is_missing(
    why: str, out: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no exchange":
        monkeypatch.setattr(swap, "exchange", lambda *_: False)
    else:
        for day in DAYS:
            (out / f"topic=T/date={day}/mine.txt").write_text("mine")
    twice = 0
    for copy in states_after_kills(out, steps):
        seen = Counter(glob_rows(copy))
        assert set(seen) == set(ROWS)
        assert max(seen.values()) <= 2
        twice += max(seen.values()) == 2
        if why == "own file":
            assert all((copy / f"topic=T/date={day}/mine.txt").read_text() == "mine" for day in DAYS)
    assert twice, "the new links come before the old ones go"


@pytest.mark.usefixtures("exchanges")
def test_while_files_are_merged_a_glob_sees_each_row_once(out: Path, steps: Steps) -> None:
    def look(_: int) -> None:
        assert glob_rows(out) == ROWS

    steps.watch(lambda: merge(out), look)


@pytest.mark.usefixtures("exchanges")
def test_a_folder_opened_before_a_swap_lists_a_link_that_has_gone(out: Path, steps: Steps) -> None:
    """So its reader gets an error, and not fewer rows."""
    old = set(os.listdir(folder_of(out)))
    opened = os.open(folder_of(out), os.O_RDONLY | os.O_DIRECTORY)
    seen: list[set[str]] = []

    def look(_: int) -> None:
        seen.append(set(os.listdir(opened)))

    try:
        steps.watch(lambda: merge(out), look)
    finally:
        os.close(opened)
    gone = old - set(os.listdir(folder_of(out)))
    assert len(gone) == 3
    listed = [names for names in seen if names]
    assert all(names == old or names & gone for names in listed)
    assert listed[-1] < gone


@pytest.mark.parametrize("name", ["notes.txt", "own/notes.txt"])
def test_a_users_files_stay_while_files_are_merged(name: str, out: Path, steps: Steps) -> None:
    own = folder_of(out) / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("mine")

    def look(_: int) -> None:
        assert own.read_text() == "mine"

    steps.watch(lambda: merge(out), look)
    look(0)
    assert glob_rows(out) == ROWS
    assert not (out / swap.STAGE).exists()
    assert own.stat().st_nlink == 1


@pytest.mark.usefixtures("exchanges")
@pytest.mark.parametrize("killed", [False, True])
def test_a_users_file_that_comes_within_a_swap_is_moved_back(
    killed: bool, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder_of(out) / "notes.txt"

    def late(one: Path, other: Path) -> bool:
        if one == folder_of(out):
            own.write_text("mine")
        assert exchange(one, other)
        if killed:
            patched.setattr(os, "listdir", refuse)
        return True

    def refuse(_: object) -> list[str]:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(swap, "exchange", late)
        if killed:
            with pytest.raises(Killed):
                merge(out)
        else:
            merge(out)
    assert own.exists() != killed
    run_again(out)
    assert own.read_text() == "mine"
    assert glob_rows(out) == ROWS
    assert not (out / swap.STAGE).exists()


def test_a_folder_keeps_its_rights(out: Path) -> None:
    folder = folder_of(out)
    if os.geteuid() == 0:
        os.chown(folder, 1234, 4321)
    folder.chmod(0o2750)
    before = folder.stat()
    merge(out)
    after = folder.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == stat.S_IMODE(before.st_mode)
    assert glob_rows(out) == ROWS


def test_old_links_stay_where_a_new_one_cannot_be_made(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Manifest.writing(out, "compact") as manifest:
        small = [entry for entry in manifest.files() if entry.date == DAYS[1]]
        merged = write_file(manifest.place, DAYS[1], [*range(20, 24)])
        link = os.link

        def refuse(source: Path, target: Path) -> None:
            if source == out / merged.file:
                raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
            link(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "link", refuse)
            manifest.commit([merged], [entry.file for entry in small])
        assert glob_rows(out) == ROWS
    run_again(out)
    assert glob_rows(out) == ROWS


def test_a_merge_of_damage_makes_no_folder(out: Path) -> None:
    def damage(place: StoragePath) -> FileEntry:
        return replace(write_file(place, "", [1]), topic=None, date=None)

    with Manifest.writing(out, "compact") as manifest:
        old = damage(manifest.place)
        manifest.commit([old])
        manifest.commit([damage(manifest.place)], [old.file])
    assert [path.name for path in out.glob("topic=*")] == ["topic=T"]


def test_what_cannot_be_exchanged_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not exchange(tmp_path / "a", tmp_path / "b")
    assert os.listdir(tmp_path) == ["a"]
