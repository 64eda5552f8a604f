"""A message from a subscription, and its settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.dead_letter_reason import DeadLetterReason

Delay = float | timedelta  # seconds
Processed = TypeVar("Processed", bound=AbstractAsyncContextManager[object])  # a message, or several of them


class Tracing(Protocol):
    """The part of `trovemq.otel.Tracing` that a message needs. The module itself is an extra."""

    def process(self, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[None]:
        """A context for the work on messages."""
        ...


class Settlement(Protocol):
    """Settles messages."""

    def check_loop(self) -> None:
        """Raises TroveError EVENT_LOOP_ILLEGAL outside of the client's event loop."""

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Acknowledges the message; `urgent`: a caller waits for the answer."""

    def consumed(self, message: ReceivedMessage) -> bool:
        """Acknowledges the message without waiting for the result. Returns whether too many settlements have
        no result yet: then `wait_for_capacity`."""

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledges several messages without waiting for the results."""

    def return_message(
        self,
        message: ReceivedMessage,
        delay_ms: int | None,
        *,
        tried: bool,
        failure: BaseException | None = None,
    ) -> asyncio.Future[None]:
        """Returns the message for redelivery after the delay (None: the group's back-off); not `tried`: no
        attempt is counted. `failure`: the exception of the attempt."""

    def release(self, message: ReceivedMessage) -> None:
        """Returns a message that the program did not see: no attempt is counted."""

    def dead_letter(
        self, message: ReceivedMessage, *, reason: str = "", failure: BaseException | None = None
    ) -> asyncio.Future[None]:
        """Moves the message to the group's dead letters, whatever attempt it was; `reason`: the program's, or
        the exception instead."""

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """Extends the lease: the message is redelivered after that time at the earliest."""

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""

    async def wait_for_capacity(self) -> None:
        """Waits while too many settlements are in flight."""

    @property
    def group(self) -> str:
        """The consumer group of the messages; empty if there is none."""

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        """The message is acknowledged already, as part of an atomic transaction."""


@dataclass(slots=True, eq=False, kw_only=True)
class ReceivedFields:
    """The content of a received message, for asyncio and for threads.

    Attributes:
        topic: The topic it was sent to (`%DLQ%GROUP` for one that is read from there).
        body: Its bytes, as they were sent.
        message_id: The UNIQ_KEY, or the offsetMsgId of a message without one.
        keys: Its keys.
        tags: Its tag; None if it has none.
        properties: The sender's own properties.
        message_group: The message group whose order is kept; None if it has none.
        priority: The sender's priority, 0 to 9; None (which counts as 4) if it has none.
        queue_id: Its queue.
        queue_offset: Its place in the queue.
        attempt: The number of this delivery, from 1.
        born_timestamp: When it was sent, epoch ms.
        store_timestamp: When the broker stored it, epoch ms.
        deliver_timestamp: The delivery time of a delayed message, epoch ms; else None.
        dead_letter_of: Topic and message id of the original of a dead letter; else None.
        dead_letter_reason: Why a dead letter is one; else None.
        broker: Name of the broker it came from.
        body_error: Why a broadcast message has an empty `body`, because it does not inflate; else "".
    """

    topic: str
    body: bytes
    message_id: str
    keys: tuple[str, ...]
    tags: str | None
    properties: dict[str, str]
    message_group: str | None
    queue_id: int
    queue_offset: int
    attempt: int
    born_timestamp: int
    store_timestamp: int
    priority: int | None = None
    deliver_timestamp: int | None = None
    dead_letter_of: tuple[str, str] | None = None
    dead_letter_reason: DeadLetterReason | None = None
    broker: str
    body_error: str = ""


