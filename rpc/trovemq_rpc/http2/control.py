"""Frames that carry no content (RFC 9113 sections 6.3 to 6.9).

| frame | section | on | payload: size and field |
| --- | --- | --- | --- |
| PRIORITY | 6.3 | a stream | 4: a bit, 31 bits of a stream id; 1: weight. It has no meaning any more |
| RST_STREAM | 6.4 | a stream | 4: error code |
| SETTINGS | 6.5 | the connection | 6 for each: 2 of identifier, 4 of value; empty where the flag ACK is set |
| PUSH_PROMISE | 6.6 | a stream | an error here: we switch push off |
| PING | 6.7 | the connection | 8: any bytes, which the answer (flag ACK) repeats |
| GOAWAY | 6.8 | the connection | 4: the last stream id; 4: error code; the rest: text |
| WINDOW_UPDATE | 6.9 | both | 4: a bit, 31 bits of increment, never 0 |

Each kind has an allowance (see limits.py): a peer that sends too many of it is sent away.
"""

from __future__ import annotations

from typing import Final

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import (
    ACK,
    FRAME_SIZE_DEFAULT,
    FRAME_SIZE_LIMIT,
    GOAWAY,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_LIMIT,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
)
from trovemq_rpc.http2.errors import ConnectionFault, StreamFault
from trovemq_rpc.http2.sending import Sending
from trovemq_rpc.http2.state import RESET_BY_PEER
from trovemq_rpc.http2.streams import CLOSED, Stream

SETTINGS_IN_A_FRAME_MAX: Final = 64  # there are six; a peer may know some more than we do
STREAMS_OF_WORK: Final = 32  # whose windows a SETTINGS frame changes: that costs about as much as a frame
UPDATES_A_STREAM: Final = 2
"""Frames that gRPC's C core, which most languages use, sends for a small answer: the stream's and the
connection's. Ten thousand calls a second are no flood."""
GOAWAY_TEXT_MAX: Final = 1_024  # kept of a peer's text: it is for people


