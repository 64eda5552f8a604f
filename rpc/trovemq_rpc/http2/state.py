"""The common state of both directions of a connection: settings, streams, windows, output.

Invariants:
- `streams` holds exactly the streams that are not closed; `streams[n].id == n`.
- `output` is in the order of the wire; nothing is inserted before present bytes.
- `held_back` is the sum of the streams' `pending_size`.
- `receive_window` is how much the peer may still send; `unacknowledged` is how much of it was consumed since
  the last WINDOW_UPDATE. The next one adds the second to the first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import (
    FRAME_SIZE_DEFAULT,
    HEADER_LIST_SIZE_UNLIMITED,
    PREFACE,
    STREAM_ID_LIMIT,
    TABLE_SIZE_DEFAULT,
    WINDOW_DEFAULT,
    ErrorCode,
    Setting,
)
from trovemq_rpc.http2.events import Event
from trovemq_rpc.http2.hpack import Decoder
from trovemq_rpc.http2.hpack_encoder import Encoder
from trovemq_rpc.http2.limits import Allowances, Limits
from trovemq_rpc.http2.streams import CLOSED, Buffer, Stream

DEFAULT_LIMITS: Final = Limits()

# Blocks are encoded without the dynamic table, so one encoder serves all connections. Its very first block
# begins with a size update to 0 (RFC 7541 section 4.2). That one is thrown away here, and each connection
# writes the update before its own first block.
_encoder = Encoder()
_encoder.encode(())
encode_block = _encoder.encode
TABLE_SIZE_UPDATE: Final = b"\x20"

OUTPUT_UNLIMITED: Final = 1 << 62  # more than any output

# How a stream that is gone was closed, where that matters for late frames.
RESET_BY_US: Final = 1  # its peer may not know yet: late frames are ignored
RESET_BY_PEER: Final = 2  # late frames break the protocol


class ConnectionState:
    """The base of `Sending` and `Receiving`."""

    def __init__(self, client_side: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self.client_side = client_side
        self.limits = limits
        self.allowances = Allowances(limits)
        self.decoder = Decoder(TABLE_SIZE_DEFAULT, limits.header_list_size_max)
        self._first_block = True
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.output: list[Buffer] = []
        self.output_size = 0

        self.next_stream_id = 1
        self.last_peer_stream_id = 0
        self.goaway_sent: int | None = None  # the last stream id of ours
        self.goaway_received: int | None = None
        self.failed = False
        self.work_beside = 0  # of this read, beside its frames: fields of header blocks, streams of SETTINGS
        self.lingering = 0  # handlers that still run although their streams are gone: they count as streams

        self.peer_concurrent_streams_max = (
            STREAM_ID_LIMIT if not client_side else 100
        )  # until SETTINGS say it
        self.peer_frame_size_max = FRAME_SIZE_DEFAULT
        self.peer_header_list_size_max = HEADER_LIST_SIZE_UNLIMITED
        self.peer_initial_window = WINDOW_DEFAULT
        self.send_window = WINDOW_DEFAULT
        self.can_write = True  # False while the transport is full
        self.unread_size = 0  # of headers and control frames since then: no window limits them
        self.output_max = OUTPUT_UNLIMITED  # of bytes that waited, in an iteration of the loop
        self.held_back = 0  # bytes that wait at the streams
        self.blocked: OrderedDict[int, Stream] = OrderedDict()

        # Until the peer acknowledges our settings it may use the default windows (section 6.9.2): a smaller
        # one of ours holds from then on, a larger one at once.
        self.initial_receive_window = max(WINDOW_DEFAULT, limits.stream_window)
        self.receive_window = WINDOW_DEFAULT
        self.unacknowledged = 0
        self.unacknowledged_max = (limits.connection_window + 1) // 2
        self.receive_window_min = (limits.connection_window + 3) // 4
        self._closed: OrderedDict[int, int] = OrderedDict()
        self._forgotten = 0  # streams up to this id may have been reset, and are not remembered

        # Counters for metrics
        self.streams_opened = 0
        self.window_stalls = 0
        self.pings_received = 0
        self._progress_at_ping = (0, 0, 0)
        self._streams_at_updates = 0  # of those opened: the peer has their WINDOW_UPDATE frames
        self.resets_sent: dict[int, int] = {}
        self.resets_received: dict[int, int] = {}
        self._open_output()

    def _open_output(self) -> None:
        """Our half of the preface (section 3.4): magic of the client, settings, the connection's window."""
        limits = self.limits
        values = [
            (Setting.MAX_FRAME_SIZE, limits.frame_size_max),
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
            (Setting.MAX_HEADER_LIST_SIZE, limits.header_list_size_max),
        ]
        if self.client_side:
            self.output.append(PREFACE)
            values.append((Setting.ENABLE_PUSH, 0))
        else:
            values.append((Setting.MAX_CONCURRENT_STREAMS, limits.concurrent_streams_max))
        self.write(frames.settings(values))
        grow = limits.connection_window - WINDOW_DEFAULT
        if grow > 0:
            self.receive_window += grow
            self.write(frames.window_update(0, grow))

    # --- output -----------------------------------------------------------------------------------------
    def write(self, piece: bytes) -> None:
        self.output.append(piece)
        self.output_size += len(piece)
        if not self.can_write:
            self.unread_size += len(piece)

    def take_output(self) -> list[Buffer]:
        """The pieces to write now, in order."""
        output = self.output
        self.output = []
        self.output_size = 0
        return output

    # --- streams ----------------------------------------------------------------------------------------
    def new_stream(self, stream_id: int, state: int) -> Stream:
        stream = Stream(stream_id, self.peer_initial_window, self.initial_receive_window, state)
        self.streams[stream_id] = stream
        self.streams_opened += 1
        return stream

    def forget(self, stream: Stream, how: int = 0) -> None:
        """The stream is closed. `how` is RESET_BY_US, RESET_BY_PEER, or 0 for another end."""
        stream.state = CLOSED
        self.streams.pop(stream.id, None)
        if stream.pending is not None:
            self.blocked.pop(stream.id, None)
            self.held_back -= stream.pending_size
            stream.pending = None
            stream.pending_size = 0
            stream.pending_trailers = None
        if how:
            closed = self._closed
            closed[stream.id] = how
            if len(closed) > self.limits.reset_memory:
                self._forgotten = max(self._forgotten, closed.popitem(last=False)[0])

    def reset(self, stream: Stream, code: int) -> None:
        """Ends a stream now (section 6.4). Late frames of the peer's are ignored."""
        if stream.state == CLOSED:
            return
        self.write(frames.rst_stream(stream.id, code))
        self.resets_sent[code] = self.resets_sent.get(code, 0) + 1
        self.forget(stream, RESET_BY_US)

    # --- end of the connection --------------------------------------------------------------------------
    def discard_output(self) -> None:
        """The connection is lost: nothing of it is written any more, and nothing is kept."""
        self.output.clear()
        self.output_size = 0
        self.blocked.clear()
        for stream in self.streams.values():
            stream.pending = None
            stream.pending_size = 0
        self.held_back = 0

    def goaway(self, code: int = ErrorCode.NO_ERROR, debug: bytes = b"", last: int | None = None) -> None:
        """Section 6.8. A drain sends two: the first has the highest id there is, so that streams which are on
        their way are not refused.
        """
        last_id = self.last_peer_stream_id if last is None else last
        if self.goaway_sent is not None:
            last_id = min(last_id, self.goaway_sent)
        self.goaway_sent = last_id
        self.write(frames.goaway(last_id, code, debug))

    def ping(self, payload: bytes) -> None:
        self.write(frames.ping(payload))
