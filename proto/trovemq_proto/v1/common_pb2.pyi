from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    MEMORY: _ClassVar[Durability]
    DISK: _ClassVar[Durability]

class PutMessageStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATUS_UNSPECIFIED: _ClassVar[PutMessageStatus]
    PUT_OK: _ClassVar[PutMessageStatus]
    FLUSH_DISK_TIMEOUT: _ClassVar[PutMessageStatus]
    SERVICE_NOT_AVAILABLE: _ClassVar[PutMessageStatus]
    CREATE_MAPPED_FILE_FAILED: _ClassVar[PutMessageStatus]
    MESSAGE_ILLEGAL: _ClassVar[PutMessageStatus]
    PROPERTIES_SIZE_EXCEEDED: _ClassVar[PutMessageStatus]
    OS_PAGE_CACHE_BUSY: _ClassVar[PutMessageStatus]
    UNKNOWN_ERROR: _ClassVar[PutMessageStatus]
    FLUSH_SLAVE_TIMEOUT: _ClassVar[PutMessageStatus]
    IN_SYNC_REPLICAS_NOT_ENOUGH: _ClassVar[PutMessageStatus]
DURABILITY_UNSPECIFIED: Durability
MEMORY: Durability
DISK: Durability
PUT_STATUS_UNSPECIFIED: PutMessageStatus
PUT_OK: PutMessageStatus
FLUSH_DISK_TIMEOUT: PutMessageStatus
SERVICE_NOT_AVAILABLE: PutMessageStatus
CREATE_MAPPED_FILE_FAILED: PutMessageStatus
MESSAGE_ILLEGAL: PutMessageStatus
PROPERTIES_SIZE_EXCEEDED: PutMessageStatus
OS_PAGE_CACHE_BUSY: PutMessageStatus
UNKNOWN_ERROR: PutMessageStatus
FLUSH_SLAVE_TIMEOUT: PutMessageStatus
IN_SYNC_REPLICAS_NOT_ENOUGH: PutMessageStatus

class Error(_message.Message):
    __slots__ = ("symbol", "code", "message", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    symbol: str
    code: int
    message: str
    fields: _containers.ScalarMap[str, str]
    def __init__(self, symbol: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplicaLag(_message.Message):
    __slots__ = ("bytes", "ms")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    ms: int
    def __init__(self, bytes: _Optional[int] = ..., ms: _Optional[int] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "queue_count", "message_type", "placement")
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_count: int
    message_type: str
    placement: _containers.ScalarMap[str, int]
    def __init__(self, topic: _Optional[str] = ..., queue_count: _Optional[int] = ..., message_type: _Optional[str] = ..., placement: _Optional[_Mapping[str, int]] = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("cluster", "name", "address", "store_host_ipv6", "append_property_crc", "body_size_max", "batch_size_max", "data_version", "flush_mode", "version", "tls_address", "draining", "drained", "config", "topics_left_out", "leader")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_IPV6_FIELD_NUMBER: _ClassVar[int]
    APPEND_PROPERTY_CRC_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    FLUSH_MODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TLS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TOPICS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    name: str
    address: str
    store_host_ipv6: bool
    append_property_crc: bool
    body_size_max: int
    batch_size_max: int
    data_version: int
    flush_mode: str
    version: str
    tls_address: str
    draining: bool
    drained: bool
    config: ConfigSummary
    topics_left_out: int
    leader: GroupLeader
    def __init__(self, cluster: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., store_host_ipv6: _Optional[bool] = ..., append_property_crc: _Optional[bool] = ..., body_size_max: _Optional[int] = ..., batch_size_max: _Optional[int] = ..., data_version: _Optional[int] = ..., flush_mode: _Optional[str] = ..., version: _Optional[str] = ..., tls_address: _Optional[str] = ..., draining: _Optional[bool] = ..., drained: _Optional[bool] = ..., config: _Optional[_Union[ConfigSummary, _Mapping]] = ..., topics_left_out: _Optional[int] = ..., leader: _Optional[_Union[GroupLeader, _Mapping]] = ...) -> None: ...

class GroupLeader(_message.Message):
    __slots__ = ("group_id", "node", "epoch", "role", "nodes")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    node: str
    epoch: int
    role: str
    nodes: _containers.RepeatedCompositeFieldContainer[GroupNode]
    def __init__(self, group_id: _Optional[str] = ..., node: _Optional[str] = ..., epoch: _Optional[int] = ..., role: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[GroupNode, _Mapping]]] = ...) -> None: ...

class GroupNode(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class ConfigSummary(_message.Message):
    __slots__ = ("id", "owner", "generation", "mark", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    owner: str
    generation: int
    mark: str
    version: int
    def __init__(self, id: _Optional[str] = ..., owner: _Optional[str] = ..., generation: _Optional[int] = ..., mark: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class BrokerRoute(_message.Message):
    __slots__ = ("broker", "topics", "removed_topics")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    broker: BrokerInfo
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    removed_topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, broker: _Optional[_Union[BrokerInfo, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., removed_topics: _Optional[_Iterable[str]] = ...) -> None: ...
