"""The answers to peers and requests that begin no call.

| from the peer | answer |
| --- | --- |
| HTTP/1.1 | status 505 in HTTP/1.1, and the end of the connection |
| TLS on a port without it | the end of the connection |
| a request that is not POST with content-type application/grpc | status 415, when the request is complete |
| a call of an unknown method or compression | UNIMPLEMENTED, at once |
| a call with too much metadata, or above a limit of calls | RESOURCE_EXHAUSTED, at once |
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.endpoint import Endpoint
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.headers import Field
from trovemq_rpc.http2.streams import Stream
from trovemq_rpc.wire.status import StatusCode, encode_message

TLS_HANDSHAKE: Final = b"\x16\x03"
"""The first bytes of a TLS record that begins a handshake (RFC 8446 section 5.1)."""
HTTP_1: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN")
HTTP_1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\ncontent-length: 39\r\n"
    b"connection: close\r\n\r\nThis server speaks gRPC (HTTP/2) only.\n"
)
NOT_GRPC_BODY: Final = b"This server speaks gRPC: POST with content-type application/grpc.\n"
_NOT_GRPC: Final = Connection.encode(
    [
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", b"%d" % len(NOT_GRPC_BODY)),
    ]
)


def refusal_fields(code: StatusCode, details: str, accepted_encodings: bytes) -> list[Field]:
    """A status without a call: headers and trailers in one block."""
    fields = [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"%d" % code.value[0]),
        (b"grpc-message", encode_message(details)),
    ]
    if code is StatusCode.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", accepted_encodings))
    return fields


class Refused:
    """The owner of a stream that was refused: its later frames are dropped."""

    receiver = None

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def on_data(self, data: memoryview, _ended: bool) -> None:
        self.endpoint.to_acknowledge += len(data)

    def on_reset(self) -> None:
        """Nothing continues."""

    def on_writable(self) -> None:
        """Nothing waits."""


class NotGrpc(Refused):
    """The owner of a stream whose request is not gRPC: it is answered when it is complete."""

    def __init__(self, endpoint: Endpoint, stream: Stream) -> None:
        super().__init__(endpoint)
        self.stream = stream

    def on_data(self, data: memoryview, ended: bool) -> None:
        super().on_data(data, ended)
        connection = self.endpoint.connection
        if ended:
            connection.send_headers(self.stream, _NOT_GRPC)
            connection.send_data(self.stream, (NOT_GRPC_BODY,), len(NOT_GRPC_BODY), True)
        else:
            connection.set_stream_window(self.stream, connection.limits.stream_window)
