"""One gRPC call by hand: the bytes of a hostile client, which gRPC's own clients never send.

Frames of HTTP/2: length (3 bytes), type (1), flags (1), stream (4), then as many bytes as the length says.
"""

from __future__ import annotations

import socket
import time
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
STREAM: Final = 1
WINDOW_SIZE: Final = 65_535  # of a connection and of a stream, until the receiver says more
FRAME_SIZE_MAX: Final = 16_384
INITIAL_WINDOW_SIZE: Final = 4  # the setting's number
SILENCE_S_MAX: Final = 240
STALLED_S_MAX: Final = 10.0  # with pings, and without a window


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(fields: dict[str, str]) -> bytes:
    """HPACK's plainest form: each name and value in full."""
    block = bytearray()
    for name, value in fields.items():
        block += b"\0"
        for text in (name.encode(), value.encode()):
            assert len(text) < 127, "the length takes one byte"
            block += bytes([len(text)]) + text
    return bytes(block)


def call_headers(method: str, encoding: str = "identity") -> bytes:
    """The header block of a gRPC call."""
    return headers(
        {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-encoding": encoding,
        }
    )


def unread_calls(address: str, method: str, request: bytes, count: int) -> socket.socket:
    """A connection with `count` unary calls, of which nothing is ever read."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=SILENCE_S_MAX)
    message = b"\0" + len(request).to_bytes(4, "big") + request
    sent = PREFACE + frame(SETTINGS, 0, 0)
    for stream in range(STREAM, STREAM + 2 * count, 2):
        sent += frame(HEADERS, END_HEADERS, stream, call_headers(method))
        sent += frame(DATA, END_STREAM, stream, message)
    connection.sendall(sent)
    return connection


class RawCall:
    """A unary call over a separate connection. `send` ends once the server has ended the call."""

    def __init__(self, address: str, method: str, encoding: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=SILENCE_S_MAX)
        self._windows = {0: WINDOW_SIZE, STREAM: WINDOW_SIZE}
        self._initial = WINDOW_SIZE
        self._ended = False
        self.data = b""
        opening = (
            PREFACE
            + frame(SETTINGS, 0, 0)
            + frame(HEADERS, END_HEADERS, STREAM, call_headers(method, encoding))
        )
        self._socket.sendall(opening)

    def close(self) -> None:
        self._socket.close()

    def send(self, message: bytes) -> int:
        """The whole of one compressed message, as far as the server takes it; how many bytes it took."""
        rest = memoryview(b"\1" + len(message).to_bytes(4, "big") + message)
        size = len(rest)
        while rest and not self._ended:
            count = min(FRAME_SIZE_MAX, len(rest), *self._windows.values())
            if count <= 0:
                self._read_frame()
                continue
            for stream in self._windows:
                self._windows[stream] -= count
            flags = END_STREAM if count == len(rest) else 0
            self._socket.sendall(frame(DATA, flags, STREAM, bytes(rest[:count])))
            rest = rest[count:]
        while not self._ended:
            self._read_frame()
        return size - len(rest)

    def send_beginning(self, announced: int, size: int) -> int:
        """The first `size` bytes of a message that is said to have `announced`, as far as the server
        takes them or until it ends the call; how many it took. A server that only keeps the connection alive
        for a while takes no more."""
        rest = memoryview(b"\0" + announced.to_bytes(4, "big") + bytes(size))
        progress = time.monotonic()
        while rest and not self._ended:
            count = min(FRAME_SIZE_MAX, len(rest), *self._windows.values())
            if count <= 0:
                if time.monotonic() - progress > STALLED_S_MAX:
                    break
                self._read_frame()
                continue
            progress = time.monotonic()
            for stream in self._windows:
                self._windows[stream] -= count
            try:
                self._socket.sendall(frame(DATA, 0, STREAM, bytes(rest[:count])))
            except (BrokenPipeError, ConnectionResetError):
                break  # it was silent for too long
            rest = rest[count:]
        return size - len(rest)

    def _read_frame(self) -> None:
        head = self._read(9)
        kind, flags = head[3], head[4]
        stream = int.from_bytes(head[5:9], "big")
        payload = self._read(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            self._take_settings(payload)
            self._socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == DATA:
            self.data += payload
        ends = kind in (HEADERS, DATA) and flags & END_STREAM
        self._ended |= bool(ends) or kind in (RST_STREAM, GOAWAY)

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2], "big") == INITIAL_WINDOW_SIZE:
                size = int.from_bytes(payload[at + 2 : at + 6], "big")
                self._windows[STREAM] += size - self._initial
                self._initial = size

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the server has closed the connection"
            data += more
        return data
