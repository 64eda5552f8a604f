"""A node's place in its group: kept over a power cut, and never replaced by an older one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Identity, InSyncSet, Member, Membership
from trovemq_store.replica.replica_file import ReplicaFile

A, B, C = (Member(node, f"{node}:1", f"{node}:2") for node in "abc")
MINE = Membership(cluster="c1", group="orders", node="a", store_id="s1", in_sync_min=2, members=(A, B, C))


def in_sync(epoch: int, version: int, *nodes: str) -> InSyncSet:
    return InSyncSet(epoch, version, frozenset(Identity(node, "s1", 1) for node in nodes))


def node() -> tuple[MemoryFileSystem, ReplicaFile]:
    files = MemoryFileSystem()
    replica = ReplicaFile.open(files)
    replica.take_place(MINE)
    return files, replica


def test_the_place_and_each_set_are_there_after_a_power_cut() -> None:
    files, replica = node()
    for one in (in_sync(64, 1, "a"), in_sync(64, 2, "a", "b"), in_sync(128, 3, "a", "c")):
        replica.store_set(one)
        assert ReplicaFile.open(files.after_power_cut()).state == replica.state
    assert replica.state.membership == replace(MINE, in_sync=in_sync(128, 3, "a", "c"))


def test_a_member_comes_and_goes() -> None:
    files, replica = node()
    replica.take_place(MINE.with_members(2, (A, B)))
    found = ReplicaFile.open(files.after_power_cut()).state.membership
    assert found is not None
    assert (found.version, found.members, found.voters) == (2, (A, B), ["a", "b"])


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "c2"},
        {"group": "others"},
        {"version": 0},
        {"members": (A, B)},  # another list of the same version
    ],
)
def test_an_older_or_another_groups_place_is_refused(changes: dict[str, Any]) -> None:
    _, replica = node()
    with pytest.raises(ValueError, match=r"stays in it|of the members follows"):
        replica.take_place(replace(MINE, **changes))
    assert replica.state.membership == MINE


def test_an_older_in_sync_set_is_refused() -> None:
    _, replica = node()
    replica.store_set(in_sync(128, 3, "a"))
    with pytest.raises(ValueError, match="follows"):
        replica.store_set(in_sync(64, 9, "a", "b"))


def test_a_single_brokers_store_again_keeps_its_promise() -> None:
    files, replica = node()
    replica.begin_group(Epochs.of([(1, 0)]))
    replica.promise(64)
    replica.begin_epoch(64, PhysicalOffset(100))
    replica.leave_group()
    state = ReplicaFile.open(files.after_power_cut()).state
    assert (state.membership, state.promised_epoch, state.epochs.last) == (None, 64, 64)


def test_a_group_of_one_needs_one_copy() -> None:
    assert MINE.in_sync_needed == 2
    assert replace(MINE, members=(A,)).in_sync_needed == 1
    assert replace(MINE, members=(A, B._replace(is_voter=False))).in_sync_needed == 1


@pytest.mark.parametrize(
    "changes", [{"members": (A, A)}, {"incarnation": 0}, {"store_id": ""}, {"in_sync_min": 8}]
)
def test_a_place_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"group has at most|a node has|in_sync_min"):
        replace(MINE, **changes)
