"""A node's place in its group: kept over a power cut, and never replaced by an older one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.sealed_json import seal
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import Identity, InSyncSet, Member, Members, Membership
from trovemq_store.replica.replica_file import ReplicaFile

A, B, C = (Member(node, f"{node}:1", f"{node}:2") for node in "abc")
MINE = Membership(
    cluster="c1", group="orders", node="a", store_id="s1", in_sync_min=2, listed=Members.first((A, B, C))
)


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
    later = replace(
        MINE.listed,
        version=2,
        nodes=(*MINE.members[:2], C._replace(place=5, store_id="s7")),
        newest="c",
        removed=("s3",),
        last_place=5,
    )
    replica.take_place(MINE.with_members(later))
    found = ReplicaFile.open(files.after_power_cut()).state.membership
    assert found is not None
    assert (found.listed, found.voters) == (later, ["a", "b", "c"])
    assert (later.places, later.stores) == ({"a": 0, "b": 1, "c": 5}, {"c": "s7"})


def test_a_list_of_the_version_before_opens_and_is_no_other_one() -> None:
    """It has no word about joining nodes: so has the same list at a node of that version."""
    files, replica = node()
    listed = replace(
        MINE.listed, version=2, nodes=(*MINE.members, C._replace(node="d", is_voter=False)), joining=("d",)
    )
    replica.take_place(MINE.with_members(listed))
    former = replace(listed, joining=())
    replica.take_place(replace(MINE, listed=former))
    assert replica.state.membership == replace(MINE, listed=former)
    content = json.loads(files.read_bytes("trovemq/replica.json"))
    del content["membership"]["members"]["joining"]
    files.write_atomic("trovemq/replica.json", seal(json.dumps(content).encode()))
    assert ReplicaFile.open(files).state == replica.state


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "c2"},
        {"group": "others"},
        {"listed": replace(MINE.listed, version=0)},
        {"listed": replace(MINE.listed, removed=("s3",))},  # another list of the same version
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
    assert replace(MINE, listed=Members.first((A,))).in_sync_needed == 1
    learner = B._replace(is_voter=False)
    assert replace(MINE, listed=Members(nodes=(A._replace(place=0), learner))).in_sync_needed == 1


@pytest.mark.parametrize("changes", [{"incarnation": 0}, {"store_id": ""}, {"in_sync_min": 8}])
def test_a_place_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a node has|in_sync_min"):
        replace(MINE, **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nodes": (A._replace(place=0), A._replace(place=1))}, "each once"),
        ({"nodes": (A._replace(place=1), B._replace(place=1))}, "no other has it"),
        ({"nodes": (A,)}, "each voter has a place"),
        ({"nodes": (A._replace(place=8),)}, "0 to 7"),
        ({"nodes": (A._replace(place=0),), "joining": ("a",)}, "learners join"),
        ({"joining": ("d",)}, "learners join"),
        ({"removed": tuple(str(number) for number in range(1_025))}, "1024 removed stores"),
    ],
)
def test_a_list_that_cannot_be_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Members(**changes)
