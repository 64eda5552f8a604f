"""Messages that the program has processed, and whose acknowledgements came too late.

A member that stood still may have lost its leases: while it processed a message, another member got it, and
that one may lose it in the same way. Each of them processes a message once; without this, they would pass it
on for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic
from typing import Final

from trovemq.received import ReceivedMessage

KEPT_MAX: Final = 4_096
KEPT_S: Final = 600.0
"""Afterwards a delivery may be a new one: an operator may have reset the group."""


class ProcessedMessages:
    """By its place: the attempt of a message that was processed, and the time."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], tuple[int, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, message: ReceivedMessage) -> None:
        """Its acknowledgement was refused."""
        self._known[message.place] = message.attempt, monotonic()
        self._known.move_to_end(message.place)
        if len(self._known) > KEPT_MAX:
            self._known.popitem(last=False)

    def has(self, message: ReceivedMessage) -> bool:
        """Whether this is a later delivery of one of them, which is forgotten then."""
        if not self._known:
            return False
        now = monotonic()
        while self._known and now - next(iter(self._known.values()))[1] > KEPT_S:
            self._known.popitem(last=False)
        # An attempt that is not higher: the group was reset.
        return message.attempt > self._known.pop(message.place, (message.attempt, now))[0]
