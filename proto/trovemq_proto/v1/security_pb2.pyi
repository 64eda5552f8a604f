from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AuthenticateRequest(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class AuthenticateReply(_message.Message):
    __slots__ = ("message", "session_id", "session_time_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    message: str
    session_id: bytes
    session_time_ms: int
    def __init__(self, message: _Optional[str] = ..., session_id: _Optional[bytes] = ..., session_time_ms: _Optional[int] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("access_key", "kind", "secret")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    kind: str
    secret: str
    def __init__(self, access_key: _Optional[str] = ..., kind: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class UserSecret(_message.Message):
    __slots__ = ("user", "secret")
    USER_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    user: UserDescription
    secret: str
    def __init__(self, user: _Optional[_Union[UserDescription, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class AlterUserRequest(_message.Message):
    __slots__ = ("access_key", "enabled")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    enabled: bool
    def __init__(self, access_key: _Optional[str] = ..., enabled: _Optional[bool] = ...) -> None: ...

class RotateSecretRequest(_message.Message):
    __slots__ = ("access_key", "secret", "drop_old")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    DROP_OLD_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    secret: str
    drop_old: bool
    def __init__(self, access_key: _Optional[str] = ..., secret: _Optional[str] = ..., drop_old: _Optional[bool] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("access_key",)
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    def __init__(self, access_key: _Optional[str] = ...) -> None: ...

class DeleteUserReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserDescription]
    def __init__(self, users: _Optional[_Iterable[_Union[UserDescription, _Mapping]]] = ...) -> None: ...

class UserDescription(_message.Message):
    __slots__ = ("access_key", "kind", "enabled", "created", "secrets_created", "broker")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SECRETS_CREATED_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    kind: str
    enabled: bool
    created: int
    secrets_created: _containers.RepeatedScalarFieldContainer[int]
    broker: str
    def __init__(self, access_key: _Optional[str] = ..., kind: _Optional[str] = ..., enabled: _Optional[bool] = ..., created: _Optional[int] = ..., secrets_created: _Optional[_Iterable[int]] = ..., broker: _Optional[str] = ...) -> None: ...

class CreateRuleRequest(_message.Message):
    __slots__ = ("access_key", "allow", "actions", "resource", "sources")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    allow: bool
    actions: str
    resource: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, access_key: _Optional[str] = ..., allow: _Optional[bool] = ..., actions: _Optional[str] = ..., resource: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ...) -> None: ...

class AccessRule(_message.Message):
    __slots__ = ("number", "access_key", "allow", "actions", "resource", "sources", "broker")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    number: int
    access_key: str
    allow: bool
    actions: str
    resource: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    broker: str
    def __init__(self, number: _Optional[int] = ..., access_key: _Optional[str] = ..., allow: _Optional[bool] = ..., actions: _Optional[str] = ..., resource: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ..., broker: _Optional[str] = ...) -> None: ...

class DeleteRuleRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class DeleteRuleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("access_key",)
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    def __init__(self, access_key: _Optional[str] = ...) -> None: ...

class ListRulesReply(_message.Message):
    __slots__ = ("rules",)
    RULES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[AccessRule]
    def __init__(self, rules: _Optional[_Iterable[_Union[AccessRule, _Mapping]]] = ...) -> None: ...

class TestAccessRequest(_message.Message):
    __slots__ = ("access_key", "action", "resource", "source")
    ACCESS_KEY_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    access_key: str
    action: str
    resource: str
    source: str
    def __init__(self, access_key: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class TestAccessReply(_message.Message):
    __slots__ = ("allowed", "reason", "rule", "broker")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    reason: str
    rule: AccessRule
    broker: str
    def __init__(self, allowed: _Optional[bool] = ..., reason: _Optional[str] = ..., rule: _Optional[_Union[AccessRule, _Mapping]] = ..., broker: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("requests_per_s", "bytes_in_per_s", "bytes_out_per_s", "calls_max", "connections_max", "topics_max", "groups_max", "query_ms_per_s")
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_PER_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_MAX_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    TOPICS_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUPS_MAX_FIELD_NUMBER: _ClassVar[int]
    QUERY_MS_PER_S_FIELD_NUMBER: _ClassVar[int]
    requests_per_s: int
    bytes_in_per_s: int
    bytes_out_per_s: int
    calls_max: int
    connections_max: int
    topics_max: int
    groups_max: int
    query_ms_per_s: int
    def __init__(self, requests_per_s: _Optional[int] = ..., bytes_in_per_s: _Optional[int] = ..., bytes_out_per_s: _Optional[int] = ..., calls_max: _Optional[int] = ..., connections_max: _Optional[int] = ..., topics_max: _Optional[int] = ..., groups_max: _Optional[int] = ..., query_ms_per_s: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("subject", "quota")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    subject: str
    quota: Quota
    def __init__(self, subject: _Optional[str] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class QuotaDescription(_message.Message):
    __slots__ = ("subject", "quota", "open_calls", "slowed", "refused", "broker")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    OPEN_CALLS_FIELD_NUMBER: _ClassVar[int]
    SLOWED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    subject: str
    quota: Quota
    open_calls: int
    slowed: int
    refused: int
    broker: str
    def __init__(self, subject: _Optional[str] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., open_calls: _Optional[int] = ..., slowed: _Optional[int] = ..., refused: _Optional[int] = ..., broker: _Optional[str] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaDescription]
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaDescription, _Mapping]]] = ...) -> None: ...
