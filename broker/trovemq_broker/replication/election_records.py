"""The values that a group keeps in its coordinator (etcd), as JSON; see docs/internals/failover.md.

| key          | lease               | value                                                          |
|--------------|---------------------|----------------------------------------------------------------|
| `config`     | none                | GroupConfig: the members, and settings that all of them share  |
| `state`      | none                | GroupState: who leads, which copies are in sync                |
| `lock`       | the leader's        | LeaderLock: while it is there, no other node campaigns         |
| `nodes/NODE` | the node's          | NodeRecord: the node is there; how far its log is              |
| `switch`     | none                | SwitchWanted: a planned switch-over                            |
| `pause`      | the pause's own     | any: no failover while it is there                             |

Each value has a format; a node refuses one that it does not know, and reads nothing of it. All is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from trovemq_broker.replication.frames import NODES_MAX, Epoch, Identity, InSyncSet, Node
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.epochs import EPOCH_MAX
from trovemq_store.replica.membership import Member, Members

CONFIG: Final = "config"
STATE: Final = "state"
LOCK: Final = "lock"
NODES: Final = "nodes/"
SWITCH: Final = "switch"
PAUSE: Final = "pause"

FORMAT: Final = 1
VALUE_BYTES_MAX: Final = 64 << 10
NAME_MAX: Final = 255
OFFSET_MAX: Final = (1 << 63) - 1


class _Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    format: int = FORMAT


class GroupConfig(_Value, frozen=True, kw_only=True):
    """`cluster`: the group's id. `is_sync`: a copy counts once it is synced. `listed`: the members, with
    their addresses; its version rises with each change."""

    cluster: str
    group: str
    in_sync_min: int
    is_sync: bool
    segment_size: int
    listed: Members
    ack: str = "replicated"
    feature_level: int = 1

    def __post_init__(self) -> None:
        _check_names(self.cluster, self.group)
        _check_range("inSyncMin", self.in_sync_min, 1, NODES_MAX)
        _check_range("segmentSize", self.segment_size, 1, OFFSET_MAX)
        _check_range("version of the members", self.listed.version, 0, OFFSET_MAX)
        _check_names(*(one.node for one in self.listed.nodes))

    @property
    def in_sync_needed(self) -> int:
        """Copies below which the in-sync set never shrinks."""
        return self.listed.needed(self.in_sync_min)

    def member(self, node: Node) -> Member | None:
        """None: the node is not a member."""
        return self.listed.member(node)


class GroupState(_Value, frozen=True, kw_only=True):
    """`version`: of the in-sync set; rises with each change, over epochs, too. `commit_floor`: committed, as
    far as it was written here. `former`: who led before. `reason`: of the last election."""

    epoch: int
    leader: str
    version: int
    in_sync: tuple[Identity, ...]
    commit_floor: int = 0
    former: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        _check_range("epoch", self.epoch, 0, EPOCH_MAX)
        _check_range("version", self.version, 1, OFFSET_MAX)
        _check_range("commitFloor", self.commit_floor, 0, OFFSET_MAX)
        _check_names(
            self.leader, *(one.node for one in self.in_sync), *(one.store_id for one in self.in_sync)
        )
        if not 1 <= len({one.node for one in self.in_sync}) == len(self.in_sync) <= NODES_MAX:
            raise ValueError(f"1 to {NODES_MAX} nodes are in sync, each with one copy: {self.in_sync}")

    @property
    def set(self) -> InSyncSet:
        """The in-sync set, as the nodes store it."""
        return InSyncSet(self.epoch, self.version, frozenset(self.in_sync))

    def with_set(self, in_sync: InSyncSet, commit_floor: int) -> GroupState:
        """In the same epoch."""
        return msgspec.structs.replace(
            self,
            version=in_sync.version,
            in_sync=tuple(sorted(in_sync.copies)),
            commit_floor=max(self.commit_floor, commit_floor),
        )


class LeaderLock(_Value, frozen=True, kw_only=True):
    """Who holds it; `store_id`: of its store, so that it knows its own of a former run."""

    epoch: int
    node: str
    store_id: str

    def __post_init__(self) -> None:
        _check_range("epoch", self.epoch, 0, EPOCH_MAX)
        _check_names(self.node, self.store_id)


class NodeRecord(_Value, frozen=True, kw_only=True):
    """`held`: up to there the node's copy counts, at the time of writing. The higher priority leads first
    among equals."""

    node: str
    store_id: str
    incarnation: int
    address: str = ""
    replication: str = ""
    version: str = ""
    held: int = 0
    last_epoch: int = 0
    priority: int = 100

    def __post_init__(self) -> None:
        _check_names(self.node, self.store_id)
        _check_range("held", self.held, 0, OFFSET_MAX)

    @property
    def identity(self) -> Identity:
        return Identity(self.node, self.store_id, self.incarnation)


class SwitchWanted(_Value, frozen=True, kw_only=True):
    """`by`: who asked for it, for the log. `resigned`: the leader of that epoch has given its lock up for the
    target; 0: it has not heard of it yet."""

    target: str
    by: str = ""
    resigned: int = 0

    def __post_init__(self) -> None:
        _check_names(self.target)
        _check_range("resigned", self.resigned, 0, EPOCH_MAX)


Value = TypeVar("Value", GroupConfig, GroupState, LeaderLock, NodeRecord, SwitchWanted)


def to_bytes(value: _Value) -> bytes:
    """As the coordinator keeps it."""
    return msgspec.json.encode(value)


def from_bytes(key: str, data: bytes, kind: type[Value]) -> Value:
    """The value of that key. TroveError COORDINATION_ILLEGAL: too large, another format, or not in bounds."""
    try:
        if len(data) > VALUE_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes, the limit is {VALUE_BYTES_MAX}")
        if (found := msgspec.json.decode(data, type=_Value).format) != FORMAT:
            raise ValueError(f"format {found}; this version knows format {FORMAT}")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TroveError(errors.COORDINATION_ILLEGAL, f"the value of {key} is illegal: {error}") from None


def election_state(
    former: GroupState, epoch: Epoch, leader: Node, copies: Iterable[Identity], reason: str
) -> GroupState:
    """The state after an election."""
    return GroupState(
        epoch=epoch,
        leader=leader,
        version=former.version + 1,
        in_sync=tuple(sorted(copies)),
        commit_floor=former.commit_floor,
        former=former.leader,
        reason=reason,
    )


def _check_names(*names: str) -> None:
    for name in names:
        if not 1 <= len(name) <= NAME_MAX:
            raise ValueError(f"a name of {len(name)} characters")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what} {value} is not from {low} to {high}")
