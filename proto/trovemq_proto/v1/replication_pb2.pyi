from trovemq_proto.v1 import replica_pb2 as _replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaIdentity(_message.Message):
    __slots__ = ("node", "store_id", "incarnation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    store_id: str
    incarnation: int
    def __init__(self, node: _Optional[str] = ..., store_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReplicaSet(_message.Message):
    __slots__ = ("epoch", "version", "copies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    copies: _containers.RepeatedCompositeFieldContainer[ReplicaIdentity]
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., copies: _Optional[_Iterable[_Union[ReplicaIdentity, _Mapping]]] = ...) -> None: ...

class ReplicaHello(_message.Message):
    __slots__ = ("cluster", "group", "identity", "promised", "epochs", "begin", "end", "commit", "in_sync", "segment_size", "learner", "sealing_key_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    SEALING_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    identity: ReplicaIdentity
    promised: int
    epochs: bytes
    begin: int
    end: int
    commit: int
    in_sync: ReplicaSet
    segment_size: int
    learner: bool
    sealing_key_id: str
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., identity: _Optional[_Union[ReplicaIdentity, _Mapping]] = ..., promised: _Optional[int] = ..., epochs: _Optional[bytes] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., commit: _Optional[int] = ..., in_sync: _Optional[_Union[ReplicaSet, _Mapping]] = ..., segment_size: _Optional[int] = ..., learner: _Optional[bool] = ..., sealing_key_id: _Optional[str] = ...) -> None: ...

class ReplicaProgress(_message.Message):
    __slots__ = ("epoch", "end", "flushed", "set_version", "echo_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    SET_VERSION_FIELD_NUMBER: _ClassVar[int]
    ECHO_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end: int
    flushed: int
    set_version: int
    echo_ms: int
    def __init__(self, epoch: _Optional[int] = ..., end: _Optional[int] = ..., flushed: _Optional[int] = ..., set_version: _Optional[int] = ..., echo_ms: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("hello", "progress")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaHello
    progress: ReplicaProgress
    def __init__(self, hello: _Optional[_Union[ReplicaHello, _Mapping]] = ..., progress: _Optional[_Union[ReplicaProgress, _Mapping]] = ...) -> None: ...

class ReplicaWelcome(_message.Message):
    __slots__ = ("epoch", "epochs", "begin", "end", "commit", "cut_to", "joins")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CUT_TO_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    epochs: bytes
    begin: int
    end: int
    commit: int
    cut_to: int
    joins: bool
    def __init__(self, epoch: _Optional[int] = ..., epochs: _Optional[bytes] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., commit: _Optional[int] = ..., cut_to: _Optional[int] = ..., joins: _Optional[bool] = ...) -> None: ...

class ReplicaData(_message.Message):
    __slots__ = ("epoch", "offset", "commit", "crc", "blank", "data")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    BLANK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    commit: int
    crc: int
    blank: int
    data: bytes
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ..., commit: _Optional[int] = ..., crc: _Optional[int] = ..., blank: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReplicaHeartbeat(_message.Message):
    __slots__ = ("epoch", "commit", "end", "sent_ms", "in_sync", "begin")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SENT_MS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    commit: int
    end: int
    sent_ms: int
    in_sync: ReplicaSet
    begin: int
    def __init__(self, epoch: _Optional[int] = ..., commit: _Optional[int] = ..., end: _Optional[int] = ..., sent_ms: _Optional[int] = ..., in_sync: _Optional[_Union[ReplicaSet, _Mapping]] = ..., begin: _Optional[int] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("welcome", "data", "heartbeat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: ReplicaWelcome
    data: ReplicaData
    heartbeat: ReplicaHeartbeat
    def __init__(self, welcome: _Optional[_Union[ReplicaWelcome, _Mapping]] = ..., data: _Optional[_Union[ReplicaData, _Mapping]] = ..., heartbeat: _Optional[_Union[ReplicaHeartbeat, _Mapping]] = ...) -> None: ...

class ReplicaPromiseRequest(_message.Message):
    __slots__ = ("cluster", "group", "epoch")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    epoch: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReplicaPromise(_message.Message):
    __slots__ = ("identity", "promised", "epochs", "end", "in_sync", "members")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    identity: ReplicaIdentity
    promised: int
    epochs: bytes
    end: int
    in_sync: ReplicaSet
    members: _replica_pb2.ReplicaMemberList
    def __init__(self, identity: _Optional[_Union[ReplicaIdentity, _Mapping]] = ..., promised: _Optional[int] = ..., epochs: _Optional[bytes] = ..., end: _Optional[int] = ..., in_sync: _Optional[_Union[ReplicaSet, _Mapping]] = ..., members: _Optional[_Union[_replica_pb2.ReplicaMemberList, _Mapping]] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("cluster", "group", "epoch", "offset", "size_max", "node")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    epoch: int
    offset: int
    size_max: int
    node: str
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., size_max: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class ReadLogReply(_message.Message):
    __slots__ = ("offset", "crc", "blank", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    BLANK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    crc: int
    blank: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., crc: _Optional[int] = ..., blank: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadConsumersRequest(_message.Message):
    __slots__ = ("cluster", "group", "epoch", "node", "known", "offset")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    epoch: int
    node: str
    known: int
    offset: int
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., epoch: _Optional[int] = ..., node: _Optional[str] = ..., known: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadConsumersReply(_message.Message):
    __slots__ = ("size", "crc", "data")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    size: int
    crc: int
    data: bytes
    def __init__(self, size: _Optional[int] = ..., crc: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReplicaStatusRequest(_message.Message):
    __slots__ = ("cluster", "group", "node")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node: str
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...
