"""The Consume stream: sends batches of a group's messages as long as the client grants credit, and settles
messages.

| from the client | effect                                                                                   |
|-----------------|------------------------------------------------------------------------------------------|
| `start`         | the stream belongs to one group, topic and filter, and its client is a member of the     |
|                 | group (membership.py); a reply has the group's settings                                  |
| credit          | a task sends batches until the credit is used up, and waits while there are no messages. |
|                 | Negative credit of messages takes some back; batches on their way to the client may have |
|                 | used it already. The rest is then negative, and later credit fills it up first. It       |
|                 | counts before the frame's settlements                                                    |
| received batch  | confirms all batches up to it: the client keeps them when the stream ends                |
| settlements     | applied in their order, many of them in steps, and before the frame's credit counts; one |
|                 | reply has the results of a frame. They count until the message is delivered again, also  |
|                 | after its lease; those by handle while the lease lasts                                   |
| `stop`          | no more batches are sent; a reply confirms that                                          |
| answers         | to the commands of operators                                                             |
| `leave`         | the client is no member any more                                                         |

A client has one stream for a group and a topic: when it opens another one, the earlier one ends. Its
connection may have died in silence, and it would get messages until the broker notices that.

When the topic or the group may not be read any more, a reply says that no more batches come (`ended`); the
client still settles its messages.

When a reset or a deletion has made deliveries void, a reply names the last batch before it (`void_batch`), so
that the client returns the messages that its program has not begun. A reset may concern one queue, and never
concerns retries: the return ends leases that still count, and is refused for the others.

A reply with `joined` says that another client has subscribed to the topic for the group (consume_streams.py).
The client may then release messages that its program has not begun, and take back credit: a client takes
none back before, because older brokers refuse that.

Invariants
- The stream never sends more messages than there is credit for, and at most one message more than the bytes.
- When the stream ends, for whatever reason, messages of batches that the client has not confirmed are
  delivered again after `released_after_ms`; until then they can be settled. The delivery counts as an attempt
  if the batch was written, because one of its messages may have ended the program.
- The broker renews the leases of confirmed batches only. A batch that was lost when the broker was killed is
  delivered again when its short lease ends, even if its client is alive.
- A batch is named as void only if its messages were leased before the reset. At most one such notice waits to
  be written, and it needs no credit.
- A client that does not read its replies costs the broker one batch, and its frames are not read during that
  time. A batch is made only when there is space for it and no other reply is being written.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc

from trovemq_broker.filters.filter import TAKE_ALL, Filter, parse_filter
from trovemq_broker.groups.delivery.lease_resolvers import ReceiptRange, Refusals
from trovemq_broker.groups.delivery.request import DeliveredRun, ReceiveRequest
from trovemq_broker.groups.delivery.settlements import ACKNOWLEDGED, CONFIRMED, Invisible, Outcome, Released
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import POLLING_MAX_S, Receiver
from trovemq_broker.server.native.consume_streams import ConsumeStreams
from trovemq_broker.server.native.handle_settlements import settle_by_handle
from trovemq_broker.server.native.membership import Membership
from trovemq_broker.server.native.reply_stream import OpenStreams, ReplyStream
from trovemq_broker.server.wire.client_commands import consume_answer
from trovemq_broker.server.wire.frames import write_with_records
from trovemq_broker.server.wire.group_messages import settings_of
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.statuses import client_id_of
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.engine.steps import Steps

SERVICE: Final = consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"]

BATCH_MESSAGES_MAX: Final = 512
BATCH_BYTES_MAX: Final = 1 << 20
UNCONFIRMED_MAX: Final = 64
"""The most batches that the client has not confirmed; no more are sent then."""
SETTLED_MAX: Final = 4_096
"""The most messages in the settlements of one frame, and the most settlements."""
SETTLED_STEP: Final = BATCH_MESSAGES_MAX
"""How many messages one step settles."""
RESULTS_SMALL: Final = 256
"""The results of up to this many messages are always a small reply."""
CREDIT_MESSAGES_MAX: Final = 65_536
CREDIT_BYTES_MAX: Final = 268_435_456
_JOINED: Final = consumer_pb2.ConsumeReply(joined=True).SerializeToString()


class ConsumerService:
    """`add_to` a server before it starts; end all `streams` before it stops."""

    def __init__(self, core: BrokerCore, receiver: Receiver, acknowledger: Acknowledger) -> None:
        self.core: Final = core
        self.receiver: Final = receiver
        self.acknowledger: Final = acknowledger
        self.members: Final = ConsumeStreams(core.registry)
        """The streams that have begun."""
        core.delivery.add_void_listener(self.members.note_void)
        self.streams: Final = OpenStreams()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    async def consume(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self.streams.serve(ConsumeStream(self, client_id_of(context), context))


class _Subscription(NamedTuple):
    """The content of the first frame. `invisible_ms` None: the broker renews the leases."""

    group: str
    topic: str
    filter: Filter
    invisible_ms: int | None

    @property
    def pair(self) -> GroupTopicKey:
        return self.group, self.topic


class _SettlingStep(NamedTuple):
    """The result of one step of a settlement."""

    refused: Refusals | None = None
    """By queue offset."""
    is_dead_letter: bool = False
    """A message became a dead letter."""


@dataclass(slots=True)
class _Sent:
    """The messages of a batch, without their records, which would keep a segment mapped."""

    batch: int
    runs: list[tuple[str, range]]
    is_written: bool = False


class ConsumeStream(ReplyStream):
    def __init__(
        self, service: ConsumerService, client_id: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        super().__init__(context, 1, service.core.replies)
        self._core = core = service.core
        self._receiver = service.receiver
        self._acknowledger = service.acknowledger
        self._members = service.members
        self._client_id = client_id
        self._notifier: asyncio.Task[None] | None = None
        self._membership = Membership(core.registry, core.commands, core.clock_ms, client_id, self)
        self._subscription: _Subscription | None = None
        self._credit_messages = self._credit_bytes = 0
        self._asked = 0
        """The messages for which the deliverer waits; 0 while it does anything else, and looks at the credit
        afterwards."""
        self._credited = asyncio.Event()
        self._batch = self._void_batch = 0
        self._void_waits = False
        self._is_sending = self._is_stopped = False
        self._idle = asyncio.Event()  # set when a batch was written
        self._unconfirmed: deque[_Sent] = deque()
        self._deliverer: asyncio.Task[None] | None = None

    # --- the stream ---------------------------------------------------------------------------------
    async def serve(self) -> None:
        broke = True
        try:
            await super().serve()
        except asyncio.CancelledError:
            raise
        except BaseException:
            broke = False
            raise
        finally:
            self._membership.end(broke=broke)
            await self._release_unconfirmed()

    def close(self) -> None:
        for task in (self._deliverer, self._notifier):
            if task is not None:
                task.cancel()
        if self._subscription is not None:
            self._members.discard(self._subscription.pair, self)

    def replace(self) -> None:
        """Ends the stream, which takes no more messages, because the client has opened another one."""
        self._end_deliverer()
        self.end_with(
            TroveError(errors.CLIENT_UNKNOWN, "the client has opened another stream for this group")
        )

    async def _release_unconfirmed(self) -> None:
        if self._subscription is None or not self._unconfirmed:
            return
        steps = self._releases(self._subscription)
        try:
            await self._core.turns.run_from_now(steps)
        finally:
            for _ in steps:  # the broker is stopping: without pauses
                pass
            self._core.waits.wake((self._subscription.group, self._subscription.topic))

    def _releases(self, subscription: _Subscription) -> Steps[None]:
        while self._unconfirmed:
            sent = self._unconfirmed.popleft()
            self._settle_sent(subscription, sent, Released(counted=sent.is_written))
            yield

    async def handle(self, request: consumer_pb2.ConsumeFrame) -> None:
        subscription = self._subscription
        if subscription is None:
            subscription = await self._begin(request)
        elif (request.group, request.topic) != (subscription.group, subscription.topic):
            raise TroveError(errors.REQUEST_ILLEGAL, "a stream has one start, for one group and topic")
        self._membership.note_alive()
        for answer in request.answers:
            self._core.commands.answered(self._client_id, answer.nonce, consume_answer(answer))
        self._confirm(subscription, request.received_batch)
        _check_credit(request)
        if request.credit_messages < 0:  # first: messages that the settlements return are for others
            self._take_credit(request.credit_messages, 0)
            self._ask_again(subscription)
        if request.settlements:  # late ones count: the credit must not deliver their messages again before
            await self._settle_all(subscription, request.settlements)
        self._take_credit(max(request.credit_messages, 0), request.credit_bytes)
        if request.stop:
            await self._stop()
        if request.leave:
            self._membership.leave()

    async def _join(self, group: str, topic: str, start: consumer_pb2.ConsumeStart) -> None:
        """The client becomes a member, even if the topic does not exist yet. Replies with the group's
        settings."""
        settings = self._core.group_for_use(group, (topic,))
        self._membership.join(group, topic, start, self._context)
        reply = consumer_pb2.ConsumeReply(settings=settings_of(settings))
        await self.reply(reply.SerializeToString())

    async def _begin(self, frame: consumer_pb2.ConsumeFrame) -> _Subscription:
        if not frame.HasField("start"):
            raise TroveError(errors.REQUEST_ILLEGAL, "the first frame of a stream must have its start")
        start = frame.start
        group = group_name(v2.Resource(name=frame.group))
        topic = topic_to_read(v2.Resource(name=frame.topic))
        await self._join(group, topic, start)
        filter_ = parse_filter(start.filter_type or "tag", start.filter) if start.filter else TAKE_ALL
        self._subscription = subscription = _Subscription(group, topic, filter_, start.invisible_ms or None)
        self._prepare(subscription)
        self._members.add(subscription.pair, self)
        self._start_deliverer(subscription)
        return subscription

    def _start_deliverer(self, subscription: _Subscription) -> None:
        self._deliverer = asyncio.get_running_loop().create_task(
            self._deliver(subscription), name="consume-deliverer"
        )

    def _end_deliverer(self) -> None:
        if self._deliverer is not None:
            self._deliverer.cancel()
        self._asked = 0

    def _confirm(self, subscription: _Subscription, batch: int) -> None:
        while self._unconfirmed and self._unconfirmed[0].batch <= batch:
            sent = self._unconfirmed.popleft()
            self._credited.set()
            if subscription.invisible_ms is None:
                self._settle_sent(subscription, sent, CONFIRMED)

    def _settle_sent(self, subscription: _Subscription, sent: _Sent, outcome: Outcome) -> None:
        """For all messages of the batch; settled ones and void receipts are left out."""
        delivery, now_ms = self._core.delivery, self._core.clock_ms()
        for run in sent.runs:
            with suppress(TroveError):
                delivery.settle(*subscription.pair, ReceiptRange(*run), outcome, now_ms)

    def _take_credit(self, messages: int, byte_count: int) -> None:
        if messages or byte_count:
            credit = min(self._credit_messages + messages, CREDIT_MESSAGES_MAX)
            self._credit_messages = max(credit, -CREDIT_MESSAGES_MAX)
            self._credit_bytes = min(self._credit_bytes + byte_count, CREDIT_BYTES_MAX)
            self._credited.set()

    def _ask_again(self, subscription: _Subscription) -> None:
        """The next batch may have been asked for with credit that was taken back."""
        deliverer = self._deliverer
        if not self._asked or self._asked <= self._credit_messages or deliverer is None or deliverer.done():
            return
        self._end_deliverer()
        self._start_deliverer(subscription)

    # --- members that join --------------------------------------------------------------------------
    @property
    def client_id(self) -> str:
        """The client of the stream."""
        return self._client_id

    def note_joined(self) -> None:
        """Another client has joined the group: sends a notice, unless one is about to be written or the
        client has stopped."""
        if not self._is_stopped and (self._notifier is None or self._notifier.done()):
            self._notifier = asyncio.get_running_loop().create_task(
                self._send_joined(), name="consume-notifier"
            )

    async def _send_joined(self) -> None:
        try:
            await self.reply(_JOINED)
        except TroveError as error:
            self.end_with(error)
        except Exception:  # the client is gone
            self.end_with(None)

    async def _stop(self) -> None:
        self._is_stopped = True
        while self._is_sending:
            self._idle.clear()
            await self._idle.wait()
        self._end_deliverer()
        await self.reply(consumer_pb2.ConsumeReply(stopped=True).SerializeToString())

    # --- delivery -----------------------------------------------------------------------------------
    async def _deliver(self, subscription: _Subscription) -> None:
        try:
            while not self._core.waits.closed:
                await self._wait_for_credit()
                await self.wait_for_capacity()
                until = asyncio.get_running_loop().time() + POLLING_MAX_S
                request = self._prepare(subscription)
                self._asked = request.count_max
                runs = await self._receiver.next_runs(request, until, self._context, self)
                self._asked = 0
                if runs:
                    await self._send(subscription, runs)
                await asyncio.sleep(0)  # a client that reads fast must not block the loop for others
        except TroveError as error:
            await self._end_delivery(error)
        except Exception:  # the client is gone
            self.end_with(None)

    async def _end_delivery(self, error: TroveError) -> None:
        if error.spec is not errors.PERMISSION_MISSING:
            self.end_with(error)
            return
        reply = consumer_pb2.ConsumeReply(ended=error_to_wire(error))
        with suppress(Exception):  # then the client is gone, and its reader ends
            await self.reply(reply.SerializeToString())

    async def _wait_for_credit(self) -> None:
        while (
            self._credit_messages < 1 or self._credit_bytes < 1 or len(self._unconfirmed) >= UNCONFIRMED_MAX
        ):
            self._credited.clear()
            await self._credited.wait()

    def has_capacity(self) -> bool:
        return not self._writing.locked() and super().has_capacity()

    async def wait_for_capacity(self) -> None:
        while not self.has_capacity():
            async with self._writing:
                pass
            await super().wait_for_capacity()

    def _prepare(self, subscription: _Subscription) -> ReceiveRequest:
        """The request for a batch. Each time it is checked again: topic, group and client may have
        changed."""
        self._membership.check()
        return self._receiver.prepare(
            *subscription,
            self._client_id,
            confirmed=subscription.invisible_ms is not None,
            count_max=max(1, min(self._credit_messages, BATCH_MESSAGES_MAX)),
            bytes_max=min(self._credit_bytes, BATCH_BYTES_MAX),
        )

    async def _send(self, subscription: _Subscription, runs: Sequence[DeliveredRun]) -> None:
        self._batch += 1
        sent = _Sent(self._batch, [(run.receipt, run.offsets) for run in runs])
        self._unconfirmed.append(sent)
        count = sum(len(run.records) for run in runs)
        size = sum(run.size for run in runs)
        self._credit_messages -= count
        self._credit_bytes -= size
        self._is_sending = True
        await self.reply(batch_reply(self._batch, runs, size))
        sent.is_written, self._is_sending = True, False
        self._idle.set()
        self._core.traffic.fetched(subscription.topic, count, size)

    def note_void(self) -> None:
        """Deliveries of the group became void: the client is to return all batches so far."""
        if self._batch == self._void_batch:
            return  # it has been notified of these
        self._void_batch = self._batch
        if not self._void_waits:
            self._void_waits = True
            self.begin_waiting()
            self.reply_soon(self._void_reply)

    def _void_reply(self) -> bytes:
        self._void_waits = False
        return consumer_pb2.ConsumeReply(void_batch=self._void_batch).SerializeToString()

    # --- settlements ----------------------------------------------------------------------------------
    async def _settle_all(
        self, subscription: _Subscription, settlements: Sequence[consumer_pb2.Settlement]
    ) -> None:
        started = time.perf_counter()
        count = max(sum(map(_message_count, settlements)), len(settlements))
        if count > SETTLED_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"a frame settles at most {SETTLED_MAX} messages")
        if count > RESULTS_SMALL:
            await self.wait_for_capacity()
        reply = consumer_pb2.ConsumeReply()
        appended: list[consumer_pb2.SettlementResult] = []
        steps = self._settling(subscription, settlements, reply, appended)
        await self._core.turns.run_from_now(steps)
        self._acknowledger.wake(subscription.group, subscription.topic)
        if appended:
            await self._durable(appended)
        await self.reply(reply.SerializeToString())
        self._core.traffic.answered("Consume", _symbol(reply), started)

    def _settling(
        self,
        subscription: _Subscription,
        settlements: Sequence[consumer_pb2.Settlement],
        reply: consumer_pb2.ConsumeReply,
        appended: list[consumer_pb2.SettlementResult],
    ) -> Steps[None]:
        """Adds each settlement's result to the reply, and to `appended` if it made dead letters."""
        for number, settlement in enumerate(settlements, 1):
            result = reply.results.add(settlement_id=settlement.settlement_id)
            try:
                if settlement.handle:
                    if settle_by_handle(
                        self._core, self._acknowledger, subscription.pair, settlement, result
                    ):
                        appended.append(result)
                    yield
                    continue
                for step in self._steps_of(subscription, settlement):
                    for offset, error in (step.refused or {}).items():
                        result.refused.add(offset=offset, error=error_to_wire(error))
                    if step.is_dead_letter and (not appended or appended[-1] is not result):
                        appended.append(result)
                    yield
            except TroveError as error:
                result.error.CopyFrom(error_to_wire(error))
            if not number % SETTLED_STEP:
                yield

    async def _durable(self, results: Sequence[consumer_pb2.SettlementResult]) -> None:
        """Returns when the dead letters are as durable as acknowledged messages. Later frames wait for it,
        too."""
        group_commit = self._core.group_commit
        try:
            await group_commit.acknowledgeable(self._core.store.end_offset)
        except TroveError as error:
            for result in results:
                result.error.CopyFrom(error_to_wire(error))

    def _steps_of(
        self, subscription: _Subscription, settlement: consumer_pb2.Settlement
    ) -> Iterator[_SettlingStep]:
        for offsets in _ranges_of(settlement):
            outcome = _outcome_of(settlement)
            if outcome is ACKNOWLEDGED:
                yield self._settle_run(subscription, settlement.receipt, offsets, outcome)
                continue
            rest = yield from self._without_dead_letters(subscription, settlement, offsets)
            for some in rest:
                yield self._settle_run(subscription, settlement.receipt, some, outcome)
            if not settlement.invisible_ms:
                self._core.waits.wake(subscription.pair)

    def _settle_run(
        self, subscription: _Subscription, receipt: str, offsets: range, outcome: Outcome
    ) -> _SettlingStep:
        """Late settlements of this client count. TroveError as settle()."""
        core, named = self._core, ReceiptRange(receipt, offsets, self._client_id)
        results = core.delivery.settle(*subscription.pair, named, outcome, core.clock_ms())
        return _SettlingStep(results.refused)

    def _without_dead_letters(
        self, subscription: _Subscription, settlement: consumer_pb2.Settlement, offsets: range
    ) -> Generator[_SettlingStep, None, list[range]]:
        """Makes messages that were returned without a delay after their last attempt dead letters. Returns
        the ranges of the others."""
        if settlement.invisible_ms or settlement.suspend:
            return [offsets]
        exhausted, rest = self._acknowledger.exhausted, []
        for offset in offsets:
            message = range(offset, offset + 1)
            with suppress(TroveError):  # the change reports it
                if exhausted(*subscription.pair, ReceiptRange(settlement.receipt, message)):
                    yield _SettlingStep(is_dead_letter=True)
                    continue
            rest.append(message)
        return rest


