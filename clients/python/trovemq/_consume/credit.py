"""The credit of one stream: how many more messages, and bytes of them, its broker may send.

A hold that becomes smaller leaves too much credit at the broker. A broker that has sent `joined` lets the
client take some of it back, by negative credit; at any other broker the rest is used up. Batches on their way
may have used some of it already: the broker then counts below 0, and so does this class when they arrive.
Later credit fills that up first. So both numbers are the same whenever nothing is in flight.

A broker counts no more than `CREDIT_MESSAGES_MAX` and `CREDIT_BYTES_MAX`. The client gives no more, however
large its inbox is: both numbers would differ otherwise, and the client would wait for messages for which the
broker has no credit.

Invariants
- Unused credit and the messages in the inbox are together never more than the inbox may hold, or might
  hold when the credit was sent.
- The broker's number is the unused credit, less the credit in flight, and less the messages in flight.
"""

from __future__ import annotations

from typing import Final

from trovemq._consume.inbox import Inbox

CREDIT_SHARE: Final = 4  # credit is sent when it is this part of the whole
CREDIT_MESSAGES_MAX: Final = 65_536
CREDIT_BYTES_MAX: Final = 268_435_456


class Credit:
    """Credit for the free space of an inbox.

    Attributes:
        may_shrink: Whether the broker accepts negative credit.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._messages = self._bytes = 0  # that were sent and are not used
        self.may_shrink = False

    def restart(self) -> None:
        """A new stream has none. Its broker may be another version."""
        self._messages = self._bytes = 0
        self.may_shrink = False

    def used(self, messages: int, byte_count: int) -> None:
        """These are in the inbox now."""
        self._messages -= messages
        self._bytes -= byte_count

    def next(self) -> tuple[int, int]:
        """The free space that is not sent as credit yet, if there is enough for a frame. It counts as sent.
        Negative messages: credit for space that there is no more."""
        inbox = self._inbox
        messages = min(inbox.count_max - inbox.count, CREDIT_MESSAGES_MAX) - self._messages
        byte_count = min(inbox.bytes_max - inbox.size, CREDIT_BYTES_MAX) - self._bytes
        if messages < 0:
            messages = max(messages, -max(self._messages, 0)) if self.may_shrink else 0
        if abs(messages) < max(1, min(inbox.count_max, CREDIT_MESSAGES_MAX) // CREDIT_SHARE):
            messages = 0
        if byte_count < max(1, min(inbox.bytes_max, CREDIT_BYTES_MAX) // CREDIT_SHARE):
            byte_count = 0
        self._messages += messages
        self._bytes += byte_count
        return messages, byte_count
