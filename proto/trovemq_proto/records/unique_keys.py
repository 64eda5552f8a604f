"""The unique key of a message, which names its process and its time.

Unique key of our clients (the form of RocketMQ's v5 clients), as upper-case hex:

| offset | width | field                                |
|--------|-------|--------------------------------------|
| 0      | 1     | version, 01                          |
| 1      | 6     | MAC                                  |
| 7      | 2     | process id, its low bytes            |
| 9      | u32   | seconds since 2021-01-01T00:00:00Z   |
| 13     | u32   | sequence number within the process   |

Source: rocketmq-clients, MessageIdCodec.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # one key, and several as texts, are made without NumPy
    import numpy as np
    from numpy.typing import NDArray

UNIQUE_KEY_SIZE: Final = 34
_VERSION: Final = b"\x01"
_SEQUENCE_AT: Final = 26
_SEQUENCE_END: Final = 1 << 32


class UniqueKeyGenerator:
    """Makes the unique keys of one process; not for several threads at once.

    mac: 6 bytes; start_seconds_since_2021: at the start of the process; elapsed_seconds: whole seconds
    since then by a monotonic clock. Keys are unique while fewer than 2**32 are made in one second.
    """

    def __init__(
        self, mac: bytes, process_id: int, start_seconds_since_2021: int, elapsed_seconds: Callable[[], int]
    ) -> None:
        assert len(mac) == 6, f"MAC of {len(mac)} bytes"
        assert process_id >= 0, "its low bytes are written"
        self._prefix: Final = (_VERSION + mac + (process_id & 0xFFFF).to_bytes(2)).hex().upper()
        self._start_seconds: Final = start_seconds_since_2021
        self._elapsed_seconds: Final = elapsed_seconds
        self._sequence = 0
        self._timed, self._timed_seconds = "", -1  # the part with the time, for the second of the last key

    def next(self) -> str:
        """34 upper-case hex digits."""
        seconds = self._elapsed_seconds()
        prefix = self._timed if seconds == self._timed_seconds else self._timed_prefix(seconds)
        sequence = self._sequence
        self._sequence = (sequence + 1) % _SEQUENCE_END
        return f"{prefix}{sequence:08X}"

    def take(self, count: int) -> list[str]:
        """`count` keys at once."""
        prefix, first = self._timed_prefix(self._elapsed_seconds()), self._sequence
        self._sequence = (first + count) % _SEQUENCE_END
        return [f"{prefix}{(first + i) % _SEQUENCE_END:08X}" for i in range(count)]

    def take_matrix(self, count: int) -> NDArray[np.uint8]:
        """uint8[count, 34]: the digits of `count` keys, for BatchEncoder.encode."""
        import numpy as np

        prefix = self._timed_prefix(self._elapsed_seconds())
        matrix = np.empty((count, UNIQUE_KEY_SIZE), np.uint8)
        matrix[:, :_SEQUENCE_AT] = np.frombuffer(prefix.encode(), np.uint8)
        sequences = ((self._sequence + np.arange(count, dtype=np.int64)) % _SEQUENCE_END).astype(np.uint32)
        digits = np.frombuffer(sequences.astype(">u4").tobytes().hex().upper().encode(), np.uint8)
        matrix[:, _SEQUENCE_AT:] = digits.reshape(count, UNIQUE_KEY_SIZE - _SEQUENCE_AT)
        self._sequence = (self._sequence + count) % _SEQUENCE_END
        return matrix

    def _timed_prefix(self, seconds: int) -> str:
        if seconds != self._timed_seconds:
            self._timed_seconds = seconds
            self._timed = f"{self._prefix}{(self._start_seconds + seconds) & 0xFFFFFFFF:08X}"
        return self._timed