class ControlFrames(Sending):
    """One method a frame type."""

    def _control(self, kind: int, payload: memoryview, flags: int, stream_id: int) -> None:
        if kind == WINDOW_UPDATE:
            self._window_update(payload, stream_id)
        elif kind == SETTINGS:
            self._settings(payload, flags, stream_id)
        elif kind == RST_STREAM:
            self._rst_stream(payload, stream_id)
        elif kind == PING:
            self._ping(payload, flags, stream_id)
        elif kind == GOAWAY:
            self._goaway(payload, stream_id)
        elif kind == PRIORITY:
            self._priority(payload, stream_id)
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE although push is switched off")
        else:
            self.allowances.unknown.take()  # section 5.5: ignored

    def _is_idle(self, stream_id: int) -> bool:
        """No HEADERS opened it yet, from either side; even ids never are."""
        if self.client_side:
            return not stream_id & 1 or stream_id >= self.next_stream_id
        return not stream_id & 1 or stream_id > self.last_peer_stream_id

    def _stream_fault(self, stream: Stream, fault: StreamFault, seen: bool = True) -> None:
        """Resets the stream. `seen`: the layer above knows it and gets an event. It costs as much allowance
        as a reset by the peer.
        """
        self.allowances.resets.take()
        if stream.state == CLOSED:
            self.write(frames.rst_stream(stream.id, fault.code))
        self.reset(stream, fault.code)
        if seen:
            self.events.append((ev.RESET, stream, int(fault.code), True))

    # --- SETTINGS (section 6.5) -------------------------------------------------------------------------
    def _settings(self, payload: memoryview, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self.allowances.settings.take()
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "acknowledged SETTINGS have a payload")
            self._settings_acknowledged()
            return
        if len(payload) % 6:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are not a multiple of six bytes")
        if len(payload) > 6 * SETTINGS_IN_A_FRAME_MAX:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings in a frame")
        window = self.peer_initial_window
        for identifier, value in frames.SETTING.iter_unpack(payload):
            if identifier == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_LIMIT:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
                window = value
            else:
                self._setting(identifier, value)
        if window != self.peer_initial_window:
            self._initial_window(window)
        self.write(frames.SETTINGS_ACK)
        self.events.append((ev.SETTINGS, None, None, False))
        self.drain()

    def _settings_acknowledged(self) -> None:
        surplus = self.initial_receive_window - self.limits.stream_window
        if surplus:
            self.initial_receive_window -= surplus
            for stream in self.streams.values():
                stream.receive_window -= surplus

    def _setting(self, identifier: int, value: int) -> None:
        if identifier == Setting.MAX_FRAME_SIZE:
            if not FRAME_SIZE_DEFAULT <= value <= FRAME_SIZE_LIMIT:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            self.peer_frame_size_max = value
        elif identifier == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_concurrent_streams_max = value
        elif identifier == Setting.MAX_HEADER_LIST_SIZE:
            self.peer_header_list_size_max = value
        elif identifier == Setting.ENABLE_PUSH and (value > 1 or (value and self.client_side)):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH out of range")

    def _initial_window(self, value: int) -> None:
        """Section 6.9.2: all streams' windows change by the difference, and may become negative. Of several
        values in a frame only the last is applied: each is work for all streams.
        """
        self.work_beside += len(self.streams) // STREAMS_OF_WORK
        difference = value - self.peer_initial_window
        self.peer_initial_window = value
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > WINDOW_LIMIT:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window above 2^31-1")
            if stream.pending:
                self.window_opened(stream)

    # --- WINDOW_UPDATE (section 6.9) --------------------------------------------------------------------
    def _window_update(self, payload: memoryview, stream_id: int) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not four bytes")
        updates = self.allowances.window_updates
        if not updates.left:
            updates.give(UPDATES_A_STREAM * (self.streams_opened - self._streams_at_updates))
            self._streams_at_updates = self.streams_opened
        updates.take()
        increment = frames.U32.unpack(payload)[0] & 0x7FFFFFFF
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an increment of 0")
            self.send_window += increment
            if self.send_window > WINDOW_LIMIT:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window above 2^31-1")
            if self.blocked:
                self.drain()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
            return
        if not increment:
            self._stream_fault(stream, StreamFault(ErrorCode.PROTOCOL_ERROR, "an increment of 0"))
            return
        stream.send_window += increment
        if stream.send_window > WINDOW_LIMIT:
            self._stream_fault(stream, StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31-1"))
        elif stream.pending:
            self.window_opened(stream)
            self.drain()

    # --- the others -------------------------------------------------------------------------------------
    def _rst_stream(self, payload: memoryview, stream_id: int) -> None:
        """Section 6.4."""
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not four bytes")
        if not stream_id or self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        code: int = frames.U32.unpack(payload)[0]
        stream = self.streams.get(stream_id)
        if stream is None and code == ErrorCode.NO_ERROR and self.client_side:
            return  # after an answer that came before our request's end (section 8.1)
        self.allowances.resets.take()
        if stream is None:
            return
        self.resets_received[code] = self.resets_received.get(code, 0) + 1
        self.forget(stream, RESET_BY_PEER)
        self.events.append((ev.RESET, stream, code, True))

    def _ping(self, payload: memoryview, flags: int, stream_id: int) -> None:
        """Section 6.7."""
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING is not eight bytes")
        progress = (self.receive_window, self.send_window, self.streams_opened)
        if progress == self._progress_at_ping:
            self.allowances.pings.take()  # beside data an honest peer measures its round trip, very often
        self._progress_at_ping = progress
        if flags & ACK:
            self.events.append((ev.PONG, None, bytes(payload), False))
        else:
            self.pings_received += 1
            self.write(frames.ping(bytes(payload), ack=True))

    def _goaway(self, payload: memoryview, stream_id: int) -> None:
        """Section 6.8. Streams of ours above the id were not processed: the layer above ends them."""
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is less than eight bytes")
        self.allowances.settings.take()
        last, code = frames.TWO_U32.unpack_from(payload)
        last &= 0x7FFFFFFF
        if self.goaway_received is not None:
            last = min(last, self.goaway_received)
        self.goaway_received = last
        self.events.append((ev.GOAWAY, None, (last, code, bytes(payload[8 : 8 + GOAWAY_TEXT_MAX])), False))

    def _priority(self, payload: memoryview, stream_id: int) -> None:
        """Section 6.3. It has no meaning any more (section 5.3.2), but h2spec still asks for a rule of RFC
        7540: no stream depends on itself.
        """
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self.allowances.priorities.take()
        stream = self.streams.get(stream_id)
        if len(payload) != 5:
            fault = StreamFault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not five bytes")
        elif frames.U32.unpack_from(payload)[0] & 0x7FFFFFFF == stream_id:
            fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        else:
            return
        if stream is None:
            raise ConnectionFault(fault.code, fault.reason)
        self._stream_fault(stream, fault)
