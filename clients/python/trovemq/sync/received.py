"""A received message in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Final, Self

from trovemq import received as aio
from trovemq import received_batch as aio_batch
from trovemq.received import Delay, ReceivedFields
from trovemq.sync._loop_thread import LoopThread


@dataclass(slots=True, eq=False, kw_only=True)
class ReceivedMessage(ReceivedFields):
    """One message of a subscription: consumed by `ack`, delivered again by `nack`. Any thread may settle it.

    Attributes:
        received: The same message in the asyncio client.
    """

    received: aio.ReceivedMessage = field(repr=False)
    _thread: LoopThread = field(repr=False)

    @classmethod
    def of(cls, message: aio.ReceivedMessage, thread: LoopThread) -> Self:
        """The message, for threads."""
        content = {name: getattr(message, name) for name in _FIELDS}
        return cls(received=message, _thread=thread, **content)

    @property
    def settled(self) -> bool:
        """Whether `ack`, `nack` or `dead_letter` was called, or `process` has ended."""
        return self.received.settled

    def ack(self) -> None:
        """Acknowledges the message, and waits until the broker has confirmed it. Raises TroveError, for
        example RECEIPT_HANDLE_ILLEGAL if the lease was over."""
        self._thread.run(self.received.ack())

    def nack(self, delay: Delay | None = None) -> None:
        """Returns the message for redelivery after `delay` seconds; None: the group's back-off. Raises
        TroveError."""
        self._thread.run(self.received.nack(delay))

    def dead_letter(self, reason: str | None = None) -> None:
        """Moves the message to the group's dead letters, with the reason; returns when it is stored there.
        Raises TroveError."""
        self._thread.run(self.received.dead_letter(reason))

    def consumed(self) -> None:
        """Acknowledges together with others, unless it is settled; does not wait for the broker."""
        self._thread.run(self.received.consumed())

    def extend(self, duration: Delay) -> None:
        """Extends the lease to `duration` seconds from now on; 0 returns the message at once. Raises
        TroveError."""
        self._thread.run(self.received.extend(duration))

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledges at the end of the block; an exception within returns the message, with back-off.

        Ctrl-C in the block returns the message at once.
        """
        tracing = self.received.tracing
        with nullcontext() if tracing is None else tracing.process((self.received,)):
            try:
                yield self
            except BaseException as failure:
                self._thread.call(partial(self.received.return_after, failure))
                raise
            self.consumed()


class ReceivedBatch(list[ReceivedMessage]):
    """A list of `Subscription.batches`. Each of its messages can also be settled separately."""

    def __init__(self, batch: aio_batch.ReceivedBatch, thread: LoopThread) -> None:
        super().__init__(ReceivedMessage.of(message, thread) for message in batch)
        self._thread = thread

    @property
    def received(self) -> aio_batch.ReceivedBatch:
        """The same messages in the asyncio client."""
        return aio_batch.ReceivedBatch(message.received for message in self)

    def consumed(self) -> None:
        """Acknowledges the messages that are not settled; does not wait for the broker."""
        self._thread.run(self.received.consumed())

    @contextmanager
    def process(self) -> Iterator[Self]:
        """Acknowledges the messages at the end of the block; an exception within returns them, with back-off.

        Ctrl-C in the block returns the messages at once.
        """
        received = self.received
        tracing = received[0].tracing if received else None
        with nullcontext() if tracing is None else tracing.process(received):
            try:
                yield self
            except BaseException as failure:
                self._thread.call(partial(self.received.return_after, failure))
                raise
            self.consumed()


_FIELDS: Final = tuple(one.name for one in fields(ReceivedFields))
