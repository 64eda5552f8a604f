"""The credit of one stream: how many more messages, and bytes of them, its broker may send.

Invariant: unused credit and the messages in the inbox are together never more than the inbox may hold.
"""

from __future__ import annotations

from typing import Final

from trovemq._rocketmq.inbox import Inbox

CREDIT_SHARE: Final = 4  # credit is sent when it is this part of the whole


class Credit:
    """Credit for the free space of an inbox."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._messages = self._bytes = 0  # that were sent and are not used

    def restart(self) -> None:
        """A new stream has none."""
        self._messages = self._bytes = 0

    def used(self, messages: int, byte_count: int) -> None:
        """These are in the inbox now."""
        self._messages -= messages
        self._bytes -= byte_count

    def next(self) -> tuple[int, int]:
        """The free space that is not sent as credit yet, if there is enough for a frame. It counts as
        sent."""
        inbox = self._inbox
        messages = inbox.count_max - inbox.count - self._messages
        byte_count = inbox.bytes_max - inbox.size - self._bytes
        if messages < max(1, inbox.count_max // CREDIT_SHARE):
            messages = 0
        if byte_count < max(1, inbox.bytes_max // CREDIT_SHARE):
            byte_count = 0
        self._messages += messages
        self._bytes += byte_count
        return messages, byte_count
