"""Parts of requests and replies that the audit shows: never a secret."""

from __future__ import annotations

from typing import Any, Final

from trovemq_proto.rocketmq.v2.definition_pb2 import Code
from trovemq_proto.v1 import security_pb2

_FIELDS: Final = (
    *("access_key", "kind", "enabled", "drop_old"),
    *("number", "allow", "actions", "resource", "sources", "subject", "quota"),
)
"""The fields that are shown of requests of super users."""


def shown_fields(request: Any) -> dict[str, str]:
    """The fields of a request of SecurityService that may be shown, and are not empty."""
    values = ((name, _text(getattr(request, name))) for name in _FIELDS if hasattr(request, name))
    return {name: value for name, value in values if value}


def _text(value: Any) -> str:
    """The value of a field, in one line; empty for one that was not given."""
    if isinstance(value, security_pb2.Quota):
        return ",".join(f"{field.name}={limit}" for field, limit in value.ListFields()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value or "") if isinstance(value, str | int) else ",".join(value)


def failed_status(reply: Any) -> str:
    """The name of the status in one of RocketMQ's replies, or its number if it is a newer one that a client
    has answered; "" for OK, and for a reply that has none."""
    code = getattr(getattr(reply, "status", None), "code", None)
    if not code or code == Code.OK:
        return ""
    return Code.Name(code) if code in Code.values() else str(code)
