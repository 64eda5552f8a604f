"""Header blocks (RFC 9113 sections 4.3, 6.2, 6.10): those that open a stream or a response, and trailers.

The payload of HEADERS; CONTINUATION has a part of the block and nothing else:

| size | field | where |
| --- | --- | --- |
| 1 | length of the padding | the flag PADDED is set |
| 4 | a bit (exclusive), 31 bits: the stream on which this one depends | the flag PRIORITY is set |
| 1 | weight | the same |
| the rest | a part of the header block (RFC 7541) | always |
| the padding | zeros | the flag PADDED is set |

A block is complete with the frame that has END_HEADERS. Until then no other frame may come on the connection.
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import END_HEADERS, END_STREAM, PADDED, PRIORITY_FLAG, ErrorCode
from trovemq_rpc.http2.control import ControlFrames
from trovemq_rpc.http2.errors import ConnectionFault, StreamFault
from trovemq_rpc.http2.headers import (
    Fields,
    RequestHead,
    ResponseHead,
    check_fields,
    check_like,
    check_request,
    check_response,
    malformed,
)
from trovemq_rpc.http2.hpack import HeaderBomb, HeaderListTooLarge, HpackError
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.http2.state import DEFAULT_LIMITS, RESET_BY_PEER, RESET_BY_US
from trovemq_rpc.http2.streams import AFTER_RECEIVED_END, CLOSED, MAY_RECEIVE, OPEN, Buffer, Stream

LAST_HEAD_SIZE_MAX: Final = 2_048
"""Bytes of a header list that a connection keeps for the next one to be compared with."""
HEADS_MAX: Final = 256  # checked heads that a connection keeps: more than clients have methods


class HeaderBlocks(ControlFrames):
    """The header blocks before and after the data of a stream."""

    def __init__(self, client_side: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(client_side, limits)
        # A header block of which CONTINUATION frames are still to come
        self._block_stream_id = 0
        self._block_flags = 0
        self._block_parts: list[bytes] = []
        self._block_size = 0
        self._block_self = False
        # Heads by the identity of the field list, which the decoder shares between equal blocks
        self._heads: dict[int, tuple[Fields, RequestHead | ResponseHead | None]] = {}
        # The last sound request whose fields are not shared
        self._last_head: tuple[Fields, RequestHead] | None = None

    def _headers(self, payload: memoryview, flags: int, stream_id: int) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & PADDED:
            payload = unpadded(payload, flags)
        depends_on_itself = False
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            depends_on_itself = frames.U32.unpack_from(payload)[0] & 0x7FFFFFFF == stream_id
            payload = payload[5:]
        if flags & END_HEADERS:
            self._header_block(stream_id, payload, flags, depends_on_itself)
            return
        self._block_stream_id = stream_id
        self._block_flags = flags
        self._block_parts = [bytes(payload)]
        self._block_size = len(payload)
        self._block_self = depends_on_itself

    def _continuation(self, payload: memoryview, flags: int, stream_id: int) -> None:
        if not self._block_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block_parts.append(bytes(payload))
        self._block_size += len(payload)
        limits = self.limits
        if (
            self._block_size > limits.header_block_size_max
            or len(self._block_parts) > limits.continuations_max
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without an end")
        if flags & END_HEADERS:
            block = b"".join(self._block_parts)
            self._block_parts = []
            self._block_stream_id = 0
            self._header_block(stream_id, block, self._block_flags, self._block_self)

    def _header_block(self, stream_id: int, block: Buffer, flags: int, depends_on_itself: bool) -> None:
        """A whole block. It is decoded even if it is not wanted: all blocks share a table (section 4.3)."""
        if len(block) > self.limits.header_block_size_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {len(block)} bytes")
        fields: Fields | None
        try:
            fields = self.decoder.decode(bytes(block))
        except HeaderListTooLarge:
            fields = None
        except HeaderBomb:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header bomb") from None
        except HpackError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        self.work_beside += self.decoder.work
        stream = self.streams.get(stream_id)
        ended = bool(flags & END_STREAM)
        if stream is None:
            stream = self._open(stream_id, depends_on_itself)
            if stream is None:
                return
        if not MAY_RECEIVE[stream.state]:
            self._stream_fault(stream, StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM"))
            return
        try:
            if stream.got_headers:
                self._trailers(stream, fields, ended)
            elif fields is None:
                stream.got_headers = True
                if ended:
                    self._received_end(stream)
                self.events.append((ev.TOO_LARGE, stream, None, ended))
            else:
                self._head(stream, fields, ended)
        except StreamFault as fault:
            self._stream_fault(stream, fault, seen=stream.got_headers or self.client_side)

    def _open(self, stream_id: int, depends_on_itself: bool) -> Stream | None:
        """HEADERS for a stream that does not exist: the server opens it, if that is allowed."""
        if self.client_side or stream_id <= self.last_peer_stream_id:
            self._headers_without_stream(stream_id)
            return None
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client's stream id is even")
        self.last_peer_stream_id = stream_id
        if self.goaway_sent is not None and stream_id > self.goaway_sent:
            return None
        stream = self.new_stream(stream_id, OPEN)
        if len(self.streams) + self.lingering > self.limits.concurrent_streams_max:
            self.allowances.resets.take()
            self.reset(stream, ErrorCode.REFUSED_STREAM)
            return None
        if depends_on_itself:
            self._stream_fault(stream, malformed("a stream depends on itself"), seen=False)
            return None
        return stream

    def _head(self, stream: Stream, fields: Fields, ended: bool) -> None:
        known = self._heads.get(id(fields))
        head: RequestHead | ResponseHead
        if known is not None and known[0] is fields and known[1] is not None:
            head = known[1]
        else:
            head = check_response(fields) if self.client_side else self._request_head(fields)
            self._remember(fields, head)
        if self.client_side and 100 <= head.status < 200:  # type: ignore[union-attr]
            if ended:
                raise malformed("an informational response ends the stream")
            self.allowances.empty_data.take()
            return
        length = head.content_length
        if length >= 0:
            if ended and length:
                raise malformed("content-length without content")
            stream.body_missing = length
        stream.got_headers = True
        if ended:
            self._received_end(stream)
        self.events.append((ev.HEADERS, stream, head, ended))

    def _request_head(self, fields: Fields) -> RequestHead:
        head = None if self._last_head is None else check_like(fields, *self._last_head)
        if head is None:
            head = check_request(fields)
        if not self.decoder.shared:
            is_small = self.decoder.list_size <= LAST_HEAD_SIZE_MAX
            self._last_head = (fields, head) if is_small else None
        return head

    def _remember(self, fields: Fields, head: RequestHead | ResponseHead | None) -> None:
        """Keeps the head of a list that was found sound. The list is kept, too, so that no other list gets
        its id.
        """
        if not self.decoder.shared:
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[id(fields)] = (fields, head)

    def _trailers(self, stream: Stream, fields: Fields | None, ended: bool) -> None:
        if not ended:
            raise malformed("a second header block without END_STREAM")
        if fields is not None:
            known = self._heads.get(id(fields))
            if known is None or known[0] is not fields:
                check_fields(fields)
                self._remember(fields, None)
        if stream.body_missing > 0:
            raise malformed("content-length is not the length of the content")
        self._received_end(stream)
        if fields is None:
            self.events.append((ev.TOO_LARGE, stream, None, True))
        else:
            self.events.append((ev.TRAILERS, stream, fields, True))

    def _headers_without_stream(self, stream_id: int) -> None:
        if self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on an idle stream")
        if self._closed.get(stream_id) == RESET_BY_PEER:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that its sender reset")
        self._on_closed(stream_id, "HEADERS")

    def _received_end(self, stream: Stream) -> None:
        state = AFTER_RECEIVED_END[stream.state]
        stream.state = state
        if state == CLOSED:
            del self.streams[stream.id]

    def _on_closed(self, stream_id: int, frame: str) -> None:
        how = self._closed.get(stream_id)
        if how == RESET_BY_US or (self.goaway_sent is not None and stream_id > self.goaway_sent):
            return
        if how == RESET_BY_PEER or stream_id <= self._forgotten:
            self.allowances.resets.take()
            self.write(frames.rst_stream(stream_id, ErrorCode.STREAM_CLOSED))
            return
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{frame} on a closed stream")


def unpadded(payload: memoryview, flags: int) -> memoryview:
    """Sections 6.1 and 6.2: a length, the content, as many bytes of padding."""
    if not payload or payload[0] >= len(payload):
        code = ErrorCode.PROTOCOL_ERROR if payload else ErrorCode.FRAME_SIZE_ERROR
        raise ConnectionFault(code, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]
