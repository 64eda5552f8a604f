"""Messages that are consumed together."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from itertools import groupby
from operator import attrgetter
from typing import Final, Self

from trovemq.received import ProcessBlock, ReceivedMessage, TracedProcessing

_settlement: Final = attrgetter("settlement")


class ReceivedBatch(list[ReceivedMessage], ProcessBlock):
    """A list of `Subscription.batches`.

        async for batch in messages.batches(500):
            async with batch.process():
                await insert([message.body for message in batch])

    Each of its messages can also be settled alone.
    """

    def process(self) -> AbstractAsyncContextManager[Self]:
        """Acknowledges the messages at the end of the block; an exception within returns them, with back-off.

        Messages that the block itself has settled do not change. Does not wait for the broker:
        acknowledgements are sent in batches and retried in the background. A cancelled block returns the
        messages at once.
        """
        tracing = self[0].tracing if self else None
        if tracing is not None:
            return TracedProcessing(self, tracing.process(self))
        return self  # type: ignore[return-value]  # mypy does not see that Self has both methods

    async def consumed(self) -> None:
        """Acknowledges the messages that are not settled. Does not wait for the broker: acknowledgements are
        retried in the background."""
        unsettled = [message for message in self if not message.settled]
        if unsettled:
            unsettled[0].settlement.check_loop()
        for message in unsettled:
            message.settled = True
        for settlement, messages in groupby(unsettled, _settlement):
            settlement.consumed_all(list(messages))
        if unsettled and (last := unsettled[-1].settlement).at_capacity:
            await last.wait_for_capacity()  # not before: a cancellation would leave messages unsettled

    def return_after(self, failure: BaseException) -> None:
        """Called after an exception in `process`: returns the messages that are not settled."""
        for message in self:
            message.return_after(failure)
