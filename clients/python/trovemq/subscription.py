"""Subscriptions: the messages of a topic for a consumer group, or for every subscriber."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Self

from trovemq._admin.groups import Groups
from trovemq._common.arguments import (
    check_amount,
    check_callable,
    check_number,
    check_numbers,
    check_optional_text,
    check_text,
    check_texts,
)
from trovemq._common.calling import Calling
from trovemq._consume.broadcast import BroadcastConsumer
from trovemq._consume.filters import check_tag_filter
from trovemq._consume.first_contact import FirstContact
from trovemq._consume.group_subscription import GroupSubscription, MessageFilter
from trovemq._consume.grouped import GroupConsumer
from trovemq._consume.hold import HOLD_MAX
from trovemq._consume.inbox import Inbox
from trovemq._consume.loop_turns import LoopTurns, loop_turns
from trovemq._net.connections import ConnectionPool
from trovemq.received import Handler, ReceivedFields, ReceivedMessage
from trovemq.received_batch import ReceivedBatch
from trovemq.starts import Start, check_start
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

_log = logging.getLogger(__name__)

FILTER_SIZE_MAX: Final = 8_192  # characters
CONCURRENCY_MAX: Final = 10_000
ANSWER_SECONDS_MAX: Final = 10.0
EVERYTHING: Final = "*"
TOPIC_LOOK_S: Final = 1.0
"""How often a subscription that waits for its topic asks for one that no route has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """The options of one subscription; `Client.subscribe` explains each."""

    filter: str = EVERYTHING
    tags: Sequence[str] | None = None
    sql: str | None = None
    invisible_ms: int | None = None
    prefetch: int | None = None
    prefetch_bytes_max: int = 32 << 20
    handler: Handler | None = None
    broadcast: bool = False
    start: Start | None = None
    wait_for_topic: bool = False

    def check(self) -> None:
        """Raises TroveError REQUEST_ILLEGAL, FILTER_ILLEGAL for contradictions."""
        check_numbers(invisible_ms=self.invisible_ms, prefetch=self.prefetch)
        check_numbers(prefetch_bytes_max=self.prefetch_bytes_max)
        if self.prefetch is not None:
            check_amount("prefetch", self.prefetch, above=True)
        check_amount("prefetch_bytes_max", self.prefetch_bytes_max, above=True)
        if (self.filter != EVERYTHING) + (self.tags is not None) + (self.sql is not None) > 1:
            raise TroveError(errors.FILTER_ILLEGAL, "give one of filter, tags and sql")
        check_callable("handler", self.handler)
        check_text("filter", self.filter, errors.FILTER_ILLEGAL)
        check_optional_text("sql", self.sql, errors.FILTER_ILLEGAL)
        if self.tags is not None:
            check_texts("tags", self.tags, errors.FILTER_ILLEGAL)
        check_tag_filter(self.filter)
        if len(self.message_filter.text) > FILTER_SIZE_MAX:
            raise TroveError(errors.FILTER_ILLEGAL, f"a filter has at most {FILTER_SIZE_MAX} characters")
        if self.start is not None:
            check_start(self.start)
        if self.broadcast and (self.sql is not None or self.invisible_ms is not None):
            raise TroveError(errors.REQUEST_ILLEGAL, "a broadcast has neither sql nor invisible_ms")

    @property
    def message_filter(self) -> MessageFilter:
        """The filter in the form for brokers."""
        if self.sql is not None:
            return MessageFilter("sql", self.sql)
        text = self.filter if self.tags is None else " || ".join(self.tags)
        return MessageFilter("tag", text or EVERYTHING)

    @property
    def tag_list(self) -> tuple[str, ...]:
        """The subscribed tags; () for all."""
        if self.tags is not None:
            return tuple(self.tags)
        wanted = tuple(tag.strip() for tag in self.filter.split("||"))
        return () if EVERYTHING in wanted or wanted == ("",) else wanted


