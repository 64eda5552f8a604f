"""How a call of RocketMQ's v2 protocol is answered when it fails: the error's code inside of the reply.

| fault                                     | the client sees                                           |
|-------------------------------------------|-----------------------------------------------------------|
| a TroveError                              | `status` of the reply: its row's code in CODES, its text  |
| a ProtocolError                           | the same with the code that it names                      |
| metadata without x-mq-client-id           | CLIENT_ID_REQUIRED                                        |
| bytes that are not a message, or too many | BAD_REQUEST                                               |
| anything else                             | INTERNAL_SERVER_ERROR; the log has it with the request id |
| the call is cancelled                     | nothing                                                   |

Every unary reply has `status`; in a stream of replies the status is the first element. gRPC's own status
stays OK, because the clients take any other for a broken connection.

Handlers answer their calls with TroveErrors, or raise them; service.py puts `with_status` around them.
`request_of` gives them well-formed requests with a client id only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from trovemq_daemon.calls import Call, CallHandler, add_layer, is_stream
from trovemq_daemon.logging import get_logger
from trovemq_daemon.request_bounds import check_parts
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2.definition_pb2 import Code, Status
from trovemq_proto.varints import write_varint

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)

CLIENT_ID_KEY: Final = "x-mq-client-id"
CLIENT_ID_SIZE_MAX: Final = 255
REQUEST_ID_KEY: Final = "x-mq-request-id"
METADATA_VALUE_SIZE_MAX: Final = 128  # of a client's other metadata that is kept or logged
STATUS_TEXT_SIZE_MAX: Final = 1_024

OK_STATUS: Final = Status(code=Code.OK, message="OK")
_OK: Final = OK_STATUS.SerializeToString()
OK_SIZED: Final = write_varint(len(_OK)) + _OK
"""OK_STATUS as a field of a reply that is written by hand, after the field's tag: its size and its bytes."""

