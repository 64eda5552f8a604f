from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendFrame(_message.Message):
    __slots__ = ("frame_id", "topic", "queue_id", "records", "one_way")
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ONE_WAY_FIELD_NUMBER: _ClassVar[int]
    frame_id: int
    topic: str
    queue_id: int
    records: bytes
    one_way: bool
    def __init__(self, frame_id: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., records: _Optional[bytes] = ..., one_way: _Optional[bool] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("frame_id", "status", "error", "first_queue_offset", "physical_offset", "record_count", "store_timestamp", "durability", "store_host", "append_time_us", "broker", "duplicate", "duplicates", "sequence_gaps", "copies")
    FRAME_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_GAPS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    frame_id: int
    status: _common_pb2.PutMessageStatus
    error: _common_pb2.Error
    first_queue_offset: int
    physical_offset: int
    record_count: int
    store_timestamp: int
    durability: _common_pb2.Durability
    store_host: bytes
    append_time_us: int
    broker: str
    duplicate: bool
    duplicates: _containers.RepeatedCompositeFieldContainer[Duplicate]
    sequence_gaps: _containers.RepeatedCompositeFieldContainer[SequenceGap]
    copies: int
    def __init__(self, frame_id: _Optional[int] = ..., status: _Optional[_Union[_common_pb2.PutMessageStatus, str]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., first_queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., store_timestamp: _Optional[int] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., store_host: _Optional[bytes] = ..., append_time_us: _Optional[int] = ..., broker: _Optional[str] = ..., duplicate: _Optional[bool] = ..., duplicates: _Optional[_Iterable[_Union[Duplicate, _Mapping]]] = ..., sequence_gaps: _Optional[_Iterable[_Union[SequenceGap, _Mapping]]] = ..., copies: _Optional[int] = ...) -> None: ...

class SequenceGap(_message.Message):
    __slots__ = ("index", "first", "last")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    index: int
    first: int
    last: int
    def __init__(self, index: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class GetProducerRequest(_message.Message):
    __slots__ = ("topic", "producer_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_id: str
    def __init__(self, topic: _Optional[str] = ..., producer_id: _Optional[str] = ...) -> None: ...

class GetProducerReply(_message.Message):
    __slots__ = ("next_sequence",)
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    next_sequence: int
    def __init__(self, next_sequence: _Optional[int] = ...) -> None: ...

class Duplicate(_message.Message):
    __slots__ = ("index", "queue_id", "queue_offset", "physical_offset", "store_timestamp")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    index: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    def __init__(self, index: _Optional[int] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_timestamp: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    messages: _containers.RepeatedCompositeFieldContainer[OutgoingMessage]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[OutgoingMessage, _Mapping]]] = ...) -> None: ...

class OutgoingMessage(_message.Message):
    __slots__ = ("body", "tag", "keys", "unique_key", "properties", "flag", "born_timestamp")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    unique_key: str
    properties: _containers.ScalarMap[str, str]
    flag: int
    born_timestamp: int
    def __init__(self, body: _Optional[bytes] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., unique_key: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., flag: _Optional[int] = ..., born_timestamp: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("fetch_id", "topic", "queue_id", "offset", "messages_max", "bytes_max", "wait_ms", "tags", "replies_max", "replies_more", "topic_identity", "max_lag_ms")
    FETCH_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_MAX_FIELD_NUMBER: _ClassVar[int]
    REPLIES_MORE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    fetch_id: int
    topic: str
    queue_id: int
    offset: int
    messages_max: int
    bytes_max: int
    wait_ms: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    replies_max: int
    replies_more: int
    topic_identity: int
    max_lag_ms: int
    def __init__(self, fetch_id: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., replies_max: _Optional[int] = ..., replies_more: _Optional[int] = ..., topic_identity: _Optional[int] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("fetch_id", "error", "records", "next_offset", "min_offset", "max_offset", "queue_offsets", "damaged_offsets", "replies_left", "topic_identity", "replica")
    FETCH_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_LEFT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    fetch_id: int
    error: _common_pb2.Error
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    queue_offsets: bytes
    damaged_offsets: _containers.RepeatedScalarFieldContainer[int]
    replies_left: int
    topic_identity: int
    replica: _common_pb2.ReplicaLag
    def __init__(self, fetch_id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., records: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., queue_offsets: _Optional[bytes] = ..., damaged_offsets: _Optional[_Iterable[int]] = ..., replies_left: _Optional[int] = ..., topic_identity: _Optional[int] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...
