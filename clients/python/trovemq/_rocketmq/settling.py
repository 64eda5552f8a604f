"""Settles one broker's messages: acknowledgements in batches, the others one by one, all with retries.

An acknowledgement may be repeated while the lease lasts, so temporary failures are retried until
`reconnect_timeout_ms`. If the lease is over, that is the final answer, and the message is delivered again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from trovemq._rocketmq.messaging import MessagingService
from trovemq._rocketmq.statuses import may_pass, subscription_closed
from trovemq.options import ClientOptions
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ACKNOWLEDGED_TOGETHER_MAX: Final = 32
LINGER_SECONDS: Final = 0.002  # how long an acknowledgement without a waiter waits for others
CHANGES_AT_ONCE_MAX: Final = 32
UNDER_WAY_MAX: Final = 4_096  # `wait_for_capacity` waits while more than that are not answered

_Answer = TypeVar("_Answer")


@dataclass(slots=True, eq=False)
class _Acknowledgement:
    message: ReceivedMessage
    answer: asyncio.Future[None]
    deadline: float


class Settler:
    """Settles the messages of one broker.

    Args:
        service: Returns the broker's calls, by the present connection.
        group: The consumer group.
        options: Times and back-off.
    """

    def __init__(self, service: Callable[[], MessagingService], group: str, options: ClientOptions) -> None:
        self._service = service
        self._group = group
        self._options = options
        self._pending: deque[_Acknowledgement] = deque()
        self._acknowledger: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._changes = asyncio.Semaphore(CHANGES_AT_ONCE_MAX)
        self._under_way: set[asyncio.Future[None]] = set()
        self._consumed: set[asyncio.Future[None]] = set()  # those that are acknowledgements or dead letters
        self._closed = False

    # --- for callers ----------------------------------------------------------------------------------

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Acknowledges a message together with others; `urgent`: a caller waits for the answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        if self._closed:
            answer.set_exception(subscription_closed())
            return answer
        self._track(answer, consumed=True)
        self._pending.append(_Acknowledgement(message, answer, self._deadline()))
        if urgent or len(self._pending) >= ACKNOWLEDGED_TOGETHER_MAX:
            self._hurry.set()
        if self._acknowledger is None or self._acknowledger.done():
            self._acknowledger = loop.create_task(self._acknowledge_pending())
        return answer

    def come_again(
        self, message: ReceivedMessage, delay_ms: int, *, suspend: bool = False
    ) -> asyncio.Future[None]:
        """Returns a message, for redelivery after the delay."""
        return self._start(lambda: self._come_again(message, delay_ms, suspend))

    def dead_letter(self, message: ReceivedMessage, attempts_max: int) -> asyncio.Future[None]:
        """Moves a message to the group's dead letters."""
        return self._start(
            lambda: self._persist(lambda: self._service().dead_letter(self._group, message, attempts_max)),
            consumed=True,
        )

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """Delays the redelivery of a message to that time at the earliest; the message gets a new receipt
        handle."""
        if self._closed:
            raise subscription_closed()
        message.receipt_handle = await self._service().change_invisible(
            self._group, message, duration_ms, suspend=False
        )
        message.lease_end = asyncio.get_running_loop().time() + duration_ms / 1000

    # --- the whole ------------------------------------------------------------------------------------

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        return len(self._under_way) > UNDER_WAY_MAX

    async def wait_for_capacity(self) -> None:
        """Waits for that."""
        while self.at_capacity:
            await asyncio.wait(list(self._under_way), return_when=asyncio.FIRST_COMPLETED)

    @property
    def is_answered(self) -> bool:
        """Whether each settlement has a result."""
        return not self._under_way

    async def answered(self, *, until: float) -> None:
        """Waits for that, but not beyond `until` (the loop's time)."""
        await self._wait_for(self._under_way, until)

    async def consumed(self, *, until: float) -> None:
        """Waits until the broker has confirmed the consumed messages, but not beyond `until` (the loop's
        time)."""
        await self._wait_for(self._consumed, until)

    async def close(self, *, until: float) -> None:
        """Waits in the same way for everything in flight; the rest fails with CLIENT_CLOSED."""
        await self._wait_for(self._under_way, until)
        self._closed = True
        if self._acknowledger is not None:
            self._acknowledger.cancel()
            await asyncio.gather(self._acknowledger, return_exceptions=True)
        for answer in list(self._under_way):
            if isinstance(answer, asyncio.Task):
                answer.cancel()
            elif not answer.done():
                answer.set_exception(subscription_closed())
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _wait_for(self, answers: set[asyncio.Future[None]], until: float) -> None:
        self._hurry.set()
        if answers:
            left = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait(list(answers), timeout=left)

    # --- acknowledgements -----------------------------------------------------------------------------

    async def _acknowledge_pending(self) -> None:
        failures = 0
        while self._pending:
            await self._linger()
            batch = self._next_batch()
            messages = [entry.message for entry in batch]
            try:
                answers = await self._service().acknowledge(self._group, messages[0].topic, messages)
            except TroveError as error:
                answers = [error] * len(batch)
            except asyncio.CancelledError:
                self._pending.extendleft(reversed(batch))
                raise
            again = [
                entry for entry, error in zip(batch, answers, strict=True) if not self._told(entry, error)
            ]
            self._pending.extendleft(reversed(again))
            failures = failures + 1 if again else 0
            if again:
                await asyncio.sleep(self._options.backoff.seconds(failures))

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    def _next_batch(self) -> list[_Acknowledgement]:
        """The next ones, all of one topic."""
        batch = [self._pending.popleft()]
        topic = batch[0].message.topic
        while len(batch) < ACKNOWLEDGED_TOGETHER_MAX and self._pending:
            if self._pending[0].message.topic != topic:
                break
            batch.append(self._pending.popleft())
        return batch

    def _told(self, entry: _Acknowledgement, error: TroveError | None) -> bool:
        """Whether the settlement has ended: its caller has the answer, or no longer waits."""
        if error is None:
            if not entry.answer.done():
                entry.answer.set_result(None)
            return True
        if may_pass(error) and asyncio.get_running_loop().time() < entry.deadline:
            return False
        if not entry.answer.done():
            entry.answer.set_exception(error)
        return True

    # --- the rest -------------------------------------------------------------------------------------

    def _start(self, call: Callable[[], Awaitable[None]], *, consumed: bool = False) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if self._closed:
            refused: asyncio.Future[None] = loop.create_future()
            refused.set_exception(subscription_closed())
            return refused
        task = loop.create_task(self._limited(call))
        self._track(task, consumed=consumed)
        return task

    async def _limited(self, call: Callable[[], Awaitable[None]]) -> None:
        async with self._changes:
            await call()

    async def _come_again(self, message: ReceivedMessage, delay_ms: int, suspend: bool) -> None:
        in_doubt = False

        async def change() -> None:
            nonlocal in_doubt
            try:
                await self._service().change_invisible(self._group, message, delay_ms, suspend=suspend)
            except TroveError as error:
                # An earlier try has arrived and replaced the handle: its purpose is achieved.
                if not (in_doubt and error.spec is errors.RECEIPT_HANDLE_ILLEGAL):
                    in_doubt = True
                    raise

        await self._persist(change)

    async def _persist(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Repeats the call until there is an answer, or the time is over."""
        deadline, failures = self._deadline(), 0
        while True:
            try:
                return await call()
            except TroveError as error:
                failures += 1
                delay = self._options.backoff.seconds(failures)
                if not may_pass(error) or asyncio.get_running_loop().time() + delay > deadline:
                    raise
                await asyncio.sleep(delay)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.reconnect_timeout_ms / 1000

    def _track(self, answer: asyncio.Future[None], *, consumed: bool) -> None:
        for answers in (self._under_way, self._consumed) if consumed else (self._under_way,):
            answers.add(answer)
            answer.add_done_callback(answers.discard)