CODES: Final[dict[str, Code]] = {
    "REQUEST_ILLEGAL": Code.BAD_REQUEST,
    "TOPIC_ILLEGAL": Code.ILLEGAL_TOPIC,
    "GROUP_ILLEGAL": Code.ILLEGAL_CONSUMER_GROUP,
    "KEY_ILLEGAL": Code.ILLEGAL_MESSAGE_KEY,
    "TAG_ILLEGAL": Code.ILLEGAL_MESSAGE_TAG,
    "PROPERTY_ILLEGAL": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "MESSAGE_SIZE_EXCEEDED": Code.MESSAGE_BODY_TOO_LARGE,
    "PROPERTIES_SIZE_EXCEEDED": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "BATCH_ILLEGAL": Code.MESSAGE_CORRUPTED,
    "BATCH_SIZE_EXCEEDED": Code.PAYLOAD_TOO_LARGE,
    "MESSAGE_ID_ILLEGAL": Code.ILLEGAL_MESSAGE_ID,
    "CURSOR_ILLEGAL": Code.BAD_REQUEST,
    "OFFSET_OUT_OF_RANGE": Code.ILLEGAL_OFFSET,
    "TOPIC_RECREATED": Code.ILLEGAL_OFFSET,
    "MESSAGE_TYPE_UNSUPPORTED": Code.UNSUPPORTED,
    "UNIQUE_KEY_ILLEGAL": Code.ILLEGAL_MESSAGE_ID,
    "RECEIPT_HANDLE_ILLEGAL": Code.INVALID_RECEIPT_HANDLE,
    "INVISIBLE_DURATION_ILLEGAL": Code.ILLEGAL_INVISIBLE_TIME,
    "FILTER_ILLEGAL": Code.ILLEGAL_FILTER_EXPRESSION,
    "DELIVERY_TIME_ILLEGAL": Code.ILLEGAL_DELIVERY_TIME,
    "MESSAGE_GROUP_ILLEGAL": Code.ILLEGAL_MESSAGE_GROUP,
    "TRANSACTION_ILLEGAL": Code.INVALID_TRANSACTION_ID,
    "MESSAGE_TYPE_CONFLICT": Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "CLIENT_ID_MISSING": Code.CLIENT_ID_REQUIRED,
    "BODY_EMPTY": Code.MESSAGE_BODY_EMPTY,
    "POLLING_TIME_ILLEGAL": Code.ILLEGAL_POLLING_TIME,
    "CLIENT_PROPERTIES_ILLEGAL": Code.INVALID_CLIENT_PROPERTIES,
    "RECALL_HANDLE_ILLEGAL": Code.BAD_REQUEST,
    "OPTION_ILLEGAL": Code.BAD_REQUEST,
    "TOPIC_OPTION_ILLEGAL": Code.BAD_REQUEST,
    "TRANSACTION_SIZE_EXCEEDED": Code.BAD_REQUEST,
    "TRANSACTION_DUPLICATE": Code.BAD_REQUEST,
    "PRODUCER_SEQUENCE_ILLEGAL": Code.BAD_REQUEST,
    "PRODUCER_SEQUENCE_TOO_OLD": Code.BAD_REQUEST,
    "PRODUCER_SEQUENCE_CONFLICT": Code.BAD_REQUEST,
    "PROPERTY_NOT_INDEXED": Code.BAD_REQUEST,
    "TOPIC_NOT_FOUND": Code.TOPIC_NOT_FOUND,
    "TOPIC_EXISTS": Code.PRECONDITION_FAILED,
    "QUEUE_NOT_FOUND": Code.NOT_FOUND,
    "MESSAGE_NOT_FOUND": Code.MESSAGE_NOT_FOUND,
    "RECORD_DAMAGED": Code.INTERNAL_SERVER_ERROR,  # MESSAGE_CORRUPTED would blame the client's own message
    "COMPRESSION_UNSUPPORTED": Code.UNSUPPORTED,
    "GROUP_NOT_FOUND": Code.CONSUMER_GROUP_NOT_FOUND,
    "GROUP_EXISTS": Code.PRECONDITION_FAILED,
    "CONSUMER_NOT_ONLINE": Code.NOT_FOUND,
    "OFFSET_NOT_FOUND": Code.OFFSET_NOT_FOUND,
    "CLIENT_UNKNOWN": Code.UNRECOGNIZED_CLIENT_TYPE,
    "TRANSACTION_NOT_FOUND": Code.INVALID_TRANSACTION_ID,
    "MESSAGES_REMOVED_EARLY": Code.INTERNAL_SERVER_ERROR,
    "INDEX_DISABLED": Code.PRECONDITION_FAILED,
    "CREATE_MAPPED_FILE_FAILED": Code.INTERNAL_SERVER_ERROR,
    "DISK_FULL": Code.INTERNAL_SERVER_ERROR,
    "FLUSH_DISK_TIMEOUT": Code.MASTER_PERSISTENCE_TIMEOUT,
    "STORE_FAILED": Code.INTERNAL_SERVER_ERROR,
    "STORE_DELETED": Code.INTERNAL_SERVER_ERROR,
    "STORE_LOCKED": Code.INTERNAL_SERVER_ERROR,
    "STORE_OTHER_BROKER": Code.INTERNAL_SERVER_ERROR,
    "STORE_SETTINGS_MISMATCH": Code.INTERNAL_SERVER_ERROR,
    "STORE_NEWER": Code.INTERNAL_SERVER_ERROR,
    "ARCHIVE_ILLEGAL": Code.INTERNAL_SERVER_ERROR,
    "JOB_RUNNING": Code.PRECONDITION_FAILED,
    "CLIENT_CLOSED": Code.PRECONDITION_FAILED,
    "EVENT_LOOP_ILLEGAL": Code.PRECONDITION_FAILED,
    "TLS_OPTION_ILLEGAL": Code.BAD_REQUEST,
    "DATA_LOST": Code.INTERNAL_SERVER_ERROR,
    "SERVICE_NOT_AVAILABLE": Code.INTERNAL_SERVER_ERROR,
    "PERMISSION_MISSING": Code.FORBIDDEN,
    "GROUP_CLIENTS_DIFFER": Code.FORBIDDEN,
    "BROKER_NAME_TAKEN": Code.INTERNAL_SERVER_ERROR,
    "BROKER_NOT_FOUND": Code.NOT_FOUND,
    "BROKER_AMBIGUOUS": Code.BAD_REQUEST,
    "TRANSACTION_BROKERS": Code.BAD_REQUEST,
    "BROKER_UNREACHABLE": Code.PROXY_TIMEOUT,
    "TLS_FAILED": Code.PROXY_TIMEOUT,
    "UNKNOWN_ERROR": Code.INTERNAL_SERVER_ERROR,
    "LIMIT_EXCEEDED": Code.TOO_MANY_REQUESTS,
    "REQUEST_TIMEOUT": Code.PROXY_TIMEOUT,
    "OS_PAGE_CACHE_BUSY": Code.TOO_MANY_REQUESTS,
    "CONSUME_MSG_TIMEOUT": Code.REQUEST_TIMEOUT,
    "NOT_IMPLEMENTED": Code.NOT_IMPLEMENTED,
    "TRANSACTION_TIMED_OUT": Code.REQUEST_TIMEOUT,
    "USER_ILLEGAL": Code.BAD_REQUEST,
    "RULE_ILLEGAL": Code.BAD_REQUEST,
    "USER_NOT_FOUND": Code.NOT_FOUND,
    "USER_EXISTS": Code.PRECONDITION_FAILED,
    "RULE_NOT_FOUND": Code.NOT_FOUND,
    "SEALING_KEY_MISMATCH": Code.INTERNAL_SERVER_ERROR,
    "AUTHENTICATION_DISABLED": Code.PRECONDITION_FAILED,
    "AUTHENTICATION_FAILED": Code.UNAUTHORIZED,
    "ACCESS_DENIED": Code.FORBIDDEN,
    "TOPIC_SETTINGS_DIFFER": Code.PRECONDITION_FAILED,
    "GROUP_SETTINGS_DIFFER": Code.PRECONDITION_FAILED,
    "BROKER_NOT_EMPTY": Code.PRECONDITION_FAILED,
    "CLUSTER_RUNNING": Code.PRECONDITION_FAILED,
    "CLUSTER_DIRECTORY_ILLEGAL": Code.PRECONDITION_FAILED,
    "ADDRESS_IN_USE": Code.INTERNAL_SERVER_ERROR,
    "DAEMON_FAILED": Code.INTERNAL_SERVER_ERROR,
    "CONFIG_OWNER_UNREACHABLE": Code.PROXY_TIMEOUT,
    "CONFIG_VERSION_CONFLICT": Code.PRECONDITION_FAILED,
    "CONFIG_OWNER_MOVED": Code.PROXY_TIMEOUT,
    "CONFIG_GENERATION_OLD": Code.PRECONDITION_FAILED,
    "CONFIG_OTHER_CLUSTER": Code.PRECONDITION_FAILED,
    "CONFIG_GAP": Code.INTERNAL_SERVER_ERROR,
    "CONFIG_OWNER_OLD": Code.PRECONDITION_FAILED,
    "CONFIG_SETTINGS_DIFFER": Code.PRECONDITION_FAILED,
    "BROKER_DRAINED": Code.PRECONDITION_FAILED,
    "CONFIG_MEMBER_REMOVED": Code.PRECONDITION_FAILED,
    "CONFIG_OWNER_STAYS": Code.PRECONDITION_FAILED,
    "CONFIG_ABSENT": Code.PRECONDITION_FAILED,
    "CONFIG_OWNER_ALREADY": Code.PRECONDITION_FAILED,
    "REPLICA_OFFSET_MISMATCH": Code.INTERNAL_SERVER_ERROR,
    "REPLICA_BYTES_ILLEGAL": Code.INTERNAL_SERVER_ERROR,
    "GROUP_MISMATCH": Code.INTERNAL_SERVER_ERROR,
    "NOT_A_MEMBER": Code.FORBIDDEN,
    "SEGMENT_SIZE_MISMATCH": Code.INTERNAL_SERVER_ERROR,
    "EPOCH_STALE": Code.HA_NOT_AVAILABLE,
    "NOT_LEADER": Code.HA_NOT_AVAILABLE,
    "REPLICA_FRAME_ILLEGAL": Code.INTERNAL_SERVER_ERROR,
    "REPLICA_STREAM_TAKEN": Code.INTERNAL_SERVER_ERROR,
    "NOT_ENOUGH_REPLICAS": Code.HA_NOT_AVAILABLE,
    "REPLICA_TIMEOUT": Code.SLAVE_PERSISTENCE_TIMEOUT,
    "REPLICA_STATE_ILLEGAL": Code.PRECONDITION_FAILED,
    "STORE_DIVERGED": Code.INTERNAL_SERVER_ERROR,
    "COORDINATION_UNAVAILABLE": Code.HA_NOT_AVAILABLE,
    "COORDINATION_ILLEGAL": Code.INTERNAL_SERVER_ERROR,
    "REPLICA_LAG_EXCEEDED": Code.HA_NOT_AVAILABLE,
    "FIFO_BROKER_AWAY": Code.TOO_MANY_REQUESTS,  # official clients try again after a pause
    "FIFO_SENDER_UNKNOWN": Code.TOO_MANY_REQUESTS,
    "TOPIC_CLOSED": Code.TOO_MANY_REQUESTS,  # official clients try again after a pause
    "FIFO_TOPIC_OPEN": Code.PRECONDITION_FAILED,
    "RESOURCES_SCARCE": Code.TOO_MANY_REQUESTS,
}


