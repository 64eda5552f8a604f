from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrainState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STATE_UNSPECIFIED: _ClassVar[DrainState]
    SERVING: _ClassVar[DrainState]
    DRAINING: _ClassVar[DrainState]
    DRAINED: _ClassVar[DrainState]
    STOPPING: _ClassVar[DrainState]
DRAIN_STATE_UNSPECIFIED: DrainState
SERVING: DrainState
DRAINING: DrainState
DRAINED: DrainState
STOPPING: DrainState

class DrainRequest(_message.Message):
    __slots__ = ("grace_ms", "stop", "stop_wait_max_ms")
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_WAIT_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    stop: bool
    stop_wait_max_ms: int
    def __init__(self, grace_ms: _Optional[int] = ..., stop: _Optional[bool] = ..., stop_wait_max_ms: _Optional[int] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainStatus(_message.Message):
    __slots__ = ("state", "broker", "stop", "open_transactions")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    state: DrainState
    broker: str
    stop: bool
    open_transactions: int
    def __init__(self, state: _Optional[_Union[DrainState, str]] = ..., broker: _Optional[str] = ..., stop: _Optional[bool] = ..., open_transactions: _Optional[int] = ...) -> None: ...
