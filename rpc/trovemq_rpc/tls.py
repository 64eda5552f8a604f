"""TLS by an ssl object between two memory buffers: one for received bytes, one for bytes to send. The
transports of asyncio and uvloop do the same at four times the cost. ALPN has to choose `h2` (RFC 9113 section
3.2).

OpenSSL gets one record at a time. It handles records without data (a KeyUpdate of TLS 1.3 costs 30 us, an
attempt to renegotiate TLS 1.2 an alert that waits in memory) as long as it finds some, so a single read of a
flood of them would stop the loop for half a second.

A record (RFC 8446 section 5.1):

| bytes | content                                                                    |
|-------|----------------------------------------------------------------------------|
| 1     | type: 20 change of cipher, 21 alert, 22 handshake, 23 data or, in 1.3, any |
| 2     | version: 3 and 1 or 3                                                      |
| 2     | size of the rest, big-endian: at most 16 KiB and 2,048 bytes               |
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

SILENT_RECORDS_MAX: Final = 64
"""Records without data that a peer may send, and one more for each MiB of data. A handshake has 10 at most;
honest peers renew their key after gigabytes."""
SIZE_PER_SILENT_RECORD: Final = 1 << 20  # the MiB above
_HEADER_SIZE: Final = 5  # the table's first three rows
_REST_SIZE_MAX: Final = (16 << 10) + 2_048  # the table's last row
_TYPES: Final = range(20, 24)


class Tls:
    """The TLS of one connection. Received bytes go to `feed`; then `handshake` or `read_into` uses them.
    `seal` encrypts. `take_output` has the bytes to send.
    """

    __slots__ = (
        "_incoming",
        "_object",
        "_outgoing",
        "_plain_size",
        "_position",
        "_received",
        "established",
        "silent_records",
    )

    def __init__(
        self, context: ssl.SSLContext, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._received = b""  # from `_position` on OpenSSL does not have it
        self._position = 0
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._plain_size = 0
        self.silent_records = 0
        """Records that brought no data."""
        self.established = False

    def feed(self, data: bytes | memoryview) -> None:
        self._received = self._received[self._position :] + data
        self._position = 0

    def handshake(self) -> bool:
        """One step; True when it is done. ssl.SSLError: the peer does not speak TLS or is not trusted."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if not self._pass_on():
                    return False
                self._count_silent()
            else:
                self.established = True
                return True

    def _pass_on(self) -> bool:
        """Gives OpenSSL the next record; False if not all of it has come. Bytes that are no record are passed
        on as they are: OpenSSL reports the error."""
        received, position = self._received, self._position
        end = position + _HEADER_SIZE
        if len(received) < end:
            return False
        size = received[end - 2] << 8 | received[end - 1]
        if received[position] not in _TYPES or received[position + 1] != 3 or size > _REST_SIZE_MAX:
            end = len(received)
        else:
            end += size
            if len(received) < end:
                return False
        self._incoming.write(received[position:end])
        self._position = end
        return True

    def _count_silent(self) -> None:
        """Counts a record that brought no data. Raises ssl.SSLError if there were too many."""
        self.silent_records += 1
        if self.silent_records > SILENT_RECORDS_MAX + self._plain_size // SIZE_PER_SILENT_RECORD:
            error = ssl.SSLError("too many records without data")
            error.reason = "TOO_MANY_RECORDS_WITHOUT_DATA"
            raise error

    @property
    def protocol(self) -> str | None:
        return self._object.selected_alpn_protocol()

    @property
    def sealed_size(self) -> int:
        """Received bytes that are not decrypted."""
        return len(self._received) - self._position + self._incoming.pending

    @property
    def has_input(self) -> bool:
        return len(self._received) > self._position or bool(self._incoming.pending or self._object.pending())

    def read_into(self, view: memoryview) -> int:
        """The number of decrypted bytes; 0 if a record is incomplete, -1 if the peer closed. Raises
        ssl.SSLError."""
        while self._incoming.pending or self._object.pending() or self._pass_on():
            try:
                size: int = self._object.read(len(view), view)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                self._count_silent()
                continue
            except ssl.SSLZeroReturnError:
                return -1
            self._plain_size += size
            return size if size else -1
        return 0

    def seal(self, pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
        data = b"".join(pieces)
        if data:
            self._object.write(data)
        return self._outgoing.read()

    def take_output(self) -> bytes:
        return self._outgoing.read()

    def close(self) -> bytes:
        """close_notify, without waiting for the peer's."""
        try:
            self._object.unwrap()
        except (ssl.SSLError, ValueError):
            pass
        return self._outgoing.read()

    def peer_certificate(self) -> dict[str, object]:
        return self._object.getpeercert() or {}  # type: ignore[return-value]
