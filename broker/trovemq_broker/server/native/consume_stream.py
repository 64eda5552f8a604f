"""The Consume stream: a client's frames, its membership in a group, and the replies to it.

| from the client | effect                                                                                   |
|-----------------|------------------------------------------------------------------------------------------|
| `start`         | the stream belongs to one group, topic and filter, and its client is a member of the     |
|                 | group (membership.py); a reply has the group's settings                                  |
| credit          | batches are sent (batch_delivery.py); it counts after the frame's settlements, negative  |
|                 | credit before them                                                                       |
| received batch  | confirms all batches up to it                                                            |
| settlements     | applied in their order, many of them in steps (consume_settlements.py); one reply has    |
|                 | the results of a frame                                                                   |
| `stop`          | no more batches are sent; a reply confirms that                                          |
| answers         | to the commands of operators                                                             |
| `leave`         | the client is not a member any more                                                      |

A client has one stream for a group and a topic: when it opens another one, the earlier one ends
(consume_streams.py). Its connection may have died in silence, and it would get messages until the broker
notices that.

When the topic or the group may not be read any more, a reply says that no more batches come (`ended`); the
client still settles its messages.

A reply with `joined` says that another client has subscribed to the topic for the group. The client may then
release messages that its program has not begun, and take back credit: a client takes none back before,
because older brokers refuse that.

Invariant: a client that does not read its replies costs the broker one batch, and its frames are not read
during that time. A batch is made only when there is space for it and no other reply is being written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import grpc

from trovemq_broker.filters.filter import TAKE_ALL, parse_filter
from trovemq_broker.server.core.acknowledger import Acknowledger
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import Receiver
from trovemq_broker.server.native.batch_delivery import BatchDelivery, ConsumeSubscription
from trovemq_broker.server.native.consume_settlements import Settling, checked_count
from trovemq_broker.server.native.consume_streams import ConsumeStreams
from trovemq_broker.server.native.membership import Membership
from trovemq_broker.server.native.reply_stream import OpenStreams, ReplyStream
from trovemq_broker.server.wire.consume_frames import (
    JOINED,
    SERVICE,
    STOPPED,
    ConsumeFrame,
    read_frame,
    settings_reply,
)
from trovemq_broker.server.wire.native_calls import Request
from trovemq_broker.server.wire.statuses import Context, client_id_of
from trovemq_daemon.grpc_services import add_service
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

RESULTS_SMALL: Final = 256
"""The results of up to this many messages are always a small reply."""


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

    async def consume(self, _requests: object, context: Context) -> None:
        await self.streams.serve(ConsumeStream(self, client_id_of(context), context))


class _Begun(NamedTuple):
    """The parts of a stream that has its first frame."""

    subscription: ConsumeSubscription
    delivery: BatchDelivery
    settling: Settling


class ConsumeStream(ReplyStream):
    def __init__(self, service: ConsumerService, client_id: str, context: Context) -> None:
        core = service.core
        super().__init__(context, 1, core.replies)
        self._service = service
        self._core = core
        self._membership = Membership(core.registry, core.commands, core.clock_ms, client_id, self)
        self._begun: _Begun | None = None
        self._is_stopped = False
        self._notifier: asyncio.Task[None] | None = None

    @property
    def client_id(self) -> str:
        """The client of the stream."""
        return self._membership.client_id

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
            if self._begun is not None:
                await self._begun.delivery.release_unconfirmed()

    def close(self) -> None:
        if self._notifier is not None:
            self._notifier.cancel()
        if self._begun is not None:
            self._begun.delivery.end()
            self._service.members.discard(self._begun.subscription.pair, self)

    def replace(self) -> None:
        """Ends the stream, which takes no more messages, because the client has opened another one."""
        if self._begun is not None:
            self._begun.delivery.end()
        self.end_with(
            TroveError(errors.CLIENT_UNKNOWN, "the client has opened another stream for this group")
        )

    def has_capacity(self) -> bool:
        return not self._writing.locked() and super().has_capacity()

    async def wait_for_capacity(self) -> None:
        while not self.has_capacity():
            async with self._writing:
                pass
            await super().wait_for_capacity()

    # --- frames ---------------------------------------------------------------------------------------
    async def handle(self, request: Request) -> None:
        frame, begun = read_frame(request), self._begun
        if begun is None:
            begun = await self._begin(frame)
        elif (frame.group, frame.topic) != begun.subscription.pair:
            raise TroveError(errors.REQUEST_ILLEGAL, "a stream has one start, for one group and topic")
        delivery = begun.delivery
        self._membership.note_alive()
        for nonce, answer in frame.answers:
            self._core.commands.answered(self.client_id, nonce, answer)
        delivery.confirm(frame.received_batch)
        if frame.credit_bytes < 0:
            raise TroveError(errors.REQUEST_ILLEGAL, "credit of bytes is not negative")
        if frame.credit_messages < 0:  # first: messages that the settlements return are for others
            delivery.add_credit(frame.credit_messages, 0)
            delivery.ask_again()
        if frame.settlements:  # late ones count: the credit must not deliver their messages again before
            await self._settle(begun.settling, frame.settlements)
        delivery.add_credit(max(frame.credit_messages, 0), frame.credit_bytes)
        if frame.stop:
            self._is_stopped = True
            await delivery.stop()
            await self.reply(STOPPED)
        if frame.leave:
            self._membership.leave()

    async def _begin(self, frame: ConsumeFrame) -> _Begun:
        start, core, service = frame.start, self._core, self._service
        if start is None:
            raise TroveError(errors.REQUEST_ILLEGAL, "the first frame of a stream must have its start")
        group, topic = frame.checked_names()
        # the client becomes a member even if the topic does not exist yet
        settings = core.group_for_use(group, (topic,))
        self._membership.join(group, topic, start, self._context)
        await self.reply(settings_reply(settings))
        filter_ = parse_filter(start.filter_type, start.filter) if start.filter else TAKE_ALL
        subscription = ConsumeSubscription(group, topic, filter_, start.invisible_ms or None)
        delivery = BatchDelivery(core, service.receiver, subscription, self._membership, self, self._context)
        delivery.prepare()
        settling = Settling(core, service.acknowledger, subscription.pair, self.client_id)
        self._begun = begun = _Begun(subscription, delivery, settling)
        service.members.add(subscription.pair, self)
        delivery.start()
        return begun

    async def _settle(self, settling: Settling, settlements: Sequence[Request]) -> None:
        started = time.perf_counter()
        if checked_count(settlements) > RESULTS_SMALL:
            await self.wait_for_capacity()
        results = await settling.settle(settlements)
        await self.reply(results.serialise())
        self._core.traffic.answered("Consume", results.symbol, started)

    # --- notices --------------------------------------------------------------------------------------
    def note_void(self) -> None:
        """Deliveries of the group became void."""
        if self._begun is not None:
            self._begun.delivery.note_void()

    def note_joined(self) -> None:
        """Another client has joined the group: sends a notice, unless one is about to be written or the
        client has stopped."""
        if not self._is_stopped and (self._notifier is None or self._notifier.done()):
            self._notifier = asyncio.get_running_loop().create_task(
                self._send_joined(), name="consume-notifier"
            )

    async def _send_joined(self) -> None:
        try:
            await self.reply(JOINED)
        except TroveError as error:
            self.end_with(error)
        except Exception:  # the client is gone
            self.end_with(None)
