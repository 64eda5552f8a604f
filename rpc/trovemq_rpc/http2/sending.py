"""The half that writes: header blocks, and DATA under both windows (RFC 9113 sections 5.2 and 6.9).

Bytes leave at once as far as the stream's window, the connection's window and the transport allow it. The
rest waits at its stream, in order, with the trailers after it. Of streams that wait, one frame each is
written at a time, so that a large message does not hold up small ones. Bytes for a stream that was reset are
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import DATA, END_STREAM, STREAM_ID_LIMIT, ErrorCode
from trovemq_rpc.http2.errors import ConnectionUnusable
from trovemq_rpc.http2.state import TABLE_SIZE_UPDATE, ConnectionState
from trovemq_rpc.http2.streams import (
    AFTER_SENT_END,
    CLOSED,
    HALF_CLOSED_REMOTE,
    ILLEGAL,
    MAY_SEND,
    OPEN,
    Buffer,
    Stream,
)

JOIN_SIZE_MAX: Final = 4_096
"""Bytes that cost less copied into one piece than as a further one:
bench/rpc/in_process.py, "32 at a time"."""

_pack_header = frames.FRAME_HEADER.pack
FRAME_HEADER_SIZE: Final = frames.FRAME_HEADER.size


class Sending(ConnectionState):
    """The half that writes."""

    # --- opening ----------------------------------------------------------------------------------------
    @property
    def can_open(self) -> bool:
        """Whether the peer takes one more stream of ours."""
        return (
            self.goaway_received is None
            and not self.failed
            and len(self.streams) < self.peer_concurrent_streams_max
            and self.next_stream_id < STREAM_ID_LIMIT
        )

    def open_stream(self, block: bytes, end: bool = False) -> Stream:
        """Opens a stream of the client's with its header block."""
        if not self.can_open:
            raise ConnectionUnusable
        stream = self.new_stream(self.next_stream_id, OPEN)
        self.next_stream_id += 2
        self._write_block(stream, block, end)
        return stream

    def open_unary(self, block: bytes, body: tuple[bytes, bytes]) -> Stream:
        """Opens a stream with its whole request: one piece of output if it fits the windows and a frame."""
        size = len(body[0]) + len(body[1])
        limit = self.peer_frame_size_max
        if (
            size > JOIN_SIZE_MAX
            or size > limit
            or len(block) > limit
            or size > self.send_window
            or size > self.peer_initial_window
            or not self.can_write
            or self.blocked
            or self._first_block
        ):
            stream = self.open_stream(block)
            self.send_data(stream, body, size, True)
            return stream
        if not self.can_open:
            raise ConnectionUnusable
        stream_id = self.next_stream_id
        self.next_stream_id = stream_id + 2
        stream = self.new_stream(stream_id, OPEN)
        stream.state = AFTER_SENT_END[OPEN]
        self.send_window -= size
        stream.send_window -= size
        block_size = len(block)
        piece = b"".join(
            (
                _pack_header(block_size >> 16, block_size & 0xFFFF, 1, 4, stream_id),
                block,
                _pack_header(0, size, 0, 1, stream_id),
                *body,
            )
        )
        self.output.append(piece)
        self.output_size += len(piece)
        return stream

    # --- headers ----------------------------------------------------------------------------------------
    def send_headers(self, stream: Stream, block: bytes, end: bool = False) -> None:
        """A response's header block, or trailers, which wait for the data before them."""
        if stream.state == CLOSED:
            return
        assert MAY_SEND[stream.state], stream
        if stream.pending:
            assert end, "only trailers may follow data"
            stream.pending_trailers = block
            stream.pending_end = True
            return
        self._write_block(stream, block, end)

    def _write_block(self, stream: Stream, block: bytes, end: bool) -> None:
        if self._first_block:
            self._first_block = False
            block = TABLE_SIZE_UPDATE + block
        self.write(frames.header_block(stream.id, block, end, self.peer_frame_size_max))
        if end:
            self._sent_end(stream)

    def send_answer(self, stream: Stream, block: bytes, body: tuple[bytes, bytes], trailers: bytes) -> None:
        """A whole response: one piece of output if it fits. `body` is a message and its prefix before it."""
        if stream.state == CLOSED:
            return
        size = len(body[0]) + len(body[1])
        if (
            size > JOIN_SIZE_MAX
            or size > self.send_window
            or size > stream.send_window
            or not self.can_write
            or self.blocked
            or self._first_block
        ):
            self.send_headers(stream, block)
            self.send_data(stream, body, size)
            self.send_headers(stream, trailers, True)
            return
        stream_id = stream.id
        self.send_window -= size
        stream.send_window -= size
        piece = b"".join(
            (
                _pack_header(0, len(block), 1, 4, stream_id),
                block,
                _pack_header(0, size, 0, 0, stream_id),
                *body,
                _pack_header(0, len(trailers), 1, 5, stream_id),
                trailers,
            )
        )
        self.output.append(piece)
        self.output_size += len(piece)
        if stream.state == HALF_CLOSED_REMOTE:
            stream.state = CLOSED
            del self.streams[stream_id]
        else:
            self._sent_end(stream)

    # --- data -------------------------------------------------------------------------------------------
    def send_data(self, stream: Stream, pieces: Sequence[Buffer], size: int, end: bool = False) -> None:
        """DATA of `size` bytes in `pieces`, which must not change before they are written."""
        if stream.state == CLOSED:
            return
        assert MAY_SEND[stream.state], stream
        assert not stream.pending_end, stream
        if stream.pending:
            stream.pending.extend(pieces)
            stream.pending_size += size
            self.held_back += size
            stream.pending_end = end
            return
        if not size or (
            size <= self.peer_frame_size_max
            and size <= self.send_window
            and size <= stream.send_window
            and self.can_write
            and not self.blocked
        ):
            if end or not 0 < size <= JOIN_SIZE_MAX:
                self._data_frame(stream, pieces, size, end)
                return
            self.send_window -= size
            stream.send_window -= size
            self.output.append(b"".join((_pack_header(0, size, DATA, 0, stream.id), *pieces)))
            self.output_size += FRAME_HEADER_SIZE + size
            return
        stream.pending = deque(pieces)
        stream.pending_size = size
        self.held_back += size
        stream.pending_end = end
        if not self.blocked and self.can_write:
            self._drain(stream)
        if stream.pending:
            self.window_stalls += 1
            self.window_opened(stream)

    def _data_frame(self, stream: Stream, pieces: Sequence[Buffer], size: int, end: bool) -> None:
        self.send_window -= size
        stream.send_window -= size
        header = _pack_header(size >> 16, size & 0xFFFF, DATA, END_STREAM if end else 0, stream.id)
        if size <= JOIN_SIZE_MAX:
            self.write(b"".join((header, *pieces)))
        else:
            self.output.append(header)
            self.output.extend(pieces)
            self.output_size += FRAME_HEADER_SIZE + size
        if end:
            self._sent_end(stream)

    def _drain(self, stream: Stream, one_frame: bool = False) -> None:
        """Writes the part of a stream's pending bytes that the windows allow."""
        pending = stream.pending
        while pending is not None and self.can_write:
            size = min(stream.pending_size, self.peer_frame_size_max, self.send_window, stream.send_window)
            if size <= 0:
                return
            pieces = _take(pending, size)
            stream.pending_size -= size
            self.held_back -= size
            last = not stream.pending_size
            self._data_frame(
                stream, pieces, size, last and stream.pending_end and not stream.pending_trailers
            )
            if last:
                self._drained(stream)
                return
            if one_frame:
                return

    def _drained(self, stream: Stream) -> None:
        stream.pending = None
        self.blocked.pop(stream.id, None)
        if stream.pending_trailers is not None:
            block, stream.pending_trailers = stream.pending_trailers, None
            self._write_block(stream, block, True)
        elif stream.state != CLOSED and not stream.pending_end:
            self.events.append((ev.WRITABLE, stream, None, False))

    def drain(self) -> None:
        """Writes a frame of each waiting stream after the other, until the connection's window or the
        transport stops them all, or the output is `output_max`.

        A stream that its own window stopped is not in `blocked`: the others must not wait for it.
        """
        while self.may_drain and self.output_size < self.output_max:
            _, stream = self.blocked.popitem(last=False)
            self._drain(stream, one_frame=True)
            if stream.pending and stream.send_window > 0:
                self.blocked[stream.id] = stream

    @property
    def may_drain(self) -> bool:
        """Some stream has bytes that could leave now."""
        return bool(self.blocked) and self.can_write and self.send_window > 0

    def window_opened(self, stream: Stream) -> None:
        """The stream's own window grew: if bytes of it wait, `drain` writes them."""
        if stream.pending and stream.send_window > 0:
            self.blocked[stream.id] = stream

    def transport_writable(self, writable: bool) -> None:
        """The transport's buffer is full, or has space again."""
        self.can_write = writable
        if writable:
            self.unread_size = 0
            self.drain()

    def _sent_end(self, stream: Stream) -> None:
        state = AFTER_SENT_END[stream.state]
        assert state != ILLEGAL, stream
        stream.state = state
        if state == CLOSED:
            del self.streams[stream.id]
        elif not self.client_side:
            # Answered before the request ended: the rest of it is not needed (section 8.1).
            self.reset(stream, ErrorCode.NO_ERROR)

    # --- windows for the peer ---------------------------------------------------------------------------
    def acknowledge(self, size: int) -> None:
        """`size` received bytes take no space any more: the peer may send as many again on the connection.
        Its WINDOW_UPDATE waits until half of the window is due, or the peer may send little more.
        """
        self.unacknowledged += size
        if self.unacknowledged >= self.unacknowledged_max or (
            self.unacknowledged and self.receive_window < self.receive_window_min
        ):
            self.write(frames.window_update(0, self.unacknowledged))
            self.receive_window += self.unacknowledged
            self.unacknowledged = 0

    def set_stream_window(self, stream: Stream, size: int) -> bool:
        """The peer may send `size` bytes on the stream. False: the step is below half of it, and left out."""
        grow = size - stream.receive_window
        if grow * 2 >= size and grow > 0 and stream.state < HALF_CLOSED_REMOTE:
            stream.receive_window = size
            self.write(frames.window_update(stream.id, grow))
            return True
        return False

    def raise_stream_window(self, stream: Stream, size: int) -> None:
        """The same without leaving small steps out: `size` bytes are still missing of a message."""
        grow = size - stream.receive_window
        if grow > 0 and stream.state < HALF_CLOSED_REMOTE:
            stream.receive_window = size
            self.write(frames.window_update(stream.id, grow))


def _take(pending: deque[Buffer], size: int) -> list[Buffer]:
    """The first `size` bytes of the pieces, as views; the rest stays."""
    taken: list[Buffer] = []
    while pending and size >= len(pending[0]):
        piece = pending.popleft()
        size -= len(piece)
        taken.append(piece)
    if size:
        view = memoryview(pending[0])
        taken.append(view[:size])
        pending[0] = view[size:]
    return taken