class ProcessBlock:
    """The block of `process`, which the message or batch itself is."""

    __slots__ = ()

    async def consumed(self) -> None:
        """Called at the end of the block."""
        raise NotImplementedError

    def return_after(self, failure: BaseException) -> None:
        """Called after an exception in the block."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        if failure is None:
            await self.consumed()
        else:
            self.return_after(failure)


@dataclass(slots=True, eq=False, kw_only=True)
class ReceivedMessage(ReceivedFields, ProcessBlock):
    """One message of a subscription: consumed by `ack`, delivered again by `nack`.

        async for message in subscription:
            async with message.process():
                ...

    A message that is neither acknowledged nor returned is delivered again when its lease ends: for a push
    subscription when this client has ended, with `invisible_ms` after that time.

    Attributes:
        settled: Whether `ack`, `nack` or `dead_letter` was called, or `process` has ended.
        receipt_handle: The broker's handle for this delivery. The other fields are the subscription's own.
        tracing: The client's; None if its options have none.
    """

    settled: bool = False
    receipt_handle: str = field(default="", repr=False)
    lease_end: float | None = field(
        default=None, repr=False
    )  # in the loop's time; None: the broker renews it
    poll: int = field(default=0, repr=False)  # the call that received it
    settlement: Settlement = field(repr=False, default_factory=lambda: NO_SETTLEMENT)
    tracing: Tracing | None = field(default=None, repr=False)

    async def ack(self) -> None:
        """Acknowledges the message: it is consumed. Waits until the broker has confirmed it.

        Raises:
            TroveError: RECEIPT_HANDLE_ILLEGAL if the lease was over (the message is redelivered, or was
                already); BROKER_UNREACHABLE, REQUEST_TIMEOUT after `reconnect_timeout_ms`; REQUEST_ILLEGAL
                for a message that was settled before; CLIENT_CLOSED after the subscription was closed.
        """
        self._settle()
        await asyncio.shield(self.settlement.acknowledge(self, urgent=True))

    async def nack(self, delay: Delay | None = None) -> None:
        """Returns the message: it is delivered again, to any member of the group, with `attempt` + 1.

        Args:
            delay: Seconds until then; None for the group's back-off of this attempt.

        Raises:
            TroveError: INVISIBLE_DURATION_ILLEGAL for a negative delay; RECEIPT_HANDLE_ILLEGAL if the lease
                was over; BROKER_UNREACHABLE, REQUEST_TIMEOUT; REQUEST_ILLEGAL for a message that was settled
                before; CLIENT_CLOSED.
        """
        delay_ms = None if delay is None else milliseconds(delay)
        self._settle()
        await asyncio.shield(self.settlement.return_message(self, delay_ms, tried=True))

    async def dead_letter(self, reason: str | None = None) -> None:
        """Moves the message to the group's dead letters, `%DLQ%GROUP`: it is not delivered again.

        Returns when it is stored there.

        Args:
            reason: Why, in words; kept with the dead letter. A reason of more than 512 bytes is cut.

        Raises:
            TroveError: RECEIPT_HANDLE_ILLEGAL if the lease was over; BROKER_UNREACHABLE, REQUEST_TIMEOUT;
                REQUEST_ILLEGAL for a message that was settled before; CLIENT_CLOSED.
        """
        if not isinstance(reason, str | None):
            raise TroveError(errors.REQUEST_ILLEGAL, f"reason={reason!r} is no text")
        self._settle()
        await asyncio.shield(self.settlement.dead_letter(self, reason=reason or ""))

    async def extend(self, duration: Delay) -> None:
        """Extends the lease: an unsettled message is delivered again `duration` seconds from now.

        Needed only with `invisible_ms`. The broker renews the leases of other subscriptions itself; an
        extended lease is not renewed any more. A duration of less than a millisecond ends the lease: it is
        `nack(0)`, and the message is settled then.

        Args:
            duration: Seconds, or a timedelta.

        Raises:
            TroveError: INVISIBLE_DURATION_ILLEGAL for a duration that is negative or longer than the broker
                allows; RECEIPT_HANDLE_ILLEGAL if the lease was over; BROKER_UNREACHABLE if the connection
                broke before the result (the message may then be delivered again before `duration`);
                REQUEST_TIMEOUT; REQUEST_ILLEGAL for a message that was settled before; CLIENT_CLOSED after
                the subscription was closed.
        """
        duration_ms = milliseconds(duration)
        if not duration_ms:
            await self.nack(0)
            return
        if self.settled:
            raise TroveError(errors.REQUEST_ILLEGAL, "the message is settled already")
        self.settlement.check_loop()
        change = asyncio.ensure_future(self.settlement.extend(self, duration_ms))
        try:
            await asyncio.shield(change)
        except asyncio.CancelledError:
            await asyncio.wait({change})  # otherwise the message might not have its new handle
            raise

    def process(self) -> AbstractAsyncContextManager[Self]:
        """Acknowledges at the end of the block; an exception within returns the message, with back-off.

        Does not wait for the broker: acknowledgements are sent in batches and retried in the background; the
        subscription waits for them when it is closed. A cancelled block returns the message at once. If the
        block itself called `ack` or `nack`, nothing more is done.
        """
        if self.tracing is not None:
            return TracedProcessing(self, self.tracing.process((self,)))
        return self  # type: ignore[return-value]  # mypy does not see that Self has both methods

    def return_after(self, failure: BaseException) -> None:
        """Called after an exception in `process`: returns the message, unless it is settled."""
        if not self.settled:
            self.settled = True
            delay_ms = None if isinstance(failure, Exception) else 0
            self.settlement.return_message(self, delay_ms, tried=True, failure=failure)

    async def consumed(self) -> None:
        """Acknowledges together with others, as the end of `process` does, unless it is settled; does not
        wait for the broker."""
        if self.settled:
            return
        self.settlement.check_loop()
        self.settled = True
        if self.settlement.consumed(self):
            await self.settlement.wait_for_capacity()

    @property
    def place(self) -> tuple[object, ...]:
        """Identifies its record among those of all brokers."""
        return self.broker, self.queue_id, self.queue_offset, self.message_id

    @property
    def receipt(self) -> str | None:
        """The receipt under which it is settled together with others; None: it has its own handle."""
        return None

    @property
    def nbytes(self) -> int:
        """Its size in bytes, as the subscription counts it."""
        return len(self.body)

    def take_over(self, newer: ReceivedMessage) -> None:
        """Takes over the handle of a newer delivery of the same message, because the older one is void."""
        self.receipt_handle, self.lease_end = newer.receipt_handle, newer.lease_end
        self.attempt, self.poll = newer.attempt, newer.poll

    def _settle(self) -> None:
        if self.settled:
            raise TroveError(errors.REQUEST_ILLEGAL, "the message is settled already")
        self.settlement.check_loop()
        self.settled = True


class TracedProcessing(Generic[Processed]):
    """A block of `process` within a span."""

    __slots__ = ("_processed", "_span")

    def __init__(self, processed: Processed, span: AbstractContextManager[None]) -> None:
        self._processed = processed
        self._span = span

    async def __aenter__(self) -> Processed:
        self._span.__enter__()
        return self._processed

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self._processed.__aexit__(kind, failure, where)
        finally:
            self._span.__exit__(kind, failure, where)


def milliseconds(delay: Delay) -> int:
    """The milliseconds of a delay. Raises TroveError INVISIBLE_DURATION_ILLEGAL if it is negative."""
    seconds: object = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise TroveError(errors.INVISIBLE_DURATION_ILLEGAL, f"{delay!r} is not a time from now")
    return round(seconds * 1000)


class _NoSettlement:
    """For messages that are not leased to a group: broadcasts, and those that an operator has consumed
    directly."""

    def check_loop(self) -> None: ...

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        return _done()

    def consumed(self, message: ReceivedMessage) -> bool:
        return False

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        return

    def return_message(
        self,
        message: ReceivedMessage,
        delay_ms: int | None,
        *,
        tried: bool,
        failure: BaseException | None = None,
    ) -> asyncio.Future[None]:
        return _done()

    def release(self, message: ReceivedMessage) -> None:
        return

    def dead_letter(
        self, message: ReceivedMessage, *, reason: str = "", failure: BaseException | None = None
    ) -> asyncio.Future[None]:
        return _done()

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        return

    @property
    def at_capacity(self) -> bool:
        return False

    async def wait_for_capacity(self) -> None:
        return

    @property
    def group(self) -> str:
        return ""

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        return


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


NO_SETTLEMENT: Settlement = _NoSettlement()

Handler = Callable[[ReceivedMessage], object]
"""An async function, or one that is called in a thread."""
