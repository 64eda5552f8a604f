"""The delivery of a Consume stream: batches of messages as long as the client grants credit.

| event                  | effect                                                                            |
|------------------------|-----------------------------------------------------------------------------------|
| credit                 | a task sends batches until the credit is used up, and waits while there are no    |
|                        | messages                                                                          |
| negative credit        | takes some back. Batches on their way to the client may have used it already; the |
|                        | rest is then negative, and later credit fills it up first                         |
| a batch is confirmed   | the client keeps it when the stream ends                                          |
| deliveries became void | a reply names the last batch before that (`void_batch`)                           |
| `stop`                 | no more batches are sent                                                          |
| the stream ends        | messages of unconfirmed batches are delivered again after `released_after_ms`     |

When a reset or a deletion has made deliveries void, the client returns the messages of the named batches that
its program has not begun. A reset may concern one queue, and never concerns retries: the return ends leases
that still count, and is refused for the others.

Invariants
- The stream never sends more messages than there is credit for, and at most one message more than the bytes.
- The broker renews the leases of confirmed batches only. A batch that was lost when the broker was killed is
  delivered again when its short lease ends, even if its client is alive.
- A released delivery counts as an attempt if the batch was written, because one of its messages may have
  ended the program.
- A batch is named as void only if its messages were leased before the reset. At most one such notice waits to
  be written, and it needs no credit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq_broker.filters.filter import Filter
from trovemq_broker.groups.delivery.lease_resolvers import ReceiptRange
from trovemq_broker.groups.delivery.request import DeliveredRun, ReceiveRequest
from trovemq_broker.groups.delivery.settlements import CONFIRMED, Outcome, Released
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import POLLING_MAX_S, Receiver
from trovemq_broker.server.native.membership import Membership
from trovemq_broker.server.native.reply_stream import ReplyStream
from trovemq_broker.server.wire.consume_frames import batch_reply, ended_reply, void_reply
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.steps import Steps

BATCH_MESSAGES_MAX: Final = 512
BATCH_BYTES_MAX: Final = 1 << 20
UNCONFIRMED_MAX: Final = 64
"""The most batches that the client has not confirmed; no more are sent then."""
CREDIT_MESSAGES_MAX: Final = 65_536
CREDIT_BYTES_MAX: Final = 268_435_456


class ConsumeSubscription(NamedTuple):
    """The content of the first frame. `invisible_ms` None: the broker renews the leases."""

    group: str
    topic: str
    filter: Filter
    invisible_ms: int | None

    @property
    def pair(self) -> GroupTopicKey:
        return self.group, self.topic


@dataclass(slots=True)
class _Sent:
    """The messages of a batch, without their records, which would keep a segment mapped."""

    batch: int
    runs: list[tuple[str, range]]
    is_written: bool = False


class BatchDelivery:
    """The delivery of one stream; `start`, then `end`, then `release_unconfirmed`."""

    def __init__(
        self,
        core: BrokerCore,
        receiver: Receiver,
        subscription: ConsumeSubscription,
        membership: Membership,
        stream: ReplyStream,
        context: Context,
    ) -> None:
        self._core = core
        self._receiver = receiver
        self._subscription = subscription
        self._membership = membership
        self._stream = stream
        self._context = context
        self._credit_messages = self._credit_bytes = 0
        self._asked = 0
        """The messages for which the task waits; 0 while it does anything else, and looks at the credit
        afterwards."""
        self._credited = asyncio.Event()
        self._batch = self._void_batch = 0
        self._void_waits = self._is_sending = False
        self._idle = asyncio.Event()  # set when a batch was written
        self._unconfirmed: deque[_Sent] = deque()
        self._task: asyncio.Task[None] | None = None

    # --- start and end --------------------------------------------------------------------------------
    def start(self) -> None:
        """Sends batches from now on."""
        self._task = asyncio.get_running_loop().create_task(self._deliver(), name="consume-deliverer")

    def end(self) -> None:
        """Takes no more messages."""
        if self._task is not None:
            self._task.cancel()
        self._asked = 0

    async def stop(self) -> None:
        """Ends the delivery when the batch under way, if there is one, is written."""
        while self._is_sending:
            self._idle.clear()
            await self._idle.wait()
        self.end()

    async def release_unconfirmed(self) -> None:
        """The stream has ended: messages of unconfirmed batches are for others."""
        if not self._unconfirmed:
            return
        steps = self._releases()
        try:
            await self._core.turns.run_from_now(steps)
        finally:
            for _ in steps:  # the broker is stopping: without pauses
                pass
            self._core.waits.wake(self._subscription.pair)

    def _releases(self) -> Steps[None]:
        while self._unconfirmed:
            sent = self._unconfirmed.popleft()
            self._settle(sent, Released(counted=sent.is_written))
            yield

    # --- frames of the client -------------------------------------------------------------------------
    def confirm(self, batch: int) -> None:
        """The client has received the batches up to this one."""
        while self._unconfirmed and self._unconfirmed[0].batch <= batch:
            sent = self._unconfirmed.popleft()
            self._credited.set()
            if self._subscription.invisible_ms is None:
                self._settle(sent, CONFIRMED)

    def _settle(self, sent: _Sent, outcome: Outcome) -> None:
        """For all messages of the batch; settled ones and void receipts are left out."""
        delivery, now_ms = self._core.delivery, self._core.clock_ms()
        for run in sent.runs:
            with suppress(TroveError):
                delivery.settle(*self._subscription.pair, ReceiptRange(*run), outcome, now_ms)

    def add_credit(self, messages: int, byte_count: int) -> None:
        """`messages` may be negative: then call `ask_again`."""
        if messages or byte_count:
            credit = min(self._credit_messages + messages, CREDIT_MESSAGES_MAX)
            self._credit_messages = max(credit, -CREDIT_MESSAGES_MAX)
            self._credit_bytes = min(self._credit_bytes + byte_count, CREDIT_BYTES_MAX)
            self._credited.set()

    def ask_again(self) -> None:
        """Asks for the next batch again if it was asked for with credit that the client took back."""
        if not self._asked or self._asked <= self._credit_messages or self._task is None or self._task.done():
            return
        self.end()
        self.start()

    def prepare(self) -> ReceiveRequest:
        """The request for a batch. Each time it is checked again: topic, group and client may have changed.
        Raises TroveError, for example CLIENT_UNKNOWN, PERMISSION_MISSING."""
        self._membership.check()
        return self._receiver.prepare(
            *self._subscription,
            self._membership.client_id,
            confirmed=self._subscription.invisible_ms is not None,
            count_max=max(1, min(self._credit_messages, BATCH_MESSAGES_MAX)),
            bytes_max=min(self._credit_bytes, BATCH_BYTES_MAX),
        )

    # --- batches --------------------------------------------------------------------------------------
    async def _deliver(self) -> None:
        stream = self._stream
        try:
            while not self._core.waits.closed:
                await self._wait_for_credit()
                await stream.wait_for_capacity()
                until = asyncio.get_running_loop().time() + POLLING_MAX_S
                request = self.prepare()
                self._asked = request.count_max
                runs = await self._receiver.next_runs(request, until, self._context, stream)
                self._asked = 0
                if runs:
                    await self._send(runs)
                await asyncio.sleep(0)  # a client that reads fast must not block the loop for others
        except TroveError as error:
            await self._refused(error)
        except Exception:  # the client is gone
            stream.end_with(None)

    async def _refused(self, error: TroveError) -> None:
        """The group gets no more messages of the topic."""
        if error.spec is not errors.PERMISSION_MISSING:
            self._stream.end_with(error)
            return
        with suppress(Exception):  # then the client is gone, and its reader ends
            await self._stream.reply(ended_reply(error))

    async def _wait_for_credit(self) -> None:
        while (
            self._credit_messages < 1 or self._credit_bytes < 1 or len(self._unconfirmed) >= UNCONFIRMED_MAX
        ):
            self._credited.clear()
            await self._credited.wait()

    async def _send(self, runs: Sequence[DeliveredRun]) -> None:
        self._batch += 1
        sent = _Sent(self._batch, [(run.receipt, run.offsets) for run in runs])
        self._unconfirmed.append(sent)
        count = sum(len(run.records) for run in runs)
        size = sum(run.size for run in runs)
        self._credit_messages -= count
        self._credit_bytes -= size
        self._is_sending = True
        await self._stream.reply(batch_reply(self._batch, runs, size))
        sent.is_written, self._is_sending = True, False
        self._idle.set()
        self._core.traffic.fetched(self._subscription.topic, count, size)

    def note_void(self) -> None:
        """Deliveries of the group became void: the client is to return all batches so far."""
        if self._batch == self._void_batch:
            return  # it has been notified of these
        self._void_batch = self._batch
        if not self._void_waits:
            self._void_waits = True
            self._stream.begin_waiting()
            self._stream.reply_soon(self._void_reply)

    def _void_reply(self) -> bytes:
        self._void_waits = False
        return void_reply(self._void_batch)
