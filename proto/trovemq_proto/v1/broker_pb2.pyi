from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
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

class ListSettingsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ListSettingsReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class SetSettingRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "source", "restart", "started_with", "form", "what", "broker")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    STARTED_WITH_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    restart: bool
    started_with: str
    form: str
    what: str
    broker: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., restart: _Optional[bool] = ..., started_with: _Optional[str] = ..., form: _Optional[str] = ..., what: _Optional[str] = ..., broker: _Optional[str] = ...) -> None: ...

class GetConditionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerCondition(_message.Message):
    __slots__ = ("broker", "version", "now", "drain", "reasons", "warnings", "disk_used_percent", "disk_full", "open_files", "open_files_max", "store_mode", "authentication", "plain_exposed", "http_exposed", "interpreter")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_MAX_FIELD_NUMBER: _ClassVar[int]
    STORE_MODE_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    PLAIN_EXPOSED_FIELD_NUMBER: _ClassVar[int]
    HTTP_EXPOSED_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    version: str
    now: int
    drain: DrainState
    reasons: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    disk_used_percent: float
    disk_full: bool
    open_files: int
    open_files_max: int
    store_mode: int
    authentication: bool
    plain_exposed: str
    http_exposed: str
    interpreter: str
    def __init__(self, broker: _Optional[str] = ..., version: _Optional[str] = ..., now: _Optional[int] = ..., drain: _Optional[_Union[DrainState, str]] = ..., reasons: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ..., disk_used_percent: _Optional[float] = ..., disk_full: _Optional[bool] = ..., open_files: _Optional[int] = ..., open_files_max: _Optional[int] = ..., store_mode: _Optional[int] = ..., authentication: _Optional[bool] = ..., plain_exposed: _Optional[str] = ..., http_exposed: _Optional[str] = ..., interpreter: _Optional[str] = ...) -> None: ...
