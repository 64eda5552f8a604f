"""Receiving for a consumer group: a loop for each broker, and the settlement of the messages.

| event                                              | call to the broker                                |
|----------------------------------------------------|---------------------------------------------------|
| acknowledged                                       | AckMessage, up to 32 a call                       |
| returned                                           | ChangeInvisibleDuration, by the group's back-off  |
| returned, orderly group, attempts used up          | ForwardMessageToDeadLetterQueue                   |
| after one of its message group that is redelivered | ChangeInvisibleDuration(0), no attempt is counted |
| in the inbox when the subscription closes          | the same                                          |
| not the one that its digest was made of            | as returned; the program never sees it            |
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

from trovemq._connections import ConnectionPool
from trovemq._rocketmq.identity import new_client_id
from trovemq._rocketmq.inbox import Inbox
from trovemq._rocketmq.messages import duration, milliseconds, received_message
from trovemq._rocketmq.messaging import Receive
from trovemq._rocketmq.session import Role, Session
from trovemq._rocketmq.sessions import Sessions
from trovemq._rocketmq.settling import Settler
from trovemq._rocketmq.statuses import may_pass
from trovemq.received import Handler, ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

_log = logging.getLogger(__name__)

RECEIVED_TOGETHER_MAX: Final = 32
POLL_MS_DEFAULT: Final = 20_000
ATTEMPTS_MAX_DEFAULT: Final = 17  # RocketMQ's, where a broker names none
BACKOFF_MS_DEFAULT: Final = 1_000
CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubscription:
    """The subscription: one topic for one group.

    Attributes:
        topic: The topic.
        group: The consumer group.
        filter: Which of its messages.
        invisible_ms: How long a message is this client's; None: while this client lives.
        handler: Consumes a message that an operator sends directly.
        client_id: Under which the brokers know the subscriber.
    """

    topic: str
    group: str
    filter: v2.FilterExpression
    invisible_ms: int | None = None
    handler: Handler | None = None
    client_id: str = field(default_factory=new_client_id)

    def role(self, work: Callable[[Session], Awaitable[None]]) -> Role:
        """The role in the settings for the brokers."""
        subscription = v2.Subscription(
            group=v2.Resource(name=self.group),
            subscriptions=[v2.SubscriptionEntry(topic=v2.Resource(name=self.topic), expression=self.filter)],
        )
        if self.invisible_ms is not None:
            subscription.long_polling_timeout.CopyFrom(duration(POLL_MS_DEFAULT))
        return Role(
            client_id=self.client_id,
            client_type=v2.PUSH_CONSUMER if self.invisible_ms is None else v2.SIMPLE_CONSUMER,
            group=self.group,
            subscription=subscription,
            handler=self.handler,
            work=work,
        )


class GroupConsumer:
    """Receives into an inbox and settles the messages taken out of it.

    Args:
        pool: The client's connections.
        subscription: The topic, the group and the filter.
        inbox: Where messages wait for the program.

    Attributes:
        refused: Messages whose acknowledgement or return did not reach the broker in time: redelivered.
    """

    def __init__(self, pool: ConnectionPool, subscription: GroupSubscription, inbox: Inbox) -> None:
        self._pool = pool
        self._subscription = subscription
        self._inbox = inbox
        self._homes: dict[str, _Home] = {}  # by broker, of every broker that a message may have come from
        self._sessions = Sessions(pool, subscription.topic, subscription.role(self._receive))
        self._poll_numbers = count(1)
        self._closing = False
        self._warned = False
        self.refused = 0

    async def open(self) -> None:
        """Enters the group at every broker. Raises TroveError as `Sessions.open`."""
        await self._sessions.open()

    async def close(self) -> None:
        """Waits until processed messages are acknowledged, then receives no more, returns unprocessed
        messages, and leaves the group. In this order: of a receive that is cancelled the broker takes
        messages back, and may not know yet which of them were processed."""
        self._closing = True
        end = asyncio.get_running_loop().time() + CLOSE_SECONDS
        await asyncio.gather(*(home.settler.consumed(until=end) for home in self._homes.values()))
        await self._sessions.stop_work()
        for message in self._inbox.drain():
            self.release(message)
        await asyncio.gather(*(home.settler.close(until=end) for home in self._homes.values()))
        await self._sessions.close()

    # --- receiving ------------------------------------------------------------------------------------

    async def _receive(self, session: Session) -> None:
        """Receives from one broker until it is cancelled, or until another try is useless."""
        failures, attempt_id = 0, str(uuid.uuid4())
        home = self._homes.get(session.broker)
        settler = home.settler if home is not None else self._new_settler(session)
        self._homes[session.broker] = _Home(session, settler)
        while not self._pool.closed and not self._closing:
            space = await self._inbox.wait_for_capacity()
            try:
                await self._receive_once(session, space, attempt_id)
                failures, attempt_id = 0, str(uuid.uuid4())
            except TroveError as error:
                if self._is_final(error):
                    self._inbox.fail(error)
                    return
                failures += 1
                _log.debug("receiving %s from %s: %s", self._subscription.topic, session.broker, error)
                await asyncio.sleep(self._pool.options.backoff.seconds(failures))

    def _is_final(self, error: TroveError) -> bool:
        """Whether no later call can go better. A dead-letter topic is made with its first message, and one
        of several brokers may get the topic yet."""
        if error.spec is errors.TOPIC_NOT_FOUND:
            return not self._subscription.topic.startswith("%") and len(self._sessions.all()) == 1
        return not may_pass(error)

    async def _receive_once(self, session: Session, space: int, attempt_id: str) -> None:
        settings = session.settings
        assert settings is not None
        polling = settings.subscription
        self._inbox.ordered = self._inbox.ordered or polling.fifo
        if not polling.fifo:
            self._warn_of_lost_order()
        poll_ms = milliseconds(polling.long_polling_timeout) or POLL_MS_DEFAULT
        batch = polling.receive_batch_size or RECEIVED_TOGETHER_MAX
        invisible_ms = self._subscription.invisible_ms
        receive = Receive(
            group=self._subscription.group,
            topic=self._subscription.topic,
            broker=session.broker,
            filter=self._subscription.filter,
            count_max=min(space, batch, RECEIVED_TOGETHER_MAX),
            poll_ms=poll_ms,
            invisible_ms=invisible_ms,
            attempt_id=attempt_id,
        )
        # The broker ends the poll; the deadline is for a broker that is gone.
        timeout_ms = poll_ms + self._pool.options.call_timeout_ms
        poll = next(self._poll_numbers)
        self._inbox.begin_poll(poll)
        try:
            async with aclosing(session.service().receive(receive, timeout_ms)) as messages:
                async for message in messages:
                    self._take(message, session, poll)
        finally:
            self._inbox.end_poll(poll)

    def _warn_of_lost_order(self) -> None:
        """Once, where the topic has an order and the group keeps none."""
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
        self.put(received)

    def put(self, message: ReceivedMessage) -> None:
        """Into the inbox."""
        if not self._inbox.put(message):
            self.release(message)

    @property
    def orderly(self) -> bool:
        """Whether the group keeps the order of message groups."""
        return self._inbox.ordered

    # --- Settlement of the messages -------------------------------------------------------------------

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Consumed; the next of its message group may continue when the broker knows."""
        answer = self._settler(message).acknowledge(message, urgent=urgent or self._inbox.ordered)
        answer.add_done_callback(partial(self._answered, message, True))
        return answer

    def return_message(
        self, message: ReceivedMessage, delay_ms: int | None, *, tried: bool
    ) -> asyncio.Future[None]:
        """For redelivery; in an orderly group with its attempts used up, to the dead letters."""
        if tried and self._inbox.ordered and message.attempt >= self.attempts_max(message):
            return self.dead_letter(message)
        if delay_ms is None:
            delay_ms = backoff_ms(self._policy(message), message.attempt)
        answer = self._settler(message).come_again(message, delay_ms, suspend=not tried)
        answer.add_done_callback(partial(self._answered, message, False))
        return answer

    def dead_letter(self, message: ReceivedMessage) -> asyncio.Future[None]:
        """To the dead letters; the next of its message group may continue."""
        answer = self._settler(message).dead_letter(message, self.attempts_max(message))
        answer.add_done_callback(partial(self._answered, message, True))
        return answer

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscription.group

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        """An atomic transaction has acknowledged it: the next of its message group may continue."""
        for other in self._inbox.settled(message, done=True):
            self.release(other)

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """More time."""
        await self._settler(message).extend(message, duration_ms)

    async def wait_for_capacity(self) -> None:
        """Waits while too much is under way."""
        for home in list(self._homes.values()):
            await home.settler.wait_for_capacity()

    def _answered(self, message: ReceivedMessage, done: bool, answer: asyncio.Future[None]) -> None:
        failure = None if answer.cancelled() else answer.exception()
        if failure is not None:
            self.refused += 1
            _log.warning("%s of %s is delivered again: %s", message.message_id, message.topic, failure)
        for other in self._inbox.settled(message, done=done and failure is None and not answer.cancelled()):
            self.release(other)

    def release(self, message: ReceivedMessage) -> None:
        """Returns messages that were not tried."""
        message.settled = True
        answer = self._settler(message).come_again(message, 0, suspend=True)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _new_settler(self, session: Session) -> Settler:
        return Settler(session.service, self._subscription.group, self._pool.options)

    def _settler(self, message: ReceivedMessage) -> Settler:
        return self._homes[message.broker].settler

    def attempts_max(self, message: ReceivedMessage) -> int:
        """Deliveries after which the message is a dead letter."""
        return self._policy(message).max_attempts or ATTEMPTS_MAX_DEFAULT

    def _policy(self, message: ReceivedMessage) -> v2.RetryPolicy:
        settings = self._homes[message.broker].session.settings
        assert settings is not None, "a message came before the settings"
        return settings.backoff_policy


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a message came from."""

    session: Session
    settler: Settler


def backoff_ms(policy: v2.RetryPolicy, attempt: int) -> int:
    """How long after delivery number `attempt` (1 or more) the next one is to come."""
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
