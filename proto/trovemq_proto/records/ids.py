"""Message identifiers: offsetMsgId (where a message lies) and the unique key (who made it).

offsetMsgId, as upper-case hex:

| offset | width   | field                 |
|--------|---------|-----------------------|
| 0      | 4 or 16 | store host, address   |
| 4, 16  | i32     | store host, port      |
| 8, 20  | i64     | PHYSICALOFFSET        |

Unique key of our clients (the form of RocketMQ's v5 clients), as upper-case hex:

| offset | width | field                                |
|--------|-------|--------------------------------------|
| 0      | 1     | version, 01                          |
| 1      | 6     | MAC                                  |
| 7      | 2     | process id, its low bytes            |
| 9      | u32   | seconds since 2021-01-01T00:00:00Z   |
| 13     | u32   | sequence number within the process   |

Source: RocketMQ 5.4.0, MessageDecoder.createMessageId; rocketmq-clients, MessageIdCodec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import HOST_SIZE_IPV4, HOST_SIZE_IPV6

_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_OFFSET_MSG_ID_SIZES: Final = (2 * (HOST_SIZE_IPV4 + 8), 2 * (HOST_SIZE_IPV6 + 8))
_VERSION: Final = b"\x01"
UNIQUE_KEY_SIZE: Final = 34
_SEQUENCE_AT: Final = 26
_SEQUENCE_END: Final = 1 << 32
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_NIBBLE_SHIFTS: Final = np.arange(28, -1, -4, dtype=np.uint32)


def encode_offset_msg_id(store_host: bytes, physical_offset: int) -> str:
    """32 (IPv4) or 56 (IPv6) upper-case hex digits. store_host: 8 or 20 bytes."""
    assert len(store_host) in (HOST_SIZE_IPV4, HOST_SIZE_IPV6), f"host of {len(store_host)} bytes"
    return (store_host + physical_offset.to_bytes(8, signed=True)).hex().upper()


def decode_offset_msg_id(text: str) -> tuple[bytes, int]:
    """(store host, physical offset). Raises TroveError MESSAGE_ID_ILLEGAL."""
    if not looks_like_offset_msg_id(text):
        raise TroveError(
            errors.MESSAGE_ID_ILLEGAL,
            f"{text[:80]!r} is no offsetMsgId: expected 32 or 56 hex digits",
            id=text[:80],
        )
    raw = bytes.fromhex(text)
    return raw[:-8], int.from_bytes(raw[-8:], signed=True)


def looks_like_offset_msg_id(text: str) -> bool:
    """True for 32 or 56 hex digits. Unique keys of 4.x clients look the same: only the record shows the
    difference."""
    return len(text) in _OFFSET_MSG_ID_SIZES and _HEX_DIGITS.issuperset(text)


class UniqueKeyGenerator:
    """Makes the unique keys of one process; not for several threads at once.

    mac: 6 bytes; start_seconds_since_2021: at the start of the process; elapsed_seconds: whole seconds
    since then by a monotonic clock. Keys are unique while fewer than 2**32 are made in one second.
    """

    def __init__(
        self, mac: bytes, process_id: int, start_seconds_since_2021: int, elapsed_seconds: Callable[[], int]
    ) -> None:
        assert len(mac) == 6, f"MAC of {len(mac)} bytes"
        self._prefix: Final = (_VERSION + mac + (process_id & 0xFFFF).to_bytes(2)).hex().upper()
        self._start_seconds: Final = start_seconds_since_2021
        self._elapsed_seconds: Final = elapsed_seconds
        self._sequence = 0

    def next(self) -> str:
        """34 upper-case hex digits."""
        sequence = self._sequence
        self._sequence = (sequence + 1) % _SEQUENCE_END
        return f"{self._timed_prefix()}{sequence:08X}"

    def take(self, count: int) -> list[str]:
        """`count` keys at once."""
        text = self.take_matrix(count).tobytes().decode("ascii")
        return [text[i : i + UNIQUE_KEY_SIZE] for i in range(0, len(text), UNIQUE_KEY_SIZE)]

    def take_matrix(self, count: int) -> NDArray[np.uint8]:
        """uint8[count, 34]: the digits of `count` keys, for BatchEncoder.encode."""
        matrix = np.empty((count, UNIQUE_KEY_SIZE), np.uint8)
        matrix[:, :_SEQUENCE_AT] = np.frombuffer(self._timed_prefix().encode(), np.uint8)
        sequences = ((self._sequence + np.arange(count, dtype=np.int64)) % _SEQUENCE_END).astype(np.uint32)
        matrix[:, _SEQUENCE_AT:] = _HEX[sequences[:, None] >> _NIBBLE_SHIFTS & 15]
        self._sequence = (self._sequence + count) % _SEQUENCE_END
        return matrix

    def _timed_prefix(self) -> str:
        seconds = (self._start_seconds + self._elapsed_seconds()) & 0xFFFFFFFF
        return f"{self._prefix}{seconds:08X}"