class ProtocolError(TroveError):
    """A refusal whose code only this protocol knows (MESSAGE_CORRUPTED, ILLEGAL_ACCESS_POINT, …).

    Elsewhere (metrics, logs) it is the row `spec`, REQUEST_ILLEGAL unless another is given.
    """

    def __init__(
        self, code: Code, message: str, spec: errors.ErrorSpec = errors.REQUEST_ILLEGAL, **fields: object
    ) -> None:
        super().__init__(spec, message, **fields)
        self.code: Final = code


def code_of(error: TroveError) -> Code:
    return error.code if isinstance(error, ProtocolError) else CODES[error.symbol]


def status_of(error: TroveError) -> Status:
    """The status of this error for clients."""
    return Status(code=code_of(error), message=error.message[:STATUS_TEXT_SIZE_MAX])


def metadata_value(context: Context, key: str) -> str:
    """The call's metadata of this key as text, "" if there is none. It is cut after 256 characters, so that a
    client id of more than 255 is seen."""
    first = getattr(context, "first_metadata", None)  # of trovemq_rpc: it decodes no other value
    if first is not None:
        return (first(key) or "")[: CLIENT_ID_SIZE_MAX + 1]
    for name, value in context.invocation_metadata() or ():
        if name == key:
            text = value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
            return text[: CLIENT_ID_SIZE_MAX + 1]
    return ""


