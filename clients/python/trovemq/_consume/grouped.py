"""Receives for a consumer group: a stream to each broker, and the settlement of the messages.

RocketMQ's protocol is used with brokers that have no Consume stream, and with all brokers for the calls that
the stream does not have:

| event                                              | call to the broker                                |
|----------------------------------------------------|---------------------------------------------------|
| acknowledged                                       | by the stream; AckMessage, up to 32 a call        |
| returned                                           | by the stream; ChangeInvisibleDuration            |
| more time                                          | ChangeInvisibleDuration; from then on, all calls  |
|                                                    | for that message                                  |
| dead letter                                        | ForwardMessageToDeadLetterQueue                   |
| returned, orderly group, attempts used up          | ForwardMessageToDeadLetterQueue                   |
| after one of its message group that is redelivered | ChangeInvisibleDuration(0), no attempt is counted |
| in the inbox when the subscription closes, or the  | the same                                          |
| stream breaks                                      |                                                   |
| delivered again after it was processed here, and   | acknowledged at once; the program does not see it |
| its acknowledgement came too late                  |                                                   |
| its body does not match its digest                 | as returned; the program never sees it            |
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from trovemq._consume.first_contact import FirstContact
from trovemq._consume.group_subscription import POLL_MS_DEFAULT, GroupSubscription
from trovemq._consume.inbox import Inbox
from trovemq._consume.processed import ProcessedMessages
from trovemq._net.connections import ConnectionPool
from trovemq._net.outages import EVERYWHERE, NOT_FOUND, Outages
from trovemq._rocketmq.messages import milliseconds, received_message
from trovemq._rocketmq.messaging import Receive
from trovemq._rocketmq.session import Session
from trovemq._rocketmq.sessions import Sessions
from trovemq._rocketmq.settling import Settler
from trovemq._rocketmq.statuses import may_pass
from trovemq._wire.connection import Connection
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

if TYPE_CHECKING:
    from trovemq._consume.group_stream import GroupStream
    from trovemq._consume.streamed import StreamedBatch, StreamedMessage

_log = logging.getLogger(__name__)

RECEIVED_TOGETHER_MAX: Final = 32
ATTEMPTS_MAX_DEFAULT: Final = 17  # RocketMQ's default, if a broker names none
BACKOFF_MS_DEFAULT: Final = 1_000
CLOSE_SECONDS: Final = 5.0
_broker_and_receipt: Final = attrgetter("broker", "receipt")


class GroupConsumer:
    """Receives messages into an inbox, and settles those that the program has taken.

    Args:
        pool: The client's connections.
        subscription: The topic, the group and the filter.
        inbox: Holds messages for the program.
        contact: Where the group begins; None: as the brokers are set.

    Attributes:
        refused: Messages whose acknowledgement or return did not reach the broker in time; they are
            redelivered.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        subscription: GroupSubscription,
        inbox: Inbox,
        contact: FirstContact | None = None,
    ) -> None:
        self._pool = pool
        self._contact = contact
        self._outages = Outages(subscription.topic, subscription.group)
        self._tracing = pool.options.tracing
        self._subscription = subscription
        self._inbox = inbox
        self._homes: dict[str, _Home] = {}  # by broker, for every broker that a message may have come from
        self._sessions = Sessions(pool, subscription.topic, subscription.role(self._receive, self._missing))
        self._poll_numbers = count(1)
        self._processed = ProcessedMessages()
        self._opened = self._closing = False
        self._warned = False
        self.refused = 0

    async def open(self) -> None:
        """Enters the group at every broker. Raises TroveError as `Sessions.open`; after an error it may be
        called again."""
        await self._sessions.open()
        self._opened = True

    async def close(self) -> None:
        """Waits until processed messages are acknowledged, then ends the receives, returns unprocessed
        messages, and leaves the group. The order matters: a broker takes back the messages of a cancelled
        receive, and may not know yet which of them were processed."""
        self._closing = True
        end = asyncio.get_running_loop().time() + CLOSE_SECONDS
        homes, streams = list(self._homes.values()), self._streams()
        await asyncio.gather(
            *(home.settler.consumed(until=end) for home in homes),
            *(stream.consumed(until=end) for stream in streams),
        )
        await asyncio.gather(*(stream.stop(until=end) for stream in streams))
        await self._sessions.stop_work()
        for message in self._inbox.drain():
            self.release(message)
        await asyncio.gather(*(stream.close(until=end) for stream in streams))
        await asyncio.gather(*(home.settler.close(until=end) for home in homes))
        await self._sessions.close()

    def _missing(self, broker: str, error: TroveError) -> None:
        if self._opened:  # before that, it is an error for the caller
            self._outages.begin(broker, error)

    @property
    def is_answered(self) -> bool:
        """Whether each settlement has a result."""
        return all(home.settler.is_answered for home in self._homes.values()) and all(
            stream.is_answered for stream in self._streams()
        )

    async def answered(self, *, until: float) -> None:
        """Waits for that, but not beyond `until` (the loop's time)."""
        homes, streams = list(self._homes.values()), self._streams()
        await asyncio.gather(
            *(home.settler.answered(until=until) for home in homes),
            *(stream.answered(until=until) for stream in streams),
        )

    def _streams(self) -> list[GroupStream]:
        return [home.stream for home in self._homes.values() if home.stream is not None]

    # --- receiving ------------------------------------------------------------------------------------

    async def _receive(self, session: Session) -> None:
        """Receives from one broker until it is cancelled, or until another try is useless. While the topic or
        the group does not exist, it tries again."""
        home = self._homes.get(session.broker)
        if home is None:
            home = self._homes[session.broker] = _Home(session, self._new_settler(session))
            home.stream = self._new_stream(home)
        home.session = session
        self._outages.end(EVERYWHERE, session.broker)
        failures, missing = 0, None
        while True:
            count = home.received
            try:
                await self._note_contact(session.broker, missing)
                await self._receive_and_note_end(home)
                return
            except asyncio.CancelledError:
                self._forget_deleted(session.broker)
                raise
            except TroveError as error:
                if not may_pass(error) and error.spec not in NOT_FOUND:
                    self._inbox.fail(error)
                    return
                if count != home.received:
                    failures, missing = 0, None
                    self._outages.end(session.broker)
                if error.spec in NOT_FOUND:
                    missing = error
                    self._outages.begin(session.broker, error)
                failures += 1
            await asyncio.sleep(self._pool.options.backoff.seconds(failures))

    async def _receive_and_note_end(self, home: _Home) -> None:
        """Like `_receive_from`. Where the group is gone, `start` counts for the next one of its name from now
        on: before the next try it may be made, and messages sent."""
        try:
            await self._receive_from(home)
        except TroveError as error:
            if error.spec is errors.GROUP_NOT_FOUND:
                await self._note_contact(home.session.broker, error)
            raise

    async def _note_contact(self, broker: str, missing: TroveError | None) -> None:
        """The group begins at the topic's first messages on a broker that comes later, and in a topic that
        was recreated. `missing`: why receiving has ended."""
        if self._contact is None:
            return
        if missing is not None and missing.spec is errors.GROUP_NOT_FOUND:
            await self._contact.begin_anew(broker)
        else:
            await self._contact.follow(broker)

    async def _receive_from(self, home: _Home) -> None:
        """Receives until another try is useless: raises TroveError."""
        if home.stream is not None:
            self._before_messages(home.session)
            try:
                await home.stream.run()
            except TroveError as error:
                if error.spec in NOT_FOUND:
                    home.stream.fail_all(error)  # its deliveries are void
                    self._forget_waiting(home.session.broker)
                    raise
                self._settle_by_calls(home)
                if not is_unknown_method(error):
                    raise
        await self._receive_by_calls(home)

    def _forget_deleted(self, broker: str) -> None:
        """After the session has ended: if the routes have the broker without the topic, it was deleted there.
        Its stream may have ended before it could report that."""
        routes, topic = self._pool.routes, self._subscription.topic
        in_routes = topic.startswith("%") or routes.has_topic(topic, broker)
        if not in_routes and routes.find(broker) is not None:
            self._forget_waiting(broker)

    def _forget_waiting(self, broker: str) -> None:
        """The topic or the group is gone: the program does not get its messages any more."""
        for message in self._inbox.drain_before(broker, None):
            message.settled = True

    def _settle_by_calls(self, home: _Home) -> None:
        """The stream has ended for good: its settlements are made by RocketMQ's calls."""
        stream, home.stream = home.stream, None
        assert stream is not None
        for message, change, waiting in stream.unsettled():
            message.receipt_handle, message.receipt = message.receipt_handle, None
            if change is None:
                answer = self._acknowledge_by_call(message, urgent=False)
            else:
                answer = self._return_by_call(message, *change)
            if waiting is not None:
                answer.add_done_callback(partial(_pass_on, waiting))

    def _new_stream(self, home: _Home) -> GroupStream:
        from trovemq._consume.group_stream import GroupStream  # imported here: look-ups do not need it
        from trovemq._consume.stream_owner import StreamSettings

        subscription = self._subscription
        settings = StreamSettings(
            group=subscription.group,
            topic=subscription.topic,
            filter_type=subscription.filter.kind,
            filter=subscription.filter.text,
            invisible_ms=subscription.invisible_ms,
            client_id=subscription.client_id,
        )
        polls, connect = self._poll_numbers, home.connection
        return GroupStream(self, self._pool, connect, home.session.broker, settings, self._inbox, polls)

    async def _receive_by_calls(self, home: _Home) -> None:
        failures, attempt_id = 0, str(uuid.uuid4())
        while not self._pool.closed and not self._closing:
            space = await self._inbox.wait_for_capacity()
            try:
                await self._receive_once(home.session, space, attempt_id)
                failures, attempt_id = 0, str(uuid.uuid4())
                home.calls += 1
            except TroveError as error:
                if self.is_final(error):
                    raise
                failures += 1
                _log.debug("receiving %s from %s: %s", self._subscription.topic, home.session.broker, error)
                await asyncio.sleep(self._pool.options.backoff.seconds(failures))

    def is_final(self, error: TroveError) -> bool:
        """Whether the stream need not try again."""
        return not may_pass(error)

    async def _receive_once(self, session: Session, space: int, attempt_id: str) -> None:
        settings = session.settings
        assert settings is not None
        polling = settings.subscription
        self._before_messages(session)
        poll_ms = milliseconds(polling.long_polling_timeout) or POLL_MS_DEFAULT
        batch = polling.receive_batch_size or RECEIVED_TOGETHER_MAX
        invisible_ms = self._subscription.invisible_ms
        receive = Receive(
            group=self._subscription.group,
            topic=self._subscription.topic,
            broker=session.broker,
            filter=self._subscription.filter.as_expression(),
            count_max=min(space, batch, RECEIVED_TOGETHER_MAX),
            poll_ms=poll_ms,
            invisible_ms=invisible_ms,
            attempt_id=attempt_id,
        )
        # The broker ends the poll; the deadline is for an unreachable broker.
        timeout_ms = poll_ms + self._pool.options.call_timeout_ms
        poll = next(self._poll_numbers)
        self._inbox.begin_poll(poll)
        try:
            async with aclosing(session.service().receive(receive, timeout_ms)) as messages:
                async for message in messages:
                    self._take(message, session, poll)
        finally:
            self._inbox.end_poll(poll)

    def _before_messages(self, session: Session) -> None:
        """Whether the broker's settings say that the group is orderly."""
        settings = session.settings
        assert settings is not None, "work begins with the settings"
        if settings.subscription.fifo and not self._inbox.ordered:
            self._inbox.ordered = True
            for stream in self._streams():
                stream.stop_gathering()  # lanes know their messages themselves, not by their offsets
        if not settings.subscription.fifo:
            self._warn_of_lost_order()

    def _warn_of_lost_order(self) -> None:
        """Warns once if the topic has an order that the group does not keep."""
        subscription = self._subscription
        if not self._warned and self._pool.routes.is_fifo(subscription.topic):
            self._warned = True
            _log.warning(
                "group %s does not keep the order of topic %s, which is FIFO: make it orderly"
                " (trovemq group alter %s --orderly)",
                subscription.group,
                subscription.topic,
                subscription.group,
            )

    def _take(self, message: v2.Message, session: Session, poll: int) -> None:
        try:
            received = received_message(message, session.broker)
        except TroveError as error:
            _log.warning("a message of %s was returned: %s", self._subscription.topic, error)
            self.return_message(_without_body(message, session.broker), None, tried=True)
            return
        received.settlement, received.poll = self, poll
        if self._subscription.invisible_ms is not None:
            lease_seconds = self._subscription.invisible_ms / 1000
            received.lease_end = asyncio.get_running_loop().time() + lease_seconds
        if self._tracing is not None:
            self._tracing.take(received, message.system_properties.trace_context)
        self.put(received)

    def put(self, message: ReceivedMessage) -> None:
        """Puts the message into the inbox."""
        if self._processed.has(message):
            message.settled = True
            self.consumed(message)
        elif self._closing or not self._inbox.put(message):
            self.release(message)

    def put_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """Puts a batch into the inbox."""
        for message in messages:
            self.put(message)

    def put_batch(self, batch: StreamedBatch) -> None:
        """Puts a batch of a stream into the inbox."""
        if self._processed:
            self.put_all(list(batch))
            return
        for message in batch if self._closing else self._inbox.put_batch(batch):
            self.release(message)

    def release_waiting(self, broker: str, keep: int = 0) -> None:
        """Returns the messages of a broker that the program did not get, except for the first `keep` of all
        that wait."""
        for message in self._inbox.drain(broker, keep):
            self.release(message)

    def release_before(self, broker: str, poll: int | None) -> None:
        """The same for those that came before this poll; None: all. Message groups keep their order."""
        for message in self._inbox.drain_before(broker, poll):
            self.release(message)

    def unreadable(self, message: StreamedMessage, error: TroveError) -> None:
        """Returns a message that the program never sees."""
        _log.warning("a message of %s was returned: %s", self._subscription.topic, error)
        self.return_message(message, None, tried=True)

    @property
    def orderly(self) -> bool:
        """Whether the group keeps the order of message groups."""
        return self._inbox.ordered

    # --- Settlement of the messages -------------------------------------------------------------------

    def check_loop(self) -> None:
        """Raises TroveError EVENT_LOOP_ILLEGAL outside of the client's event loop."""
        self._pool.check_loop()

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Acknowledges the message. The next one of its message group follows when the broker has confirmed
        it."""
        stream = self._stream_of(message)
        if stream is None:
            return self._acknowledge_by_call(message, urgent=urgent)
        return stream.settle_with_result(cast("StreamedMessage", message), None)

    def consumed(self, message: ReceivedMessage) -> bool:
        """As `acknowledge`, for a caller that does not wait for the result. Returns whether too many
        settlements have no result yet."""
        stream = None if message.receipt is None else self._homes[message.broker].stream
        if stream is None:
            self._acknowledge_by_call(message, urgent=False)
            return self.at_capacity
        streamed = cast("StreamedMessage", message)
        # Lanes know their messages themselves, not by their offsets.
        return stream.settle(streamed, None) if self._inbox.ordered else stream.consume(streamed)

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """The same for several messages."""
        for (broker, receipt), ones in groupby(messages, _broker_and_receipt):
            stream = None if receipt is None else self._homes[broker].stream
            if stream is None:
                for message in ones:
                    self._acknowledge_by_call(message, urgent=False)
            else:
                streamed: Any = list(ones)
                stream.settle_all(receipt, streamed)

    def _acknowledge_by_call(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        answer = self._settler(message).acknowledge(message, urgent=urgent or self._inbox.ordered)
        answer.add_done_callback(partial(self._after_call, message, True))
        return answer

    def _stream_of(self, message: ReceivedMessage) -> GroupStream | None:
        """The stream by which the message is settled; None: by a call."""
        if message.receipt is None:
            return None
        return self._homes[message.broker].stream

    def return_message(
        self, message: ReceivedMessage, delay_ms: int | None, *, tried: bool
    ) -> asyncio.Future[None]:
        """Returns the message for redelivery; in an orderly group with its attempts used up, moves it to the
        dead letters."""
        if tried and self._inbox.ordered and message.attempt >= self.attempts_max(message):
            return self.dead_letter(message)
        if delay_ms is None:
            delay_ms = backoff_ms(self._policy(message), message.attempt)
        stream = self._stream_of(message)
        if stream is None:
            return self._return_by_call(message, delay_ms, not tried)
        return stream.settle_with_result(cast("StreamedMessage", message), (delay_ms, not tried))

    def _return_by_call(self, message: ReceivedMessage, delay_ms: int, suspend: bool) -> asyncio.Future[None]:
        answer = self._settler(message).come_again(message, delay_ms, suspend=suspend)
        answer.add_done_callback(partial(self._after_call, message, False))
        return answer

    def dead_letter(self, message: ReceivedMessage) -> asyncio.Future[None]:
        """Moves the message to the dead letters. Then the next one of its message group may follow."""
        answer = self._settler(message).dead_letter(message, self.attempts_max(message))
        answer.add_done_callback(partial(self._after_call, message, True))
        return answer

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscription.group

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        """An atomic transaction has acknowledged it: the next one of its message group may follow."""
        for other in self._inbox.settled(message, done=True):
            self.release(other)

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """Extends the lease. From then on the message has a handle of its own."""
        handle = message.receipt_handle
        await self._settler(message).extend(message, duration_ms)
        if message.receipt_handle != handle and self._stream_of(message) is not None:
            cast("StreamedMessage", message).receipt = None

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        for home in self._homes.values():
            if home.settler.at_capacity or (home.stream is not None and home.stream.at_capacity):
                return True
        return False

    async def wait_for_capacity(self) -> None:
        """Waits while too many settlements are in flight."""
        for home in list(self._homes.values()):
            await home.settler.wait_for_capacity()
            if home.stream is not None:
                await home.stream.wait_for_capacity()

    def _after_call(self, message: ReceivedMessage, done: bool, answer: asyncio.Future[None]) -> None:
        failure = None if answer.cancelled() else answer.exception()
        self.on_result(message, done=done and not answer.cancelled(), failure=failure)

    def on_result(self, message: ReceivedMessage, *, done: bool, failure: BaseException | None) -> None:
        """The broker knows of the acknowledgement (`done`) or the return; `error` is the reason if not."""
        if failure is not None:
            if done:
                self._processed.add(message)
            self.refused += 1
            # Not if the broker has settled it and only its answer is missing, or if it has ended otherwise.
            _log.warning(
                "no answer says that %s of %s is settled, so it may be delivered again: %s",
                message.message_id,
                message.topic,
                failure,
            )
        for other in self._inbox.settled(message, done=done and failure is None):
            self.release(other)

    def release(self, message: ReceivedMessage) -> None:
        """Returns a message that was not tried, and those of its message group that wait for it here."""
        message.settled = True
        stream = self._stream_of(message)
        if stream is not None:
            stream.release(cast("StreamedMessage", message))
        else:
            answer = self._settler(message).come_again(message, 0, suspend=True)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        for other in self._inbox.settled(message, done=False):
            self.release(other)

    def _new_settler(self, session: Session) -> Settler:
        return Settler(session.service, self._subscription.group, self._pool.options)

    def _settler(self, message: ReceivedMessage) -> Settler:
        return self._homes[message.broker].settler

    def attempts_max(self, message: ReceivedMessage) -> int:
        """The number of deliveries after which the message is a dead letter."""
        return self._policy(message).max_attempts or ATTEMPTS_MAX_DEFAULT

    def _policy(self, message: ReceivedMessage) -> v2.RetryPolicy:
        settings = self._homes[message.broker].session.settings
        assert settings is not None, "a message came before the settings"
        return settings.backoff_policy


@dataclass(slots=True)
class _Home:
    """The broker of a message. `stream` None: the broker has no Consume stream, or it has ended for good."""

    session: Session
    settler: Settler
    stream: GroupStream | None = None
    calls: int = 0

    @property
    def received(self) -> int:
        """How often the broker has given messages, or has said by a call that there are none."""
        return self.calls + (0 if self.stream is None else self.stream.batch_count)

    def connection(self) -> Connection:
        """The present connection to the broker."""
        return self.session.connection()


def is_unknown_method(error: TroveError) -> bool:
    """Whether the error says that the broker does not have the method."""
    return error.fields.get("grpc_status") == "UNIMPLEMENTED"


def _pass_on(waiting: asyncio.Future[None], answer: asyncio.Future[None]) -> None:
    if waiting.done():
        return
    if answer.cancelled():
        waiting.cancel()
    elif (failure := answer.exception()) is not None:
        waiting.set_exception(failure)
    else:
        waiting.set_result(None)


def backoff_ms(policy: v2.RetryPolicy, attempt: int) -> int:
    """The delay between delivery number `attempt` (1 or more) and the next one."""
    kind = policy.WhichOneof("strategy")
    if kind == "customized_backoff" and policy.customized_backoff.next:
        steps = policy.customized_backoff.next
        return milliseconds(steps[min(attempt, len(steps)) - 1])
    if kind == "exponential_backoff":
        backoff = policy.exponential_backoff
        bound = milliseconds(backoff.max)
        return round(min(milliseconds(backoff.initial) * backoff.multiplier ** min(attempt - 1, 64), bound))
    return BACKOFF_MS_DEFAULT


def _without_body(message: v2.Message, broker: str) -> ReceivedMessage:
    bare = v2.Message()
    bare.CopyFrom(message)
    bare.body = b""
    bare.system_properties.ClearField("body_digest")
    bare.system_properties.body_encoding = v2.IDENTITY
    return received_message(bare, broker)
