"""The Consume stream between a subscription and one broker: batches come in, credit and settlements go out.

| event                                 | reaction                                                           |
|---------------------------------------|--------------------------------------------------------------------|
| a batch arrives                       | the next frame confirms it; then its messages go to the inbox: a   |
|                                       | handler that blocks holds up the confirmation of no batch          |
| the program takes messages            | new credit is sent, when there is enough for a frame               |
| messages are acknowledged or returned | those of one turn of the loop are sent together, by receipt        |
| the stream breaks                     | it is opened again; settlements without a result are sent again,   |
|                                       | and so are the last acknowledgements, which a killed broker lost;  |
|                                       | then credit. Messages that the program did not get are returned:   |
|                                       | the broker may have ended their leases                             |
| a settlement is too late              | its messages are delivered again                                   |
| a reset made deliveries void          | the messages that the program did not get are returned, too; the   |
|                                       | broker refuses those that are void, and counts no attempt of others|
| another member joins, or the program  | messages that it did not get are returned, and credit is taken     |
| has become slow (hold.py)             | back (credit.py)                                                   |

Invariants
- A settlement ends once: with the broker's result, or with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from trovemq._consume.alarm import Alarm
from trovemq._consume.credit import Credit
from trovemq._consume.inbox import Inbox
from trovemq._consume.settling_together import RELEASE, Change, Settling
from trovemq._consume.stream_owner import Owner, StreamSettings
from trovemq._consume.streamed import StreamedBatch, StreamedMessage
from trovemq._net.connections import ConnectionPool
from trovemq._rocketmq.identity import metadata_of
from trovemq._rocketmq.statuses import may_pass, subscription_closed
from trovemq._wire.connection import Connection, Stream
from trovemq._wire.consumer import (
    ConsumeAnswer,
    Result,
    consume_frame,
    open_consume,
    settlement,
    start_of,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

FRAME_MESSAGES_MAX: Final = 2_048
FRAMES_UNANSWERED_MAX: Final = 2  # frames with settlements; further settlements wait for an answer
UNDER_WAY_MAX: Final = 4_096  # `at_capacity` while more settlements than that have no result
POLLS_KEPT_MAX: Final = 128  # of the last batches; a broker sends at most 64 that are not confirmed
ANSWERED_KEPT_S: Final = 2.0
"""Acknowledgements are kept until the result of one that came so much later: a broker writes them to disk at
least ten times a second."""


class GroupStream:
    """One stream, which is opened again after each break.

    Args:
        owner: Gets messages and results.
        pool: The client's connections.
        connect: Returns the present connection to the broker.
        broker: The broker's name.
        settings: The subscription.
        inbox: Where messages wait; its free space is the credit.
        polls: The numbers of batches.
    """

    def __init__(
        self,
        owner: Owner,
        pool: ConnectionPool,
        connect: Callable[[], Connection],
        broker: str,
        settings: StreamSettings,
        inbox: Inbox,
        polls: count[int],
    ) -> None:
        self._owner = owner
        self._options = pool.options
        self._connect = connect
        self._broker = broker
        self._settings = settings
        self._inbox = inbox
        self._polls = polls
        self._task: asyncio.Task[None] | None = None
        self._receiving = False
        self._held = False
        self._closed = False
        self._wake = asyncio.Event()  # there may be something to send
        self._progress = asyncio.Event()  # results arrived
        self._gathering: dict[tuple[str, Change | None], Settling] = {}
        self._again: list[Settling] = []
        self._late: list[Settling] = []  # sent again after a pause
        self._sent: dict[int, Settling] = {}
        self._answered: deque[tuple[float, Settling]] = (
            deque()
        )  # acknowledgements, with the time of their result
        self._numbers = count(1)
        self._frames_unanswered = 0
        self._batch_count = 0
        self._is_open = self._stop_said = self._stopped = False
        self._futures: dict[StreamedMessage, asyncio.Future[None]] = {}
        self.unacknowledged = 0  # settlements without a result: acknowledgements,
        self._returned = 0  # and the others
        self.acknowledged_max = UNDER_WAY_MAX  # less those that were returned
        self._credit = Credit(inbox)
        self._look = Alarm(self._wake.set)
        self._received_batch = self._confirmed_batch = 0
        self._arrived: list[tuple[int, StreamedBatch]] = []  # by number; they are not confirmed
        self._poll_of: deque[tuple[int, int]] = deque(maxlen=POLLS_KEPT_MAX)  # by batch number

    # --- life -----------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Receives until it is cancelled, or until another try is useless: then it raises TroveError, and
        `unsettled` has the settlements without a result. After a cancellation they are still sent.
        It may run again."""
        self._receiving = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._keep(), name=f"consume stream to {self._broker}"
            )
        try:
            await asyncio.shield(self._task)
        finally:
            self._receiving = False
            self._end_if_idle()

    async def stop(self, *, until: float) -> None:
        """Stops receiving; waits for the broker's confirmation, `until` at most. The stream stays open until
        `close`, for messages that are still returned."""
        self._held, self._receiving = True, False
        self._wake.set()
        await self._wait_while(lambda: self._is_open and not self._stopped, until)

    @property
    def _wanted(self) -> bool:
        return self._receiving or self._held or self._unsettled > 0

    def _end_if_idle(self) -> None:
        if not self._wanted and self._task is not None:
            self._task.cancel()

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

    async def close(self, *, until: float) -> None:
        """Waits for all results, `until` at most; settlements without a result then fail with
        CLIENT_CLOSED."""
        await self.answered(until=until)
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.fail_all(subscription_closed())

    async def _wait_while(self, waits: Callable[[], bool], until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                while waits():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            pass

    @property
    def _unsettled(self) -> int:
        return self.unacknowledged + self._returned

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        return self.unacknowledged > self.acknowledged_max

    def _count(self, change: Change | None, more: int) -> None:
        """Counts settlements without a result."""
        if change is None:
            self.unacknowledged += more
        else:
            self._returned += more
            self.acknowledged_max = UNDER_WAY_MAX - self._returned

    async def wait_for_capacity(self) -> None:
        """Waits for that."""
        while self.at_capacity:
            self._progress.clear()
            await self._progress.wait()

    @property
    def batch_count(self) -> int:
        """The number of batches that came."""
        return self._batch_count

    # --- for the owner --------------------------------------------------------------------------------
    def settle(self, message: StreamedMessage, change: Change | None) -> bool:
        """Acknowledges the message, or returns it, together with others. The owner gets the result. Returns
        `at_capacity`."""
        receipt = message.receipt
        assert receipt is not None, "messages with a handle of their own are settled by it"
        if self._closed:
            self._owner.on_result(message, done=False, failure=subscription_closed())
            return False
        self._gathering_of(receipt, change).messages.append(message)
        self._count(change, 1)
        return self.at_capacity

    def consume(self, message: StreamedMessage) -> bool:
        """Acknowledges a message whose result nobody needs, unless it is a failure. From now on, until the
        next frame, its run gathers those that follow by itself."""
        run, receipt = message.run, message.receipt
        if receipt is None or self._closed:
            return self.settle(message, None)
        gathering = self._gathering_of(receipt, None)
        gathering.runs.append(run)
        gathering.gathered.append(message.queue_offset)
        run.gathered, run.stream = gathering.gathered, self
        self.unacknowledged += 1
        return self.at_capacity

    def stop_gathering(self) -> None:
        """From now on each message is settled by itself."""
        for each in self._gathering.values():
            each.end_gathering()

    def settle_all(self, receipt: str, messages: list[StreamedMessage]) -> None:
        """Acknowledges the messages, which have this receipt, as `settle` does."""
        if self._closed:
            for message in messages:
                self._owner.on_result(message, done=False, failure=subscription_closed())
            return
        self._gathering_of(receipt, None).messages.extend(messages)
        self.unacknowledged += len(messages)

    def _gathering_of(self, receipt: str, change: Change | None) -> Settling:
        """Gathers the messages of this receipt that are settled so."""
        gathering = self._gathering.get((receipt, change))
        if gathering is not None:
            return gathering
        deadline = self._now() + self._options.reconnect_timeout_ms / 1000
        gathering = self._gathering[receipt, change] = Settling(receipt, change, deadline)
        self._wake.set()
        return gathering

    def release(self, message: StreamedMessage) -> None:
        """Returns a message that was not tried; its result is not reported."""
        self.settle(message, RELEASE)

    def settle_with_result(self, message: StreamedMessage, change: Change | None) -> asyncio.Future[None]:
        """As `settle`, and waits for the result."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the owner logs it
        if self._closed:
            future.set_exception(subscription_closed())
            return future
        self._futures[message] = future
        self.settle(message, change)
        return future

    # --- the stream -----------------------------------------------------------------------------------
    async def _keep(self) -> None:
        failures = 0
        while self._wanted:
            batches = self._batch_count
            try:
                await self._serve()
            except TroveError as error:
                if self._receiving and self._owner.is_final(error):
                    raise
                _log.debug("consuming %s from %s: %s", self._settings.topic, self._broker, error)
            failures = 1 if self._batch_count != batches else failures + 1
            self._send_again()
            self._release_waiting()
            await asyncio.sleep(self._options.backoff.seconds(failures))

    async def _serve(self) -> None:
        settings = self._settings
        stream = open_consume(self._connect(), metadata_of(settings.client_id))
        self._credit.restart()
        self._poll_of.clear()
        self._arrived.clear()  # of a stream that ended for good: the broker has taken them back
        self._received_batch = self._confirmed_batch = self._frames_unanswered = 0
        self._stop_said = self._stopped = False
        self._is_open = True
        tasks: set[asyncio.Task[None]] = set()
        try:
            start = start_of(settings.filter_type, settings.filter, settings.invisible_ms)
            await stream.send(consume_frame(settings.group, settings.topic, start=start))
            loop = asyncio.get_running_loop()
            tasks = {loop.create_task(work) for work in (self._write(stream), self._watch_space())}
            for task in tasks:
                task.add_done_callback(partial(_end_with, stream))
            while True:
                self._take(await stream.read())
                if self._arrived and stream.writable:
                    self._confirm_now(stream)
        finally:
            self._is_open = False
            self._progress.set()
            stream.cancel()
            self._look.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_space(self) -> None:
        while True:
            self._wake.set()
            await self._inbox.taken()

    async def _write(self, stream: Stream) -> None:
        """Sends one frame with everything that has gathered. A broken stream is noticed by its reader."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (frame := self._next_frame()) is not None:
                    confirmed = self._confirmed_batch
                    await stream.send(frame)
                    if self._arrived:  # a turn later, when the frame is written
                        asyncio.get_running_loop().call_soon(self._hand_over, confirmed)
        except TroveError as error:
            _log.debug("writing to %s: %s", self._broker, error)

    def _next_frame(self) -> bytes | None:
        if self._receiving:
            self._fit()
        settlements = self._next_settlements()
        # No message is delivered before the broker knows that it was settled before a break.
        credit = self._credit.next() if self._receiving and not self._again else (0, 0)
        stop = self._held and not self._stop_said
        confirms = self._received_batch != self._confirmed_batch
        if not (settlements or stop or confirms) and credit == (0, 0):
            return None
        self._confirmed_batch = self._received_batch
        self._stop_said = self._stop_said or stop
        return consume_frame(
            self._settings.group,
            self._settings.topic,
            credit=credit,
            received_batch=self._received_batch,
            settlements=[
                settlement(number, each.receipt, each.offsets, each.change) for number, each in settlements
            ],
            stop=stop,
        )

    def _fit(self) -> None:
        """Returns messages beyond the hold, and looks again when that may have changed."""
        inbox = self._inbox
        if inbox.adapt():
            self._owner.release_waiting(self._broker, inbox.count_max)
        self._look.set(inbox.hold.looked_at_again(self._now(), inbox.count))

    def _next_settlements(self) -> list[tuple[int, Settling]]:
        if self._frames_unanswered >= FRAMES_UNANSWERED_MAX or not (self._again or self._gathering):
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
        gathered = list(self._gathering.values())
        self._gathering.clear()
        for each in gathered:
            each.end_gathering()
        return gathered

    # --- replies --------------------------------------------------------------------------------------
    def _take(self, answer: ConsumeAnswer) -> None:
        for result in answer.results:
            self._on_result(result)
        if answer.results:
            self._frames_unanswered -= 1
            self._wake.set()
            self._progress.set()
            self._end_if_idle()
        if answer.stopped:
            self._stopped = True
            self._progress.set()
        if answer.void_batch:
            self._release_void(answer.void_batch)
        if answer.joined:
            self._credit.may_shrink = True
            self._inbox.hold.begin_to_yield(self._now(), self._inbox.ready_count)
            self._wake.set()
        if not answer.batch:
            return
        self._received_batch = answer.batch
        self._batch_count += 1
        self._wake.set()
        lease_ms, lease_end = self._settings.invisible_ms, None
        if lease_ms is not None:
            lease_end = self._now() + lease_ms / 1000
        poll = next(self._polls)
        self._poll_of.append((answer.batch, poll))
        batch = StreamedBatch(
            answer.runs,
            answer.records,
            topic=self._settings.topic,
            broker=self._broker,
            poll=poll,
            lease_end=lease_end,
            settlement=self._owner,
        )
        self._arrived.append((answer.batch, batch))

    def _confirm_now(self, stream: Stream) -> None:
        """Confirms in this turn, so that the program has the messages in the next one."""
        if (frame := self._next_frame()) is not None:
            stream.send_now(frame, alone=False)
        self._hand_over(self._confirmed_batch)

    def _hand_over(self, confirmed: int) -> None:
        """The batches up to this number are confirmed: the program may have them. None are left if the stream
        broke meanwhile."""
        while self._arrived and self._arrived[0][0] <= confirmed:
            _, batch = self._arrived.pop(0)
            self._credit.used(len(batch), batch.nbytes)
            self._put(batch)
            if self._inbox.hold.yields(self._now()):
                self._wake.set()

    def _put(self, batch: StreamedBatch) -> None:
        tracing = self._options.tracing
        if tracing is None and not batch.unreadable:
            self._owner.put_batch(batch)
            return
        for number, error in batch.unreadable.items():
            self._owner.unreadable(batch.message(number), error)
        messages = batch.readable()
        if tracing is not None:
            for message in messages:
                tracing.take(message, message.trace_context)
        self._owner.put_all(messages)

    def _release_waiting(self) -> None:
        """After a break."""
        arrived, self._arrived = self._arrived, []
        for _, batch in arrived:
            self._release_all(batch)
        self._owner.release_waiting(self._broker)

    def _release_void(self, number: int) -> None:
        """Deliveries became void when this was the last batch: the rest of all batches so far is returned."""
        while self._arrived and self._arrived[0][0] <= number:
            _, batch = self._arrived.pop(0)
            self._credit.used(len(batch), batch.nbytes)
            self._release_all(batch)
        later = next((poll for batch, poll in self._poll_of if batch > number), None)
        self._owner.release_before(self._broker, later)
        self._wake.set()  # there is credit

    def _release_all(self, batch: StreamedBatch) -> None:
        for message in batch:
            message.settled = True
            self.release(message)

    def _on_result(self, result: Result) -> None:
        settling = self._sent.pop(result.settlement_id, None)
        if settling is None:
            return
        if result.error is not None and may_pass(result.error) and settling.deadline > self._now():
            settling.again = True
            self._late.append(settling)
            asyncio.get_running_loop().call_later(self._options.backoff.seconds(1), self._repeat, settling)
            return
        self._finish(settling, result.error, result.refused)

    def _repeat(self, settling: Settling) -> None:
        if settling in self._late:
            self._late.remove(settling)
            self._again.append(settling)
            self._wake.set()

    def unsettled(self) -> list[tuple[StreamedMessage, Change | None, asyncio.Future[None] | None]]:
        """Takes out the messages whose settlement has no result, each with its change and with the future of
        the caller that waits for it."""
        taken = [
            (message, each.change, self._futures.pop(message, None))
            for each in self._take_waiting()
            for message in each.all_messages()
        ]
        self.unacknowledged = 0
        self._count(RELEASE, -self._returned)
        self._progress.set()
        return taken

    def _take_waiting(self) -> list[Settling]:
        waiting = [*self._sent.values(), *self._late, *self._again, *self._end_gathering()]
        for each in self._sent.values():
            each.again = True
        self._sent.clear()
        self._late.clear()
        self._again.clear()
        return waiting

    def _finish(self, settling: Settling, error: TroveError | None, refused: dict[int, TroveError]) -> None:
        if settling.was_answered:
            return
        done, released = settling.change is None, settling.change == RELEASE
        if done and error is None:
            self._keep_answered(settling)
        self._count(settling.change, -len(settling))
        if error is None and not refused and not self._futures and not self._inbox.ordered:
            return  # the usual case
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
            if future is not None and not future.done():
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)
            if future is not None or not released:
                self._owner.on_result(message, done=done, failure=failure)

    def _keep_answered(self, settling: Settling) -> None:
        now = self._now()
        while self._answered and now > self._answered[0][0] + ANSWERED_KEPT_S:
            self._answered.popleft()
        kept = Settling(
            settling.receipt, None, settling.deadline, offsets=settling.offsets, was_answered=True
        )
        self._answered.append((now, kept))

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

    def fail_all(self, error: TroveError) -> None:
        """Settlements without a result end with this error."""
        for each in self._take_waiting():
            self._finish(each, error, {})
        self._progress.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _end_with(stream: Stream, task: asyncio.Task[None]) -> None:
    """Ends the stream when its writer has failed."""
    if not task.cancelled():
        if task.exception() is not None:
            _log.error("%s failed", task.get_name(), exc_info=task.exception())
        stream.cancel()