def client_id_of(context: Context) -> str:
    """The id of the calling client. Raises TroveError CLIENT_ID_MISSING, or REQUEST_ILLEGAL for more than 255
    characters."""
    client_id = metadata_value(context, CLIENT_ID_KEY).strip()
    if not client_id:
        raise TroveError(errors.CLIENT_ID_MISSING)
    if len(client_id) > CLIENT_ID_SIZE_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"the client id has more than {CLIENT_ID_SIZE_MAX} characters"
        )
    return client_id


def check_client_id(context: Context, checked: object) -> object:
    """Raises TroveError of client_id_of(). Returns the call's headers, for the check of the next call:
    `checked` are those of the one before, and the same headers have the same id."""
    head: object = getattr(context, "head", None)  # of trovemq_rpc
    if head is None or head is not checked:
        client_id_of(context)
    return head


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request whose bytes are not a message of its type."""

    reason: str


def reader(request_type: type[Request]) -> Callable[[bytes], Request | Malformed]:
    """A request deserializer that never raises: gRPC would log a traceback for each hostile request."""

    def read(data: bytes) -> Request | Malformed:
        try:
            check_parts(data, request_type.DESCRIPTOR)
            return request_type.FromString(data)
        except TroveError as error:
            return Malformed(error.message)
        except (DecodeError, ValueError) as error:
            return Malformed(f"the bytes are not a {request_type.DESCRIPTOR.name}: {error}")

    return read


def internal_error(error: Exception, context: Context, method: str) -> TroveError:
    """Logs an unexpected error; returns the error for the client, without its details."""
    request_id = metadata_value(context, REQUEST_ID_KEY)[:METADATA_VALUE_SIZE_MAX]
    get_logger().error("rpc.unexpected_error", method=method, request_id=request_id, exc_info=error)
    return TroveError(errors.UNKNOWN_ERROR, f"unexpected error (request {request_id or 'without id'})")


def request_of(call: Call, *, anonymous: bool = False) -> Any:
    """The well-formed request of a call that has a client id, unless it may be `anonymous`. Raises TroveError
    CLIENT_ID_MISSING, REQUEST_ILLEGAL."""
    if not anonymous:
        client_id_of(call.context)
    request = call.request
    if isinstance(request, Malformed):
        raise TroveError(errors.REQUEST_ILLEGAL, request.reason)
    return request


def with_status(
    method: str,
    handler: CallHandler,
    reply_type: Callable[..., Reply],
    refused: Callable[[str], None] | None = None,
) -> CallHandler:
    """The handler, with the error of a call as its reply's status (`reply_type(status=…)`).

    In a stream of replies that is the first one; later errors end the stream: its status has been sent.
    `refused` is called with the symbol of each error.
    """

    def reply_of_error(call: Call, error: Exception) -> Any:
        fault = error if isinstance(error, TroveError) else internal_error(error, call.context, method)
        if refused is not None:
            refused(fault.symbol)
        return reply_type(status=status_of(fault))

    def answered(call: Call, outcome: Any) -> Any:
        if isinstance(outcome, Exception) and not isinstance(outcome, grpc.aio.AbortError):
            reply = reply_of_error(call, outcome)
            return [reply] if handler.streams else reply
        return with_first_status(call, outcome) if is_stream(outcome) else outcome

    async def with_first_status(call: Call, replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        begun = False
        try:
            async with aclosing(replies):
                async for reply in replies:
                    begun = True
                    yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if begun and isinstance(error, TroveError):
                raise
            if begun:
                raise internal_error(error, call.context, method) from error
            yield reply_of_error(call, error)

    def on_calls(calls: Sequence[Call]) -> None:
        add_layer(calls, answered, sees_bytes=False)
        handler.on_calls(calls)

    return replace(handler, on_calls=on_calls)
