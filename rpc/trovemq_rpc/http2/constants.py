"""HTTP/2's numbers: frame types, flags, settings and error codes (RFC 9113 sections 6, 6.5.2 and 7)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # section 3.4

FRAME_HEADER_SIZE: Final = 9
FRAME_SIZE_DEFAULT: Final = 16_384  # section 6.5.2, also the least that a peer must accept
FRAME_SIZE_LIMIT: Final = (1 << 24) - 1
HEADER_LIST_SIZE_UNLIMITED: Final = 1 << 32  # section 6.5.2, until SETTINGS say less
WINDOW_DEFAULT: Final = 65_535  # section 6.9.2
WINDOW_LIMIT: Final = (1 << 31) - 1  # section 6.9.1
STREAM_ID_LIMIT: Final = (1 << 31) - 1  # section 5.1.1
TABLE_SIZE_DEFAULT: Final = 4_096

# Frame types (section 6). Plain numbers: the receiving loop compares them for every frame.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20


class Setting(IntEnum):
    """Identifiers of section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD
