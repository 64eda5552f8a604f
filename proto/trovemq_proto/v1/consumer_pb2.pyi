from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SettlementKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKNOWLEDGE: _ClassVar[SettlementKind]
    RETURN: _ClassVar[SettlementKind]
ACKNOWLEDGE: SettlementKind
RETURN: SettlementKind

class ConsumeFrame(_message.Message):
    __slots__ = ("group", "topic", "start", "credit_messages", "credit_bytes", "received_batch", "settlements", "stop")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CREDIT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BATCH_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    start: ConsumeStart
    credit_messages: int
    credit_bytes: int
    received_batch: int
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    stop: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., start: _Optional[_Union[ConsumeStart, _Mapping]] = ..., credit_messages: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., received_batch: _Optional[int] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., stop: _Optional[bool] = ...) -> None: ...

class ConsumeStart(_message.Message):
    __slots__ = ("filter_type", "filter", "invisible_ms")
    FILTER_TYPE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    filter_type: str
    filter: str
    invisible_ms: int
    def __init__(self, filter_type: _Optional[str] = ..., filter: _Optional[str] = ..., invisible_ms: _Optional[int] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("settlement_id", "kind", "receipt", "ranges", "invisible_ms", "suspend")
    SETTLEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_FIELD_NUMBER: _ClassVar[int]
    settlement_id: int
    kind: SettlementKind
    receipt: str
    ranges: _containers.RepeatedScalarFieldContainer[int]
    invisible_ms: int
    suspend: bool
    def __init__(self, settlement_id: _Optional[int] = ..., kind: _Optional[_Union[SettlementKind, str]] = ..., receipt: _Optional[str] = ..., ranges: _Optional[_Iterable[int]] = ..., invisible_ms: _Optional[int] = ..., suspend: _Optional[bool] = ...) -> None: ...

class ConsumeReply(_message.Message):
    __slots__ = ("batch", "runs", "records", "results", "stopped", "joined", "void_batch")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    VOID_BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    runs: _containers.RepeatedCompositeFieldContainer[ConsumeRun]
    records: bytes
    results: _containers.RepeatedCompositeFieldContainer[SettlementResult]
    stopped: bool
    joined: bool
    void_batch: int
    def __init__(self, batch: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[ConsumeRun, _Mapping]]] = ..., records: _Optional[bytes] = ..., results: _Optional[_Iterable[_Union[SettlementResult, _Mapping]]] = ..., stopped: _Optional[bool] = ..., joined: _Optional[bool] = ..., void_batch: _Optional[int] = ...) -> None: ...

class ConsumeRun(_message.Message):
    __slots__ = ("queue_id", "first_offset", "count", "attempt", "receipt")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    first_offset: int
    count: int
    attempt: int
    receipt: str
    def __init__(self, queue_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ..., attempt: _Optional[int] = ..., receipt: _Optional[str] = ...) -> None: ...

class SettlementResult(_message.Message):
    __slots__ = ("settlement_id", "error", "refused")
    SETTLEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    settlement_id: int
    error: _common_pb2.Error
    refused: _containers.RepeatedCompositeFieldContainer[RefusedOffset]
    def __init__(self, settlement_id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., refused: _Optional[_Iterable[_Union[RefusedOffset, _Mapping]]] = ...) -> None: ...

class RefusedOffset(_message.Message):
    __slots__ = ("offset", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: _common_pb2.Error
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
