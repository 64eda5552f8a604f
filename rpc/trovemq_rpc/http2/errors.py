"""Violations of the protocol (RFC 9113 section 5.4). A fault ends the connection, by GOAWAY; a stream fault
ends one stream, by RST_STREAM.

| code (section 7) | GOAWAY | RST_STREAM |
| --- | --- | --- |
| NO_ERROR | a drain | the answer is complete before its request is |
| PROTOCOL_ERROR | a misplaced frame; a bad preface, padding, setting or stream id | malformed headers |
| FLOW_CONTROL_ERROR | more bytes than a window allows; its window above 2^31-1 | its window above 2^31-1 |
| STREAM_CLOSED | a frame on a stream that both sides ended | a frame after END_STREAM, or after a reset |
| FRAME_SIZE_ERROR | a frame above the limit, or of a wrong size | PRIORITY of a wrong size |
| COMPRESSION_ERROR | a header block that cannot be decoded | |
| ENHANCE_YOUR_CALM | a limit of limits.py; too many PINGs; a frame that does not grow | such a message |
| REFUSED_STREAM | | a stream above the limit; the client sends the call again |
| CANCEL | | a call that was cancelled, or whose answer is not read ||
| others | are never sent | |
"""

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
    """No stream can be opened here: the connection is closed, drains, has no ids left or is at the peer's
    limit.
    """
