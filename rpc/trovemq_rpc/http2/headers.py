"""The rules of a header list (RFC 9113 sections 8.2 and 8.3). A malformed one ends its stream with
PROTOCOL_ERROR.

| rule                                                                                        | section      |
|---------------------------------------------------------------------------------------------|--------------|
| names are lower-case tokens; values hold no NUL, CR or LF and no blank at either end        | 8.2.1        |
| no connection, proxy-connection, keep-alive, transfer-encoding or upgrade; te is "trailers" | 8.2.2        |
| pseudo-header fields come first, each once, and only those that are defined                 | 8.3          |
| a request has :method, :scheme and a :path that is not empty; a response has :status        | 8.3.1, 8.3.2 |
| trailers have no pseudo-header fields                                                       | 8.1          |

Sound fields are remembered, so that a field which every call repeats costs one look-up. So are sound names,
for fields with a new value in each call, and the pseudo-header fields of requests, all together: by
themselves they are sound only before all other fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.errors import StreamFault

Field = tuple[bytes, bytes]
Fields = list[Field]

SOUND_FIELDS_MAX: Final = 1_024  # remembered by the process; all are forgotten when there are more
SOUND_FIELD_SIZE_MAX: Final = 256
"""Larger ones are rarely repeated: at most 256 KiB are remembered, and as much of names alone."""

LIST_SIZE_OF_A_BYTE_MAX: Final = 60
"""The most bytes of a header list for which a byte of a header block that we send stands."""
_FIELD_OVERHEAD: Final = 32  # section 6.5.2

PSEUDO_FIELDS_MAX: Final = 4  # of a request; one without an authority has fewer
REQUEST_LINES_MAX: Final = 256  # remembered by the process; all are forgotten when there are more
REQUEST_LINE_SIZE_MAX: Final = 512  # larger ones are rarely repeated: at most 128 KiB are remembered

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN: Final = b"\x00\r\n"
_BLANKS: Final = b" \t"
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_RequestLine = tuple[bytes, bytes, bytes, bytes]  # method, scheme, path, authority
_sound: set[Field] = set()
_sound_names: set[bytes] = set()  # of fields whose value may be any that is sound
_request_lines: dict[tuple[Field, ...], _RequestLine] = {}


class RequestHead:
    """The fields that open a request. Equal requests share one object; `cache` is the layer above's.
    `before`: the cache of an earlier request of the connection that differs in the values of `changed` only;
    None if there is none."""

    __slots__ = (
        "authority",
        "before",
        "cache",
        "changed",
        "content_length",
        "fields",
        "method",
        "path",
        "scheme",
    )

    def __init__(self, method: bytes, scheme: bytes, path: bytes, authority: bytes, fields: Fields) -> None:
        self.method = method
        self.scheme = scheme
        self.path = path
        self.authority = authority
        self.fields = fields
        self.content_length = -1
        self.cache: Any = None
        self.before: Any = None
        self.changed: Fields = []


class ResponseHead:
    """The fields that open a response. Equal responses share one object, as requests do."""

    __slots__ = ("cache", "content_length", "fields", "status")

    def __init__(self, status: int, fields: Fields) -> None:
        self.status = status
        self.fields = fields
        self.content_length = -1
        self.cache: Any = None


def list_size(fields: Iterable[Field]) -> int:
    """The size of a header list as SETTINGS_MAX_HEADER_LIST_SIZE counts it (section 6.5.2)."""
    return sum(len(name) + len(value) + _FIELD_OVERHEAD for name, value in fields)


def check_request(headers: Fields) -> RequestHead:
    count = PSEUDO_FIELDS_MAX
    pseudo = tuple(headers[:count])
    line = _request_lines.get(pseudo)
    if line is None or (len(headers) > count and headers[count][0][:1] == b":"):
        count, line = _read_request_line(headers)
        if count == len(pseudo) and sum(map(len, line)) <= REQUEST_LINE_SIZE_MAX:
            if len(_request_lines) >= REQUEST_LINES_MAX:
                _request_lines.clear()
            _request_lines[pseudo] = line
    method, scheme, path, authority = line
    head = RequestHead(method, scheme, path, authority, headers[count:])
    head.content_length = check_fields(head.fields)
    return head


def check_like(headers: Fields, before: Fields, head: RequestHead) -> RequestHead | None:
    """check_request() of a request like an earlier one of the connection, with these fields and this head:
    gRPC's clients change a time limit and an id. None if it differs in more than the values of fields that
    may have any: check_request() decides then."""
    if len(headers) != len(before):
        return None
    changed = []
    # The decoder makes a field once: the same field of two requests is nearly always one object.
    for field, own in zip(headers, before, strict=True):
        if field is not own:
            name, value = field
            if name != own[0] or name not in _sound_names:
                return None
            if not value.isalnum() and not _is_sound_value(value):
                return None
            changed.append(field)
    count = len(headers) - len(head.fields)
    found = RequestHead(head.method, head.scheme, head.path, head.authority, headers[count:])
    found.content_length, found.before, found.changed = head.content_length, head.cache, changed
    return found


def _read_request_line(headers: Fields) -> tuple[int, _RequestLine]:
    """How many pseudo-header fields there are, and their values."""
    method = scheme = path = authority = None
    count = 0
    for name, value in headers:
        if name[:1] != b":":
            break
        count += 1
        if name == b":path" and path is None:
            path = value
        elif name == b":method" and method is None:
            method = value
        elif name == b":scheme" and scheme is None:
            scheme = value
        elif name == b":authority" and authority is None:
            authority = value
        else:
            raise malformed("a pseudo-header field is unknown or duplicate")
        _check_value(value)
    if not method or not scheme or not path:
        raise malformed(":method, :scheme or :path is missing")
    return count, (method, scheme, path, authority or b"")


def check_response(headers: Fields) -> ResponseHead:
    if not headers or headers[0][0] != b":status":
        raise malformed(":status is missing or not first")
    status = headers[0][1]
    if len(status) != 3 or not status.isdigit():
        raise malformed(":status is not three digits")
    head = ResponseHead(int(status), headers[1:])
    head.content_length = check_fields(head.fields)
    return head


def check_fields(fields: Fields) -> int:
    """Checks all fields but pseudo-header fields; returns content-length, or -1 if there is none."""
    length = -1
    for field in fields:
        if field in _sound:
            continue
        name, value = field
        if name not in _sound_names:
            if name == b"content-length":
                length = _content_length(value, length)
                continue
            _check_name(name, value)
        if not value.isalnum():
            _check_value(value)
        if len(name) + len(value) <= SOUND_FIELD_SIZE_MAX:
            if len(_sound) >= SOUND_FIELDS_MAX:
                _sound.clear()
            _sound.add(field)
    return length


def _check_name(name: bytes, value: bytes) -> None:
    """Remembers a name that is sound with any value."""
    if not _NAME.fullmatch(name):
        raise malformed("a field's name is not a lower-case token, or a pseudo-header field is misplaced")
    if name in _CONNECTION_SPECIFIC or (name == b"te" and value != b"trailers"):
        raise malformed(f"{name.decode()} is connection-specific")
    if name != b"te" and len(name) <= SOUND_FIELD_SIZE_MAX:
        if len(_sound_names) >= SOUND_FIELDS_MAX:
            _sound_names.clear()
        _sound_names.add(name)


def _check_value(value: bytes) -> None:
    if not _is_sound_value(value):
        raise malformed("a field's value has a forbidden character")


def _is_sound_value(value: bytes) -> bool:
    return len(value.translate(None, _FORBIDDEN)) == len(value) and value.strip(_BLANKS) == value


def _content_length(value: bytes, before: int) -> int:
    if not value.isdigit() or len(value) > 18 or before not in {-1, int(value)}:
        raise malformed("content-length is not one number")
    return int(value)


def malformed(reason: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, reason)
