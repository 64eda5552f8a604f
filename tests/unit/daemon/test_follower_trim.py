"""A follower removes the segments that its leader does not have any more, on real engines in memory."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.engine import NOW_MS, flush
from tests.support.followers import Leader, bodies, commit, copy, files_of, follower
from trovemq_broker.daemon.replica.follower_trim import SEGMENTS_MAX, FollowerTrim
from trovemq_broker.replication.frames import Offset
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem


class Follower:
    """It has all of the leader's log, which has many segments, and its marks are saved."""

    def __init__(self, segments: int = 4) -> None:
        self.leader = Leader()
        while self.leader.store.segment_count < segments + 1:
            self.leader.send("orders", 0, 5, size=1_000)
            self.leader.send("bills", 1, 1, size=500)
        flush(self.leader.store)
        self.leader.store.flush_projections(index=True)
        self.memory = MemoryFileSystem()
        self.files = FaultyFileSystem(self.memory)
        self.store = MessageStore.open(
            self.files, self.leader.settings, NOW_MS, process_id=2, commit_limit=PhysicalOffset(0)
        )
        copy(self.leader.store, self.store)
        commit(self.store, self.store.end_offset)
        self.store.flush_projections(index=True)
        self.begin = Offset(0)
        self.grown: list[tuple[str, int]] = []
        self.trim = FollowerTrim(self.store, lambda: self.begin, self._durable, self.grown.extend)

    async def _durable(self, end: Offset) -> None:
        assert self.store.flushed_offset >= end

    def leader_trims(self, segments: int) -> None:
        """The leader's retention removes its first segments, and the follower hears it."""
        to = self.leader.store.closed_segments()[segments - 1].end
        trim_now(self.leader.store.trim(to))
        self.begin = to


def test_a_follower_ends_with_the_leaders_files() -> None:
    made = Follower()
    made.leader_trims(2)
    assert asyncio.run(made.trim.trim()) == 2
    assert made.store.min_offset == made.leader.store.min_offset
    assert files_of(made.memory, "commitlog") == files_of(made.leader.files, "commitlog")
    assert bodies(made.store) == bodies(made.leader.store)
    assert asyncio.run(made.trim.trim()) == 0
    made.store.close(NOW_MS)
    again = follower(made.memory, None)
    assert not again.recovery.damages
    assert bodies(again) == bodies(made.leader.store)


def test_a_follower_removes_nothing_before_the_leader_does() -> None:
    made = Follower()
    before = files_of(made.memory, "commitlog")
    assert asyncio.run(made.trim.trim()) == 0
    first = made.store.closed_segments()[0]
    made.begin = Offset(first.end - 1)
    assert asyncio.run(made.trim.trim()) == 0, "a part of a segment is not removed"
    assert files_of(made.memory, "commitlog") == before


def test_a_removal_takes_a_bounded_number_of_segments() -> None:
    made = Follower(SEGMENTS_MAX + 3)
    made.leader_trims(SEGMENTS_MAX + 2)
    assert [asyncio.run(made.trim.trim()) for _ in range(3)] == [SEGMENTS_MAX, 2, 0]


def test_a_removal_that_fails_is_continued() -> None:
    made = Follower()
    made.leader_trims(2)
    removed: list[str] = []

    def decide(operation: str, path: str) -> int | None:
        if operation != "remove" or not path.startswith("commitlog/"):
            return None
        removed.append(path)
        return errno.EIO if len(removed) == 2 else None

    made.files.decide = decide
    with pytest.raises(StorageError):
        asyncio.run(made.trim.trim())
    assert made.store.min_offset == made.leader.store.min_offset, "readers do not find the records"
    asyncio.run(made.trim.trim())
    assert files_of(made.memory, "commitlog") == files_of(made.leader.files, "commitlog")


def test_no_record_becomes_visible_while_files_of_queues_are_removed() -> None:
    made = Follower()
    made.leader_trims(2)
    made.leader.send("orders", 0, 1)
    flush(made.leader.store)
    copy(made.leader.store, made.store)
    made.store.limit_commits(made.store.end_offset)
    before = made.store.visible_offset
    seen: list[int] = []

    def decide(operation: str, path: str) -> int | None:
        if operation == "remove":
            made.store.dispatch()
            seen.append(made.store.visible_offset)
        return None

    made.files.decide = decide
    asyncio.run(made.trim.trim())
    assert set(seen) == {before}
    assert ("orders", 0) in made.grown
    assert made.store.visible_offset == made.store.end_offset


def test_the_last_records_that_came_during_a_removal_stayed_invisible() -> None:
    """No later ones followed them, and readers did not hear of them."""
    made = Follower()
    made.leader_trims(2)
    made.leader.send("orders", 0, 1)
    flush(made.leader.store)

    def decide(operation: str, path: str) -> int | None:
        if operation == "remove" and made.store.end_offset < made.leader.store.end_offset:
            copy(made.leader.store, made.store)
            made.store.limit_commits(made.store.end_offset)
            assert not made.store.dispatch()
        return None

    made.files.decide = decide
    asyncio.run(made.trim.trim())
    assert ("orders", 0) in made.grown
    assert bodies(made.store) == bodies(made.leader.store)
