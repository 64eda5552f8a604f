"""Messages in a stream's DATA (gRPC over HTTP/2, "Length-Prefixed-Message").

| offset | size   | field                                     |
|--------|--------|-------------------------------------------|
| 0      | 1      | 1 where the message is compressed, else 0 |
| 1      | 4      | length of the message, big-endian         |
| 5      | length | message                                   |

Messages and DATA frames are independent of each other: a message may start or end anywhere in a frame.
"""

from __future__ import annotations

import struct
from typing import Final

PREFIX_SIZE: Final = 5  # the first two rows of the table
_PREFIX: Final = struct.Struct(">BI")
pack_prefix = _PREFIX.pack
unpack_prefix = _PREFIX.unpack_from
COUNT_UNLIMITED: Final = 1 << 62  # more messages than come at once

Message = memoryview | bytearray


class FramingError(ValueError):
    """The bytes of a stream are not messages, or (`too_large`) a message is above the limit."""

    def __init__(self, reason: str, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


class MessageReader:
    """Puts the messages of one stream together. A message that arrives in one piece becomes a view of it; any
    other is copied once.
    """

    __slots__ = ("_compressed", "_length", "buffer", "prefix", "size_max")

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.prefix = b""  # a part of a prefix
        self.buffer: bytearray | None = (
            None  # the bytes of a message so far: an announced length alone costs nothing
        )
        self._length = 0  # of that message
        self._compressed = 0

    @property
    def announced(self) -> int:
        """The length of the message that is being received, 0 between messages."""
        return self._length if self.buffer is not None else 0

    @property
    def missing(self) -> int:
        """How many bytes of it are still to come."""
        return self._length - len(self.buffer) if self.buffer is not None else 0

    @property
    def at_boundary(self) -> bool:
        """No message is cut here."""
        return self.buffer is None and not self.prefix

    def is_whole_message(self, data: memoryview) -> bool:
        """Whether these bytes are one message, neither compressed nor too large: most are, and need no
        `feed`.
        """
        size = len(data) - PREFIX_SIZE
        if self.buffer is not None or self.prefix or not 0 <= size <= self.size_max:
            return False
        return _PREFIX.unpack_from(data) == (0, size)

    def feed(
        self, data: memoryview, count_max: int = COUNT_UNLIMITED
    ) -> tuple[list[tuple[int, Message]], int]:
        """Up to `count_max` complete messages of `data`, each with its compressed flag, and how many bytes of
        it they took: all, unless there are more messages.
        """
        messages: list[tuple[int, Message]] = []
        at, size = 0, len(data)
        while at < size and len(messages) < count_max:
            if self.buffer is not None:
                at += self._fill(data[at:])
                if len(self.buffer) == self._length:
                    messages.append((self._compressed, self.buffer))
                    self.buffer = None
                continue
            if self.prefix or size - at < PREFIX_SIZE:
                needed = PREFIX_SIZE - len(self.prefix)
                self.prefix += bytes(data[at : at + needed])
                at += needed
                if len(self.prefix) < PREFIX_SIZE:
                    break
                compressed, length = _PREFIX.unpack(self.prefix)
                self.prefix = b""
            else:
                compressed, length = _PREFIX.unpack_from(data, at)
                at += PREFIX_SIZE
            self._check(compressed, length)
            if size - at >= length:
                messages.append((compressed, data[at : at + length]))
                at += length
            else:
                self._compressed = compressed
                self.buffer = bytearray()
                self._length = length
        return messages, at

    def _check(self, compressed: int, length: int) -> None:
        if compressed > 1:
            raise FramingError("a message's prefix is malformed")
        if length > self.size_max:
            raise FramingError(f"a message of {length} bytes; at most {self.size_max} here", True)

    def _fill(self, data: memoryview) -> int:
        assert self.buffer is not None
        count = min(len(data), self._length - len(self.buffer))
        self.buffer += data[:count]
        return count
