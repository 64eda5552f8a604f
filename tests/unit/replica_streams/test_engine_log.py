"""MessageStore as the log of a leader and of a follower: frames of it, and refused ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.atomic import SEGMENT
from tests.support.engine import flush
from tests.support.followers import Leader, follower
from trovemq_broker.replica_streams.engine_log import EngineLog
from trovemq_broker.replication.follower import ReplicaState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epoch, Epochs
from trovemq_store.replica.replica_file import ReplicaFile


def log_of(leader: Leader) -> EngineLog:
    return EngineLog(
        leader.store, ReplicaFile.open(leader.files), ReplicaState(0, Epochs(), LOG_ORIGIN, None)
    )


APPENDS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6), st.sampled_from((10, 300, 3_000, 7_000))), max_size=25
)


@settings(deadline=None)
@given(APPENDS, st.sampled_from((200, 1_500, 9_000, 1 << 20)))
def test_frames_are_the_log_in_whole_records(appends: list[tuple[bool, int, int]], size_max: int) -> None:
    leader = Leader()
    for whole, count, size in appends:
        if whole:
            leader.transact(min(count, 4), min(size, 900))
        else:
            leader.send("orders", 0, min(count, 2), size)
    log, at = log_of(leader), LOG_ORIGIN
    files = MemoryFileSystem()
    copied = follower(files)
    ends = {*leader.record_ends}
    while at < log.end:
        data, blank = log.read(at, size_max)
        assert data == bytes(leader.store.log.read(at, len(data)))
        end = PhysicalOffset(at + len(data) + blank)
        assert end in ends or end % SEGMENT.commit_log_file_size == 0
        assert len(data) <= size_max or int.from_bytes(data[:4]) == len(data)
        for sent in leader.sent:
            before = max((one for one in ends if one < sent.ends[0]), default=0)
            segment = (sent.ends[0] - 1) // SEGMENT.commit_log_file_size * SEGMENT.commit_log_file_size
            begin = max(before, segment)
            if sent.whole and at < begin:
                assert not begin < end < sent.ends[-1], "a transaction begins a frame, or is whole in it"
        copied.append_raw(at, memoryview(data), blank)
        at = end
    assert copied.end_offset == leader.store.end_offset


def test_appended_bytes_are_flushed_when_they_are_synced() -> None:
    leader = Leader()
    log = log_of(leader)
    leader.send("orders", 0, 1, 500)
    assert (log.flushed, log.end) == (LOG_ORIGIN, leader.store.end_offset)
    assert log.end > LOG_ORIGIN
    flush(leader.store)
    assert log.flushed == log.end


def test_a_transaction_that_does_not_fit_begins_the_next_frame() -> None:
    leader = Leader()
    leader.send("orders", 0, 1, 500)
    begin = leader.store.end_offset
    leader.transact(5, 300)
    leader.send("orders", 0, 1, 500)
    log = log_of(leader)
    data, _ = log.read(LOG_ORIGIN, int(begin) + 1_200)
    assert len(data) == begin
    data, _ = log.read(begin, 1_200)
    assert 0 < len(data) <= 1_200


@pytest.mark.parametrize("offset", [7, 100_000])
def test_a_place_without_a_record_is_not_read(offset: int) -> None:
    leader = Leader()
    leader.send("orders", 0, 1)
    with pytest.raises(TroveError) as caught:
        log_of(leader).read(PhysicalOffset(offset), 1 << 20)
    assert caught.value.spec is errors.STORE_FAILED


def test_an_epoch_whose_first_record_was_refused_is_forgotten() -> None:
    leader, files = Leader(), MemoryFileSystem()
    leader.send("orders", 0, 1)
    replica = ReplicaFile.open(files)
    replica.promise(5)
    state = ReplicaState(5, Epochs(), LOG_ORIGIN, None)
    log = EngineLog(follower(files), replica, state)
    log.begin_epoch(Epoch(5, LOG_ORIGIN))
    assert state.epochs == Epochs.of([(5, 0)])
    data, blank = log_of(leader).read(LOG_ORIGIN, 1 << 20)
    with pytest.raises(TroveError):
        log.append_raw(LOG_ORIGIN, data[:-1], blank)
    assert (state.epochs, replica.epochs, log.end) == (Epochs(), Epochs(), LOG_ORIGIN)
    log.begin_epoch(Epoch(5, LOG_ORIGIN))
    log.append_raw(LOG_ORIGIN, data, blank)
    with pytest.raises(TroveError):
        log.append_raw(LOG_ORIGIN, data, blank)
    assert ReplicaFile.open(files).epochs == state.epochs == Epochs.of([(5, 0)])
