from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupSettings(_message.Message):
    __slots__ = ("orderly", "retry_max", "backoff_ms", "exponential", "backoff_initial_ms", "backoff_max_ms", "backoff_multiplier")
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    orderly: bool
    retry_max: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    exponential: bool
    backoff_initial_ms: int
    backoff_max_ms: int
    backoff_multiplier: float
    def __init__(self, orderly: _Optional[bool] = ..., retry_max: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., exponential: _Optional[bool] = ..., backoff_initial_ms: _Optional[int] = ..., backoff_max_ms: _Optional[int] = ..., backoff_multiplier: _Optional[float] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings: GroupSettings
    def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class AlterGroupRequest(_message.Message):
    __slots__ = ("group", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings: GroupSettings
    def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ("pending",)
    PENDING_FIELD_NUMBER: _ClassVar[int]
    pending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pending: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupDescription]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupDescription, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "settings", "member_count", "topics", "broker", "created", "unordered_topics", "pending")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    UNORDERED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    group: str
    settings: GroupSettings
    member_count: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    broker: str
    created: bool
    unordered_topics: _containers.RepeatedScalarFieldContainer[str]
    pending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., member_count: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., broker: _Optional[str] = ..., created: _Optional[bool] = ..., unordered_topics: _Optional[_Iterable[str]] = ..., pending: _Optional[_Iterable[str]] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("client_id", "client_type", "language", "version", "address", "last_heartbeat", "subscriptions", "in_flight")
    class SubscriptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    client_type: str
    language: str
    version: str
    address: str
    last_heartbeat: int
    subscriptions: _containers.ScalarMap[str, str]
    in_flight: int
    def __init__(self, client_id: _Optional[str] = ..., client_type: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., last_heartbeat: _Optional[int] = ..., subscriptions: _Optional[_Mapping[str, str]] = ..., in_flight: _Optional[int] = ...) -> None: ...

class ListMembersReply(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    def __init__(self, members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ...) -> None: ...

class GetLagRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class QueueLag(_message.Message):
    __slots__ = ("topic", "queue_id", "min_offset", "max_offset", "committed", "next_offset", "in_flight", "lag", "lag_ms", "estimated")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    committed: int
    next_offset: int
    in_flight: int
    lag: int
    lag_ms: int
    estimated: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., committed: _Optional[int] = ..., next_offset: _Optional[int] = ..., in_flight: _Optional[int] = ..., lag: _Optional[int] = ..., lag_ms: _Optional[int] = ..., estimated: _Optional[bool] = ...) -> None: ...

class GetLagReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueLag]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueLag, _Mapping]]] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "timestamp", "offset", "to_min", "to_max", "preview", "only_new")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_MIN_FIELD_NUMBER: _ClassVar[int]
    TO_MAX_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    ONLY_NEW_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    timestamp: int
    offset: int
    to_min: bool
    to_max: bool
    preview: bool
    only_new: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., offset: _Optional[int] = ..., to_min: _Optional[bool] = ..., to_max: _Optional[bool] = ..., preview: _Optional[bool] = ..., only_new: _Optional[bool] = ...) -> None: ...

class ResetGroupReply(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("queue_id", "offset_before", "offset", "in_flight")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_BEFORE_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        offset_before: int
        offset: int
        in_flight: int
        def __init__(self, queue_id: _Optional[int] = ..., offset_before: _Optional[int] = ..., offset: _Optional[int] = ..., in_flight: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ResetGroupReply.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ResetGroupReply.Entry, _Mapping]]] = ...) -> None: ...

class ResendDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class ResendDeadLettersReply(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("offset", "topic", "offset_msg_id", "error", "error_message", "again")
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        OFFSET_MSG_ID_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
        AGAIN_FIELD_NUMBER: _ClassVar[int]
        offset: int
        topic: str
        offset_msg_id: str
        error: str
        error_message: str
        again: bool
        def __init__(self, offset: _Optional[int] = ..., topic: _Optional[str] = ..., offset_msg_id: _Optional[str] = ..., error: _Optional[str] = ..., error_message: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ResendDeadLettersReply.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ResendDeadLettersReply.Entry, _Mapping]]] = ...) -> None: ...

class ConsumeDirectlyRequest(_message.Message):
    __slots__ = ("client_id", "group", "topic", "message", "timeout_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group: str
    topic: str
    message: str
    timeout_ms: int
    def __init__(self, client_id: _Optional[str] = ..., group: _Optional[str] = ..., topic: _Optional[str] = ..., message: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ConsumeDirectlyReply(_message.Message):
    __slots__ = ("result", "message")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    result: str
    message: str
    def __init__(self, result: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PrintStackTraceRequest(_message.Message):
    __slots__ = ("client_id", "group", "timeout_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    group: str
    timeout_ms: int
    def __init__(self, client_id: _Optional[str] = ..., group: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class PrintStackTraceReply(_message.Message):
    __slots__ = ("stack_trace",)
    STACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    stack_trace: str
    def __init__(self, stack_trace: _Optional[str] = ...) -> None: ...

class FindDelayedRequest(_message.Message):
    __slots__ = ("topic", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class FindDelayedReply(_message.Message):
    __slots__ = ("entries", "complete")
    class Entry(_message.Message):
        __slots__ = ("record", "delivery_timestamp", "recall_handle")
        RECORD_FIELD_NUMBER: _ClassVar[int]
        DELIVERY_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
        record: bytes
        delivery_timestamp: int
        recall_handle: str
        def __init__(self, record: _Optional[bytes] = ..., delivery_timestamp: _Optional[int] = ..., recall_handle: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FindDelayedReply.Entry]
    complete: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[FindDelayedReply.Entry, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...
