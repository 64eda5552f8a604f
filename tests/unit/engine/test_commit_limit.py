"""A commit limit: records above it are in the log, and in no projection, also after a start."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, SMALL_SYNC, append, flush, read_queue, record, send
from tests.support.followers import (
    Leader,
    bodies,
    commit,
    copy,
    files_of,
    follower,
    indexed,
    saved_commit,
)
from tests.support.trials import SOAK, Trials
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.dispatcher import UNLIMITED
from trovemq_store.log import state

WALKS = 2_000 if SOAK else 150
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 3), st.integers(1, 6)),
        st.tuples(st.just("transact"), st.integers(2, 9), st.integers(50, 600)),
        st.tuples(st.just("copy"), st.integers(0, 99), st.integers(1, 5)),
        st.tuples(st.just("append"), st.integers(0, 99), st.integers(1, 5)),
        st.tuples(st.just("commit"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("power cut"), st.integers(0, 1), st.integers(0, 9)),
    ),
    max_size=30,
)


def chosen(leader: Leader, share: int) -> PhysicalOffset:
    """The end of one of the leader's records."""
    ends = leader.record_ends
    return PhysicalOffset(ends[len(ends) * share // 100] if ends else 0)


def known_commit(leader: Leader, store: MessageStore, limit: PhysicalOffset) -> PhysicalOffset:
    """The commit that a node knows: not above the end of its log, nor within a transaction."""
    whole = [end for one in leader.sent for end in (one.ends[-1:] if one.whole else one.ends)]
    return PhysicalOffset(max((end for end in whole if end <= min(limit, store.end_offset)), default=0))


def test_a_follower_shows_the_committed_part_and_becomes_equal(trials: Trials) -> None:
    walk()
    trials.count("replication", "walks of a log and its commit limit", WALKS)


@settings(max_examples=WALKS, deadline=None)
@given(STEPS, st.booleans())
def walk(steps: list[tuple[str, int, int]], is_async: bool) -> None:
    leader, files = Leader(), MemoryFileSystem()
    own = replace(SEGMENT, flush_mode="async") if is_async else SEGMENT
    store, limit = follower(files, settings=own), LOG_ORIGIN
    for step, one, other in steps:
        if step == "send":
            leader.send("orders" if one < 2 else "bills", one % 2, other)
        elif step == "transact":
            leader.transact(one, other)
        elif step in ("copy", "append"):
            end = max(store.end_offset, chosen(leader, one))
            copy(leader.store, store, end, leader.record_ends[::other], synced=step == "copy")
        elif step == "commit":
            limit = max(limit, chosen(leader, one))
            commit(store, limit)
        else:
            known = known_commit(leader, store, limit)
            store.flush_projections(index=bool(one))
            kept = partial(Random(other).choice, (True, False)) if other else None
            files = files.after_process_kill() if step == "kill" else files.after_power_cut(kept)
            saved = saved_commit(files)
            assert saved <= known
            limit = known if one and step == "kill" else saved
            store = follower(files, limit, own)
        on_disk = store.end_offset if is_async else store.flushed_offset
        assert bodies(store) == leader.visible_below(min(limit, on_disk))
    flush(leader.store)
    copy(leader.store, store)
    commit(store, leader.store.end_offset)
    assert store.visible_offset == leader.store.visible_offset
    for directory in ("commitlog", "consumequeue"):
        assert files_of(files, directory) == files_of(leader.files, directory)
    assert indexed(store, leader) == indexed(leader.store, leader)
    assert store.last_store_timestamp == leader.store.last_store_timestamp


def followed(count: int = 12) -> tuple[Leader, MemoryFileSystem, MessageStore]:
    """A follower that has all of a leader's messages, of which half are committed."""
    leader, files = Leader(), MemoryFileSystem()
    for number in range(count):
        leader.send("orders", number % 2, 1)
    flush(leader.store)
    store = follower(files)
    copy(leader.store, store)
    commit(store, PhysicalOffset(leader.record_ends[count // 2 - 1]))
    return leader, files, store


def test_a_record_above_the_commit_limit_was_visible() -> None:
    leader, _, store = followed()
    assert store.visible_offset == leader.record_ends[5]
    assert bodies(store) == leader.visible_below(leader.record_ends[5])


def test_a_start_showed_records_that_are_not_committed() -> None:
    leader, files, store = followed()
    store.flush_projections(index=True)
    for left in (files.after_process_kill(), files.after_power_cut()):
        again = follower(left, saved_commit(left))
        assert again.end_offset == leader.store.end_offset
        assert again.visible_offset == leader.record_ends[5]
        assert bodies(again) == leader.visible_below(leader.record_ends[5])
        commit(again, leader.store.end_offset)
        assert bodies(again) == leader.visible_below(leader.store.end_offset)


def test_a_start_with_a_lower_limit_shortens_the_projections() -> None:
    leader, files, store = followed()
    commit(store, leader.store.end_offset)
    store.close(NOW_MS)
    limit = PhysicalOffset(leader.record_ends[3])
    again = follower(files, limit)
    assert bodies(again) == leader.visible_below(limit)
    assert indexed(again, leader)["orders 000004"] == []
    left = files.after_process_kill()
    assert bodies(follower(left, limit)) == leader.visible_below(limit)
    commit(again, leader.store.end_offset)
    assert bodies(again) == leader.visible_below(leader.store.end_offset)
    assert indexed(again, leader) == indexed(leader.store, leader)


def test_a_queue_offset_of_an_uncommitted_record_was_given_again() -> None:
    leader, files, store = followed()
    store.flush_projections()
    for node in (store, follower(files.after_process_kill(), saved_commit(files))):
        append(node, record(b"new leader", queue_id=QueueId(1)), queue_id=QueueId(1))
        flush(node)
        commit(node, node.end_offset)
        offsets = [message.queue_offset for message in read_queue(node, "orders", QueueId(1))]
        assert offsets == list(range(7))
        assert bodies(node)["orders", 0] == leader.visible_below(leader.store.end_offset)["orders", 0]


def test_a_leader_that_follows_dispatches_its_appends_from_the_log() -> None:
    leader, _, store = followed()
    copied = leader.store.end_offset
    append(store, record(b"by the follower"))
    append(store, record(b"and one more"))
    assert store.undispatched_bytes > 0
    files = MemoryFileSystem()
    other = follower(files)
    copy(store, other)
    other_end = other.end_offset
    append(other, record(b"by the third"))
    copy(other, store)
    assert (store.undispatched_bytes, store.visible_offset < copied < other_end) == (0, True)
    commit(store, store.end_offset)
    bodies_of_0 = [message.body for message in read_queue(store)]
    assert bodies_of_0[-3:] == [b"by the follower", b"and one more", b"by the third"]


def test_half_of_a_transaction_was_visible_at_a_limit_inside() -> None:
    leader, files = Leader(), MemoryFileSystem()
    leader.send("orders", 0, 1)
    leader.transact(6)
    leader.send("orders", 0, 1)
    store, ends = follower(files), leader.record_ends
    for end in ends:  # each record comes separately
        copy(leader.store, store, PhysicalOffset(end))
        commit(store, PhysicalOffset(end))
        assert bodies(store) == leader.visible_below(end)
        assert store.visible_offset == (ends[0] if ends[0] <= end < ends[6] else end)
    for limit in map(PhysicalOffset, ends):
        again = follower(files.after_process_kill(), limit)
        assert bodies(again) == leader.visible_below(limit)


def test_a_power_cut_within_a_transaction_showed_a_part_of_it() -> None:
    """A follower that does not wait for syncs: the last one was within the transaction, and all of it was
    visible when the marks were saved."""
    leader, files = Leader(), MemoryFileSystem()
    store = follower(files, settings=replace(SEGMENT, flush_mode="async"))
    leader.send("orders", 0, 1)
    leader.transact(6)
    flush(leader.store)
    ends = leader.record_ends
    for end in (ends[0], ends[3]):
        copy(leader.store, store, PhysicalOffset(end))
        commit(store, PhysicalOffset(end))
    copy(leader.store, store, synced=False)
    commit(store, leader.store.end_offset)
    store.flush_projections(index=True)
    left = files.after_power_cut()
    again = follower(left, saved_commit(left))
    assert (again.end_offset, again.visible_offset) == (ends[3], ends[0])
    assert bodies(again) == leader.visible_below(ends[0])
    copy(leader.store, again)
    commit(again, leader.store.end_offset)
    assert indexed(again, leader) == indexed(leader.store, leader)


def test_a_transaction_that_lacks_records_is_shown_after_others() -> None:
    leader, files = Leader(), MemoryFileSystem()
    leader.transact(6)
    store = follower(files)
    copy(leader.store, store, PhysicalOffset(leader.record_ends[3]))
    append(store, record(b"of the new leader"))
    flush(store)
    commit(store, store.end_offset)
    assert sum(map(len, bodies(store).values())) == 5


def test_a_stop_with_records_that_are_not_committed_is_no_clean_one() -> None:
    leader, files, store = followed()
    store.close(NOW_MS)
    assert files.exists("abort")
    everything = MessageStore.open(files.after_process_kill(), SEGMENT, NOW_MS)
    assert bodies(everything) == leader.visible_below(leader.store.end_offset)
    again = follower(files, saved_commit(files))
    assert bodies(again) == leader.visible_below(leader.record_ends[5])
    commit(again, leader.store.end_offset)
    again.close(NOW_MS)
    assert not files.exists("abort")


def test_a_start_lowered_offsets_of_groups_in_the_committed_part() -> None:
    leader, files, store = followed()
    store.flush_projections()
    commit(store, leader.store.end_offset)  # and nothing says so on disk
    store.offsets.commit(
        "workers", "orders", QueueId(0), store.consume_queues.next_offset("orders", QueueId(0))
    )
    store.offsets.persist()
    left = files.after_process_kill()
    again = follower(left, saved_commit(left))
    assert again.visible_offset < leader.store.end_offset
    assert again.recovery.lowered_offsets == ()


def test_the_log_may_end_with_a_blank() -> None:
    leader, files = Leader(), MemoryFileSystem()
    while leader.store.end_offset < SEGMENT.commit_log_file_size:
        leader.send("orders", 0, 1, 3_000)
    last = leader.record_ends[-2]
    store = follower(files)
    copy(leader.store, store, PhysicalOffset(SEGMENT.commit_log_file_size))
    commit(store, PhysicalOffset(last))
    assert (store.visible_offset, store.end_offset) == (last, SEGMENT.commit_log_file_size)
    store.flush_projections()
    again = follower(files.after_process_kill(), PhysicalOffset(last))
    for node in (store, again):
        commit(node, node.end_offset)
        assert node.visible_offset == node.end_offset == SEGMENT.commit_log_file_size
    assert bodies(again) == leader.visible_below(last)


def test_refused_bytes_change_nothing() -> None:
    leader, _, store = followed()
    before = (store.end_offset, store.visible_offset, bodies(store))
    with pytest.raises(TroveError) as refused:
        store.append_raw(PhysicalOffset(0), leader.store.log.read(LOG_ORIGIN, 100))
    assert refused.value.spec is errors.REPLICA_OFFSET_MISMATCH
    assert (store.end_offset, store.visible_offset, bodies(store)) == before
    store.mark_failed()
    with pytest.raises(TroveError) as refused:
        store.append_raw(store.end_offset, leader.store.log.read(LOG_ORIGIN, 100))
    assert refused.value.spec is errors.STORE_FAILED


def test_a_single_brokers_state_has_no_commit_offset() -> None:
    files = MemoryFileSystem()
    store = MessageStore.open(files, SMALL_SYNC, NOW_MS)
    send(store, b"one")
    flush(store)
    store.close(NOW_MS)
    assert store.commit_limit == UNLIMITED
    assert b"commitOffset" not in files.read_bytes(state.PATH)
