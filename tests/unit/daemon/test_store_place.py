"""A node's place at the opening of its store: new, copied, or after an unclean stop."""

from __future__ import annotations

from dataclasses import replace as with_settings
from typing import Any

import pytest
from msgspec.structs import replace

from trovemq_broker.daemon.replica.open_node import NodeFile
from trovemq_broker.daemon.replica.store_place import check_single, commit_limit, founded, take_place
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state
from trovemq_store.log.state import StoreState
from trovemq_store.replica.membership import Identity, InSyncSet, Member, Membership
from trovemq_store.replica.replica_file import ReplicaFile
from trovemq_store.settings import StoreSettings

SETTINGS = BrokerSettings(
    coordination="manual", name="orders", node_name="a", replication_listen="127.0.0.1:1", in_sync_min=2
)
MEMBERS = tuple(Member(node, f"{node}:1", f"{node}:2") for node in "abc")


def node(settings: BrokerSettings = SETTINGS) -> tuple[ReplicaFile, Membership]:
    replica = ReplicaFile.open(MemoryFileSystem())
    replica.take_place(founded(settings, MEMBERS, 7))
    place = replica.state.membership
    assert place is not None
    return replica, place


def start(replica: ReplicaFile, settings: BrokerSettings, directory: int = 7, *, clean: bool) -> Membership:
    take_place(replica, settings, directory, clean=clean)
    place = replica.state.membership
    assert place is not None
    return place


def test_the_founder_is_alone_in_the_first_set() -> None:
    _, place = node()
    assert place.in_sync == InSyncSet(1, 1, frozenset({place.identity}))
    assert (place.group, place.leads, place.in_sync_needed) == ("orders", True, 2)


@pytest.mark.parametrize(("name", "directory"), [("b", 7), ("a", 8)])
def test_a_copied_store_is_in_no_in_sync_set(name: str, directory: int) -> None:
    replica, former = node()
    place = start(replica, with_settings(SETTINGS, node_name=name), directory, clean=True)
    assert (place.node, place.in_sync, place.leads) == (name, None, False)
    assert place.store_id != former.store_id
    assert place.cluster == former.cluster


@pytest.mark.parametrize(
    ("mode", "clean", "was_synced", "raised"),
    [
        ("sync", False, False, 0),
        ("async", True, False, 0),
        ("async", False, True, 0),  # uncommitted records keep a store from being marked clean
        ("async", False, False, 1),
    ],
)
def test_only_an_unclean_async_start_is_another_copy(
    mode: Any, clean: bool, was_synced: bool, raised: int
) -> None:
    settings = with_settings(SETTINGS, flush_mode=mode)
    replica, former = node(settings)
    both = InSyncSet(64, 2, frozenset({former.identity, Identity("b", "s", 1)}))
    replica.take_place(replace(former, in_sync=both, is_synced=was_synced))
    place = start(replica, settings, clean=clean)
    assert place.incarnation == former.incarnation + raised
    assert place.in_sync == both
    assert (place.identity in both.copies) == (not raised)
    assert not place.is_synced


def test_the_only_copy_stays_the_only_one_after_an_unclean_async_start() -> None:
    settings = with_settings(SETTINGS, flush_mode="async")
    replica, former = node(settings)
    place = start(replica, settings, clean=False)
    assert place.incarnation == former.incarnation + 1
    assert place.in_sync == InSyncSet(1, 1, frozenset({place.identity}))


def test_another_in_sync_min_than_the_groups_is_refused() -> None:
    replica, _ = node()
    with pytest.raises(TroveError, match="give in_sync_min = 2") as refused:
        take_place(replica, with_settings(SETTINGS, in_sync_min=1), 7, clean=True)
    assert refused.value.spec is errors.STORE_SETTINGS_MISMATCH


def test_a_role_that_had_ended_replaced_a_promise() -> None:
    files = MemoryFileSystem()
    former = NodeFile.open(files)
    former.close()
    ReplicaFile.open(files).promise(64)
    with pytest.raises(TroveError) as refused:
        former.promise(9)
    assert refused.value.spec is errors.SERVICE_NOT_AVAILABLE
    assert ReplicaFile.open(files).promised_epoch == 64


def test_a_single_broker_does_not_open_a_nodes_store() -> None:
    files = MemoryFileSystem()
    check_single(files)
    replica = ReplicaFile.open(files)
    replica.promise(1)
    check_single(files)
    replica.take_place(founded(SETTINGS, MEMBERS, 7))
    with pytest.raises(TroveError, match="node a of replica group orders"):
        check_single(files)


def test_a_nodes_store_is_opened_with_the_saved_commit() -> None:
    files = MemoryFileSystem()
    saved = StoreState.of(StoreSettings(), log_end=PhysicalOffset(500))
    state.save(files, replace(saved, commit_offset=PhysicalOffset(300)))
    assert commit_limit(files) is None, "a single broker's"
    ReplicaFile.open(files).take_place(founded(SETTINGS, MEMBERS, 7))
    assert commit_limit(files) == 300
    files.remove(state.PATH)
    assert commit_limit(files) == 0