class Subscription:
    """The messages of one topic; created by `Client.subscribe`, used as an async context manager and
    iterator.

        async with client.subscribe("orders", group="billing", tags=["paid"]) as messages:
            async for message in messages:
                async with message.process():   # consumed at its end; redelivered after an exception
                    await bill(message.body)

    Several tasks may iterate over one subscription. The iteration ends when the subscription is closed. It
    raises an error that makes continuing useless (FILTER_ILLEGAL, ACCESS_DENIED, …); broken connections are
    opened again. While its topic or its group does not exist any more it waits, and logs a warning. Leaving
    the context returns received messages that the program did not get.

    Attributes:
        topic: The topic.
        group: The consumer group.
        client_id: The id by which brokers know this subscriber; "" for a broadcast.
        tracing: The client's; None if its options have none.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        options: SubscribeOptions,
        open_ones: set[Subscription],
    ) -> None:
        options.check()
        check_text("topic", topic, errors.TOPIC_ILLEGAL)
        check_text("group", group, errors.GROUP_ILLEGAL)
        self._pool = pool
        self._open_ones = open_ones
        self._waits_for_topic = options.wait_for_topic
        self._contact: FirstContact | None = None
        self._opener: asyncio.Task[None] | None = None
        self.topic = topic
        self.group = group
        prefetch = HOLD_MAX if options.broadcast and options.prefetch is None else options.prefetch
        self._inbox = Inbox(prefetch, options.prefetch_bytes_max)
        self._consumer: GroupConsumer | BroadcastConsumer
        if options.broadcast:
            self.client_id = ""
            self._consumer = BroadcastConsumer(
                pool, topic, group, options.tag_list, options.start or "latest", self._inbox
            )
        else:
            subscription = GroupSubscription(
                topic=topic,
                group=group,
                filter=options.message_filter,
                invisible_ms=options.invisible_ms,
                handler=options.handler,
            )
            self.client_id = subscription.client_id
            if options.start is not None:
                reset = Groups(pool).reset
                self._contact = FirstContact(pool, reset, group, topic, options.start)
            self._consumer = _group_consumer(pool, subscription, self._inbox, self._contact)
        self.tracing = pool.options.tracing
        self._turns: LoopTurns | None = None
        self._opened = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def prefetched(self) -> int:
        """The number of received messages that the program did not get yet."""
        return self._inbox.count

    @property
    def refused(self) -> int:
        """refused: Messages whose acknowledgement or return did not reach the broker in time: they are
        delivered again."""
        return self._consumer.refused if isinstance(self._consumer, GroupConsumer) else 0

    async def __aenter__(self) -> Self:
        """Enters the group. With `wait_for_topic`, and while the topic does not exist, that happens later.

        Raises:
            TroveError: TOPIC_NOT_FOUND, GROUP_ILLEGAL, GROUP_NOT_FOUND, FILTER_ILLEGAL, …;
                BROKER_UNREACHABLE if no broker that has the topic can be reached.
        """
        if self._opened:
            raise TroveError(errors.REQUEST_ILLEGAL, "a subscription is opened once")
        self._pool.check_loop()
        self._opened = True
        self._open_ones.add(self)
        self._turns = turns = loop_turns()
        turns.watch()
        self._inbox.before_take, self._inbox.on_put = self._give_turn, turns.note
        self._inbox.turn_is_due = turns.is_due
        try:
            await self._open()
        except TroveError as error:
            if error.spec is not errors.TOPIC_NOT_FOUND:
                await self.close()
                raise
            if not self._waits_for_topic:
                await self.close()
                raise _naming_the_option(error) from error.__cause__
            _log.warning("group %s waits for topic %s: %s", self.group, self.topic, error)
            self._opener = asyncio.get_running_loop().create_task(self._open_later())
        except BaseException:
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        pool = self._pool
        await pool.routes.leader_found(pool.options.failover_timeout_ms / 1000)
        if self._contact is not None:
            await self._contact.begin()
        await self._consumer.open()

    async def _open_later(self) -> None:
        """Opens the subscription as soon as the topic exists."""
        options, failures = self._pool.options, 0
        for awaited in (self._contact, self._consumer):
            if isinstance(awaited, FirstContact | BroadcastConsumer):
                awaited.topic_was_awaited()
        while True:
            failures += 1
            await asyncio.sleep(options.backoff.seconds(failures))
            await self._pool.routes.wait_until(self._has_route, TOPIC_LOOK_S)
            try:
                await self._open()
            except TroveError as error:
                if error.spec is not errors.TOPIC_NOT_FOUND and not error.retriable:
                    self._inbox.fail(error)
                    return
                _log.debug("topic %s: %s", self.topic, error)
            else:
                _log.info("group %s receives from topic %s", self.group, self.topic)
                return

    def _has_route(self) -> bool:
        routes = self._pool.routes
        return any(routes.has_topic(self.topic, route.broker.name) for route in routes.state.brokers)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the iteration, returns messages that the program did not get, waits a few seconds for
        acknowledgements in flight, and leaves the group. Messages that the program has not settled are
        delivered again. If the call is cancelled, all of this is still done."""
        self._pool.check_loop()
        self.end()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._opener is not None:
                self._opener.cancel()
                await asyncio.gather(self._opener, return_exceptions=True)
            await self._consumer.close()
        finally:
            self._open_ones.discard(self)
            if self._turns is not None:
                self._turns.unwatch()

    async def _give_turn(self) -> None:
        """Yields to the event loop if that is due. If it stood still lately, brokers may have declared this
        client dead, and may do so again: the program gets no message before they have answered for those
        that it had, `ANSWER_SECONDS_MAX` at most."""
        turns, until = self._turns, 0.0
        assert turns is not None, "it is open"
        while True:
            await turns.give()
            if not turns.stood_still_lately or self._consumer.is_answered:
                return
            until = until or _now() + ANSWER_SECONDS_MAX
            if _now() >= until:
                return
            await self._consumer.answered(until=until)

    def end(self) -> None:
        """Ends the iteration. Received messages can be settled until `close`, which returns the others."""
        self._inbox.close()

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        self._pool.check_loop()
        return self

    async def __anext__(self) -> ReceivedMessage:
        turns = self._turns  # as `_ready`, without its call: this runs for each message
        if turns is not None and turns.lately_until <= turns.clock() < turns.due_at:
            for message in (inbox := self._inbox).messages:
                if inbox.askers:
                    inbox.note_space()
                return message
        began_ns = time.time_ns()
        received = await self.next()
        if received is None:
            raise StopAsyncIteration
        if self.tracing is not None:
            self.tracing.received(self.topic, self.group, [received], began_ns)
        return received

    def _ready(self) -> ReceivedMessage | None:
        """The next message of a batch that waits in the inbox, unless other work of the loop is due."""
        turns = self._turns
        if turns is not None and turns.lately_until <= turns.clock() < turns.due_at:
            for message in (inbox := self._inbox).messages:
                if inbox.askers:
                    inbox.note_space()
                return message
        return None

    async def next(self) -> ReceivedMessage | None:
        """The next message; None when the subscription is closed."""
        if not self._opened:
            raise TroveError(errors.REQUEST_ILLEGAL, "enter the subscription first: async with subscribe(…)")
        self._pool.check_loop()
        return await self._inbox.get()

    async def batches(self, count_max: int = 100, wait: float = 0.1) -> AsyncGenerator[ReceivedBatch, None]:
        """The messages in lists of 1 to `count_max`, until the subscription is closed.

            async for batch in messages.batches(100, wait=0.5):
                async with batch.process():   # all consumed at its end; redelivered after an exception
                    await insert([message.body for message in batch])

        Args:
            count_max: The most messages of a list.
            wait: Seconds that an incomplete list waits for more.
        """
        began_ns = time.time_ns()
        while batch := await self.next_batch(count_max, wait):
            if self.tracing is not None:
                self.tracing.received(self.topic, self.group, batch, began_ns)
            yield batch
            began_ns = time.time_ns()

    async def next_batch(self, count_max: int, wait: float) -> ReceivedBatch:
        """The next list of `batches`; empty when the subscription is closed."""
        check_number("count_max", count_max)
        check_amount("count_max", count_max, above=True)
        check_amount("wait", wait)
        self._inbox.hold.unit = count_max
        first = await self.next()
        if first is None:
            return ReceivedBatch()
        batch, end = ReceivedBatch((first,)), _now() + wait
        try:
            batch += self._inbox.take_all(count_max - 1)
            while len(batch) < count_max and (message := await self._inbox.get_until(end)) is not None:
                batch.append(message)
                batch += self._inbox.take_all(count_max - len(batch))
        except TroveError:
            pass  # the next call raises it
        except BaseException:  # cancelled: the program does not see these
            for message in batch:
                message.settlement.release(message)
            raise
        return batch

    def works_on(self, concurrency: int) -> None:
        """How many messages the program works on at once, or lists of `next_batch`: without a `prefetch` the
        subscription receives at least twice as many ahead. `consume` and `Client.run` say so; a program that
        starts a task for each message should.

        Raises:
            TroveError: REQUEST_ILLEGAL: the number is not in 1..10,000.
        """
        check_concurrency(concurrency)
        self._inbox.hold.workers = concurrency

    async def consume(self, handler: Handler, concurrency: int) -> None:
        """Runs a handler for each message, `concurrency` at a time, until the subscription is closed. An
        exception of the handler returns its message. Raises TroveError if the subscription fails."""
        self.works_on(concurrency)
        loop = asyncio.get_running_loop()
        with closing(Calling(handler, concurrency, f"trovemq {self.topic}")) as calling:
            workers = [loop.create_task(self._work(calling.call)) for _ in range(concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, handler: Callable[[ReceivedMessage], Awaitable[object]]) -> None:
        while (message := self._ready() or await self.next()) is not None:
            try:
                async with message.process():
                    await handler(message)
            except Exception:
                log_failure(message)


def _group_consumer(
    pool: ConnectionPool, subscription: GroupSubscription, inbox: Inbox, contact: FirstContact | None
) -> GroupConsumer:
    if pool.options.faults is None:
        return GroupConsumer(pool, subscription, inbox, contact)
    from trovemq._consume.faulty import FaultyConsumer

    return FaultyConsumer(pool, subscription, inbox, contact, pool.options.faults)


def _naming_the_option(error: TroveError) -> TroveError:
    text = f"{error.message}; create it, or subscribe with wait_for_topic to wait for it"
    return TroveError(error.spec, text, **error.fields)


def check_concurrency(concurrency: int) -> None:
    """Raises TroveError REQUEST_ILLEGAL."""
    check_number("concurrency", concurrency)
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        text = f"concurrency={concurrency} is not in 1..{CONCURRENCY_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text)


def _now() -> float:
    return asyncio.get_running_loop().time()


def log_failure(message: ReceivedFields) -> None:
    """Logs the exception that a handler has raised."""
    _log.exception(
        "the handler failed on %s of %s, attempt %d", message.message_id, message.topic, message.attempt
    )