def _check_credit(frame: consumer_pb2.ConsumeFrame) -> None:
    if frame.credit_bytes < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "credit of bytes is not negative")


def _outcome_of(settlement: consumer_pb2.Settlement) -> Outcome:
    if settlement.kind == consumer_pb2.ACKNOWLEDGE:
        return ACKNOWLEDGED
    if settlement.kind == consumer_pb2.RETURN:
        return Invisible(settlement.invisible_ms, suspend=settlement.suspend)
    raise TroveError(errors.REQUEST_ILLEGAL, f"settlement of kind {settlement.kind} by receipt")


def _message_count(settlement: consumer_pb2.Settlement) -> int:
    return sum(map(abs, settlement.ranges[1::2]))


def _ranges_of(settlement: consumer_pb2.Settlement) -> list[range]:
    """The settlement's ranges, cut into parts of one step."""
    ranges = settlement.ranges
    if len(ranges) % 2 or min(ranges, default=0) < 0:
        raise TroveError(errors.REQUEST_ILLEGAL, "ranges are pairs of a queue offset and a count")
    return [
        range(begin, min(begin + SETTLED_STEP, first + count))
        for first, count in zip(ranges[::2], ranges[1::2], strict=True)
        for begin in range(first, first + count, SETTLED_STEP)
    ]


def _symbol(reply: consumer_pb2.ConsumeReply) -> str:
    """The response under which the metrics count the frame: its first refusal, or OK."""
    for result in reply.results:
        if result.HasField("error"):
            return result.error.symbol
        if result.refused:
            return result.refused[0].error.symbol
    return "OK"


def batch_reply(batch: int, runs: Sequence[DeliveredRun], size: int) -> bytes:
    """A serialised ConsumeReply, made with one copy of the records."""
    head = consumer_pb2.ConsumeReply(batch=batch)
    for run in runs:
        head.runs.add(
            queue_id=run.queue_id,
            first_offset=run.first_offset,
            count=len(run.records),
            attempt=run.attempt,
            receipt=run.receipt,
        )
    return write_with_records(head, (piece for run in runs for piece in run.pieces), size)
