"""Messages of a Consume stream that are settled together: under one receipt, in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trovemq._consume.streamed import StreamedMessage, StreamedRun

Change = tuple[int, bool]
"""The invisible time in ms and `suspend`, for messages that are returned."""
RELEASE: Final[Change] = (0, True)
"""The change for messages that the program has not tried."""


@dataclass(slots=True, eq=False)
class Settling:
    """Messages that are settled together. `change` None: they are acknowledged."""

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
    """It had a result before the stream broke. Nobody waits for another one, and it has only `offsets`."""

    def __len__(self) -> int:
        return len(self.messages) + len(self.gathered)

    def all_messages(self) -> Iterator[StreamedMessage]:
        """All messages. Those that were gathered are created from their offsets."""
        yield from self.messages
        for offset in self.gathered:
            message = next(run for run in self.runs if offset in run.offsets).message(offset)
            message.settled = True
            yield message

    def end_gathering(self) -> None:
        """No more messages are added."""
        for run in self.runs:
            run.gathered = None
