from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionFrame(_message.Message):
    __slots__ = ("begin", "messages", "acknowledgements", "commit", "rollback")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    begin: BeginTransaction
    messages: TransactionMessages
    acknowledgements: TransactionAcknowledgements
    commit: CommitTransaction
    rollback: RollbackTransaction
    def __init__(self, begin: _Optional[_Union[BeginTransaction, _Mapping]] = ..., messages: _Optional[_Union[TransactionMessages, _Mapping]] = ..., acknowledgements: _Optional[_Union[TransactionAcknowledgements, _Mapping]] = ..., commit: _Optional[_Union[CommitTransaction, _Mapping]] = ..., rollback: _Optional[_Union[RollbackTransaction, _Mapping]] = ...) -> None: ...

class BeginTransaction(_message.Message):
    __slots__ = ("transaction_id", "timeout_ms")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    timeout_ms: int
    def __init__(self, transaction_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TransactionMessages(_message.Message):
    __slots__ = ("topic", "queue_id", "records")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    records: bytes
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class TransactionAcknowledgements(_message.Message):
    __slots__ = ("group", "topic", "receipt_handles")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_HANDLES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    receipt_handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., receipt_handles: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitTransaction(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackTransaction(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTransactionRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class TransactionReply(_message.Message):
    __slots__ = ("transaction_id", "committed", "topics", "topic_indexes", "queue_ids", "queue_offsets", "physical_offsets", "acknowledged_count", "store_timestamp", "store_host", "durability", "broker", "repeated_commit", "copies")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INDEXES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    REPEATED_COMMIT_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    committed: bool
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_indexes: _containers.RepeatedScalarFieldContainer[int]
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    physical_offsets: _containers.RepeatedScalarFieldContainer[int]
    acknowledged_count: int
    store_timestamp: int
    store_host: bytes
    durability: _common_pb2.Durability
    broker: str
    repeated_commit: bool
    copies: int
    def __init__(self, transaction_id: _Optional[str] = ..., committed: _Optional[bool] = ..., topics: _Optional[_Iterable[str]] = ..., topic_indexes: _Optional[_Iterable[int]] = ..., queue_ids: _Optional[_Iterable[int]] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., physical_offsets: _Optional[_Iterable[int]] = ..., acknowledged_count: _Optional[int] = ..., store_timestamp: _Optional[int] = ..., store_host: _Optional[bytes] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., broker: _Optional[str] = ..., repeated_commit: _Optional[bool] = ..., copies: _Optional[int] = ...) -> None: ...
