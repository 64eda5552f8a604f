from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchField(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_FIELD_UNSPECIFIED: _ClassVar[SearchField]
    SEARCH_KEY: _ClassVar[SearchField]
    SEARCH_UNIQUE_ID: _ClassVar[SearchField]
    SEARCH_TAG: _ClassVar[SearchField]
    SEARCH_PROPERTY: _ClassVar[SearchField]
SEARCH_FIELD_UNSPECIFIED: SearchField
SEARCH_KEY: SearchField
SEARCH_UNIQUE_ID: SearchField
SEARCH_TAG: SearchField
SEARCH_PROPERTY: SearchField

class SearchHas(_message.Message):
    __slots__ = ("field", "name", "value", "is_prefix")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_PREFIX_FIELD_NUMBER: _ClassVar[int]
    field: SearchField
    name: str
    value: str
    is_prefix: bool
    def __init__(self, field: _Optional[_Union[SearchField, str]] = ..., name: _Optional[str] = ..., value: _Optional[str] = ..., is_prefix: _Optional[bool] = ...) -> None: ...

class SearchConditions(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[SearchCondition]
    def __init__(self, parts: _Optional[_Iterable[_Union[SearchCondition, _Mapping]]] = ...) -> None: ...

class SearchCondition(_message.Message):
    __slots__ = ("has", "all_of", "any_of")
    HAS_FIELD_NUMBER: _ClassVar[int]
    ALL_OF_FIELD_NUMBER: _ClassVar[int]
    ANY_OF_FIELD_NUMBER: _ClassVar[int]
    has: SearchHas
    all_of: SearchConditions
    any_of: SearchConditions
    def __init__(self, has: _Optional[_Union[SearchHas, _Mapping]] = ..., all_of: _Optional[_Union[SearchConditions, _Mapping]] = ..., any_of: _Optional[_Union[SearchConditions, _Mapping]] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("topic", "where", "begin", "end", "oldest_first", "messages_max", "cursor", "explain", "max_lag_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    where: SearchCondition
    begin: int
    end: int
    oldest_first: bool
    messages_max: int
    cursor: str
    explain: bool
    max_lag_ms: int
    def __init__(self, topic: _Optional[str] = ..., where: _Optional[_Union[SearchCondition, _Mapping]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., oldest_first: _Optional[bool] = ..., messages_max: _Optional[int] = ..., cursor: _Optional[str] = ..., explain: _Optional[bool] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class SearchPart(_message.Message):
    __slots__ = ("index", "begin", "end", "entries", "at_least")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    index: str
    begin: int
    end: int
    entries: int
    at_least: bool
    def __init__(self, index: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., entries: _Optional[int] = ..., at_least: _Optional[bool] = ...) -> None: ...

class SearchPage(_message.Message):
    __slots__ = ("records", "queue_offsets", "last", "complete", "cursor", "parts", "entries", "scanned_bytes", "lag_bytes", "notes", "replica")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SCANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    queue_offsets: bytes
    last: bool
    complete: bool
    cursor: str
    parts: _containers.RepeatedCompositeFieldContainer[SearchPart]
    entries: int
    scanned_bytes: int
    lag_bytes: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    replica: _common_pb2.ReplicaLag
    def __init__(self, records: _Optional[bytes] = ..., queue_offsets: _Optional[bytes] = ..., last: _Optional[bool] = ..., complete: _Optional[bool] = ..., cursor: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[SearchPart, _Mapping]]] = ..., entries: _Optional[int] = ..., scanned_bytes: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...
