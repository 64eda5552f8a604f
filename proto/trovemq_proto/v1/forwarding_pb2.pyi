from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ForwardedClient(_message.Message):
    __slots__ = ("caller", "peer", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    caller: str
    peer: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, caller: _Optional[str] = ..., peer: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("client", "method", "request")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    client: ForwardedClient
    method: str
    request: bytes
    def __init__(self, client: _Optional[_Union[ForwardedClient, _Mapping]] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class ForwardTelemetryRequest(_message.Message):
    __slots__ = ("client", "command")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    client: ForwardedClient
    command: bytes
    def __init__(self, client: _Optional[_Union[ForwardedClient, _Mapping]] = ..., command: _Optional[bytes] = ...) -> None: ...

class ForwardReply(_message.Message):
    __slots__ = ("reply",)
    REPLY_FIELD_NUMBER: _ClassVar[int]
    reply: bytes
    def __init__(self, reply: _Optional[bytes] = ...) -> None: ...
