"""The Consume stream between a subscription and one broker: batches come in, credit and settlements go out.

| event                                 | reaction                                                           |
|---------------------------------------|--------------------------------------------------------------------|
| the stream is open                    | the client is a member of the group (member.py)                    |
| a batch arrives                       | the next frame confirms it; then its messages go to the inbox: a   |
|                                       | handler that blocks holds up the confirmation of no batch          |
| the program takes messages            | new credit is sent, when there is enough for a frame               |
| messages are acknowledged or returned | settlements of one iteration of the loop are sent together         |
| the stream breaks                     | it is opened again; settlements without a result are sent again,   |
|                                       | and so are the last acknowledgements, which a killed broker lost;  |
|                                       | then credit. Messages that the program did not get are returned:   |
|                                       | the broker may have ended their leases                             |
| the broker leaves the routes          | the same: without the stream the broker gives them to others, also |
|                                       | if it is the nameserver that has lost it. In an orderly group the  |
|                                       | stream stays until the messages that the program has are settled,  |
|                                       | or the broker is gone: no other member gets them meanwhile         |
| a settlement is too late              | its messages are delivered again                                   |
| a reset made deliveries void          | the messages that the program did not get are returned, too; the   |
|                                       | broker refuses those that are void, and counts no attempt of others|
| another member joins, or the program  | messages that it did not get are returned; negative credit takes   |
| has become slow (hold.py)             | credit back (credit.py)                                            |
| a message is extended                 | its new handle settles it from then on; a break fails the call     |
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final

from trovemq._common.identity import hostname, metadata_of
from trovemq._consume.alarm import Alarm
from trovemq._consume.credit import Credit
from trovemq._consume.inbox import Inbox
from trovemq._consume.member import Member
from trovemq._consume.settlements import Settlements
from trovemq._consume.stream_owner import Owner, StreamSettings, subscription_closed
from trovemq._consume.streamed import StreamedBatch
from trovemq._net.connections import ConnectionPool
from trovemq._wire.connection import Connection, Stream
from trovemq._wire.consumer import (
    ConsumeAnswer,
    consume_frame,
    open_consume,
    settlement,
    start_of,
)
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

LEAVE_SECONDS: Final = 1.0  # that the broker has to note that the client leaves
POLLS_KEPT_MAX: Final = 128  # of the last batches; a broker sends at most 64 that are not confirmed


class GroupStream(Settlements):
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
        super().__init__(owner, pool.options, broker, inbox)
        self._connect = connect
        self._settings = settings
        self._polls = polls
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None  # no more batches come
        self._receiving = False
        self._held = False
        self._batch_count = 0
        self._is_open = self._stop_said = self._stopped = self._leave_said = self._heard = False
        self._credit = Credit(inbox)
        self._look = Alarm(self._wake.set)
        self.member = Member(broker, settings.handler, self._wake.set)
        self._received_batch = self._confirmed_batch = 0
        self._arrived: list[tuple[int, StreamedBatch]] = []  # by number; they are not confirmed
        self._poll_of: deque[tuple[int, int]] = deque(maxlen=POLLS_KEPT_MAX)  # by batch number

    # --- life -----------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Receives until it is cancelled, or until another try is useless: then it raises TroveError.
        Settlements without a result are still sent. It may run again."""
        self._receiving, self._refusal = True, None
        if self._task is None or _is_over(self._task):
            self._task = self._opened()
        self._wake.set()  # a stream that was kept for settlements has no credit
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._task, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            await (self._ended if self._ended.done() else self._task)
        except asyncio.CancelledError:
            self._receiving = False
            # A loop that ends cancels all tasks: a stream that was opened then would never run.
            if not self._held and not _is_over(self._task):
                self._release_waiting()
            raise
        finally:
            self._receiving = False
            self.end_if_idle()

    async def stop(self, *, until: float) -> None:
        """Stops receiving; waits for the broker's confirmation, `until` at most. The stream stays open until
        `close`, for messages that are still returned."""
        self._held, self._receiving = True, False
        self._wake.set()
        await self._wait_while(lambda: self._is_open and not self._stopped, until)

    def _opened(self) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._keep(), name=f"consume stream to {self._broker}")

    def _begin(self) -> None:
        super()._begin()
        if self._receiving or self._held or self.member.leaving:
            return
        if self._task is not None and _is_over(self._task):  # its broker has left the routes
            self._task = self._opened()  # settlements are tried until their deadline

    @property
    def _wanted(self) -> bool:
        return self._has_work or self._inbox.has_lane(self._broker)

    @property
    def _has_work(self) -> bool:
        return self._receiving or self._held or self._unsettled > 0

    def end_if_idle(self) -> None:
        """Ends a stream that was kept for messages in hand, once there are none."""
        if not self._wanted and self._task is not None:
            self._task.cancel()

    async def close(self, *, until: float) -> None:
        """Waits for all results, `until` at most; settlements without a result then fail with
        CLIENT_CLOSED. Leaves the group."""
        await self.answered(until=until)
        self.member.leaving = True
        if self._is_open:
            self._wake.set()
            await self._wait_while(lambda: self._is_open, asyncio.get_running_loop().time() + LEAVE_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.member.close()
        self.refuse_all(subscription_closed())

    @property
    def is_open(self) -> bool:
        """Whether settlements reach the broker now."""
        return self._is_open

    @property
    def batch_count(self) -> int:
        """The number of batches that came."""
        return self._batch_count

    # --- the stream -----------------------------------------------------------------------------------
    async def _keep(self) -> None:
        failures = 0
        while self._wanted:
            batches = self._batch_count
            try:
                await self._serve()
            except TroveError as error:
                self.member.failed(error)
                if self._receiving and self._owner.is_final(error):
                    raise
                _log.debug("consuming %s from %s: %s", self._settings.topic, self._broker, error)
                if self._receiving and not self.member.leaving:
                    self._owner.on_broken(self._broker, error)
            if self.member.leaving or not (self._heard or self._has_work):
                return  # the second: the broker has left the routes, and is gone
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
        self._stop_said = self._stopped = self._leave_said = False
        self._is_open, self._heard = True, False
        tasks: set[asyncio.Task[None]] = set()
        try:
            start = start_of(settings.filter_type, settings.filter, settings.invisible_ms, hostname())
            await stream.send(consume_frame(settings.group, settings.topic, start=start))
            loop = asyncio.get_running_loop()
            tasks = {loop.create_task(work) for work in self._work(stream)}
            for task in tasks:
                task.add_done_callback(partial(_end_with, stream))
            while True:
                answer = await stream.read()
                self._heard = True
                self._take(answer)
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

    def _work(self, stream: Stream) -> tuple[Coroutine[Any, Any, None], ...]:
        return self._write(stream), self._watch_space(), self.member.beat()

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
                    if self._arrived:  # in the next iteration, when the frame is written
                        asyncio.get_running_loop().call_soon(self._hand_over, confirmed)
                if self._leave_said:
                    await stream.end()
                    await asyncio.Event().wait()  # for the broker, which ends the stream
        except TroveError as error:
            _log.debug("writing to %s: %s", self._broker, error)

    def _next_frame(self) -> bytes | None:
        if self._leave_said:
            return None
        if self._receiving:
            self._fit()
        settlements = self._next_settlements()
        # No message is delivered before the broker knows that it was settled before a break.
        credit = self._credit.next() if self._receiving and not self._again else (0, 0)
        stop = self._held and not self._stop_said
        confirms = self._received_batch != self._confirmed_batch
        member = self.member
        if not (settlements or stop or confirms or member.has_frame) and credit == (0, 0):
            return None
        self._confirmed_batch = self._received_batch
        self._stop_said = self._stop_said or stop
        self._leave_said = member.leaving
        return consume_frame(
            self._settings.group,
            self._settings.topic,
            credit=credit,
            received_batch=self._received_batch,
            settlements=[
                settlement(number, each.receipt, each.offsets, each.change, by_handle=each.by_handle)
                for number, each in settlements
            ],
            stop=stop,
            leave=member.leaving,
            answers=member.take_answers(),
        )

    def _fit(self) -> None:
        """Returns messages beyond the hold, and looks again when that may have changed."""
        inbox = self._inbox
        if inbox.adapt():
            self._owner.release_waiting(self._broker, inbox.count_max)
        self._look.set(inbox.hold.looked_at_again(self._now(), inbox.count))

    # --- replies --------------------------------------------------------------------------------------
    def _take(self, answer: ConsumeAnswer) -> None:
        for result in answer.results:
            self._on_result(result)
        if answer.results:
            self._frames_unanswered -= 1
            self._wake.set()
            self._progress.set()
            self.end_if_idle()
        if answer.settings is not None:
            self.member.joined(answer.settings)
            self._owner.on_joined(self._broker, answer.settings)
        if answer.command is not None:
            self.member.on_command(answer.command)
        if answer.ended is not None:
            self._end_receiving(answer.ended)
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

    def _end_receiving(self, error: TroveError) -> None:
        """The broker sends no more batches; the stream stays open until `close`, for settlements."""
        self._held = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _confirm_now(self, stream: Stream) -> None:
        """Confirms in this iteration of the loop, so that the program has the messages in the next one."""
        if (frame := self._next_frame()) is not None:
            stream.send_now(frame, alone=False)
            if self._leave_said:
                self._wake.set()
        self._hand_over(self._confirmed_batch)

    def _hand_over(self, confirmed: int) -> None:
        """The batches up to this number are confirmed: the program may have them. If the stream broke
        meanwhile there are none."""
        while self._arrived and self._arrived[0][0] <= confirmed:
            _, batch = self._arrived.pop(0)
            self._credit.used(len(batch), batch.nbytes)
            if not (self._receiving or self._held):
                self._release_all(batch)
                continue
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


def _is_over(task: asyncio.Task[None]) -> bool:
    """Whether the stream of this task is not opened again."""
    return task.done() or task.cancelling() > 0


def _end_with(stream: Stream, task: asyncio.Task[None]) -> None:
    """Ends the stream when its writer has failed."""
    if not task.cancelled():
        if task.exception() is not None:
            _log.error("%s failed", task.get_name(), exc_info=task.exception())
        stream.cancel()
