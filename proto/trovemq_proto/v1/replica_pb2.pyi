from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReplicaRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplicaMember(_message.Message):
    __slots__ = ("node", "address", "replication", "voter", "place", "store_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    replication: str
    voter: bool
    place: int
    store_id: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., replication: _Optional[str] = ..., voter: _Optional[bool] = ..., place: _Optional[int] = ..., store_id: _Optional[str] = ...) -> None: ...

class ReplicaMemberList(_message.Message):
    __slots__ = ("version", "nodes", "newest", "last_place", "removed", "joining")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    LAST_PLACE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    version: int
    nodes: _containers.RepeatedCompositeFieldContainer[ReplicaMember]
    newest: str
    last_place: int
    removed: _containers.RepeatedScalarFieldContainer[str]
    joining: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[ReplicaMember, _Mapping]]] = ..., newest: _Optional[str] = ..., last_place: _Optional[int] = ..., removed: _Optional[_Iterable[str]] = ..., joining: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaCopy(_message.Message):
    __slots__ = ("node", "end", "flushed", "lag_ms", "connected")
    NODE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    node: str
    end: int
    flushed: int
    lag_ms: int
    connected: bool
    def __init__(self, node: _Optional[str] = ..., end: _Optional[int] = ..., flushed: _Optional[int] = ..., lag_ms: _Optional[int] = ..., connected: _Optional[bool] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("group", "node", "cluster_id", "role", "epoch", "promised", "leader", "begin", "end", "flushed", "commit", "in_sync", "in_sync_epoch", "in_sync_version", "in_sync_min", "members", "copies", "problem", "lag_bytes", "ack", "store_id", "incarnation", "last_epoch", "lag_ms", "coordination", "lease_left_ms", "clock_ms", "sealing_key_id", "etcd", "cannot_lead", "tls_address", "checks_forwarded")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_VERSION_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_MIN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    SEALING_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ETCD_FIELD_NUMBER: _ClassVar[int]
    CANNOT_LEAD_FIELD_NUMBER: _ClassVar[int]
    TLS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FORWARDED_FIELD_NUMBER: _ClassVar[int]
    group: str
    node: str
    cluster_id: str
    role: str
    epoch: int
    promised: int
    leader: str
    begin: int
    end: int
    flushed: int
    commit: int
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    in_sync_epoch: int
    in_sync_version: int
    in_sync_min: int
    members: ReplicaMemberList
    copies: _containers.RepeatedCompositeFieldContainer[ReplicaCopy]
    problem: str
    lag_bytes: int
    ack: str
    store_id: str
    incarnation: int
    last_epoch: int
    lag_ms: int
    coordination: str
    lease_left_ms: int
    clock_ms: int
    sealing_key_id: str
    etcd: EtcdHealth
    cannot_lead: str
    tls_address: str
    checks_forwarded: bool
    def __init__(self, group: _Optional[str] = ..., node: _Optional[str] = ..., cluster_id: _Optional[str] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., promised: _Optional[int] = ..., leader: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., flushed: _Optional[int] = ..., commit: _Optional[int] = ..., in_sync: _Optional[_Iterable[str]] = ..., in_sync_epoch: _Optional[int] = ..., in_sync_version: _Optional[int] = ..., in_sync_min: _Optional[int] = ..., members: _Optional[_Union[ReplicaMemberList, _Mapping]] = ..., copies: _Optional[_Iterable[_Union[ReplicaCopy, _Mapping]]] = ..., problem: _Optional[str] = ..., lag_bytes: _Optional[int] = ..., ack: _Optional[str] = ..., store_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., last_epoch: _Optional[int] = ..., lag_ms: _Optional[int] = ..., coordination: _Optional[str] = ..., lease_left_ms: _Optional[int] = ..., clock_ms: _Optional[int] = ..., sealing_key_id: _Optional[str] = ..., etcd: _Optional[_Union[EtcdHealth, _Mapping]] = ..., cannot_lead: _Optional[str] = ..., tls_address: _Optional[str] = ..., checks_forwarded: _Optional[bool] = ...) -> None: ...

class EtcdHealth(_message.Message):
    __slots__ = ("members", "version", "problem", "paused")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    members: int
    version: str
    problem: str
    paused: bool
    def __init__(self, members: _Optional[int] = ..., version: _Optional[str] = ..., problem: _Optional[str] = ..., paused: _Optional[bool] = ...) -> None: ...

class InitGroupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddNodeRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: ReplicaMember
    def __init__(self, member: _Optional[_Union[ReplicaMember, _Mapping]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("fenced", "accept_loss", "how")
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    fenced: str
    accept_loss: int
    how: str
    def __init__(self, fenced: _Optional[str] = ..., accept_loss: _Optional[int] = ..., how: _Optional[str] = ...) -> None: ...

class PromoteReply(_message.Message):
    __slots__ = ("epoch", "promised", "away", "cut_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    CUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    promised: _containers.RepeatedScalarFieldContainer[str]
    away: _containers.RepeatedScalarFieldContainer[str]
    cut_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., promised: _Optional[_Iterable[str]] = ..., away: _Optional[_Iterable[str]] = ..., cut_bytes: _Optional[int] = ...) -> None: ...

class SwitchOverRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class PauseFailoverRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class StoreMembersRequest(_message.Message):
    __slots__ = ("cluster_id", "group", "members", "epoch")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    group: str
    members: ReplicaMemberList
    epoch: int
    def __init__(self, cluster_id: _Optional[str] = ..., group: _Optional[str] = ..., members: _Optional[_Union[ReplicaMemberList, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class StoreMembersReply(_message.Message):
    __slots__ = ("store_id", "incarnation")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    incarnation: int
    def __init__(self, store_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ListCutRecordsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CutRecordsFile(_message.Message):
    __slots__ = ("path", "epoch", "offset", "kept_from", "end", "records")
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEPT_FROM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    epoch: int
    offset: int
    kept_from: int
    end: int
    records: int
    def __init__(self, path: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., kept_from: _Optional[int] = ..., end: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class ListCutRecordsReply(_message.Message):
    __slots__ = ("node", "files", "dropped_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    files: _containers.RepeatedCompositeFieldContainer[CutRecordsFile]
    dropped_bytes: int
    def __init__(self, node: _Optional[str] = ..., files: _Optional[_Iterable[_Union[CutRecordsFile, _Mapping]]] = ..., dropped_bytes: _Optional[int] = ...) -> None: ...

class ReadCutRecordsRequest(_message.Message):
    __slots__ = ("path", "offset")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadCutRecordsReply(_message.Message):
    __slots__ = ("data", "offset", "next")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset: int
    next: int
    def __init__(self, data: _Optional[bytes] = ..., offset: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...
