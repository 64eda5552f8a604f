from trovemq_proto.v1 import common_pb2 as _common_pb2
from trovemq_proto.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendDelayedRequest(_message.Message):
    __slots__ = ("topic", "message", "deliver_timestamp", "message_group", "priority", "deliver_after_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message: _message_pb2.OutgoingMessage
    deliver_timestamp: int
    message_group: str
    priority: int
    deliver_after_ms: int
    def __init__(self, topic: _Optional[str] = ..., message: _Optional[_Union[_message_pb2.OutgoingMessage, _Mapping]] = ..., deliver_timestamp: _Optional[int] = ..., message_group: _Optional[str] = ..., priority: _Optional[int] = ..., deliver_after_ms: _Optional[int] = ...) -> None: ...

class SendDelayedReply(_message.Message):
    __slots__ = ("recall_handle", "durability", "copies")
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    recall_handle: str
    durability: _common_pb2.Durability
    copies: int
    def __init__(self, recall_handle: _Optional[str] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., copies: _Optional[int] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("topic", "recall_handle")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    recall_handle: str
    def __init__(self, topic: _Optional[str] = ..., recall_handle: _Optional[str] = ...) -> None: ...

class RecallReply(_message.Message):
    __slots__ = ("unique_key",)
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    unique_key: str
    def __init__(self, unique_key: _Optional[str] = ...) -> None: ...

class PrepareHalfRequest(_message.Message):
    __slots__ = ("topic", "message", "check_after_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message: _message_pb2.OutgoingMessage
    check_after_ms: int
    def __init__(self, topic: _Optional[str] = ..., message: _Optional[_Union[_message_pb2.OutgoingMessage, _Mapping]] = ..., check_after_ms: _Optional[int] = ...) -> None: ...

class PrepareHalfReply(_message.Message):
    __slots__ = ("transaction_id", "durability", "copies")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    durability: _common_pb2.Durability
    copies: int
    def __init__(self, transaction_id: _Optional[str] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., copies: _Optional[int] = ...) -> None: ...

class EndHalfRequest(_message.Message):
    __slots__ = ("topic", "transaction_id", "commit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_id: str
    commit: bool
    def __init__(self, topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., commit: _Optional[bool] = ...) -> None: ...

class EndHalfReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckHalvesFrame(_message.Message):
    __slots__ = ("start", "leave")
    START_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    start: CheckHalvesStart
    leave: bool
    def __init__(self, start: _Optional[_Union[CheckHalvesStart, _Mapping]] = ..., leave: _Optional[bool] = ...) -> None: ...

class CheckHalvesStart(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckHalvesReply(_message.Message):
    __slots__ = ("connected", "check")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    connected: bool
    check: HalfCheck
    def __init__(self, connected: _Optional[bool] = ..., check: _Optional[_Union[HalfCheck, _Mapping]] = ...) -> None: ...

class HalfCheck(_message.Message):
    __slots__ = ("topic", "transaction_id", "queue_id", "queue_offset", "record")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    transaction_id: str
    queue_id: int
    queue_offset: int
    record: bytes
    def __init__(self, topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...
