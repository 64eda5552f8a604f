"""The answers of a call: headers, messages, trailers. Header blocks that most calls share are encoded once.

| answer | frames |
| --- | --- |
| unary | HEADERS, DATA with prefix and message, HEADERS with the status (one piece of output if it fits) |
| stream | HEADERS with the first message or before it, DATA for each message, HEADERS with the status |
| failure before any of these | HEADERS with the status ("Trailers-Only") |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.headers import Field, list_size
from trovemq_rpc.http2.streams import Buffer, Stream
from trovemq_rpc.server.call_endpoint import CallEndpoint
from trovemq_rpc.server.head import CallHead
from trovemq_rpc.server.method import Method
from trovemq_rpc.upkeep import OUTPUT_UNCOUNTED
from trovemq_rpc.wire.compression import compress, encoding_of
from trovemq_rpc.wire.framing import PREFIX_SIZE, pack_prefix
from trovemq_rpc.wire.metadata import MetadataLike, encode_metadata, too_large_metadata
from trovemq_rpc.wire.status import StatusCode, encode_message

_HEAD_FIELDS: Final[list[Field]] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
HEAD: Final = Connection.encode(_HEAD_FIELDS)
TRAILERS_OK: Final = Connection.encode([(b"grpc-status", b"0")])
HEAD_SIZE_MAX: Final = 16_384  # of a block in one frame: every peer takes frames of this size
DETAILS_SIZE_SHORT: Final = 128  # a line of a status' text, where the trailers are too large for the client


class Outgoing:
    """The sending half of ServerCall."""

    endpoint: CallEndpoint
    stream: Stream
    method: Method
    head: CallHead
    over: bool
    _code: StatusCode | None
    _details: str

    headers_sent = False
    _initial: list[Field] | None = None
    _trailing: MetadataLike = ()
    _compression: Any = None
    _skip_compression = False

    # --- metadata and compression -----------------------------------------------------------------------
    def set_initial_metadata(self, metadata: MetadataLike) -> None:
        self._initial = encode_metadata(metadata)

    def set_trailing_metadata(self, trailing_metadata: MetadataLike) -> None:
        encode_metadata(trailing_metadata)  # errors show here, not at the end
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> MetadataLike:
        return self._trailing

    def set_compression(self, compression: Any) -> None:
        self._compression = compression

    def disable_next_message_compression(self) -> None:
        self._skip_compression = True

    def _encoding(self) -> bytes:
        """The compression of this call's messages: our choice, where the client accepts it."""
        choice = self._compression if self._compression is not None else self.endpoint.compression
        encoding = encoding_of(choice)
        return encoding if encoding in self.head.accepts.replace(b" ", b"").split(b",") else b"identity"

    def _head_block(self) -> bytes:
        if self._initial is None and self._compression is None and self.endpoint.compression is None:
            return HEAD
        return Connection.encode(self._head_fields())

    def _head_fields(self) -> list[Field]:
        if self._initial is None and self._compression is None and self.endpoint.compression is None:
            return _HEAD_FIELDS
        fields = list(_HEAD_FIELDS)
        encoding = self._encoding()
        if encoding != b"identity":
            fields.append((b"grpc-encoding", encoding))
        fields.append((b"grpc-accept-encoding", self.endpoint.options.accepted_encodings))
        return fields + (self._initial or [])

    # --- messages ---------------------------------------------------------------------------------------
    def send_headers(self: Any) -> None:
        """The response's headers, now rather than with the first message."""
        if not self.headers_sent and not self.over:
            if self._initial and (excess := self._excess(self._head_fields())):
                self.refuse(StatusCode.RESOURCE_EXHAUSTED, excess)
                return
            self.headers_sent = True
            self.endpoint.connection.send_headers(self.stream, self._head_block())
            self.endpoint.flush_soon()

    def _frame(self, message: Any) -> tuple[int, Sequence[Buffer], int]:
        """A response as its compressed flag, its buffers and their size."""
        if (
            type(message) is bytes
            and self.method.passes_bytes
            and self._compression is None
            and self.endpoint.compression is None
        ):
            return 0, (message,), len(message)
        serialize = self.method.serialize
        if serialize is not None:
            message = serialize(message)
        pieces: list[Buffer] = message if isinstance(message, list) else [message]
        flag = 0
        if self._compression is not None or self.endpoint.compression is not None:
            encoding = self._encoding()
            if encoding != b"identity" and not self._skip_compression:
                pieces = [compress(encoding, b"".join(pieces))]
                flag = 1
            self._skip_compression = False
        return flag, pieces, len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))

    def send(self: Any, message: Any) -> None:
        """Sends a response of a stream without waiting: if the client takes no more now, it is held back."""
        endpoint = self.endpoint
        flag, pieces, size = self._frame(message)
        if 0 <= endpoint.options.send_size_max < size:
            self._refuse_response(size)
            return
        if not self.headers_sent:
            self.send_headers()
        if self.over:
            return
        connection = endpoint.connection
        connection.send_data(self.stream, (pack_prefix(flag, size), *pieces), size + PREFIX_SIZE)
        if size > OUTPUT_UNCOUNTED or connection.held_back > endpoint.output_held + OUTPUT_UNCOUNTED:
            endpoint.count_output()
        if not endpoint.gathering:
            endpoint.flush_soon()

    def _refuse_response(self: Any, size: int) -> None:
        limit = self.endpoint.options.send_size_max
        self.finish(StatusCode.RESOURCE_EXHAUSTED, f"a response of {size} bytes; at most {limit}")
        self.stop_work()

    def reply(self: Any, message: Any = b"") -> None:
        """Answers a unary call, with status OK. Without a serializer the message is bytes or a list of
        buffers.
        """
        if self.over:
            return
        flag, pieces, size = self._frame(message)
        if 0 <= self.endpoint.options.send_size_max < size:
            self._refuse_response(size)
            return
        self._answer(flag, pack_prefix(flag, size), pieces, size)

    def reply_all(self: Any, messages: Iterable[Any]) -> None:
        """All responses of a stream that has sent none yet, and OK: one piece of output where they fit."""
        if self.over:
            return
        flags = 0
        framed: list[Buffer] = []
        for message in messages:
            flag, pieces, size = self._frame(message)
            if 0 <= self.endpoint.options.send_size_max < size:
                self._refuse_response(size)
                return
            flags |= flag
            framed += (pack_prefix(flag, size), *pieces)
        body = b"".join(framed)
        self._answer(flags, b"", [body], len(body))

    def _answer(self: Any, flag: int, prefix: bytes, pieces: Sequence[Buffer], size: int) -> None:
        """The body of one message or of several: a prefix, and pieces of `size` bytes. The call is over."""
        if (self._initial or self._trailing) and (excess := self._metadata_excess()):
            self.finish(StatusCode.RESOURCE_EXHAUSTED, excess)
            return
        head = HEAD if self._initial is None and not flag else self._head_block()
        trailers = TRAILERS_OK
        if self._trailing:
            trailers = Connection.encode(_trailers(StatusCode.OK, "", self._trailing))
        endpoint = self.endpoint
        connection = endpoint.connection
        if self.headers_sent or len(pieces) != 1 or len(head) + len(trailers) > HEAD_SIZE_MAX:
            self.send_headers()
            connection.send_data(self.stream, (prefix, *pieces), len(prefix) + size)
            connection.send_headers(self.stream, trailers, True)
        else:
            connection.send_answer(self.stream, head, (prefix, pieces[0]), trailers)
        if size > OUTPUT_UNCOUNTED or connection.held_back > endpoint.output_held + OUTPUT_UNCOUNTED:
            endpoint.count_output()
        self.end("OK")
        endpoint.flush_answer()

    def finish(self: Any, code: StatusCode, details: str = "") -> None:
        """Ends the call with a status. If nothing was sent yet, headers and trailers are one block."""
        if self.over:
            return
        block = TRAILERS_OK
        if not self.headers_sent or code is not StatusCode.OK or details or self._trailing:
            code, fields = self._ending(code, details)
            block = Connection.encode(fields)
        self.endpoint.connection.send_headers(self.stream, block, True)
        self.endpoint.flush_soon()
        self.end(code.name)

    # --- the client's limits -----------------------------------------------------------------------------
    def _excess(self, fields: list[Field]) -> str:
        """Why the client would not take this header list; "" if it does."""
        size, limit = list_size(fields), self.endpoint.connection.peer_header_list_size_max
        return too_large_metadata(size, limit) if size > limit else ""

    def _metadata_excess(self) -> str:
        """The same for the headers and trailers of an answer."""
        head = "" if self.headers_sent else self._excess(self._head_fields())
        return head or self._excess(_trailers(StatusCode.OK, "", self._trailing))

    def _ending(self, code: StatusCode, details: str) -> tuple[StatusCode, list[Field]]:
        """The trailers, with the headers if these were not sent. If that is too much for the client, they
        become the status and a short text, and an OK becomes RESOURCE_EXHAUSTED: its metadata is missing.
        """
        opening = [] if self.headers_sent else _HEAD_FIELDS
        initial = [] if self.headers_sent else self._initial or []
        fields = opening + initial + _trailers(code, details, self._trailing)
        if excess := self._excess(fields):
            if code is StatusCode.OK:
                code, details = StatusCode.RESOURCE_EXHAUSTED, excess
            for text in (details[:DETAILS_SIZE_SHORT], ""):
                fields = opening + _trailers(code, text, ())
                if not self._excess(fields):
                    break
        return code, fields


def _trailers(code: StatusCode, details: str, metadata: MetadataLike) -> list[Field]:
    fields = [(b"grpc-status", b"%d" % code.value[0])]
    if details:
        fields.append((b"grpc-message", encode_message(details)))
    return fields + encode_metadata(metadata)
