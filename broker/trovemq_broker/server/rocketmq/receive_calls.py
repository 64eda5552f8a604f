"""ReceiveMessage: messages of a topic for a consumer group, now or when some come within the polling time.

The stream is: one status, the messages if there are some, the time of delivery
(docs/rocketmq-protocol.md, "Order of the stream"). Its elements are serialised here, so the
handler's response_serializer is None.

A receive needs no task: it finds messages at once, or waits for them without one (polls.py), and the whole
stream is one answer. One that must let others look first continues in a task. Large replies are made one by
one, as the client reads them.

Delivered messages belong to the call until its stream has been written: where the client goes away before,
they are delivered again without a counted attempt, those that the client cannot have at once
(broker/trovemq_broker/groups/delivery/redelivery.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from enum import Enum, auto
from math import ceil
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.redelivery import return_messages
from trovemq_broker.groups.delivery.request import Delivered, DeliveredRun, ReceiveRequest, messages_of
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.receiver import POLLING_MAX_S, Receiver
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.polls import Poll, Polls
from trovemq_broker.server.wire.receives import (
    RECEIVE_NOTHING,
    RECEIVE_OK,
    Receive,
    TopicAlias,
    delivered_at,
    elements,
    polling_time_error,
    receive_of,
)
from trovemq_broker.server.wire.statuses import Context, client_id_of, metadata_value
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

RECEIVE_MESSAGE: Final = "ReceiveMessage"
POLLING_SHARED_MIN_S: Final = 5.0
POLLING_TICK_S: Final = 0.5  # a poll of POLLING_SHARED_MIN_S and more may end this late
ANSWER_BEFORE_S: Final = 0.1  # the client's deadline
REQUEST_TIMEOUT_DEFAULT_MS: Final = 3_000
POLLING_CODE_SINCE: Final = (5, 0, 3)  # older clients do not know ILLEGAL_POLLING_TIME
VERSION_KEY: Final = "x-mq-client-version"
REPLIES_SMALL: Final = 65_536
"""Bytes of a stream that is answered at once. A larger one is written as its client reads it."""


class _Then(Enum):
    """The next step of a receive without messages."""

    WAITS = auto()
    OTHERS_FIRST = auto()
    LOOKED = auto()


_WAITS: Final = _Then.WAITS
_OTHERS_FIRST: Final = _Then.OTHERS_FIRST
_LOOKED: Final = _Then.LOOKED


class _Delivery(NamedTuple):
    """Messages that were delivered to one call."""

    attempt: ReceiveRequest
    messages: list[Delivered]
    size: int
    """The sum of their records' bytes."""

    @classmethod
    def of(cls, attempt: ReceiveRequest, runs: list[DeliveredRun]) -> _Delivery:
        return cls(attempt, messages_of(runs), sum(run.size for run in runs))

    def elements(self, alias: TopicAlias | None) -> Iterator[bytes]:
        """The replies with the messages, each made when it is asked for. `alias`: as the client names the
        topic, where that is not its stored name."""
        return elements(self.attempt.topic, alias, self.messages)


