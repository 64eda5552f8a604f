"""The bytes of a peer become events: one loop over all frames of a read (RFC 9113 sections 4 to 6).

The table has the meaning of a frame in each state of its stream (section 5.1). A "fault" is a connection
error: it ends the connection. A "reset" is a stream error: it ends the stream. The last three columns are
closed streams: reset by us, reset by the peer, or ended by both sides.

| frame | idle | open, half-closed (local) | half-closed (remote) | reset by us | by the peer | ended |
| --- | --- | --- | --- | --- | --- | --- |
| DATA | fault PROTOCOL_ERROR | event | reset STREAM_CLOSED | ignored | reset | fault STREAM_CLOSED |
| HEADERS | opens (server) | trailers | reset STREAM_CLOSED | ignored | fault | fault STREAM_CLOSED |
| RST_STREAM | fault PROTOCOL_ERROR | event | event | ignored | ignored | ignored |
| WINDOW_UPDATE | fault PROTOCOL_ERROR | applied | applied | ignored | ignored | ignored |
| PRIORITY | ignored | ignored | ignored | ignored | ignored | ignored |

All bytes of DATA count against the connection's window. Bytes that become no event are acknowledged here.
Streams that were reset are remembered for a while (`Limits.reset_memory`). A late frame of one that is
forgotten gets a reset, never a fault.
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    SETTINGS,
    ErrorCode,
)
from trovemq_rpc.http2.errors import ConnectionFault, StreamFault
from trovemq_rpc.http2.header_blocks import HeaderBlocks, unpadded
from trovemq_rpc.http2.headers import (
    malformed,
)
from trovemq_rpc.http2.limits import Limits
from trovemq_rpc.http2.state import DEFAULT_LIMITS
from trovemq_rpc.http2.streams import MAY_RECEIVE, Stream

PARTIAL_SIZE_MIN: Final = 8_192  # a DATA frame above this is delivered in parts, as they arrive
WORK_UNLIMITED: Final = 1 << 62  # more than any read
FRAME_WORK: Final = 2  # units of `parse`; a unit takes about half a microsecond (no benchmark)
PLAIN_HEADERS_MASK: Final = PADDED | PRIORITY_FLAG | END_HEADERS

_unpack_header = frames.FRAME_HEADER.unpack_from


class Receiving(HeaderBlocks):
    """The half that reads."""

    def __init__(self, client_side: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(client_side, limits)
        self._preface_rest = b"" if self.client_side else PREFACE
        self.got_settings = False
        self._tail = b""
        self.stopped = False  # the last `parse` had done its work, though more frames may follow
        self.work_remaining = 0  # of the last `parse`
        # A DATA frame of which a part is still to come
        self._data_missing = 0
        self._data_stream_id = 0
        self._data_ended = False

    # --- bytes in ---------------------------------------------------------------------------------------
    def receive(self, data: bytes) -> list[ev.Event]:
        """All events of these bytes; an incomplete frame is kept for the next call."""
        data = self._tail + data if self._tail else data
        used = self.parse(memoryview(data))
        self._tail = data[used:]
        return self.take_events()

    def take_events(self) -> list[ev.Event]:
        events = self.events
        self.events = []
        return events

    def parse(self, data: memoryview, work_max: int = WORK_UNLIMITED) -> int:
        """Reads the complete frames and returns how many bytes they are. The caller passes the other bytes
        again, with those that follow.

        It stops after `work_max` units of work (`stopped`, `work_remaining`): two a frame, and more for a
        header block that is not cached (`Decoder.work`) and for SETTINGS that change the windows of many
        streams. A violation of the protocol becomes the event FAULT, and GOAWAY is among the output. All
        bytes after it are ignored.
        """
        self.stopped = False
        self.work_remaining = work_max
        if self.failed:
            return len(data)
        try:
            position = 0
            if self._preface_rest or not self.got_settings:
                position = self._begin(data)
                if position < 0:
                    return 0
            return self._frames(data, position, work_max)
        except ConnectionFault as fault:
            fault.__context__ = None  # its frames, too, hold the event that would hold them
            self.fail(fault.with_traceback(None))
            return len(data)

    def fail(self, fault: ConnectionFault) -> None:
        """Ends the connection (section 5.4.1)."""
        if not self.failed:
            self.failed = True
            self.goaway(fault.code, fault.reason.encode())
            self.events.append((ev.FAULT, None, fault, True))

    def _begin(self, data: memoryview) -> int:
        """The peer's preface (section 3.4): the client's magic, then SETTINGS. Returns -1 if it is
        incomplete.
        """
        magic = self._preface_rest
        if magic:
            if data[: len(magic)] != magic[: len(data)]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection's preface is not HTTP/2's")
            if len(data) < len(magic):
                return -1
        at = len(magic)
        if len(data) < at + 9:
            return -1
        high, low, kind, flags, _stream_id = _unpack_header(data, at)
        if kind != SETTINGS or flags & 1 or high:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if len(data) < at + 9 + low and low <= self.limits.frame_size_max:
            return -1
        self._preface_rest = b""
        self.got_settings = True
        return at

    def _frames(self, data: memoryview, position: int, work_remaining: int) -> int:  # noqa: C901, PLR0912 - one loop per frame
        size = len(data)
        streams = self.streams
        events = self.events
        frame_size_max = self.limits.frame_size_max
        if self._data_missing:
            position = self._data_rest(data)
        while size - position >= 9:
            if work_remaining <= 0:
                self.stopped = True
                break
            work_remaining -= FRAME_WORK
            high, low, kind, flags, stream_id = _unpack_header(data, position)
            length = high << 16 | low
            stream_id &= 0x7FFFFFFF
            start = position + 9
            end = start + length
            if length > frame_size_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if self._block_stream_id and (kind != CONTINUATION or stream_id != self._block_stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame inside of a header block")
            if kind == DATA:
                if end > size:
                    if flags & PADDED or length < PARTIAL_SIZE_MIN:
                        break
                    self._data_part(data[start:size], length, flags, stream_id)
                    return size
                stream = streams.get(stream_id)
                if (
                    stream is not None
                    and stream.got_headers
                    and stream.body_missing < 0
                    and MAY_RECEIVE[stream.state]
                    and 0 < length <= stream.receive_window
                    and length <= self.receive_window
                    and not flags & PADDED
                ):
                    self.receive_window -= length
                    stream.receive_window -= length
                    if flags & END_STREAM:
                        self._received_end(stream)
                    events.append((ev.DATA, stream, data[start:end], flags & END_STREAM != 0))
                else:
                    self._whole_data(data[start:end], flags, stream_id)
            elif end > size:
                break
            elif kind == HEADERS:
                if flags & PLAIN_HEADERS_MASK == END_HEADERS and stream_id:
                    self._header_block(stream_id, data[start:end], flags, False)
                else:
                    self._headers(data[start:end], flags, stream_id)
            elif kind == CONTINUATION:
                self._continuation(data[start:end], flags, stream_id)
            else:
                self._control(kind, data[start:end], flags, stream_id)
            if self.work_beside:
                work_remaining -= self.work_beside
                self.work_beside = 0
            position = end
        self.work_remaining = work_remaining
        return position

    # --- DATA (section 6.1) -----------------------------------------------------------------------------
    def _account(self, stream: Stream, length: int, flags: int) -> bool:
        """Counts DATA against the windows and content-length; False where that reset the stream."""
        self.receive_window -= length
        stream.receive_window -= length
        if self.receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
        if stream.receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"more than the window of stream {stream.id}")
        if stream.body_missing >= 0:
            stream.body_missing -= length
            if stream.body_missing < 0 or (flags & END_STREAM and stream.body_missing):
                self.acknowledge(length)
                self._stream_fault(stream, malformed("content-length is not the length of the content"))
                return False
        return True

    def _data(self, stream_id: int, payload: memoryview, length: int, ended: bool) -> None:
        """DATA, also a part of a frame: `payload` is the content of `length` bytes of the window."""
        stream = self.streams.get(stream_id)
        if stream is None or not MAY_RECEIVE[stream.state] or not stream.got_headers:
            self._stray_data(stream_id, length)
            return
        padding = length - len(payload)
        if stream.body_missing >= 0:
            stream.body_missing += padding
        if not self._account(stream, length, END_STREAM if ended else 0):
            return
        if padding:
            self.acknowledge(padding)
            stream.receive_window += padding
            if not ended:
                self.write(frames.window_update(stream_id, padding))
        if ended:
            self._received_end(stream)
        elif not payload:
            self.allowances.empty_data.take()
            return
        self.events.append((ev.DATA, stream, payload, ended))

    def _whole_data(self, payload: memoryview, flags: int, stream_id: int) -> None:
        content = unpadded(payload, flags) if flags & PADDED else payload
        self._data(stream_id, content, len(payload), bool(flags & END_STREAM))

    def _data_part(self, part: memoryview, length: int, flags: int, stream_id: int) -> None:
        self._data_stream_id = stream_id
        self._data_missing = length - len(part)
        self._data_ended = bool(flags & END_STREAM)
        if part:
            self._data(stream_id, part, len(part), False)
        elif stream_id not in self.streams:
            self._stray_data(stream_id, 0)

    def _data_rest(self, data: memoryview) -> int:
        size = min(self._data_missing, len(data))
        if not size:
            return 0
        self._data_missing -= size
        self._data(self._data_stream_id, data[:size], size, self._data_ended and not self._data_missing)
        return size

    def _stray_data(self, stream_id: int, length: int) -> None:
        """DATA that no stream may receive: see the module's table."""
        stream = self.streams.get(stream_id)
        if not stream_id or self._is_idle(stream_id) or (stream is not None and not stream.got_headers):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on an idle stream")
        self.receive_window -= length
        if self.receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
        self.acknowledge(length)
        if stream is not None:
            self._stream_fault(stream, StreamFault(ErrorCode.STREAM_CLOSED, "DATA after END_STREAM"))
        else:
            self._on_closed(stream_id, "DATA")
