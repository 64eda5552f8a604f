"""The place of a store in its group, at the opening of the store.

| at the start                                        | the node is                                         |
|-----------------------------------------------------|-----------------------------------------------------|
| no place                                            | new: it founds a group, or joins its group, empty   |
| another node's name, or another directory           | a copy: the log counts, its promises and sets do not |
| async flush, and no clean stop                      | another incarnation: appended bytes may be lost     |

A copy gets another store's id, so it is in no in-sync set until it has everything that is committed.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.frames import Identity, InSyncSet
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.log import state
from trovemq_store.replica import replica_file
from trovemq_store.replica.conversion import FIRST_EPOCH, group_id
from trovemq_store.replica.conversion import ID_BYTES as GROUP_ID_BYTES
from trovemq_store.replica.membership import Member, Members, Membership
from trovemq_store.replica.replica_file import ReplicaFile

ID_BYTES: Final = 8


def commit_limit(files: FileSystem) -> PhysicalOffset | None:
    """The saved commit, with which the store of a node is opened; None for a store that has no group: all of
    it is committed. Blocks. TroveError STORE_NEWER, STORE_FAILED."""
    replica = replica_file.load(files)
    if replica is None or replica.membership is None:
        return None
    saved = state.load(files)
    return LOG_ORIGIN if saved is None else state.committed_end(saved)


def check_single(files: FileSystem) -> None:
    """A single broker must not write to a node's log. Blocks. TroveError STORE_SETTINGS_MISMATCH."""
    replica = replica_file.load(files) if files.exists(replica_file.PATH) else None
    if replica is not None and (place := replica.membership) is not None:
        raise TroveError(
            errors.STORE_SETTINGS_MISMATCH,
            f"the store is that of node {place.node} of replica group {place.group}: start it with"
            " coordination = manual, or etcd; its last node becomes a single broker by trovemq cluster leave",
        )


def directory_number(store: Path) -> int:
    """Of the store's directory: a copy of it has another one. OSError."""
    return store.stat().st_ino


def take_place(replica: ReplicaFile, settings: BrokerSettings, directory: int, *, clean: bool) -> None:
    """Notes the start in the node's state. `clean`: the store was closed before. Blocks. TroveError
    STORE_SETTINGS_MISMATCH; StorageError."""
    place = replica.state.membership
    if place is None:
        return
    if place.in_sync_min != settings.in_sync_min:
        raise TroveError(
            errors.STORE_SETTINGS_MISMATCH,
            f"the group was founded with in_sync_min = {place.in_sync_min}, and the setting is"
            f" {settings.in_sync_min}: give in_sync_min = {place.in_sync_min}",
        )
    if (place.node, place.directory) != (settings.node_name, directory):
        replica.take_place(_copied(place, settings.node_name, directory))
    elif settings.flush_mode == "async" and not clean and not place.is_synced:
        replica.take_place(_unclean(place))
    else:
        replica.take_place(replace(place, is_synced=False))


def _copied(place: Membership, node: str, directory: int) -> Membership:
    copy = replace(
        place,
        node=node,
        store_id=new_id(),
        incarnation=1,
        directory=directory,
        in_sync=None,
        leads=False,
        is_synced=False,
    )
    get_logger().warning(
        "replica.store_copied", former=place.node, node=node, store_id=copy.store_id, former_id=place.store_id
    )
    return copy


def _unclean(place: Membership) -> Membership:
    former = place.identity
    another = replace(place, incarnation=place.incarnation + 1, is_synced=False)
    get_logger().warning("replica.unclean_start", node=place.node, incarnation=another.incarnation)
    in_sync = place.in_sync
    if in_sync is not None and in_sync.copies == {former}:
        # no other node can be chosen: the log is as far as it is on this disk
        alone = InSyncSet(in_sync.epoch, in_sync.version, frozenset({another.identity}))
        return replace(another, in_sync=alone)
    return another


def founded(settings: BrokerSettings, members: tuple[Member, ...], directory: int) -> Membership:
    """The place of a group's first node. It is alone in the in-sync set."""
    me = Identity(settings.node_name, new_id(), 1)
    return Membership(
        cluster=group_id(secrets.token_bytes(GROUP_ID_BYTES)),
        group=settings.name,
        node=me.node,
        store_id=me.store_id,
        directory=directory,
        in_sync_min=settings.in_sync_min,
        listed=Members.first(members),
        in_sync=InSyncSet(FIRST_EPOCH, 1, frozenset({me})),
        leads=True,
    )


def joined(
    settings: BrokerSettings,
    cluster: str,
    in_sync_min: int,
    listed: Members,
    directory: int,
) -> Membership:
    """The place of a new node in a group that lists it."""
    return Membership(
        cluster=cluster,
        group=settings.name,
        node=settings.node_name,
        store_id=new_id(),
        directory=directory,
        in_sync_min=in_sync_min,
        listed=listed,
    )


def new_id() -> str:
    """By chance."""
    return secrets.token_hex(ID_BYTES)
