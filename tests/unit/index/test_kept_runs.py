"""A follower applies the records of its frames as they came: it reads them from its log again only where a
frame was not kept."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.support.engine import flush
from tests.support.followers import Leader, bodies, commit, copy, follower, indexed
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index import kept_runs


def sent(counts: list[int]) -> Leader:
    leader = Leader()
    for count in counts:
        leader.send("orders", 0, count)
    return leader


def reads(store: MessageStore, limit: int) -> int:
    """How often the log is read while the records up to there become visible."""
    dispatcher = store._dispatcher
    with patch.object(dispatcher, "_read_log", wraps=dispatcher._read_log) as read_log:
        commit(store, PhysicalOffset(limit))
    return read_log.call_count


@pytest.mark.parametrize("is_indexed_later", [False, True])
def test_committed_frames_are_not_read_again(is_indexed_later: bool) -> None:
    leader = sent([1, 3, 2, 4])
    ends = [one.ends[-1] for one in leader.sent]
    store = follower(MemoryFileSystem())
    if is_indexed_later:
        store.index_later()
    copy(leader.store, store, cuts=ends)
    assert reads(store, ends[0]) > 0, "before the first frame a transaction may lack records"
    for limit in (ends[1], leader.sent[3].ends[1], ends[3]):  # the second one is within a frame
        assert reads(store, limit) == 0
        assert bodies(store) == leader.visible_below(limit)
    assert store.visible_offset == store.end_offset
    store.index_deferred()
    flush(leader.store)
    assert indexed(store, leader) == indexed(leader.store, leader)


def test_frames_around_a_blank_are_not_read_again() -> None:
    leader = sent([1, *[6] * 40])
    ends = [one.ends[-1] for one in leader.sent]
    store = follower(MemoryFileSystem())
    copy(leader.store, store, PhysicalOffset(ends[0]), cuts=ends)
    commit(store, PhysicalOffset(ends[0]))
    copy(leader.store, store, cuts=ends)
    assert store.segment_count > 1, "a blank was copied"
    assert sum(reads(store, limit) for limit in ends[1:]) == 0
    assert bodies(store) == leader.visible_below(ends[-1])


def test_half_of_a_kept_transaction_was_visible() -> None:
    leader = sent([1])
    leader.transact(4)
    ends = leader.record_ends
    store = follower(MemoryFileSystem())
    copy(leader.store, store, cuts=[ends[0]])
    assert reads(store, ends[0]) > 0
    for limit in ends[1:]:
        assert reads(store, limit) == 0
        assert bodies(store) == leader.visible_below(limit)


@pytest.mark.parametrize("cut", [2, 5])
def test_a_frame_with_a_part_of_a_transaction_is_read_again(cut: int) -> None:
    leader = sent([1])
    leader.transact(6)
    leader.send("orders", 0, 1)
    leader.send("orders", 0, 1)
    ends = leader.record_ends
    store = follower(MemoryFileSystem())
    copy(leader.store, store, cuts=[ends[0], ends[cut], *ends[6:]])
    assert reads(store, ends[5]) > 0
    assert bodies(store) == leader.visible_below(ends[0]), "a part of the transaction was shown"
    assert reads(store, ends[-1]) > 0
    assert bodies(store) == leader.visible_below(ends[-1])
    leader.send("orders", 0, 2)
    copy(leader.store, store)
    assert reads(store, leader.record_ends[-1]) == 0


def test_more_than_is_kept_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "KEPT_BYTES_MAX", 1_000)
    leader = sent([1] * 12)
    store = follower(MemoryFileSystem())
    copy(leader.store, store, cuts=leader.record_ends)
    assert reads(store, leader.record_ends[-1]) > 0
    assert bodies(store) == leader.visible_below(leader.record_ends[-1])
