"""Receives for a consumer group: a stream to each broker, which has the messages and their settlement.

| event                                              | settlement                                        |
|----------------------------------------------------|---------------------------------------------------|
| acknowledged                                       | ACKNOWLEDGE                                       |
| returned                                           | RETURN                                            |
| more time                                          | EXTEND; from then on the message is settled by    |
|                                                    | the handle of the result                          |
| dead letter                                        | DEAD_LETTER                                       |
| returned, orderly group, attempts used up          | the same. Other groups: RETURN, of which the      |
|                                                    | broker makes a dead letter                        |
| after one of its message group that is redelivered | RETURN at once, no attempt is counted             |
| in the inbox when the subscription closes, or the  | the same                                          |
| stream breaks                                      |                                                   |
| delivered again after it was processed here, and   | ACKNOWLEDGE at once; the program does not see it  |
| its acknowledgement came too late                  |                                                   |
| its body does not match its digest                 | as returned; the program never sees it            |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import Any, Final, cast

from trovemq._common.backoff import may_pass
from trovemq._consume.first_contact import FirstContact
from trovemq._consume.group_stream import GroupStream
from trovemq._consume.group_subscription import GroupSubscription
from trovemq._consume.inbox import Inbox
from trovemq._consume.processed import ProcessedMessages
from trovemq._consume.reasons import reason_of_failure, reason_of_program
from trovemq._consume.settling_together import RELEASE
from trovemq._consume.stream_owner import StreamSettings
from trovemq._consume.streamed import StreamedBatch, StreamedMessage
from trovemq._net.connections import ConnectionPool
from trovemq._net.outages import EVERYWHERE, NOT_FOUND, BrokerContacts, Outages
from trovemq._net.topic_brokers import TopicBrokers
from trovemq._wire.connection import Connection
from trovemq._wire.consumer import DEAD_LETTER, Change, Reason
from trovemq.models.cluster import BrokerInfo
from trovemq.models.group import GroupSettings
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

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
        self._contacts = BrokerContacts(subscription.topic, subscription.group)
        self._tracing = pool.options.tracing
        self._subscription = subscription
        self._inbox = inbox
        self._streams: dict[str, GroupStream] = {}
        """By broker, for every broker that a message may have come from."""
        self._brokers = TopicBrokers(pool, subscription.topic, self._receive, self._missing)
        self._poll_numbers = count(1)
        self._processed = ProcessedMessages()
        self._opened = self._closing = False
        self._warned = False
        self.refused = 0

    async def open(self) -> None:
        """Enters the group at every broker that has the topic, and waits for at least one. After an error it
        may be called again, or `close`: messages may have come.

        Raises:
            TroveError: TOPIC_NOT_FOUND if no broker has the topic; a broker's refusal; BROKER_UNREACHABLE if
                none can be reached.
        """
        await self._brokers.open(self._entered)
        self._opened = True

    async def _entered(self) -> None:
        await asyncio.sleep(0)  # the tasks make their streams
        loop, options = asyncio.get_running_loop(), self._pool.options
        until = loop.time() + options.failover_timeout_ms / 1000
        while True:
            streams = dict(self._streams)
            entering = (one.member.opened(options.connect_timeout_ms) for one in streams.values())
            results = await asyncio.gather(*entering, return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            refused = [error for error in failures if not (isinstance(error, TroveError) and may_pass(error))]
            if not refused and len(failures) < len(results):
                return
            # A new leader hands out nothing of an ordered group at first, so its stream is opened again.
            if refused or loop.time() > until or not any(map(self._pool.has_nodes, streams)):
                raise (refused or failures)[0]
            for one in streams.values():
                one.member.wait_again()

    async def close(self) -> None:
        """Waits until processed messages are acknowledged, then ends the receives, returns unprocessed
        messages, and leaves the group. The order matters: a broker takes back the messages of a cancelled
        receive, and may not know yet which of them were processed."""
        self._closing = True
        end = asyncio.get_running_loop().time() + CLOSE_SECONDS
        streams = list(self._streams.values())
        await asyncio.gather(*(stream.consumed(until=end) for stream in streams))
        await asyncio.gather(*(stream.stop(until=end) for stream in streams))
        await self._brokers.stop()
        for message in self._inbox.drain():
            self.release(message)
        await asyncio.gather(*(stream.close(until=end) for stream in streams))

    def _missing(self, broker: str, error: TroveError) -> None:
        if self._opened:  # before that, it is an error for the caller
            self._outages.begin(broker, error)

    @property
    def is_answered(self) -> bool:
        """Whether each settlement has a result."""
        return all(stream.is_answered for stream in self._streams.values())

    async def answered(self, *, until: float) -> None:
        """Waits for that, but not beyond `until` (the loop's time)."""
        await asyncio.gather(*(stream.answered(until=until) for stream in list(self._streams.values())))

    # --- receiving ------------------------------------------------------------------------------------

    async def _receive(self, broker: BrokerInfo) -> None:
        """Receives from one broker until it is cancelled, or until another try is useless. While the topic or
        the group does not exist, it tries again."""
        name = broker.name
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = self._new_stream(broker)
        self._outages.end(EVERYWHERE, name)
        failures, missing = 0, None
        while True:
            count = stream.batch_count
            try:
                await self._receive_from(stream, name, missing)
                return
            except asyncio.CancelledError:
                self._forget_deleted(name)
                raise
            except TroveError as error:
                stream.member.failed(error)
                if self.is_final(error) and error.spec not in NOT_FOUND:
                    self._inbox.fail(error)
                    return
                if count != stream.batch_count:
                    failures, missing = 0, None
                    self._outages.end(name)
                if error.spec in NOT_FOUND:
                    missing = error
                    if self._opened or error.spec is errors.TOPIC_NOT_FOUND:  # else it is an error of `open`
                        self._outages.begin(name, error)
                failures += 1
            await asyncio.sleep(self._pool.options.backoff.seconds(failures))

    async def _receive_from(self, stream: GroupStream, broker: str, missing: TroveError | None) -> None:
        """Receives until another try is useless: raises TroveError. `missing`: the one before. Where the
        group is gone, `start` counts for the next one of its name from now on: before the next try it may be
        made, and messages sent."""
        await self._note_contact(broker, missing)
        try:
            await stream.run()
        except TroveError as error:
            if error.spec in NOT_FOUND:
                stream.fail_all(error)  # its deliveries are void
                self._forget_waiting(broker)
            elif not stream.is_open:
                stream.refuse_all(error)
            if error.spec is errors.GROUP_NOT_FOUND:
                await self._note_contact(broker, error)
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

    def _new_stream(self, broker: BrokerInfo) -> GroupStream:
        subscription = self._subscription
        settings = StreamSettings(
            group=subscription.group,
            topic=subscription.topic,
            filter_type=subscription.filter.kind,
            filter=subscription.filter.text,
            invisible_ms=subscription.invisible_ms,
            client_id=subscription.client_id,
            handler=subscription.handler,
        )

        def connect() -> Connection:
            return self._pool.connection(self._pool.routes.find(broker.name) or broker)

        return GroupStream(self, self._pool, connect, broker.name, settings, self._inbox, self._poll_numbers)

    def is_final(self, error: TroveError) -> bool:
        """Whether the stream need not try again."""
        return not may_pass(error)

    def on_broken(self, broker: str, error: TroveError) -> None:
        """The stream to the broker broke, or could not be opened."""
        if not self._closing:
            self._contacts.lost(broker, error, opened=self._opened)

    def on_joined(self, broker: str, settings: GroupSettings) -> None:
        """The client is a member at the broker, with these settings of its group."""
        self._contacts.joined(broker)
        if settings.orderly and not self._inbox.ordered:
            self._inbox.ordered = True
            for stream in self._streams.values():
                stream.stop_gathering()  # lanes know their messages themselves, not by their offsets
        if not settings.orderly:
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

    def put(self, message: ReceivedMessage) -> None:
        """Puts the message into the inbox."""
        if self._processed.has(message):
            message.settled = True
            self.consumed(message)
        elif self._closing:
            self.release(message)
        else:
            self._inbox.put(message)

    def put_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """Puts a batch into the inbox."""
        for message in messages:
            self.put(message)

    def put_batch(self, batch: StreamedBatch) -> None:
        """Puts a batch of a stream into the inbox."""
        if self._processed:
            self.put_all(list(batch))
            return
        if self._closing:
            for message in batch:
                self.release(message)
        else:
            self._inbox.put_batch(batch)

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
        return self._stream_of(message).settle_with_result(_streamed(message), None)

    def consumed(self, message: ReceivedMessage) -> bool:
        """Acknowledges the message without waiting for the result. Returns whether too many settlements have
        no result yet."""
        stream, streamed = self._stream_of(message), _streamed(message)
        # Lanes know their messages themselves, not by their offsets.
        return stream.settle(streamed, None) if self._inbox.ordered else stream.consume(streamed)

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """The same for several messages."""
        for (broker, receipt), ones in groupby(messages, _broker_and_receipt):
            stream = self._streams[broker]
            if receipt is None:
                for message in ones:
                    stream.settle(_streamed(message), None)
            else:
                streamed: Any = list(ones)
                stream.settle_all(receipt, streamed)

    def _stream_of(self, message: ReceivedMessage) -> GroupStream:
        """The stream by which the message is settled."""
        return self._streams[message.broker]

    def return_message(
        self,
        message: ReceivedMessage,
        delay_ms: int | None,
        *,
        tried: bool,
        failure: BaseException | None = None,
    ) -> asyncio.Future[None]:
        """Returns the message for redelivery. After its last attempt the broker makes it a dead letter
        instead, at once; in an orderly group the client does, because the next one waits for that."""
        is_last = message.attempt >= self.attempts_max(message)
        # The text is of use in a dead letter only, and messages with different ones are not settled together.
        reason = Reason(returned=True)
        if failure is not None:
            reason = reason_of_failure(failure, self._pool.options, with_text=is_last)
        if tried and is_last and self._inbox.ordered:
            return self._settle(message, Change(kind=DEAD_LETTER, reason=reason))
        if delay_ms is None:
            delay_ms = backoff_ms(self._settings_of(message), message.attempt)
        return self._settle(message, Change(delay_ms, suspend=not tried, reason=reason))

    def dead_letter(
        self, message: ReceivedMessage, *, reason: str = "", failure: BaseException | None = None
    ) -> asyncio.Future[None]:
        """Moves the message to the dead letters. Then the next one of its message group may follow."""
        options = self._pool.options
        why = reason_of_program(reason, options) if failure is None else reason_of_failure(failure, options)
        return self._settle(message, Change(kind=DEAD_LETTER, reason=why))

    def _settle(self, message: ReceivedMessage, change: Change) -> asyncio.Future[None]:
        return self._stream_of(message).settle_with_result(_streamed(message), change)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscription.group

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        """An atomic transaction has acknowledged it: the next one of its message group may follow."""
        for other in self._inbox.settled(message, done=True):
            self.release(other)
        if (stream := self._streams.get(message.broker)) is not None:
            stream.end_if_idle()

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """Extends the lease to this time from now on. Then the message has a separate handle. Raises
        TroveError."""
        extended = self._stream_of(message).extend(_streamed(message), duration_ms)
        timeout_ms = self._pool.options.call_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await extended
        except TimeoutError:
            text = f"broker {message.broker} did not answer within {timeout_ms} ms"
            raise TroveError(errors.REQUEST_TIMEOUT, text, broker=message.broker) from None

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        return any(stream.at_capacity for stream in self._streams.values())

    async def wait_for_capacity(self) -> None:
        """Waits while too many settlements are in flight."""
        for stream in list(self._streams.values()):
            await stream.wait_for_capacity()

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
        self._stream_of(message).settle(_streamed(message), RELEASE)
        for other in self._inbox.settled(message, done=False):
            self.release(other)

    def attempts_max(self, message: ReceivedMessage) -> int:
        """The number of deliveries after which the message is a dead letter."""
        return self._settings_of(message).retry_max + 1

    def _settings_of(self, message: ReceivedMessage) -> GroupSettings:
        settings = self._stream_of(message).member.settings
        assert settings is not None, "a message came before the settings"
        return settings


def _streamed(message: ReceivedMessage) -> StreamedMessage:
    """The message of a stream: a group has no others."""
    return cast("StreamedMessage", message)


def backoff_ms(settings: GroupSettings, attempt: int) -> int:
    """The delay between delivery number `attempt` (1 or more) and the next one."""
    if settings.exponential:
        delay_ms = settings.backoff_initial_ms * settings.backoff_multiplier ** min(attempt - 1, 64)
        return round(min(delay_ms, settings.backoff_max_ms))
    steps = settings.backoff_ms
    return steps[min(attempt, len(steps)) - 1] if steps else BACKOFF_MS_DEFAULT
