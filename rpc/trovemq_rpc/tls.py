"""TLS by an ssl object between two memory buffers: one for received bytes, one for bytes to send. The
transports of asyncio and uvloop do the same at four times the cost. ALPN has to choose `h2` (RFC 9113 section
3.2).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable


class Tls:
    """The TLS of one connection. Received bytes go to `feed`; then `handshake` or `read_into` uses them.
    `seal` encrypts. `take_output` has the bytes to send.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "established")

    def __init__(
        self, context: ssl.SSLContext, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self.established = False

    def feed(self, data: memoryview) -> None:
        self._incoming.write(data)

    def handshake(self) -> bool:
        """One step; True when it is done. ssl.SSLError: the peer does not speak TLS or is not trusted."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True

    @property
    def protocol(self) -> str | None:
        return self._object.selected_alpn_protocol()

    @property
    def sealed_size(self) -> int:
        """Received bytes that are not decrypted."""
        return self._incoming.pending

    @property
    def has_input(self) -> bool:
        return bool(self._incoming.pending or self._object.pending())

    def read_into(self, view: memoryview) -> int:
        """The number of decrypted bytes; 0 if a record is incomplete, -1 if the peer closed."""
        try:
            size: int = self._object.read(len(view), view)  # type: ignore[assignment]
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            return -1
        return size if size else -1

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

    def peer_certificate_der(self) -> bytes | None:
        return self._object.getpeercert(binary_form=True)
