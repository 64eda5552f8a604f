"""Violations of the protocol, by how much of a connection they end (RFC 9113 section 5.4)."""

from __future__ import annotations

from trovemq_rpc.http2.constants import ErrorCode


class Http2Error(Exception):
    """Every error that a peer's bytes can cause."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class ConnectionFault(Http2Error):  # noqa: N818 - as in "fault" and "reset" of the tables
    """Ends the connection: GOAWAY with this code, then close (section 5.4.1)."""


class StreamFault(Http2Error):  # noqa: N818
    """Ends one stream: RST_STREAM with this code (section 5.4.2)."""


class ConnectionUnusable(Exception):  # noqa: N818
    """No stream can be opened here any more: closed, draining, out of ids or at the peer's limit."""
