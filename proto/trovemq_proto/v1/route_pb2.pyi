from trovemq_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_ROLE_UNSPECIFIED: _ClassVar[ServerRole]
    NAMESERVER: _ClassVar[ServerRole]
    BROKER: _ClassVar[ServerRole]
SERVER_ROLE_UNSPECIFIED: ServerRole
NAMESERVER: ServerRole
BROKER: ServerRole

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("role", "version", "name", "now", "up_ms", "other_brokers", "node", "leader", "other_names")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    UP_MS_FIELD_NUMBER: _ClassVar[int]
    OTHER_BROKERS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    OTHER_NAMES_FIELD_NUMBER: _ClassVar[int]
    role: ServerRole
    version: str
    name: str
    now: int
    up_ms: int
    other_brokers: int
    node: str
    leader: _common_pb2.GroupLeader
    other_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, role: _Optional[_Union[ServerRole, str]] = ..., version: _Optional[str] = ..., name: _Optional[str] = ..., now: _Optional[int] = ..., up_ms: _Optional[int] = ..., other_brokers: _Optional[int] = ..., node: _Optional[str] = ..., leader: _Optional[_Union[_common_pb2.GroupLeader, _Mapping]] = ..., other_names: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRouteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("brokers", "lost")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[_common_pb2.BrokerRoute]
    lost: _containers.RepeatedCompositeFieldContainer[LostBroker]
    def __init__(self, brokers: _Optional[_Iterable[_Union[_common_pb2.BrokerRoute, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[LostBroker, _Mapping]]] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterReply(_message.Message):
    __slots__ = ("brokers", "version", "changes", "lost", "removed_brokers", "refusal", "part", "more_parts", "other_brokers", "forgotten_brokers")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_PARTS_FIELD_NUMBER: _ClassVar[int]
    OTHER_BROKERS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[_common_pb2.BrokerRoute]
    version: int
    changes: bool
    lost: _containers.RepeatedCompositeFieldContainer[LostBroker]
    removed_brokers: _containers.RepeatedScalarFieldContainer[str]
    refusal: _common_pb2.Error
    part: bytes
    more_parts: bool
    other_brokers: int
    forgotten_brokers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, brokers: _Optional[_Iterable[_Union[_common_pb2.BrokerRoute, _Mapping]]] = ..., version: _Optional[int] = ..., changes: _Optional[bool] = ..., lost: _Optional[_Iterable[_Union[LostBroker, _Mapping]]] = ..., removed_brokers: _Optional[_Iterable[str]] = ..., refusal: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., part: _Optional[bytes] = ..., more_parts: _Optional[bool] = ..., other_brokers: _Optional[int] = ..., forgotten_brokers: _Optional[_Iterable[str]] = ...) -> None: ...

class LostBroker(_message.Message):
    __slots__ = ("name", "cluster", "address", "lost_ms", "topics", "topics_alone")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOST_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_ALONE_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    address: str
    lost_ms: int
    topics: int
    topics_alone: int
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ..., address: _Optional[str] = ..., lost_ms: _Optional[int] = ..., topics: _Optional[int] = ..., topics_alone: _Optional[int] = ...) -> None: ...

class WatchRoutesRequest(_message.Message):
    __slots__ = ("topics", "changes", "removed_brokers", "parts")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    changes: bool
    removed_brokers: bool
    parts: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., changes: _Optional[bool] = ..., removed_brokers: _Optional[bool] = ..., parts: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("broker", "topics", "data_version", "leaving", "base_version", "removed_topics")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    broker: _common_pb2.BrokerInfo
    topics: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicRoute]
    data_version: int
    leaving: bool
    base_version: int
    removed_topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[_Union[_common_pb2.BrokerInfo, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[_common_pb2.TopicRoute, _Mapping]]] = ..., data_version: _Optional[int] = ..., leaving: _Optional[bool] = ..., base_version: _Optional[int] = ..., removed_topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("broker",)
    BROKER_FIELD_NUMBER: _ClassVar[int]
    broker: str
    def __init__(self, broker: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ("was_lost",)
    WAS_LOST_FIELD_NUMBER: _ClassVar[int]
    was_lost: bool
    def __init__(self, was_lost: _Optional[bool] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("error", "data_version", "changes", "all_topics", "left_out", "heartbeat_size_max")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    ALL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    data_version: int
    changes: bool
    all_topics: bool
    left_out: _common_pb2.Error
    heartbeat_size_max: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., data_version: _Optional[int] = ..., changes: _Optional[bool] = ..., all_topics: _Optional[bool] = ..., left_out: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., heartbeat_size_max: _Optional[int] = ...) -> None: ...
