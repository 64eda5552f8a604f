"""TLS of the operations HTTP. A client that speaks plain HTTP gets an answer that it can read."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

_BODY: Final = b"This port speaks HTTPS: use https:// in the address.\n"
PLAIN_HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class _Connection(ssl.SSLObject):
    """One connection. The event loop sends what is in `outgoing` whenever a handshake waits for more bytes.
    So a plain request is answered by one such wait; the client's next bytes, or its end, fail the handshake.
    """

    outgoing: ssl.MemoryBIO
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason != "HTTP_REQUEST":
                raise
            self._failure = error
            self.outgoing.read()  # OpenSSL's alert, which no HTTP client understands
            self.outgoing.write(PLAIN_HTTP_ANSWER)
            raise ssl.SSLWantReadError from None


class _Context(ssl.SSLContext):
    sslobject_class = _Connection

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> Any:
        connection = super().wrap_bio(incoming, outgoing, *args, **kwargs)
        assert isinstance(connection, _Connection), "it is of sslobject_class"
        connection.outgoing = outgoing
        return connection


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Blocks. Raises ssl.SSLError, OSError for files that cannot be used."""
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
