"""RocketMQ's PutMessageStatus of a refused append (docs/store-format.md, "Put status")."""

from __future__ import annotations

from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

STORED: Final = frozenset((errors.FLUSH_DISK_TIMEOUT, errors.REPLICA_TIMEOUT))
"""The errors of messages that are in the log: their outcome is open."""

# A refusal that is not listed is the message's own fault.
_PUT_STATUS: Final[dict[ErrorSpec, str]] = {
    errors.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    errors.REPLICA_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    errors.NOT_ENOUGH_REPLICAS: "IN_SYNC_REPLICAS_NOT_ENOUGH",
    errors.SERVICE_NOT_AVAILABLE: "SERVICE_NOT_AVAILABLE",
    errors.DISK_FULL: "SERVICE_NOT_AVAILABLE",
    errors.STORE_FAILED: "SERVICE_NOT_AVAILABLE",
    errors.STORE_DELETED: "SERVICE_NOT_AVAILABLE",
    errors.CREATE_MAPPED_FILE_FAILED: "CREATE_MAPPED_FILE_FAILED",
    errors.PROPERTIES_SIZE_EXCEEDED: "PROPERTIES_SIZE_EXCEEDED",
    errors.OS_PAGE_CACHE_BUSY: "OS_PAGE_CACHE_BUSY",
    errors.LIMIT_EXCEEDED: "OS_PAGE_CACHE_BUSY",
    errors.UNKNOWN_ERROR: "UNKNOWN_ERROR",
    errors.REQUEST_TIMEOUT: "UNKNOWN_ERROR",
}


def put_status(error: TroveError) -> str:
    """The name of the PutMessageStatus for this refusal."""
    return _PUT_STATUS.get(error.spec, "MESSAGE_ILLEGAL")
