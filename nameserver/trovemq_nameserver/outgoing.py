"""The replies to watchers that are being sent, in parts where the client joins them (reply_parts.py).

A client that reads slowly keeps the reply of its time in memory, however often the table changes meanwhile.
So the replies that are being sent take at most a number of bytes: beyond it the streams of the oldest end,
and their clients ask again. The newest one is sent in any case. Clients of one reply share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.reply_parts import PART_SIZE, part_of

OUTGOING_SIZE_MAX: Final = 268_435_456
"""In bytes: several replies with 2,000,000 routes."""


class Outgoing:
    """One reply, as long as a stream has it."""

    __slots__ = ("__weakref__", "reply")

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    def messages(self, *, parts: bool) -> Iterator[bytes]:
        """Its messages: several if it is large and the client joins parts. Raises TroveError LIMIT_EXCEEDED
        if it was dropped meanwhile."""
        size = len(self.reply)
        if not parts or size <= PART_SIZE:
            yield self.reply
            return
        for begin in range(0, size, PART_SIZE):
            if not self.reply:
                text = f"later routes are sent to others, and {begin:,} bytes of these were read: ask again"
                raise TroveError(errors.LIMIT_EXCEEDED, text)
            yield part_of(self.reply, begin, PART_SIZE)


class OutgoingReplies:
    """The replies of one nameserver. `size_max`: in bytes, without the newest one."""

    def __init__(self, size_max: int = OUTGOING_SIZE_MAX) -> None:
        self._size_max = size_max
        self._held: WeakValueDictionary[int, Outgoing] = WeakValueDictionary()
        self._numbers = count()

    @property
    def size(self) -> int:
        """The bytes of all."""
        return sum(len(one.reply) for one in self._held.values())

    def of(self, reply: bytes) -> Outgoing:
        """The reply, which the caller holds no longer than it sends it."""
        held = list(self._held.values())
        for one in held:
            if one.reply is reply:
                return one
        made = self._held[next(self._numbers)] = Outgoing(reply)
        size = sum(len(one.reply) for one in held)
        for one in held:
            if size <= self._size_max:
                break
            size -= len(one.reply)
            one.reply = b""
        return made
