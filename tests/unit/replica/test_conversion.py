"""A single broker's store becomes the first copy of a group: all at once, and each record has an epoch."""

from __future__ import annotations

import random

import pytest

from tests.durability.crash_seam import RecordingFileSystem
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica import replica_file
from trovemq_store.replica.conversion import begin_group, group_id
from trovemq_store.replica.epochs import Epochs, common_point
from trovemq_store.replica.replica_file import ReplicaFile

BEGIN, END = PhysicalOffset(4_096), PhysicalOffset(9_000)


def test_a_copy_that_ended_before_the_first_leadership_had_no_epoch() -> None:
    replica = ReplicaFile.open(MemoryFileSystem())
    own = begin_group(replica, BEGIN, END)
    assert own == replica.epochs == Epochs.of([(1, 4_096)])
    leaders = own.begun(64, END)
    assert common_point(own, PhysicalOffset(5_000), leaders, PhysicalOffset(9_500)) == 5_000
    assert begin_group(replica, BEGIN, END) == own


def test_an_empty_log_has_no_epoch() -> None:
    replica = ReplicaFile.open(MemoryFileSystem())
    assert begin_group(replica, LOG_ORIGIN, LOG_ORIGIN) == Epochs()
    assert replica_file.load(replica._files) is None


@pytest.mark.parametrize(
    ("former", "expected"),
    [
        ([(3, 0), (5, 5_000)], [(3, 0), (5, 5_000)]),
        ([(3, 4_096)], [(3, 4_096)]),
        ([(3, 5_000)], [(3, 4_096)]),
        ([(3, 0), (5, 9_000)], [(3, 0)]),
    ],
)
def test_epochs_of_a_former_group_stay_where_all_records_have_one(
    former: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    replica = ReplicaFile.open(MemoryFileSystem())
    replica.promise(9)
    for epoch, start in former:
        replica.begin_epoch(epoch, PhysicalOffset(start))
    assert begin_group(replica, BEGIN, END) == replica.epochs == Epochs.of(expected)
    assert replica.promised_epoch == 9, "a promise is never taken back"


def test_a_crash_leaves_a_single_store_or_a_groups() -> None:
    files, source, trees = RecordingFileSystem(), random.Random(1), list[MemoryFileSystem]()

    def before(_operation: str, _path: str) -> None:
        trees.extend(files.after_power_cut(keep) for keep in (lambda: False, lambda: source.random() < 0.5))

    files.before = before
    begin_group(ReplicaFile.open(files), BEGIN, END)
    trees.append(files.after_power_cut())
    found = set()
    for tree in trees:
        state = replica_file.load(tree)
        found.add(state is not None)
        assert state is None or (state.promised_epoch, state.epochs) == (1, Epochs.of([(1, 4_096)]))
        again = ReplicaFile.open(tree)
        assert begin_group(again, BEGIN, END) == Epochs.of([(1, 4_096)])
        assert ReplicaFile.open(tree.after_power_cut()).state == again.state
    assert found == {False, True}


def test_a_group_has_an_id_by_chance() -> None:
    assert group_id(bytes(range(16))) == "000102030405060708090a0b0c0d0e0f"
    with pytest.raises(ValueError, match="15 bytes"):
        group_id(bytes(15))
