"""A response's header list as gRPC reads it (gRPC over HTTP/2, "Responses")."""

from __future__ import annotations

from trovemq_rpc.http2.headers import Fields, ResponseHead
from trovemq_rpc.wire.compression import is_known
from trovemq_rpc.wire.metadata import Metadata, Pair, decode_metadata
from trovemq_rpc.wire.status import StatusCode, decode_message, status_of_field, status_of_http


class ResponseInfo:
    """The headers of a response; parsed once for equal lists."""

    __slots__ = ("_fields", "_metadata", "encoding", "failure")

    def __init__(self, head: ResponseHead) -> None:
        self._fields = head.fields
        self._metadata: tuple[Pair, ...] | None = None
        self.encoding = b"identity"
        self.failure: tuple[StatusCode, str] | None = None
        content_type = b""
        for name, value in head.fields:
            if name == b"content-type":
                content_type = value
            elif name == b"grpc-encoding":
                self.encoding = value
        if head.status != 200:
            code = status_of_http(head.status)
            self.failure = (code, f"Received http2 header with status: {head.status}")
        elif not content_type.startswith(b"application/grpc"):
            text = content_type.decode("latin-1")
            self.failure = (StatusCode.UNKNOWN, f"the response's content-type is {text!r}, not gRPC's")
        elif not is_known(self.encoding):
            self.failure = (StatusCode.INTERNAL, "the response's grpc-encoding is unknown")

    @property
    def metadata(self) -> Metadata:
        if self._metadata is None:
            self._metadata = decode_metadata(self._fields)
        return Metadata(*self._metadata)


def read_trailers(fields: Fields) -> tuple[StatusCode | None, str]:
    """Status and message; None where there is no status."""
    code: StatusCode | None = None
    details = ""
    for name, value in fields:
        if name == b"grpc-status":
            code = status_of_field(value)
        elif name == b"grpc-message":
            details = decode_message(value)
    return code, details
