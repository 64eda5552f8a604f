"""The events of a connection: tuples of (kind, stream, value, ended), in the order of the bytes.

| kind | stream | value | ended |
| --- | --- | --- | --- |
| HEADERS | the stream | RequestHead (server) or ResponseHead (client) | the peer ended the stream |
| DATA | the stream | a view of the bytes received, valid until the next call of `parse` | the same |
| TRAILERS | the stream | list of fields | True |
| RESET | the stream | error code; the stream is closed | True |
| TOO_LARGE | the stream | None: its header list, or its trailers, are above the limit | as HEADERS |
| WRITABLE | the stream | None: all bytes that were held back are written | False |
| PONG | None | the eight bytes of the PING | False |
| SETTINGS | None | None: the peer's settings were applied | False |
| GOAWAY | None | (last stream id, code, debug bytes) | False |
| FAULT | None | ConnectionFault: GOAWAY is among the output, close when it is written | True |

They are plain tuples because there are one or two for every frame.
"""

from __future__ import annotations

from typing import Any, Final

from trovemq_rpc.http2.streams import Stream

HEADERS: Final = 0
DATA: Final = 1
TRAILERS: Final = 2
RESET: Final = 3
WRITABLE: Final = 4
TOO_LARGE: Final = 5
PONG: Final = 6
SETTINGS: Final = 7
GOAWAY: Final = 8
FAULT: Final = 9

# The stream is typed Any: it is a Stream for the kinds up to TOO_LARGE, and None for the others.
Event = tuple[int, Any, Any, bool]

__all__ = [
    "DATA",
    "FAULT",
    "GOAWAY",
    "HEADERS",
    "PONG",
    "RESET",
    "SETTINGS",
    "TOO_LARGE",
    "TRAILERS",
    "WRITABLE",
    "Event",
    "Stream",
]
