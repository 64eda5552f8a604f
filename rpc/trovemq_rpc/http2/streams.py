"""A stream and its state (RFC 9113 section 5.1).

A stream has an object from its first frame to its end. So the state "idle" has no number here. The two
"reserved" states have none because push is switched off.

| state              | after END_STREAM sent | after END_STREAM received | may send | may receive |
|--------------------|-----------------------|---------------------------|----------|-------------|
| OPEN               | HALF_CLOSED_LOCAL     | HALF_CLOSED_REMOTE        | yes      | yes         |
| HALF_CLOSED_LOCAL  | (illegal)             | CLOSED                    | no       | yes         |
| HALF_CLOSED_REMOTE | CLOSED                | (illegal)                 | yes      | no          |
| CLOSED             | (illegal)             | (illegal)                 | no       | no          |

RST_STREAM in either direction leads to CLOSED from every state.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

OPEN: Final = 0
HALF_CLOSED_LOCAL: Final = 1
HALF_CLOSED_REMOTE: Final = 2
CLOSED: Final = 3
ILLEGAL: Final = 4

STATE_NAMES: Final = ("open", "half-closed (local)", "half-closed (remote)", "closed", "illegal")
AFTER_SENT_END: Final = (HALF_CLOSED_LOCAL, ILLEGAL, CLOSED, ILLEGAL)
AFTER_RECEIVED_END: Final = (HALF_CLOSED_REMOTE, CLOSED, ILLEGAL, ILLEGAL)
MAY_SEND: Final = (True, False, True, False)
MAY_RECEIVE: Final = (True, True, False, False)

Buffer = bytes | bytearray | memoryview


class Stream:
    """A request and its response. `owner` belongs to the layer above, all else to the connection."""

    __slots__ = (
        "body_missing",
        "got_headers",
        "id",
        "owner",
        "pending",
        "pending_end",
        "pending_size",
        "pending_trailers",
        "receive_window",
        "send_window",
        "state",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int, state: int = OPEN) -> None:
        self.id = stream_id
        self.state = state
        self.owner: Any = None
        self.send_window = send_window
        self.receive_window = receive_window
        self.got_headers = False
        self.body_missing = -1  # how many bytes content-length still announces; -1 without content-length
        self.pending: deque[Buffer] | None = None  # bytes that windows or the transport hold back
        self.pending_size = 0
        self.pending_end = False
        self.pending_trailers: bytes | None = None

    def __repr__(self) -> str:
        return f"<stream {self.id} {STATE_NAMES[self.state]}>"
