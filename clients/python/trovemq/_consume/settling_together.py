"""Messages of a Consume stream that are settled together, in the same way: under one receipt, or one message
by its handle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trovemq._consume.streamed import StreamedMessage, StreamedRun
from trovemq._wire.consumer import DEAD_LETTER, Change

RELEASE: Final = Change(0, suspend=True)
"""The change for messages that the program has not tried."""


@dataclass(slots=True, eq=False)
class Settling:
    """Messages that are settled together. `change` None: they are acknowledged. `by_handle`: the one whose
    handle `receipt` is."""

    receipt: str
    change: Change | None
    deadline: float
    messages: list[StreamedMessage] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    """The queue offsets of further messages, which are those of `runs`."""
    runs: list[StreamedRun] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """The queue offsets of all of them, rising; set when it is sent for the first time."""
    again: bool = False
    """It was sent before and had no result."""
    was_answered: bool = False
    """It had a result before the stream broke. No caller waits for another one, and it has only `offsets`."""
    by_handle: bool = False
    extended: asyncio.Future[None] | None = None
    """The result, if the message is extended: it is not settled."""

    @property
    def is_consumed(self) -> bool:
        """Whether the messages are consumed when the broker knows of it."""
        return self.change is None or self.change.kind == DEAD_LETTER

    def as_answered(self) -> Settling:
        """Itself, without its messages, to be sent again after a break."""
        kept = Settling(self.receipt, None, self.deadline, by_handle=self.by_handle)
        kept.offsets, kept.was_answered = self.offsets, True
        return kept

    def __len__(self) -> int:
        return len(self.messages) + len(self.gathered)

    def all_messages(self) -> Iterator[StreamedMessage]:
        """All messages. The gathered ones are created from their offsets."""
        yield from self.messages
        for offset in self.gathered:
            message = next(run for run in self.runs if offset in run.offsets).message(offset)
            message.settled = True
            yield message

    def end_gathering(self) -> None:
        """No more messages are added."""
        for run in self.runs:
            run.gathered = None
