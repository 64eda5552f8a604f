"""Converts status codes of the v2 protocol to rows of the error table."""

from __future__ import annotations

from typing import Final

from trovemq._common.backoff import may_pass
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

__all__ = ["check", "error_of", "may_pass", "status"]

OK: Final = v2.Code.OK
MULTIPLE_RESULTS: Final = v2.Code.MULTIPLE_RESULTS
STATUS_TEXT_SIZE_MAX: Final = 1_024  # of the text in a status that this client sends

_DENIED: Final = f"{errors.ACCESS_DENIED.symbol}: "
"""The beginning of FORBIDDEN's text if rules of access forbid the call; otherwise it is about the topic."""

_SPECS: Final[dict[int, ErrorSpec]] = {
    v2.Code.BAD_REQUEST: errors.REQUEST_ILLEGAL,
    v2.Code.ILLEGAL_ACCESS_POINT: errors.REQUEST_ILLEGAL,
    v2.Code.ILLEGAL_TOPIC: errors.TOPIC_ILLEGAL,
    v2.Code.ILLEGAL_CONSUMER_GROUP: errors.GROUP_ILLEGAL,
    v2.Code.ILLEGAL_MESSAGE_TAG: errors.TAG_ILLEGAL,
    v2.Code.ILLEGAL_MESSAGE_KEY: errors.KEY_ILLEGAL,
    v2.Code.ILLEGAL_MESSAGE_GROUP: errors.MESSAGE_GROUP_ILLEGAL,
    v2.Code.ILLEGAL_MESSAGE_PROPERTY_KEY: errors.PROPERTY_ILLEGAL,
    v2.Code.INVALID_TRANSACTION_ID: errors.TRANSACTION_ILLEGAL,
    v2.Code.ILLEGAL_MESSAGE_ID: errors.UNIQUE_KEY_ILLEGAL,
    v2.Code.ILLEGAL_FILTER_EXPRESSION: errors.FILTER_ILLEGAL,
    v2.Code.ILLEGAL_INVISIBLE_TIME: errors.INVISIBLE_DURATION_ILLEGAL,
    v2.Code.ILLEGAL_DELIVERY_TIME: errors.DELIVERY_TIME_ILLEGAL,
    v2.Code.INVALID_RECEIPT_HANDLE: errors.RECEIPT_HANDLE_ILLEGAL,
    v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: errors.MESSAGE_TYPE_CONFLICT,
    v2.Code.UNRECOGNIZED_CLIENT_TYPE: errors.CLIENT_UNKNOWN,
    v2.Code.MESSAGE_CORRUPTED: errors.BATCH_ILLEGAL,
    v2.Code.CLIENT_ID_REQUIRED: errors.CLIENT_ID_MISSING,
    v2.Code.ILLEGAL_POLLING_TIME: errors.POLLING_TIME_ILLEGAL,
    v2.Code.ILLEGAL_OFFSET: errors.OFFSET_OUT_OF_RANGE,
    v2.Code.INVALID_CLIENT_PROPERTIES: errors.CLIENT_PROPERTIES_ILLEGAL,
    v2.Code.UNAUTHORIZED: errors.AUTHENTICATION_FAILED,
    v2.Code.FORBIDDEN: errors.PERMISSION_MISSING,
    v2.Code.MESSAGE_NOT_FOUND: errors.MESSAGE_NOT_FOUND,
    v2.Code.TOPIC_NOT_FOUND: errors.TOPIC_NOT_FOUND,
    v2.Code.CONSUMER_GROUP_NOT_FOUND: errors.GROUP_NOT_FOUND,
    v2.Code.OFFSET_NOT_FOUND: errors.OFFSET_NOT_FOUND,
    v2.Code.REQUEST_TIMEOUT: errors.REQUEST_TIMEOUT,
    v2.Code.PAYLOAD_TOO_LARGE: errors.BATCH_SIZE_EXCEEDED,
    v2.Code.MESSAGE_BODY_TOO_LARGE: errors.MESSAGE_SIZE_EXCEEDED,
    v2.Code.MESSAGE_BODY_EMPTY: errors.BODY_EMPTY,
    v2.Code.TOO_MANY_REQUESTS: errors.LIMIT_EXCEEDED,
    v2.Code.REQUEST_HEADER_FIELDS_TOO_LARGE: errors.PROPERTIES_SIZE_EXCEEDED,
    v2.Code.MESSAGE_PROPERTIES_TOO_LARGE: errors.PROPERTIES_SIZE_EXCEEDED,
    v2.Code.HA_NOT_AVAILABLE: errors.SERVICE_NOT_AVAILABLE,
    v2.Code.NOT_IMPLEMENTED: errors.NOT_IMPLEMENTED,
    v2.Code.PROXY_TIMEOUT: errors.REQUEST_TIMEOUT,
    v2.Code.MASTER_PERSISTENCE_TIMEOUT: errors.FLUSH_DISK_TIMEOUT,
    v2.Code.SLAVE_PERSISTENCE_TIMEOUT: errors.FLUSH_DISK_TIMEOUT,
    v2.Code.UNSUPPORTED: errors.NOT_IMPLEMENTED,
    v2.Code.VERSION_UNSUPPORTED: errors.NOT_IMPLEMENTED,
}


def error_of(status: v2.Status, server: str) -> TroveError | None:
    """None for success; a code without a row of its own is UNKNOWN_ERROR, with the code as a field."""
    if status.code in (OK, MULTIPLE_RESULTS):
        return None
    spec, message = _SPECS.get(status.code, errors.UNKNOWN_ERROR), status.message
    if status.code == v2.Code.FORBIDDEN and message.startswith(_DENIED):
        spec, message = errors.ACCESS_DENIED, message.removeprefix(_DENIED)
    return TroveError(spec, message, server=server, rocketmq_code=int(status.code))


def check(status: v2.Status, server: str) -> None:
    """Raises the TroveError of a status."""
    error = error_of(status, server)
    if error is not None:
        raise error


def status(code: v2.Code, text: str = "") -> v2.Status:
    """A status that this client sends."""
    return v2.Status(code=code, message=text[:STATUS_TEXT_SIZE_MAX])
