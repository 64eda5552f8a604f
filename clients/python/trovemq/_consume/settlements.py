"""The settlements of one Consume stream: messages are gathered, sent in frames, and get their results.

Invariants
- A settlement ends once: with the broker's result, or with an error.
- After a break, settlements without a result are sent again, and before them the last acknowledgements, which
  a killed broker lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from trovemq._common.backoff import may_pass
from trovemq._consume.inbox import Inbox
from trovemq._consume.settling_together import RELEASE, Settling
from trovemq._consume.stream_owner import Owner
from trovemq._consume.streamed import StreamedMessage
from trovemq._wire.consumer import EXTEND, Change, Result
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

FRAME_MESSAGES_MAX: Final = 2_048
FRAMES_UNANSWERED_MAX: Final = 2  # frames with settlements; further settlements wait for an answer
UNDER_WAY_MAX: Final = 4_096  # `at_capacity` while more settlements than that have no result
ANSWERED_KEPT_S: Final = 2.0
"""Seconds. An acknowledgement is kept until one has its result that was answered this much later: a broker
writes them to disk at least ten times a second."""


class Settlements:
    """The settlements of the stream to one broker, which is a subclass.

    Args:
        owner: Gets results.
        options: Times and back-off.
        broker: The broker's name.
        inbox: Whether the group is orderly.

    Attributes:
        unacknowledged: Acknowledgements without a result.
        acknowledged_max: The most acknowledgements without a result; beyond it `at_capacity`.
    """

    def __init__(self, owner: Owner, options: ClientOptions, broker: str, inbox: Inbox) -> None:
        self._owner = owner
        self._options = options
        self._broker = broker
        self._inbox = inbox
        self._refusal: TroveError | None = None  # of all further settlements
        self._wake = asyncio.Event()  # there may be something to send
        self._progress = asyncio.Event()  # results arrived
        self._gathering: dict[tuple[str, Change | None], Settling] = {}
        self._extensions: list[Settling] = []
        self._again: list[Settling] = []
        self._late: list[Settling] = []  # sent again after a pause
        self._sent: dict[int, Settling] = {}
        self._answered: deque[tuple[float, Settling]] = (
            deque()
        )  # acknowledgements, with the time of their result
        self._numbers = count(1)
        self._frames_unanswered = 0
        self._futures: dict[StreamedMessage, asyncio.Future[None]] = {}
        self._extending: dict[StreamedMessage, list[Change | None]] = {}
        """Messages whose extension has no result, with the settlements that wait for the new handle."""
        self._returned = 0  # settlements without a result that are no acknowledgements
        self.unacknowledged = 0
        self.acknowledged_max = UNDER_WAY_MAX  # less those that were returned

    # --- for the owner --------------------------------------------------------------------------------
    def settle(self, message: StreamedMessage, change: Change | None) -> bool:
        """Acknowledges the message, or returns it, together with others. The owner gets the result. Returns
        `at_capacity`."""
        if self._refusal is not None:
            if change != RELEASE:
                self._owner.on_result(message, done=change is None, failure=self._refusal)
            return False
        if (waiting := self._extending.get(message)) is not None:
            waiting.append(change)
            self._count(change, 1)
            return self.at_capacity
        receipt = message.receipt
        if receipt is None or (change is not None and change.by_handle):
            gathering = self._gathering_of(message.receipt_handle, change, by_handle=True)
        else:
            gathering = self._gathering_of(receipt, change)
        gathering.messages.append(message)
        self._count(change, 1)
        return self.at_capacity

    def consume(self, message: StreamedMessage) -> bool:
        """Acknowledges a message whose result no caller needs, unless it is a failure. From now on, until the
        next frame, its run gathers the next acknowledgements without a call. Returns `at_capacity`."""
        run, receipt = message.run, message.receipt
        if receipt is None or self._refusal is not None or message in self._extending:
            return self.settle(message, None)
        gathering = self._gathering_of(receipt, None)
        gathering.runs.append(run)
        gathering.gathered.append(message.queue_offset)
        run.gathered, run.stream = gathering.gathered, self
        self.unacknowledged += 1
        return self.at_capacity

    def settle_all(self, receipt: str, messages: list[StreamedMessage]) -> None:
        """Acknowledges the messages, which have this receipt, with the next frame."""
        if self._refusal is not None:
            for message in messages:
                self._owner.on_result(message, done=True, failure=self._refusal)
            return
        if self._extending:
            for message in messages:
                self.settle(message, None)
            return
        self._gathering_of(receipt, None).messages.extend(messages)
        self.unacknowledged += len(messages)

    def settle_with_result(self, message: StreamedMessage, change: Change | None) -> asyncio.Future[None]:
        """Acknowledges the message, or returns it, together with others. The future gets the result, or
        raises TroveError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the owner logs it
        self._futures[message] = future
        self.settle(message, change)
        if self._refusal is not None:
            del self._futures[message]
            future.set_exception(self._refusal)
        return future

    def extend(self, message: StreamedMessage, duration_ms: int) -> asyncio.Future[None]:
        """Extends the lease to `duration_ms` from now on. The result has the handle that settles the message
        from then on; the message gets it also if the caller does not wait for the result."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if self._refusal is not None:
            future.set_exception(self._refusal)
            return future
        change = Change(duration_ms, kind=EXTEND)
        # It is not sent again after a break, which may have replaced its handle.
        extension = Settling(message.receipt_handle, change, 0.0, [message], by_handle=True, extended=future)
        self._extensions.append(extension)
        self._extending.setdefault(message, [])
        message.receipt = message.receipt  # a run that gathers nothing
        self._count(change, 1)
        self._begin()
        return future

    def release(self, message: StreamedMessage) -> None:
        """Returns a message that was not tried; its result is not reported."""
        self.settle(message, RELEASE)

    def stop_gathering(self) -> None:
        """From now on each message is settled separately."""
        for each in self._gathering.values():
            each.end_gathering()

    def _gathering_of(self, receipt: str, change: Change | None, *, by_handle: bool = False) -> Settling:
        """Gathers the messages of this receipt, or the one of this handle, that are settled so."""
        gathering = self._gathering.get((receipt, change))
        if gathering is not None:
            return gathering
        deadline = self._now() + self._options.reconnect_timeout_ms / 1000
        gathering = self._gathering[receipt, change] = Settling(
            receipt, change, deadline, by_handle=by_handle
        )
        self._begin()
        return gathering

    def _begin(self) -> None:
        """There is a settlement to send. The subclass opens its stream again if that has ended."""
        self._wake.set()

    def _count(self, change: Change | None, more: int) -> None:
        """Counts settlements without a result."""
        if change is None:
            self.unacknowledged += more
        else:
            self._returned += more
            self.acknowledged_max = UNDER_WAY_MAX - self._returned

    @property
    def _unsettled(self) -> int:
        return self.unacknowledged + self._returned

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        return self.unacknowledged > self.acknowledged_max

    async def wait_for_capacity(self) -> None:
        """Waits for that."""
        while self.at_capacity:
            self._progress.clear()
            await self._progress.wait()

    async def consumed(self, *, until: float) -> None:
        """Waits until the broker knows all acknowledgements, `until` (the loop's time) at most."""
        await self._wait_while(lambda: self.unacknowledged > 0, until)

    @property
    def is_answered(self) -> bool:
        """Whether each settlement has a result."""
        return self._unsettled == 0

    async def answered(self, *, until: float) -> None:
        """Waits for that, `until` at most."""
        await self._wait_while(lambda: self._unsettled > 0, until)

    async def _wait_while(self, waits: Callable[[], bool], until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                while waits():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            pass

    # --- results and breaks ---------------------------------------------------------------------------
    def fail_all(self, error: TroveError) -> None:
        """Settlements without a result end with this error."""
        for each in self._take_waiting():
            self._finish(each, error, {})
        self._progress.set()

    def refuse_all(self, error: TroveError) -> None:
        """Settlements without a result, and all further ones until it runs again, end with this error."""
        self._refusal = error
        self.fail_all(error)

    # --- frames -----------------------------------------------------------------------------------------
    @property
    def _has_settlements(self) -> bool:
        return bool(self._again or self._gathering or self._extensions)

    def _next_settlements(self) -> list[tuple[int, Settling]]:
        if self._frames_unanswered >= FRAMES_UNANSWERED_MAX or not self._has_settlements:
            return []
        self._frames_unanswered += 1
        waiting = [*self._again, *self._end_gathering()]
        chosen: list[tuple[int, Settling]] = []
        space = FRAME_MESSAGES_MAX
        while waiting:
            each = waiting[0]
            if not each.offsets:
                each.offsets = sorted([*each.gathered, *[message.queue_offset for message in each.messages]])
            if chosen and space < len(each.offsets):
                break
            del waiting[0]
            space -= len(each.offsets)
            number = next(self._numbers)
            self._sent[number] = each
            chosen.append((number, each))
        self._again = waiting
        return chosen

    def _end_gathering(self) -> list[Settling]:
        gathered = [*self._gathering.values(), *self._extensions]
        self._gathering.clear()
        self._extensions.clear()
        for each in gathered:
            each.end_gathering()
        return gathered

    def _on_result(self, result: Result) -> None:
        settling = self._sent.pop(result.settlement_id, None)
        if settling is None:
            return
        if result.error is not None and may_pass(result.error) and settling.deadline > self._now():
            settling.again = True
            self._late.append(settling)
            asyncio.get_running_loop().call_later(self._options.backoff.seconds(1), self._repeat, settling)
            return
        self._finish(settling, result.error, result.refused, result.handle)

    def _repeat(self, settling: Settling) -> None:
        if settling in self._late:
            self._late.remove(settling)
            self._again.append(settling)
            self._wake.set()

    def _take_waiting(self) -> list[Settling]:
        waiting = [*self._sent.values(), *self._late, *self._again, *self._end_gathering()]
        for each in self._sent.values():
            each.again = True
        self._sent.clear()
        self._late.clear()
        self._again.clear()
        return waiting

    def _finish(
        self, settling: Settling, error: TroveError | None, refused: dict[int, TroveError], handle: str = ""
    ) -> None:
        if settling.was_answered:
            return
        self._count(settling.change, -len(settling))
        if settling.extended is not None:
            _answer(settling.extended, error)
            self._extended(settling, handle if error is None else None)
            return
        done, released = settling.is_consumed, settling.change == RELEASE
        if settling.change is None and error is None:
            self._keep_answered(settling)
        if error is None and not refused and not self._futures and not self._inbox.ordered:
            return  # the common case: no caller waits, and no message waits for another
        for message in settling.all_messages():
            failure = error or refused.get(message.queue_offset)
            if (
                failure is not None
                and settling.again
                and not done
                and failure.spec is errors.RECEIPT_HANDLE_ILLEGAL
            ):
                failure = None  # an earlier try reached the broker, so the message is settled
            future = self._futures.pop(message, None)
            if future is not None:
                _answer(future, failure)
            if future is not None or not released:
                self._owner.on_result(message, done=done, failure=failure)

    def _extended(self, extension: Settling, handle: str | None) -> None:
        """The extension has ended. `handle`: the new one; None if it has failed."""
        (message,), change = extension.messages, extension.change
        assert change is not None, "an extension changes the invisible time"
        if handle is not None:
            message.receipt_handle, message.receipt = handle, None
            message.lease_end = self._now() + change.invisible_ms / 1000
        for waiting in self._extending.pop(message, ()):
            self._count(waiting, -1)
            self.settle(message, waiting)
            if self._refusal is not None and (future := self._futures.pop(message, None)) is not None:
                _answer(future, self._refusal)

    def _keep_answered(self, settling: Settling) -> None:
        now = self._now()
        while self._answered and now > self._answered[0][0] + ANSWERED_KEPT_S:
            self._answered.popleft()
        self._answered.append((now, settling.as_answered()))

    def _send_again(self) -> None:
        """After a break, settlements without a result are sent again, or fail when it is too late. So are the
        last ones that had a result, however long ago: a killed broker may have lost them, and their messages
        would stay leased to this client as long as it lives. The break of a lost machine is noticed late."""
        now = self._now()
        for _, each in self._answered:
            each.deadline = now + self._options.reconnect_timeout_ms / 1000
            self._again.append(each)
        self._answered.clear()
        text = f"broker {self._broker} did not answer"
        error = TroveError(errors.BROKER_UNREACHABLE, text, broker=self._broker)
        for each in self._take_waiting():
            if now < each.deadline:
                self._again.append(each)
            else:
                self._finish(each, error, {})
        self._progress.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _answer(future: asyncio.Future[None], failure: TroveError | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
