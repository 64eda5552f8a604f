"""A group's list of members, in the messages of ReplicaService and of ReplicationService."""

from __future__ import annotations

from typing import Final

from trovemq_proto.v1 import replica_pb2 as pb
from trovemq_store.replica.membership import MEMBERS_MAX, NO_PLACE, REMOVED_MAX, Member, Members

TEXT_SIZE_MAX: Final = 1_024
STORE_ID_SIZE_MAX: Final = 64
LIST_PARTS_MAX: Final = 9 * MEMBERS_MAX + REMOVED_MAX + 8
LIST_SIZE_MAX: Final = 9 * TEXT_SIZE_MAX * MEMBERS_MAX + (STORE_ID_SIZE_MAX + 4) * REMOVED_MAX


def checked_text(what: str, text: str, *, may_be_empty: bool = False, size_max: int = TEXT_SIZE_MAX) -> str:
    """ValueError."""
    if not may_be_empty and not text:
        raise ValueError(f"{what} is missing")
    if len(text) > size_max or not text.isprintable():
        raise ValueError(f"{what} must have at most {size_max} characters")
    return text


def member_of(one: pb.ReplicaMember) -> Member:
    """ValueError."""
    return Member(
        checked_text("node", one.node),
        checked_text("address", one.address),
        checked_text("replication", one.replication),
        one.voter,
        one.place if one.voter else NO_PLACE,
        checked_text("store_id", one.store_id, may_be_empty=True, size_max=STORE_ID_SIZE_MAX),
    )


def members_of(found: pb.ReplicaMemberList) -> Members:
    """ValueError."""
    if max(len(found.nodes), len(found.joining)) > MEMBERS_MAX or len(found.removed) > REMOVED_MAX:
        raise ValueError(f"a list of {len(found.nodes)} nodes and {len(found.removed)} removed stores")
    return Members(
        version=found.version,
        nodes=tuple(member_of(one) for one in found.nodes),
        newest=checked_text("newest", found.newest, may_be_empty=True),
        removed=tuple(checked_text("removed", one, size_max=STORE_ID_SIZE_MAX) for one in found.removed),
        last_place=found.last_place,
        joining=tuple(checked_text("joining", one) for one in found.joining),
    )


def members_to(listed: Members) -> pb.ReplicaMemberList:
    return pb.ReplicaMemberList(
        version=listed.version,
        nodes=[
            pb.ReplicaMember(
                node=one.node,
                address=one.address,
                replication=one.replication,
                voter=one.is_voter,
                place=one.place,
                store_id=one.store_id,
            )
            for one in listed.nodes
        ],
        newest=listed.newest,
        last_place=listed.last_place,
        removed=listed.removed,
        joining=listed.joining,
    )
