from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigGeneration(_message.Message):
    __slots__ = ("number", "mark")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    number: int
    mark: str
    def __init__(self, number: _Optional[int] = ..., mark: _Optional[str] = ...) -> None: ...

class ConfigPosition(_message.Message):
    __slots__ = ("generation", "version")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    generation: ConfigGeneration
    version: int
    def __init__(self, generation: _Optional[_Union[ConfigGeneration, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ConfigHead(_message.Message):
    __slots__ = ("cluster", "owner", "generation", "version", "digest", "horizon", "history", "format")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    owner: str
    generation: ConfigGeneration
    version: int
    digest: str
    horizon: int
    history: _containers.RepeatedCompositeFieldContainer[ConfigPosition]
    format: int
    def __init__(self, cluster: _Optional[str] = ..., owner: _Optional[str] = ..., generation: _Optional[_Union[ConfigGeneration, _Mapping]] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ..., horizon: _Optional[int] = ..., history: _Optional[_Iterable[_Union[ConfigPosition, _Mapping]]] = ..., format: _Optional[int] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("kind", "name", "id", "version", "deleted", "settings", "placement", "secrets")
    class SettingsEntry(_message.Message):
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
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    id: ConfigPosition
    version: ConfigPosition
    deleted: bool
    settings: _containers.ScalarMap[str, str]
    placement: _containers.ScalarMap[str, int]
    secrets: bytes
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., id: _Optional[_Union[ConfigPosition, _Mapping]] = ..., version: _Optional[_Union[ConfigPosition, _Mapping]] = ..., deleted: _Optional[bool] = ..., settings: _Optional[_Mapping[str, str]] = ..., placement: _Optional[_Mapping[str, int]] = ..., secrets: _Optional[bytes] = ...) -> None: ...

class ConfigHello(_message.Message):
    __slots__ = ("broker", "store_id", "cluster", "position", "digest", "promised", "format")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    broker: str
    store_id: str
    cluster: str
    position: ConfigPosition
    digest: str
    promised: ConfigGeneration
    format: int
    def __init__(self, broker: _Optional[str] = ..., store_id: _Optional[str] = ..., cluster: _Optional[str] = ..., position: _Optional[_Union[ConfigPosition, _Mapping]] = ..., digest: _Optional[str] = ..., promised: _Optional[_Union[ConfigGeneration, _Mapping]] = ..., format: _Optional[int] = ...) -> None: ...

class ConfigReport(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: ConfigPosition
    def __init__(self, position: _Optional[_Union[ConfigPosition, _Mapping]] = ...) -> None: ...

class WatchConfigRequest(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: ConfigHello
    report: ConfigReport
    def __init__(self, hello: _Optional[_Union[ConfigHello, _Mapping]] = ..., report: _Optional[_Union[ConfigReport, _Mapping]] = ...) -> None: ...

class ConfigPart(_message.Message):
    __slots__ = ("base", "head", "number", "is_last", "entries", "is_current")
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    IS_CURRENT_FIELD_NUMBER: _ClassVar[int]
    base: ConfigPosition
    head: ConfigHead
    number: int
    is_last: bool
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    is_current: bool
    def __init__(self, base: _Optional[_Union[ConfigPosition, _Mapping]] = ..., head: _Optional[_Union[ConfigHead, _Mapping]] = ..., number: _Optional[int] = ..., is_last: _Optional[bool] = ..., entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., is_current: _Optional[bool] = ...) -> None: ...

class ForwardChangeRequest(_message.Message):
    __slots__ = ("method", "request", "caller", "source")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    caller: str
    source: str
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., caller: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class ForwardChangeReply(_message.Message):
    __slots__ = ("reply", "position")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    reply: bytes
    position: ConfigPosition
    def __init__(self, reply: _Optional[bytes] = ..., position: _Optional[_Union[ConfigPosition, _Mapping]] = ...) -> None: ...

class PromiseGenerationRequest(_message.Message):
    __slots__ = ("generation", "cluster", "owner", "address")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    generation: ConfigGeneration
    cluster: str
    owner: str
    address: str
    def __init__(self, generation: _Optional[_Union[ConfigGeneration, _Mapping]] = ..., cluster: _Optional[str] = ..., owner: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class ConfigCopy(_message.Message):
    __slots__ = ("broker", "head", "promised")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    broker: str
    head: ConfigHead
    promised: ConfigGeneration
    def __init__(self, broker: _Optional[str] = ..., head: _Optional[_Union[ConfigHead, _Mapping]] = ..., promised: _Optional[_Union[ConfigGeneration, _Mapping]] = ...) -> None: ...

class FetchConfigRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: ConfigGeneration
    def __init__(self, generation: _Optional[_Union[ConfigGeneration, _Mapping]] = ...) -> None: ...

class GetConfigStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigStatus(_message.Message):
    __slots__ = ("broker", "state", "problem", "head", "promised", "members", "unlisted", "differing", "withheld", "dropped", "failed")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    UNLISTED_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    broker: str
    state: str
    problem: str
    head: ConfigHead
    promised: ConfigGeneration
    members: _containers.RepeatedCompositeFieldContainer[ConfigMember]
    unlisted: _containers.RepeatedCompositeFieldContainer[ConfigName]
    differing: _containers.RepeatedCompositeFieldContainer[ConfigName]
    withheld: _containers.RepeatedCompositeFieldContainer[ConfigName]
    dropped: _containers.RepeatedCompositeFieldContainer[ConfigName]
    failed: _containers.RepeatedCompositeFieldContainer[ConfigName]
    def __init__(self, broker: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., head: _Optional[_Union[ConfigHead, _Mapping]] = ..., promised: _Optional[_Union[ConfigGeneration, _Mapping]] = ..., members: _Optional[_Iterable[_Union[ConfigMember, _Mapping]]] = ..., unlisted: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ..., differing: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ..., withheld: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ...) -> None: ...

class ConfigMember(_message.Message):
    __slots__ = ("broker", "version", "live")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    version: int
    live: bool
    def __init__(self, broker: _Optional[str] = ..., version: _Optional[int] = ..., live: _Optional[bool] = ...) -> None: ...

class ConfigName(_message.Message):
    __slots__ = ("kind", "name", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class TakeOverConfigRequest(_message.Message):
    __slots__ = ("cluster", "source")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    source: str
    def __init__(self, cluster: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class ClearDroppedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClearDroppedReply(_message.Message):
    __slots__ = ("cleared",)
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    cleared: int
    def __init__(self, cleared: _Optional[int] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class RemoveMemberReply(_message.Message):
    __slots__ = ("removed", "pending")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    pending: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[bool] = ..., pending: _Optional[_Iterable[str]] = ...) -> None: ...

class TakeOverConfigReply(_message.Message):
    __slots__ = ("head", "source", "promised", "unreached", "dropped")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    head: ConfigHead
    source: str
    promised: _containers.RepeatedScalarFieldContainer[str]
    unreached: _containers.RepeatedScalarFieldContainer[str]
    dropped: _containers.RepeatedCompositeFieldContainer[ConfigName]
    def __init__(self, head: _Optional[_Union[ConfigHead, _Mapping]] = ..., source: _Optional[str] = ..., promised: _Optional[_Iterable[str]] = ..., unreached: _Optional[_Iterable[str]] = ..., dropped: _Optional[_Iterable[_Union[ConfigName, _Mapping]]] = ...) -> None: ...
