"""The status of a call: gRPC's codes, the text beside them, and the codes of HTTP and HTTP/2 that stand for
them (gRPC over HTTP/2, "Responses"; doc/http-grpc-status-mapping.md).

The package itself ends calls with these. (A handler may end its call with any.)

| status | server | channel |
| --- | --- | --- |
| CANCELLED | the client cancelled, or the connection is lost | `cancel()`, or RST_STREAM CANCEL |
| UNKNOWN | the handler raised | no status came, or an HTTP status that is not in HTTP_STATUS |
| DEADLINE_EXCEEDED | the deadline is over | the same |
| UNIMPLEMENTED | unknown method or compression; no or two requests for one | such responses |
| RESOURCE_EXHAUSTED | a message, metadata or calls above a limit | the same; RST_STREAM ENHANCE_YOUR_CALM |
| INTERNAL | bytes that are not messages, a malformed grpc-timeout | the same bytes; any other RST_STREAM |
| UNAVAILABLE | the server stops | no connection, a lost one, or a call that no server looked at |

`StatusCode` has grpcio's names and values, and its members equal grpcio's. So a channel needs no grpcio.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from trovemq_rpc.http2.constants import ErrorCode

DETAILS_SIZE_MAX: Final = 4_096  # of the text that we send: half of the metadata that gRPC's clients take


class NamedLikeGrpc(Enum):
    """An enumeration whose members equal those of grpcio's enumeration of the same name."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Enum) and type(other).__name__ == type(self).__name__:
            return self.name == other.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


class StatusCode(NamedLikeGrpc):
    """How a call ended. A value is the number on the wire, and the name in lower case."""

    OK = (0, "ok")
    CANCELLED = (1, "cancelled")
    UNKNOWN = (2, "unknown")
    INVALID_ARGUMENT = (3, "invalid argument")
    DEADLINE_EXCEEDED = (4, "deadline exceeded")
    NOT_FOUND = (5, "not found")
    ALREADY_EXISTS = (6, "already exists")
    PERMISSION_DENIED = (7, "permission denied")
    RESOURCE_EXHAUSTED = (8, "resource exhausted")
    FAILED_PRECONDITION = (9, "failed precondition")
    ABORTED = (10, "aborted")
    OUT_OF_RANGE = (11, "out of range")
    UNIMPLEMENTED = (12, "unimplemented")
    INTERNAL = (13, "internal")
    UNAVAILABLE = (14, "unavailable")
    DATA_LOSS = (15, "data loss")
    UNAUTHENTICATED = (16, "unauthenticated")


BY_NUMBER: Final = {code.value[0]: code for code in StatusCode}
_BY_TEXT: Final = {str(number).encode(): code for number, code in BY_NUMBER.items()}

HTTP_STATUS: Final = {
    400: StatusCode.INTERNAL,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.UNIMPLEMENTED,
    429: StatusCode.UNAVAILABLE,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
}  # every other: UNKNOWN

RESET_CODE: Final = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}  # every other: INTERNAL


def status_of_http(status: int) -> StatusCode:
    return HTTP_STATUS.get(status, StatusCode.UNKNOWN)


def status_of_reset(code: int) -> StatusCode:
    return RESET_CODE.get(code, StatusCode.INTERNAL)  # type: ignore[call-overload, no-any-return]


def as_status(code: Any) -> StatusCode:
    """Our member for one of grpcio's, of ours, or a number; UNKNOWN for anything else."""
    if isinstance(code, StatusCode):
        return code
    if isinstance(code, Enum):
        return StatusCode.__members__.get(code.name, StatusCode.UNKNOWN)
    return BY_NUMBER.get(code, StatusCode.UNKNOWN)


def status_of_field(value: bytes) -> StatusCode:
    return _BY_TEXT.get(value, StatusCode.UNKNOWN)


# Percent-encoding of grpc-message: all but printable ASCII, and the percent sign itself.
_ENCODED: Final = tuple(
    bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in range(256)
)


def encode_message(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")[:DETAILS_SIZE_MAX]
    encoded = b"".join(map(_ENCODED.__getitem__, raw))
    if encoded[:1] == b" " or encoded[-1:] == b" ":  # HTTP/2 allows no blank at either end
        body = encoded.strip(b" ")
        left = len(encoded) - len(encoded.lstrip(b" "))
        encoded = b"%20" * left + body + b"%20" * (len(encoded) - left - len(body))
    return encoded


def decode_message(value: bytes) -> str:
    """Bytes that are not UTF-8 are replaced: a status must not be lost because of its text."""
    return unquote_to_bytes(value).decode("utf-8", "replace")
