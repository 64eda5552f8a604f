from trovemq_proto.v1 import common_pb2 as _common_pb2
from trovemq_proto.v1 import query_pb2 as _query_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BiographyRequest(_message.Message):
    __slots__ = ("id", "location", "topic", "max_lag_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    location: _query_pb2.QueueLocation
    topic: str
    max_lag_ms: int
    def __init__(self, id: _Optional[str] = ..., location: _Optional[_Union[_query_pb2.QueueLocation, _Mapping]] = ..., topic: _Optional[str] = ..., max_lag_ms: _Optional[int] = ...) -> None: ...

class MessageCopy(_message.Message):
    __slots__ = ("message", "role", "topic", "queue_id", "queue_offset", "physical_offset", "size", "offset_msg_id", "unique_key", "keys", "tag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times", "group", "producer_group", "message_group", "deliver_timestamp")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MSG_ID_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    DELIVER_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    message: int
    role: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    offset_msg_id: str
    unique_key: str
    keys: str
    tag: str
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    group: str
    producer_group: str
    message_group: str
    deliver_timestamp: int
    def __init__(self, message: _Optional[int] = ..., role: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., size: _Optional[int] = ..., offset_msg_id: _Optional[str] = ..., unique_key: _Optional[str] = ..., keys: _Optional[str] = ..., tag: _Optional[str] = ..., born_timestamp: _Optional[int] = ..., born_host: _Optional[str] = ..., store_timestamp: _Optional[int] = ..., store_host: _Optional[str] = ..., reconsume_times: _Optional[int] = ..., group: _Optional[str] = ..., producer_group: _Optional[str] = ..., message_group: _Optional[str] = ..., deliver_timestamp: _Optional[int] = ...) -> None: ...

class BiographyEvent(_message.Message):
    __slots__ = ("message", "timestamp", "kind", "group", "client_id", "attempt", "until", "count", "topic", "queue_id", "queue_offset", "detail")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    message: int
    timestamp: int
    kind: str
    group: str
    client_id: str
    attempt: int
    until: int
    count: int
    topic: str
    queue_id: int
    queue_offset: int
    detail: str
    def __init__(self, message: _Optional[int] = ..., timestamp: _Optional[int] = ..., kind: _Optional[str] = ..., group: _Optional[str] = ..., client_id: _Optional[str] = ..., attempt: _Optional[int] = ..., until: _Optional[int] = ..., count: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class GroupVerdict(_message.Message):
    __slots__ = ("message", "group", "reason", "consumed", "until", "attempt", "client_id", "ahead", "ahead_estimated", "blocked_by", "committed", "next_offset", "online", "subscribed", "filter", "topic", "queue_id", "queue_offset", "detail")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    AHEAD_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_BY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    message: int
    group: str
    reason: str
    consumed: bool
    until: int
    attempt: int
    client_id: str
    ahead: int
    ahead_estimated: bool
    blocked_by: int
    committed: int
    next_offset: int
    online: int
    subscribed: int
    filter: str
    topic: str
    queue_id: int
    queue_offset: int
    detail: str
    def __init__(self, message: _Optional[int] = ..., group: _Optional[str] = ..., reason: _Optional[str] = ..., consumed: _Optional[bool] = ..., until: _Optional[int] = ..., attempt: _Optional[int] = ..., client_id: _Optional[str] = ..., ahead: _Optional[int] = ..., ahead_estimated: _Optional[bool] = ..., blocked_by: _Optional[int] = ..., committed: _Optional[int] = ..., next_offset: _Optional[int] = ..., online: _Optional[int] = ..., subscribed: _Optional[int] = ..., filter: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class BiographyReply(_message.Message):
    __slots__ = ("copies", "events", "verdicts", "complete", "notes", "replica")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    copies: _containers.RepeatedCompositeFieldContainer[MessageCopy]
    events: _containers.RepeatedCompositeFieldContainer[BiographyEvent]
    verdicts: _containers.RepeatedCompositeFieldContainer[GroupVerdict]
    complete: bool
    notes: _containers.RepeatedScalarFieldContainer[str]
    replica: _common_pb2.ReplicaLag
    def __init__(self, copies: _Optional[_Iterable[_Union[MessageCopy, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[BiographyEvent, _Mapping]]] = ..., verdicts: _Optional[_Iterable[_Union[GroupVerdict, _Mapping]]] = ..., complete: _Optional[bool] = ..., notes: _Optional[_Iterable[str]] = ..., replica: _Optional[_Union[_common_pb2.ReplicaLag, _Mapping]] = ...) -> None: ...
