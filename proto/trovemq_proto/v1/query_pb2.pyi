from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IdentifierKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IDENTIFIER_UNSPECIFIED: _ClassVar[IdentifierKind]
    OFFSET_MSG_ID: _ClassVar[IdentifierKind]
    UNIQUE_KEY: _ClassVar[IdentifierKind]
    QUEUE_LOCATION: _ClassVar[IdentifierKind]

class KeyType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY: _ClassVar[KeyType]
    UNIQUE: _ClassVar[KeyType]
    TAG: _ClassVar[KeyType]
IDENTIFIER_UNSPECIFIED: IdentifierKind
OFFSET_MSG_ID: IdentifierKind
UNIQUE_KEY: IdentifierKind
QUEUE_LOCATION: IdentifierKind
KEY: KeyType
UNIQUE: KeyType
TAG: KeyType

class QueueLocation(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("id", "location", "topic", "max_lag_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    location: QueueLocation
    topic: str
    max_lag_ms: int
    def __init__(self, id: _Optional[str] = ..., location: _Optional[_Union[QueueLocation, _Mapping]] = ..., topic: _Optional[str] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class GetMessageReply(_message.Message):
    __slots__ = ("kind", "records", "queue_offsets", "more", "replica")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    kind: IdentifierKind
    records: bytes
    queue_offsets: bytes
    more: bool
    replica: _common_pb2.ReplicaLag
    def __init__(self, kind: _Optional[_Union[IdentifierKind, str]] = ..., records: _Optional[bytes] = ..., queue_offsets: _Optional[bytes] = ..., more: _Optional[bool] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...

class QueryByKeyRequest(_message.Message):
    __slots__ = ("topic", "key", "type", "begin", "end", "messages_max", "cursor", "max_lag_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    type: KeyType
    begin: int
    end: int
    messages_max: int
    cursor: str
    max_lag_ms: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., type: _Optional[_Union[KeyType, str]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., messages_max: _Optional[int] = ..., cursor: _Optional[str] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class QueryPage(_message.Message):
    __slots__ = ("records", "last", "complete", "cursor", "index_last_update_timestamp", "index_last_update_physical_offset", "notes", "replica")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    INDEX_LAST_UPDATE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    INDEX_LAST_UPDATE_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    last: bool
    complete: bool
    cursor: str
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    replica: _common_pb2.ReplicaLag
    def __init__(self, records: _Optional[bytes] = ..., last: _Optional[bool] = ..., complete: _Optional[bool] = ..., cursor: _Optional[str] = ..., index_last_update_timestamp: _Optional[int] = ..., index_last_update_physical_offset: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...

class SearchOffsetRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "timestamp", "upper", "max_lag_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    timestamp: int
    upper: bool
    max_lag_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., upper: _Optional[bool] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class SearchOffsetReply(_message.Message):
    __slots__ = ("offset", "replica")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    replica: _common_pb2.ReplicaLag
    def __init__(self, offset: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...

class QueueOffsetsRequest(_message.Message):
    __slots__ = ("topic", "queue_ids", "max_lag_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    max_lag_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class QueueOffsetsReply(_message.Message):
    __slots__ = ("queues", "topic_identity", "replica")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    topic_identity: int
    replica: _common_pb2.ReplicaLag
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., topic_identity: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...