class ReceiveCalls:
    """`forwards`: to other brokers; None: every queue is one of this broker."""

    def __init__(self, core: BrokerCore, receiver: Receiver, forwards: Forwards | None = None) -> None:
        self._core = core
        self._forwards = forwards
        self._receiver = receiver
        self._taken: dict[Call, _Delivery] = {}
        """Messages of streams of replies that have not begun."""
        self._polls = Polls(core, self._nothing, self._look_again)

    def forwarding(self, forwards: Forwards) -> ReceiveCalls:
        """The same, with the forwarding of queues of other brokers."""
        return ReceiveCalls(self._core, self._receiver, forwards)

    def on_calls(self, calls: Sequence[Call]) -> None:
        """ReceiveMessage."""
        for call in calls:
            try:
                self._receive(call)
            except Exception as error:
                call.answer(error)

    def _receive(self, call: Call) -> None:
        request = receive_of(call)
        if self._forwards is not None and (broker := self._forwards.queue_broker(request.broker)):
            call.run(self._receive_elsewhere(call, broker, self._forwards))
            return
        taken = self._take_now(request, call)
        if isinstance(taken, _Delivery):
            self._answer(call, taken, request.alias)
        elif taken is not _WAITS:
            call.run(self._receive_in_task(call, request, looked=taken is _LOOKED))

    async def _receive_elsewhere(self, call: Call, broker: str, forwards: Forwards) -> None:
        """Forwards the call. The other broker has delivered the messages: they return to its queue when the
        call is cancelled before its stream was written."""
        replies = forwards.replies(broker, RECEIVE_MESSAGE, call.keep(), call.context)
        try:
            first = await replies.__anext__()
        except StopAsyncIteration:
            what = f"broker {broker} ended a receive without a reply"
            raise TroveError(errors.BROKER_UNREACHABLE, what, broker=broker) from None
        call.answer(_following(first, replies))

    async def _receive_in_task(self, call: Call, request: Receive, *, looked: bool) -> None:
        context = call.context
        until = _shared_end(asyncio.get_running_loop().time(), self._polling_s(request, context), context)
        attempt = self._request(request, context)
        with self._core.registry.receiving(attempt.client_id, context):
            taken = _Delivery.of(
                attempt, await self._receiver.next_runs(attempt, until, context, call, looked=looked)
            )
        self._answer_late(call, taken, request.alias)

    def _look_again(self, poll: Poll) -> None:
        """For a poll that was woken."""
        call = poll.call
        if not call.may_answer():
            self._polls.end(poll)
            self._core.waits.wake(poll.wait.pair)  # it has not used its wake-up
            return
        try:
            taken = self._take_of_poll(poll)
            if taken is _OTHERS_FIRST:
                call.run(self._continue_in_task(poll))
            elif isinstance(taken, _Delivery):
                self._answer(call, taken, poll.name)
        except Exception as error:
            call.answer(error)

    async def _continue_in_task(self, poll: Poll) -> None:
        call = poll.call
        if not self._polls.take(poll):
            return
        try:
            runs = await self._receiver.runs_in_line(
                poll.attempt,
                poll.wait,
                poll.until,
                call.context,
                poll.client,
                call,
                looked=True,
                woken=poll.woken,
            )
        finally:
            self._polls.leave_line(poll)
        self._answer_late(call, _Delivery.of(poll.attempt, runs), poll.name)

    def _answer_late(self, call: Call, taken: _Delivery, name: TopicAlias | None) -> None:
        """The answer after a wait in a task. The caller may have lost its right to the messages meanwhile."""
        if call.may_answer():
            self._answer(call, taken, name)
        elif taken.messages:
            self._give_back(taken, 0)

    def _answer(self, call: Call, taken: _Delivery, name: TopicAlias | None) -> None:
        if not taken.messages:
            call.answer(self._nothing())
            return
        try:
            replies = self._small_replies(taken, name) if call.sends_at_once else None
        except Exception:
            self._give_back(taken, 0)
            raise
        if replies is None:
            self._taken[call] = taken
            call.on_end(self._return_untaken)
            call.answer(self._replies(call, name))
            return
        call.answer(replies)
        if call.context.cancelled():  # the answer was refused
            self._give_back(taken, 0)
        else:
            topic, size = taken.attempt.topic, sum(map(len, replies[1:-1]))
            self._core.traffic.fetched(topic, len(taken.messages), size)

    async def _replies(self, call: Call, name: TopicAlias | None) -> AsyncGenerator[bytes, None]:
        """The stream, of which each reply is made when the client has taken the one before it: unread replies
        take no memory. The records are views of the log, which stays mapped for as long."""
        taken = self._taken.pop(call, None)
        if taken is None:  # the call has ended, and they came back
            return
        begun, written = 0, False  # messages whose writing has begun; all of the stream
        try:
            byte_count = 0
            yield RECEIVE_OK
            for element in taken.elements(name):
                byte_count += len(element)
                begun += 1
                yield element
            yield self._delivered_at()
            written = True
        finally:
            if not written:
                self._give_back(taken, begun)
        self._core.traffic.fetched(taken.attempt.topic, len(taken.messages), byte_count)

    def _take_now(self, request: Receive, call: Call) -> _Delivery | _Then:
        """The messages that are there. _WAITS: none are, and the call waits for some. _OTHERS_FIRST: others
        look first. _LOOKED: others look before the call looks again."""
        core, delivery, context = self._core, self._core.delivery, call.context
        polling_s = self._polling_s(request, context)  # its refusal is the first
        topic, group = request.topic, request.group
        empty = delivery.seems_empty(group, topic, core.clock_ms())
        if self._receiver.has_scanned or core.waits.closed:
            return _OTHERS_FIRST
        attempt = self._request(request, context)
        if core.registry.has_unregistered(attempt.client_id):
            return _OTHERS_FIRST
        if not empty and core.waits.has((group, topic), attempt.filter):
            return _OTHERS_FIRST  # they were woken, and look first
        if runs := self._receiver.attempt(attempt, context):
            return _Delivery.of(attempt, runs)
        if delivery.next_visible_ms(group, topic) == 0:
            return _LOOKED
        until = _shared_end(asyncio.get_running_loop().time(), polling_s, context)
        self._polls.begin(attempt, until, call, request.alias)
        return _WAITS

    def _take_of_poll(self, poll: Poll) -> _Delivery | _Then:
        """The messages for a poll that was woken. _WAITS: none are there, and it waits again. _OTHERS_FIRST:
        it continues in a task."""
        core, attempt = self._core, poll.attempt
        if (
            self._receiver.has_scanned
            or core.waits.closed
            or self._receiver.is_gone(poll.client)
            or not poll.call.has_capacity()
        ):
            return _OTHERS_FIRST
        try:
            poll.attempt = attempt = self._receiver.renewed(attempt)
            runs = self._receiver.attempt(attempt, poll.call.context)
        except Exception:
            self._polls.end(poll)
            raise
        if runs:
            self._polls.end(poll)
            core.waits.wake(poll.wait.pair)  # there may be more than one call takes
            return _Delivery.of(attempt, runs)
        poll.woken = False
        if poll.is_last or core.delivery.next_visible_ms(*poll.wait.pair) == 0:
            return _OTHERS_FIRST
        self._polls.wait_again(poll)
        return _WAITS

    def _small_replies(self, taken: _Delivery, name: TopicAlias | None) -> list[bytes] | None:
        """The whole stream; None where it is large, perhaps only with inflated bodies."""
        if taken.size > REPLIES_SMALL:
            return None
        replies, size = [RECEIVE_OK], 0
        for element in taken.elements(name):
            replies.append(element)
            size += len(element)
            if size > REPLIES_SMALL:
                return None
        replies.append(self._delivered_at())
        return replies

    def _return_untaken(self, call: Call) -> None:
        """The call ended before its stream began."""
        taken = self._taken.pop(call, None)
        if taken is not None:
            self._give_back(taken, 0)

    def _nothing(self) -> list[bytes]:
        return [RECEIVE_NOTHING, self._delivered_at()]

    def _delivered_at(self) -> bytes:
        return delivered_at(self._core.clock_ms())

    def _give_back(self, taken: _Delivery, begun: int) -> None:
        group, topic = taken.attempt.group.name, taken.attempt.topic
        return_messages(self._core.delivery, group, topic, taken.messages, begun, self._core.clock_ms())
        self._core.waits.wake((group, topic))

    # --- the request --------------------------------------------------------------------------------
    def _polling_s(self, request: Receive, context: Context) -> float:
        """How long the call may wait (docs/rocketmq-protocol.md, "Polling time").

        Raises POLLING_TIME_ILLEGAL.
        """
        remaining: float | None = context.time_remaining()
        polling_ms = request.polling_ms
        if polling_ms is not None:
            wanted = polling_ms / 1000
        elif remaining is not None:
            timeout_ms = self._core.registry.request_timeout_ms(client_id_of(context))
            wanted = remaining - (timeout_ms or REQUEST_TIMEOUT_DEFAULT_MS) / 2000
        else:
            wanted = POLLING_MAX_S
        least = self._core.settings.receive_poll_min_ms / 1000
        wanted = min(max(wanted, least), POLLING_MAX_S)
        if remaining is None or wanted <= remaining - ANSWER_BEFORE_S:
            return wanted
        if wanted > remaining and remaining < least:
            raise _polling_time_illegal(remaining, context)
        return remaining - ANSWER_BEFORE_S

    def _request(self, request: Receive, context: Context) -> ReceiveRequest:
        topic = request.topic  # its refusal is the first
        return self._receiver.prepare(
            request.group,
            topic,
            request.filter,
            request.invisible_ms,
            client_id_of(context),
            count_max=min(request.count_max, self._core.settings.receive_count_max),
            attempt_id=request.attempt_id,
        )


async def _following(first: bytes, replies: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(replies):
        yield first
        async for reply in replies:
            yield reply


def _shared_end(now: float, polling_s: float, context: Context) -> float:
    """When a poll ends that begins `now`, by the loop's clock. Long ones end together in ticks: one
    iteration of the event loop for several costs much less than one for each."""
    end = now + polling_s
    if polling_s < POLLING_SHARED_MIN_S:
        return end
    shared = ceil(end / POLLING_TICK_S) * POLLING_TICK_S
    remaining = context.time_remaining()
    return shared if remaining is None or shared - now <= remaining - ANSWER_BEFORE_S else end


def _polling_time_illegal(remaining: float, context: Context) -> TroveError:
    message = f"{remaining:.1f} s until the call's deadline are too short for a long poll"
    has_code = _version(metadata_value(context, VERSION_KEY)) >= POLLING_CODE_SINCE
    return polling_time_error(message, has_code=has_code)


def _version(text: str) -> tuple[int, ...]:
    """`5.1.2-SNAPSHOT` -> (5, 1, 2); a text that is not a version counts as a new one."""
    numbers = text.partition("-")[0].split(".")
    if len(numbers) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 9 for part in numbers):
        return POLLING_CODE_SINCE
    return tuple(map(int, numbers))
