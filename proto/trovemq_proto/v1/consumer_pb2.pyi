from trovemq_proto.v1 import common_pb2 as _common_pb2
from trovemq_proto.v1 import group_pb2 as _group_pb2
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
    EXTEND: _ClassVar[SettlementKind]
    DEAD_LETTER: _ClassVar[SettlementKind]

class CommandResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DONE: _ClassVar[CommandResult]
    FAILED: _ClassVar[CommandResult]
    DAMAGED: _ClassVar[CommandResult]
    NOT_SUPPORTED: _ClassVar[CommandResult]
    BUSY: _ClassVar[CommandResult]
ACKNOWLEDGE: SettlementKind
RETURN: SettlementKind
EXTEND: SettlementKind
DEAD_LETTER: SettlementKind
DONE: CommandResult
FAILED: CommandResult
DAMAGED: CommandResult
NOT_SUPPORTED: CommandResult
BUSY: CommandResult

class ConsumeFrame(_message.Message):
    __slots__ = ("group", "topic", "start", "credit_messages", "credit_bytes", "received_batch", "settlements", "stop", "leave", "answers")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CREDIT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BATCH_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    start: ConsumeStart
    credit_messages: int
    credit_bytes: int
    received_batch: int
    settlements: _containers.RepeatedCompositeFieldContainer[Settlement]
    stop: bool
    leave: bool
    answers: _containers.RepeatedCompositeFieldContainer[CommandAnswer]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., start: _Optional[_Union[ConsumeStart, _Mapping]] = ..., credit_messages: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., received_batch: _Optional[int] = ..., settlements: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., stop: _Optional[bool] = ..., leave: _Optional[bool] = ..., answers: _Optional[_Iterable[_Union[CommandAnswer, _Mapping]]] = ...) -> None: ...

class ConsumeStart(_message.Message):
    __slots__ = ("filter_type", "filter", "invisible_ms", "hostname")
    FILTER_TYPE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    filter_type: str
    filter: str
    invisible_ms: int
    hostname: str
    def __init__(self, filter_type: _Optional[str] = ..., filter: _Optional[str] = ..., invisible_ms: _Optional[int] = ..., hostname: _Optional[str] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("settlement_id", "kind", "receipt", "ranges", "invisible_ms", "suspend", "handle", "reason")
    SETTLEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    settlement_id: int
    kind: SettlementKind
    receipt: str
    ranges: _containers.RepeatedScalarFieldContainer[int]
    invisible_ms: int
    suspend: bool
    handle: str
    reason: SettlementReason
    def __init__(self, settlement_id: _Optional[int] = ..., kind: _Optional[_Union[SettlementKind, str]] = ..., receipt: _Optional[str] = ..., ranges: _Optional[_Iterable[int]] = ..., invisible_ms: _Optional[int] = ..., suspend: _Optional[bool] = ..., handle: _Optional[str] = ..., reason: _Optional[_Union[SettlementReason, _Mapping]] = ...) -> None: ...

class SettlementReason(_message.Message):
    __slots__ = ("error", "text", "returned")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    error: str
    text: str
    returned: bool
    def __init__(self, error: _Optional[str] = ..., text: _Optional[str] = ..., returned: _Optional[bool] = ...) -> None: ...

class CommandAnswer(_message.Message):
    __slots__ = ("nonce", "result", "text")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    result: CommandResult
    text: str
    def __init__(self, nonce: _Optional[str] = ..., result: _Optional[_Union[CommandResult, str]] = ..., text: _Optional[str] = ...) -> None: ...

class ConsumeReply(_message.Message):
    __slots__ = ("batch", "runs", "records", "results", "stopped", "joined", "void_batch", "settings", "command", "ended")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    VOID_BATCH_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    batch: int
    runs: _containers.RepeatedCompositeFieldContainer[ConsumeRun]
    records: bytes
    results: _containers.RepeatedCompositeFieldContainer[SettlementResult]
    stopped: bool
    joined: bool
    void_batch: int
    settings: _group_pb2.GroupSettings
    command: ConsumeCommand
    ended: _common_pb2.Error
    def __init__(self, batch: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[ConsumeRun, _Mapping]]] = ..., records: _Optional[bytes] = ..., results: _Optional[_Iterable[_Union[SettlementResult, _Mapping]]] = ..., stopped: _Optional[bool] = ..., joined: _Optional[bool] = ..., void_batch: _Optional[int] = ..., settings: _Optional[_Union[_group_pb2.GroupSettings, _Mapping]] = ..., command: _Optional[_Union[ConsumeCommand, _Mapping]] = ..., ended: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ConsumeCommand(_message.Message):
    __slots__ = ("nonce", "consume", "print_stacks")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FIELD_NUMBER: _ClassVar[int]
    PRINT_STACKS_FIELD_NUMBER: _ClassVar[int]
    nonce: str
    consume: DirectMessage
    print_stacks: bool
    def __init__(self, nonce: _Optional[str] = ..., consume: _Optional[_Union[DirectMessage, _Mapping]] = ..., print_stacks: _Optional[bool] = ...) -> None: ...

class DirectMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "record")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    record: bytes
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("settlement_id", "error", "refused", "handle")
    SETTLEMENT_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    settlement_id: int
    error: _common_pb2.Error
    refused: _containers.RepeatedCompositeFieldContainer[RefusedOffset]
    handle: str
    def __init__(self, settlement_id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., refused: _Optional[_Iterable[_Union[RefusedOffset, _Mapping]]] = ..., handle: _Optional[str] = ...) -> None: ...

class RefusedOffset(_message.Message):
    __slots__ = ("offset", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: _common_pb2.Error
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
