"""HTTP/1.1 by uvicorn within bounds: at the operations port of a daemon, and for the console. (Both install
uvicorn; the protocol does not need it.)

- A connection without a request under way ends after HEAD_TIME_MAX_S, one whose request or reply takes longer
  than REQUEST_TIME_MAX_S, too.
- Of CONNECTIONS_MAX connections the one that has waited for the longest gives its place to a new one; only if
  all have a request under way, it is the oldest of those. So a probe is answered, however many are connected.
- TLS is that of gRPC's connections (trovemq_rpc.tls), with its bounds, and within the same time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from trovemq_rpc.tls import Tls

CONNECTIONS_MAX: Final = 128
HEAD_TIME_MAX_S: Final = 10.0
"""uvicorn itself closes a connection that sends nothing for 5 s after a reply."""
REQUEST_TIME_MAX_S: Final = 60.0
RECORD_SIZE_MAX: Final = 16 << 10  # of TLS, decrypted
_BODY: Final = b"This port speaks HTTPS: use https:// in the address.\n"
PLAIN_HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class HttpsCertificate:
    """The certificate of a server; it can be replaced for later connections."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Blocks. Raises ssl.SSLError, OSError for files that cannot be used."""
        self.context = _context(certificate, key)

    def replace(self, certificate: Path, key: Path) -> None:
        """As the constructor."""
        self.context = _context(certificate, key)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


class _Sealed:
    """The transport for uvicorn of a connection by TLS."""

    def __init__(self, transport: asyncio.Transport, tls: Tls, context: ssl.SSLContext) -> None:
        self._transport = transport
        self._tls = tls
        self._context = context
        self.abort: Final = transport.abort
        self.is_closing: Final = transport.is_closing
        self.pause_reading: Final = transport.pause_reading
        self.resume_reading: Final = transport.resume_reading

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._tls.seal((data,)))

    def close(self) -> None:
        if not self._transport.is_closing():
            if self._tls.established:
                self._transport.write(self._tls.close())
            self._transport.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._context if name == "sslcontext" else self._transport.get_extra_info(name, default)


class BoundedHttp(H11Protocol):
    """One connection."""

    certificate: ClassVar[HttpsCertificate | None] = None
    waits_since = 0.0
    """The loop's time at which the present wait, for a request or for its end, began."""
    _timer: asyncio.TimerHandle | None = None
    _seen_cycle: object = None
    _tls: Tls | None = None
    _outer: asyncio.Transport

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    # --- asyncio's side ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outer = transport
        inner: Any = transport
        if self.certificate is not None:
            context = self.certificate.context
            self._tls = Tls(context, server_side=True)
            inner = _Sealed(transport, self._tls, context)
        super().connection_made(inner)
        self._wait(HEAD_TIME_MAX_S)
        self._make_space()

    def data_received(self, data: bytes) -> None:
        if self._tls is None:
            self._received(data)
            return
        try:
            self._received_sealed(self._tls, data)
        except ssl.SSLError as error:
            plain = getattr(error, "reason", "") == "HTTP_REQUEST"
            self._send_raw(PLAIN_HTTP_ANSWER if plain else self._tls.take_output())
            self._outer.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    # --- TLS --------------------------------------------------------------------------------------------
    def _received_sealed(self, tls: Tls, data: bytes) -> None:
        tls.feed(data)
        if not tls.established and not tls.handshake():
            self._send_raw(tls.take_output())
            return
        view = memoryview(bytearray(RECORD_SIZE_MAX))
        while tls.has_input and not self._outer.is_closing():
            size = tls.read_into(view)
            if size < 0:
                self.transport.close()
            if size <= 0:
                break
            self._received(bytes(view[:size]))
        if not self._outer.is_closing():
            self._send_raw(tls.take_output())

    def _send_raw(self, data: bytes) -> None:
        if data:
            self._outer.write(data)

    # --- time and place ----------------------------------------------------------------------------------
    def _received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_for_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.is_busy:
            self._wait(HEAD_TIME_MAX_S)
        self._look_for_request()

    def _look_for_request(self) -> None:
        if self.is_busy and self.cycle is not self._seen_cycle:
            self._seen_cycle = self.cycle
            self._wait(REQUEST_TIME_MAX_S)

    def _wait(self, time_max_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.waits_since = self.loop.time()
        self._timer = self.loop.call_later(time_max_s, self._outer.abort)

    def _make_space(self) -> None:
        """Ends connections until CONNECTIONS_MAX or fewer are open."""
        others = [
            one
            for one in self.connections
            if isinstance(one, BoundedHttp) and one is not self and not one._outer.is_closing()
        ]
        if len(others) >= CONNECTIONS_MAX:
            min(others, key=lambda one: (one.is_busy, one.waits_since))._outer.abort()


def bounded_http(certificate: HttpsCertificate | None) -> type[BoundedHttp]:
    """The class of a server's connections, for uvicorn's `http`."""
    return type("BoundedHttps", (BoundedHttp,), {"certificate": certificate})


def config_of(app: Callable[..., Any], certificate: HttpsCertificate | None, **more: Any) -> dict[str, Any]:
    """The arguments of `uvicorn.Config` for a server within these bounds."""
    return {
        "app": app,
        "http": bounded_http(certificate),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        # uvicorn would refuse requests at this number of connections; here a new one finds space. It bounds
        # the tasks of requests whose connections are gone.
        "limit_concurrency": 2 * CONNECTIONS_MAX,
        **more,
    }
