"""A log that ends within an atomic run: its end without it, and the cut of it."""

from __future__ import annotations

import pytest

from tests.support.engine import NOW_MS
from tests.support.followers import bodies, commit, copy, follower, saved_commit
from tests.support.raw_runs import raw_runs
from tests.support.run_group import Copied
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.replica.replica_file import ReplicaFile
from trovemq_store.replica.whole_end import whole_end, whole_until


@pytest.mark.parametrize("seen", range(5))
def test_a_log_ends_before_a_run_that_lacks_records(seen: int) -> None:
    group = Copied(seen)
    expected = group.ends[4] if seen == 4 else group.begin
    assert whole_end(group.store.log, group.begin) == expected
    assert whole_end(group.store.log, LOG_ORIGIN) == expected


def test_a_frame_ends_before_a_run_that_lacks_records() -> None:
    group = Copied(4)
    log, second = group.leader.store.log, group.ends[2]
    for begin in (LOG_ORIGIN, group.begin, group.ends[1]):
        found = [whole_until(bytes(run.data), run.physical_offset) for run in raw_runs(log, begin, second)]
        assert found == [group.begin]
    whole = [whole_until(bytes(run.data), run.physical_offset) for run in raw_runs(log, second, log.end)]
    assert whole == [log.end]
    assert whole_until(b"no record", PhysicalOffset(7)) == 16


@pytest.mark.parametrize("seen", [1, 3])
def test_a_promoted_node_began_its_epoch_after_half_a_run(seen: int) -> None:
    group = Copied(seen)
    assert group.store.cut_unfinished_run(group.replica)
    group.store.close(NOW_MS)
    store = follower(group.files, saved_commit(group.files))
    assert store.end_offset == group.begin
    assert not store.cut_unfinished_run(ReplicaFile.open(group.files))
    assert bodies(store) == group.leader.visible_below(group.begin)
    copy(group.leader.store, store)
    commit(store, store.end_offset)
    assert bodies(store) == group.leader.visible_below(store.end_offset)


def test_a_whole_run_is_not_cut() -> None:
    group = Copied(4)
    assert not group.store.cut_unfinished_run(group.replica)
    assert group.replica.state.truncating is None


def test_a_run_that_is_committed_in_part_is_not_cut() -> None:
    group = Copied(2)
    commit(group.store, group.ends[1])
    before = group.store.end_offset
    with pytest.raises(TroveError) as refused:
        group.store.begin_truncation(group.replica, group.begin)
    assert refused.value.spec is errors.STORE_DIVERGED
    assert (group.store.end_offset, group.replica.state.truncating) == (before, None)
