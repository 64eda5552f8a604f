"""A request's header list as gRPC reads it. Equal lists of a connection share a RequestHead, which keeps the
result: so it is made once.
"""

from __future__ import annotations

from typing import Any, Final

from trovemq_rpc.http2.headers import RequestHead
from trovemq_rpc.server.method import Method
from trovemq_rpc.wire.compression import ACCEPTED, is_accepted
from trovemq_rpc.wire.deadline import decode_timeout
from trovemq_rpc.wire.metadata import Pair, decode_metadata
from trovemq_rpc.wire.status import StatusCode

_READ: Final = frozenset((b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))


class CallHead:
    """The headers of a call. `note`: for the handlers, a result of theirs that holds for all calls with these
    headers on this connection."""

    __slots__ = (
        "_fields",
        "_first",
        "_metadata",
        "_path",
        "accepts",
        "encoding",
        "method",
        "not_grpc",
        "note",
        "refusal",
        "timeout",
    )

    def __init__(self, head: RequestHead, method: Method | None) -> None:
        # Not the head itself, which keeps this: a cycle would wait for the garbage collector.
        self._fields = head.fields
        self._path = head.path
        self.method = method
        self.timeout = -1.0
        self.encoding = b"identity"
        self.accepts = b""
        self.not_grpc = True
        self.refusal: tuple[StatusCode, str] | None = None
        self._metadata: tuple[Pair, ...] | None = None
        self._first: dict[str, str | None] = {}
        self.note: Any = None

    @property
    def path(self) -> str:
        return self._path.decode("utf-8", "replace")

    @property
    def metadata(self) -> tuple[Pair, ...]:
        if self._metadata is None:
            self._metadata = decode_metadata(self._fields)
        return self._metadata

    def first(self, key: str) -> str | None:
        """The first value of a key whose values are texts, without decoding all metadata."""
        if key not in self._first:
            name = key.encode()
            found = (value.decode("latin-1") for own, value in self._fields if own == name)
            self._first[key] = next(found, None)
        return self._first[key]

    def like(self, head: RequestHead) -> CallHead | None:
        """The CallHead of a request whose headers differ from this one's only in `head.changed`, without
        the `note`. None: such a field changes more than the timeout."""
        if self.not_grpc or self.refusal is not None:
            return None
        call = CallHead(head, self.method)
        call.timeout = self.timeout
        for name, _ in head.changed:
            if name == b"grpc-timeout":
                last = next(own for own in reversed(head.fields) if own[0] == name)
                try:
                    call.timeout = decode_timeout(last[1])
                except ValueError:
                    return None
            elif name in _READ:
                return None
        call.encoding, call.accepts, call.not_grpc = self.encoding, self.accepts, False
        if self._first:
            changed = {name.decode("latin-1") for name, _ in head.changed}
            call._first = {key: value for key, value in self._first.items() if key not in changed}
        return call


def read_head(head: RequestHead, method: Method | None, accepted: bytes = ACCEPTED) -> CallHead:
    """`accepted`: the encodings that the server takes, as grpc-accept-encoding lists them."""
    before: CallHead | None = head.before
    alike = None if before is None else before.like(head)
    head.before, head.changed = None, []  # a head that is kept does not keep the one before
    if alike is not None:
        return alike
    call = CallHead(head, method)
    for name, value in head.fields:
        if name not in _READ:
            continue
        if name == b"content-type":
            call.not_grpc = value[:16] != b"application/grpc" or value[16:17] not in {b"", b"+", b";"}
        elif name == b"grpc-timeout":
            try:
                call.timeout = decode_timeout(value)
            except ValueError as error:
                call.refusal = (StatusCode.INTERNAL, str(error))
        elif name == b"grpc-encoding":
            call.encoding = value
        elif name == b"grpc-accept-encoding":
            call.accepts = value
    if head.method != b"POST":
        call.not_grpc = True
    if call.refusal is None and method is None:
        call.refusal = (StatusCode.UNIMPLEMENTED, "Method not found!")
    if call.encoding != b"identity" and call.refusal is None and not is_accepted(call.encoding, accepted):
        unknown = call.encoding[:64].decode("ascii", "replace")
        call.refusal = (StatusCode.UNIMPLEMENTED, f"grpc-encoding {unknown} is not supported")
    return call
