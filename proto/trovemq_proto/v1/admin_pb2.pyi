from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "queue_count", "message_type", "options", "brokers")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    message_type: str
    options: _containers.ScalarMap[str, str]
    brokers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., brokers: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("topic", "queue_count", "message_type", "options", "placement", "queues_on")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class QueuesOnEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_ON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    message_type: str
    options: _containers.ScalarMap[str, str]
    placement: _containers.ScalarMap[str, int]
    queues_on: _containers.ScalarMap[str, int]
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., placement: _Optional[_Mapping[str, int]] = ..., queues_on: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic", "with_sizes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WITH_SIZES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    with_sizes: bool
    def __init__(self, topic: _Optional[str] = ..., with_sizes: _Optional[bool] = ...) -> None: ...

class TopicQueue(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_store_timestamp", "bytes")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_timestamp: int
    bytes: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_store_timestamp: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TopicHold(_message.Message):
    __slots__ = ("bytes", "group", "queue_id", "queue_offset", "until")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    group: str
    queue_id: int
    queue_offset: int
    until: int
    def __init__(self, bytes: _Optional[int] = ..., group: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("topic", "queue_count", "message_type", "system", "queues", "broker", "options", "hold", "placement", "pending")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    message_type: str
    system: bool
    queues: _containers.RepeatedCompositeFieldContainer[TopicQueue]
    broker: str
    options: _containers.ScalarMap[str, str]
    hold: TopicHold
    placement: _containers.ScalarMap[str, int]
    pending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[str] = ..., system: _Optional[bool] = ..., queues: _Optional[_Iterable[_Union[TopicQueue, _Mapping]]] = ..., broker: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., hold: _Optional[_Union[TopicHold, _Mapping]] = ..., placement: _Optional[_Mapping[str, int]] = ..., pending: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("include_system", "elsewhere")
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    elsewhere: bool
    def __init__(self, include_system: _Optional[bool] = ..., elsewhere: _Optional[bool] = ...) -> None: ...

class ListTopicsReply(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDescription, _Mapping]]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ("physical_offset", "deleted_on", "pending")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETED_ON_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    deleted_on: _containers.RepeatedScalarFieldContainer[str]
    pending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, physical_offset: _Optional[int] = ..., deleted_on: _Optional[_Iterable[str]] = ..., pending: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitOffsetRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    offset: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitOffsetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetOffsetRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class GetOffsetReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ResetOffsetRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "timestamp", "offset", "to_min", "to_max")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_MIN_FIELD_NUMBER: _ClassVar[int]
    TO_MAX_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    timestamp: int
    offset: int
    to_min: bool
    to_max: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., offset: _Optional[int] = ..., to_min: _Optional[bool] = ..., to_max: _Optional[bool] = ...) -> None: ...

class ResetOffsetReply(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("queue_id", "offset_before", "offset")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_BEFORE_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        offset_before: int
        offset: int
        def __init__(self, queue_id: _Optional[int] = ..., offset_before: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ResetOffsetReply.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ResetOffsetReply.Entry, _Mapping]]] = ...) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: bool
    def __init__(self, topics: _Optional[bool] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("broker", "counters", "topics", "topics_left_out")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BROKER_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    broker: _common_pb2.BrokerInfo
    counters: _containers.ScalarMap[str, int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicTraffic]
    topics_left_out: int
    def __init__(self, broker: _Optional[_Union[_common_pb2.BrokerInfo, _Mapping]] = ..., counters: _Optional[_Mapping[str, int]] = ..., topics: _Optional[_Iterable[_Union[TopicTraffic, _Mapping]]] = ..., topics_left_out: _Optional[int] = ...) -> None: ...

class TopicTraffic(_message.Message):
    __slots__ = ("topic", "messages_in", "bytes_in", "messages_out", "bytes_out")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    def __init__(self, topic: _Optional[str] = ..., messages_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., messages_out: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...
