"""After a crash at any moment of a cut of the log, all of it is done by the next start, or nothing of it.

The cut of a follower is stopped before each of its changes of a file, and within the start that ends it. The
files after a power cut there (synced ones alone, everything, some sectors) are opened: the log ends where it
did before or at the cut, its committed part is there, and the bytes that are gone are in their file. Then it
follows the next leader.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from tests.durability.crash_seam import RecordingFileSystem
from tests.support.cut_group import Group, cut
from tests.support.engine import NOW_MS
from tests.support.followers import bodies, follower, saved_commit
from tests.support.run_group import Copied
from tests.support.trials import SOAK
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import POINTS, armed
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import SECTOR_SIZE, MemoryFileSystem
from trovemq_store.replica import replica_file
from trovemq_store.replica.cut_records import cut_files, decoded
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.replica_file import ReplicaFile

pytestmark = pytest.mark.slow

SEEDS = 20 if SOAK else 2
FOLLOWED = 1.0 if SOAK else 0.1
"""The share of the states from which the follower continues to the end."""


class Crashes:
    """The different trees that crashes leave ahead of the changes of `files`."""

    def __init__(self, files: RecordingFileSystem, source: random.Random) -> None:
        self._files, self._source = files, source
        self._seen: set[int] = set()
        self.trees: list[tuple[str, MemoryFileSystem]] = []
        files.before = self._before

    def _before(self, operation: str, path: str) -> None:
        odds = self._source.choice((0.2, 0.5, 0.8))
        for tree in (
            self._files.after_power_cut(),
            self._files.after_power_cut(lambda: True),
            self._files.after_power_cut(lambda: self._source.random() < odds, unit=SECTOR_SIZE),
        ):
            content = hash(tuple((name, bytes(tree._files[name].data)) for name in sorted(tree._files)))
            if content not in self._seen:
                self._seen.add(content)
                self.trees.append((f"{operation} {path}", tree))


def check(group: Group, tree: MemoryFileSystem, old_end: PhysicalOffset, *, follow: bool) -> bool:
    """Whether the log was cut."""
    state = replica_file.load(tree)
    assert state is not None
    store = follower(tree, saved_commit(tree))
    was_cut = store.end_offset == group.agreed
    assert was_cut or (store.end_offset == old_end and state.truncating is None)
    assert bodies(store) == group.first.visible_below(group.committed)
    replica = ReplicaFile.open(tree)
    own = [(1, 0)] if was_cut else [(1, 0), (2, group.agreed)]
    assert (replica.state.truncating, replica.epochs, replica.promised_epoch) == (None, Epochs.of(own), 2)
    if was_cut:
        (path,) = cut_files(tree)
        found = decoded(tree.read_bytes(path))
        assert (found.cut_at, found.data) == (group.agreed, lost_bytes(group))
    if follow:
        if not was_cut:
            cut(store, replica, group.agreed)
            store = follower(tree, saved_commit(tree))
        group.check_follows(store, tree)
    return was_cut


def lost_bytes(group: Group) -> bytes:
    log, found = group.first.store.log, b""
    for segment in log.segments.covering(group.agreed, log.end):
        begin = max(group.agreed, segment.start)
        found += bytes(log.read(begin, min(log.end, segment.end) - begin))
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_crash_leaves_all_of_a_cut_or_nothing(seed: int) -> None:
    source = random.Random(seed)
    group = Group(RecordingFileSystem(), lost=source.choice((5, 28)), size=source.choice((300, 3_000)))
    assert isinstance(group.files, RecordingFileSystem)
    old_end, results = group.store.end_offset, []
    crashes = Crashes(group.files, source)
    group.cut()
    group.reopened()
    for where, tree in crashes.trees:
        try:
            results.append(check(group, copy_of(tree), old_end, follow=source.random() < FOLLOWED))
            if source.random() < FOLLOWED:
                crash_again(group, tree, old_end, source)
        except BaseException as error:
            error.add_note(f"crash ahead of {where}")
            raise
    assert 3 < results.count(False) < len(results) - 10, "crashes before the cut was named, and after"


def test_a_crash_leaves_no_part_of_a_cut_run_in_the_epoch() -> None:
    """A node that is promised and promoted begins its epoch only once the run without its end is gone."""
    files = RecordingFileSystem()
    group, crashes = Copied(3, files), Crashes(files, random.Random(1))
    assert group.store.cut_unfinished_run(group.replica)
    group.store.close(NOW_MS)
    follower(files, saved_commit(files))
    assert len(crashes.trees) > 5
    for where, tree in crashes.trees:
        store = follower(tree, saved_commit(tree))
        if store.cut_unfinished_run(ReplicaFile.open(tree)):
            store.close(NOW_MS)
            store = follower(tree, saved_commit(tree))
        assert store.end_offset == group.begin, where
        assert bodies(store) == group.leader.visible_below(group.begin), where
        (path,) = cut_files(tree) or [""]
        assert not path or decoded(tree.read_bytes(path)).end == group.ends[3]


def copy_of(tree: MemoryFileSystem) -> MemoryFileSystem:
    return tree.after_process_kill()


def crash_again(group: Group, tree: MemoryFileSystem, old_end: PhysicalOffset, source: random.Random) -> None:
    """The start after a crash is stopped before each of its changes, too."""
    files = RecordingFileSystem(copy_of(tree))
    crashes = Crashes(files, source)
    follower(files, saved_commit(files))
    for _, again in crashes.trees:
        check(group, again, old_end, follow=False)


def failing_at(point: str) -> Callable[[str], None]:
    def act(name: str) -> None:
        if name == point:
            raise StorageError("write", "trovemq", errno.EIO, "injected")

    return act


@pytest.mark.parametrize(
    "point", [name for name in POINTS if name.partition(".")[0] in ("truncation", "replica")]
)
def test_a_call_that_fails_during_a_cut_is_made_again(point: str) -> None:
    group = Group()
    old_end, failures, before = group.store.end_offset, 0, replica_file.load(group.files)
    assert before is not None
    for step in (group.cut, group.reopened):
        found = replica_file.load(group.files)
        if failures and found is not None and found.truncating is None:
            break
        with armed(failing_at(point)):
            try:
                step()
            except (StorageError, TroveError):
                failures += 1
                assert group.store.failed or replica_file.load(group.files.after_power_cut()) == before
                group.files._locked.clear()
    assert failures
    was_cut = check(group, group.files.after_process_kill(), old_end, follow=True)
    assert was_cut == (
        point not in ("truncation.before_keep", "truncation.after_keep", "replica.before_save")
    )
