"""Receives of both protocols: messages of a topic for a consumer group, now or when some come.

A receive that finds no messages waits in a line of its group and topic. One that has read much leaves the
next iteration of the event loop to others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from trovemq_broker.filters.filter import Filter
from trovemq_broker.groups.delivery.request import DeliveredRun, ReceiveRequest
from trovemq_broker.groups.members.receive_waits import Wait
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.clients import Client, Subscription
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.subscription_groups import SubscriptionGroup

POLLING_MAX_S: Final = 20.0
REDELIVERY_WAIT_MAX_MS: Final = 500  # the clock may be set meanwhile
REDELIVERY_GATHER_S: Final = 0.05  # what is due earlier than expected is late by so much
REDELIVERY_TURN_MS: Final = 1
LONG_LOOK_READS: Final = 256
"""A look for messages with so many reads, about a millisecond, is the last one of its pass of the loop: a
filter may drop most of a backlog, and a client may receive hundreds of times at once. The next pass is left
to other receives."""


class ReplySpace(Protocol):
    """The space for the reply that has the messages."""

    def has_capacity(self) -> bool:
        """Whether the reply may be made in this step of the loop."""
        ...

    async def wait_for_capacity(self) -> None:
        """Returns when it may. Raises TroveError LIMIT_EXCEEDED."""
        ...


class Receiver:
    def __init__(self, parts: BrokerCore) -> None:
        self._parts = parts
        self.is_resting = False
        """Whether a long look was made in this pass of the loop."""

    # --- the request --------------------------------------------------------------------------------
    def prepare(
        self,
        group: str,
        topic: str,
        filter_: Filter,
        invisible_ms: int | None,
        client_id: str,
        **fields: Any,
    ) -> ReceiveRequest:
        """The request of a group's receive, with these `fields`; a new group is created. invisible_ms None:
        the broker renews the leases. Raises INVISIBLE_DURATION_ILLEGAL, TOPIC_NOT_FOUND, PERMISSION_MISSING,
        GROUP_NOT_FOUND."""
        parts = self._parts
        now_ms = parts.clock_ms()
        lasts_ms = self._lasts_ms(invisible_ms)
        check_readable(parts.store, topic)
        settings = parts.group_for_use(group, (topic,))
        check_consumer(settings)
        self._remember(group, topic, filter_, now_ms)
        return ReceiveRequest(
            group=settings,
            topic=topic,
            filter=filter_,
            invisible_ms=lasts_ms,
            now_ms=now_ms,
            client_id=client_id,
            renewed=invisible_ms is None,
            **fields,
        )

    def _lasts_ms(self, invisible_ms: int | None) -> int:
        settings = self._parts.settings
        if invisible_ms is None:
            return settings.renewed_lease_ms
        if not settings.invisible_min_ms <= invisible_ms <= settings.invisible_max_ms:
            raise TroveError(
                errors.INVISIBLE_DURATION_ILLEGAL,
                f"an invisible duration of {invisible_ms} ms is not {settings.invisible_min_ms}"
                f" to {settings.invisible_max_ms}",
            )
        return invisible_ms

    def _remember(self, group: str, topic: str, filter_: Filter, now_ms: EpochMs) -> None:
        """Stores the group's subscription, which clients that have not sent settings also have."""
        clients = self._parts.registry
        known = clients.subscription(group, topic)
        if known is None or (known.kind, known.expression) != (filter_.kind, filter_.expression):
            clients.subscribed(group, topic, Subscription(filter_.kind, filter_.expression, now_ms))

    # --- waiting ------------------------------------------------------------------------------------
    async def next_runs(
        self,
        attempt: ReceiveRequest,
        until: float,
        context: Context,
        space: ReplySpace | None = None,
        *,
        looked: bool = False,
    ) -> list[DeliveredRun]:
        """The messages that can be received now; if there are none, those that arrive until `until`.

        `space`: messages that were waited for are taken when there is space for them; at first there is.
        `looked`: the call has looked just now.
        """
        waits = self._parts.waits
        if self._parts.registry.has_left(attempt.client_id):
            return []  # the client's termination overtook the call: nobody would return its messages
        looks = not looked and not self.is_resting
        delivered = self.attempt(attempt, context) if looks else []
        if delivered or waits.closed:
            return delivered
        client = self._parts.registry.get(attempt.client_id)
        with waits.enter(attempt.group.name, attempt.topic, attempt.filter) as wait:
            return await self.runs_in_line(
                attempt, wait, until, context, client, space, looked=looked or looks
            )

    async def runs_in_line(
        self,
        attempt: ReceiveRequest,
        wait: Wait,
        until: float,
        context: Context,
        client: Client | None,
        space: ReplySpace | None = None,
        *,
        looked: bool,
        woken: bool = False,
    ) -> list[DeliveredRun]:
        """The messages that a waiting receive gets. `woken`: it was woken, and has not looked since."""
        delivered: list[DeliveredRun] = []
        waits, pair = self._parts.waits, wait.pair
        while not delivered and await self._worth_looking(wait, until, looked=looked, woken=woken):
            looked, woken = True, False
            if space is not None and not space.has_capacity():
                waits.wake(pair)  # who has space looks first
                await space.wait_for_capacity()
            if context.done() or self.is_gone(client):
                break
            attempt = self.renewed(attempt)
            delivered = self.attempt(attempt, context)
        if delivered or context.done() or self.is_gone(client):
            waits.wake(pair)  # there may be more than one call takes
        return delivered

    def renewed(self, attempt: ReceiveRequest) -> ReceiveRequest:
        """For another look: topic and group may have been deleted or changed meanwhile. Raises TroveError."""
        parts = self._parts
        check_readable(parts.store, attempt.topic)
        current = parts.groups.require(attempt.group.name)
        return replace(attempt, group=current, now_ms=parts.clock_ms())

    def is_gone(self, client: Client | None) -> bool:
        """Whether the client, which was known when its call began, has unregistered or expired since."""
        return client is not None and self._parts.registry.get(client.client_id) is not client

    async def _worth_looking(self, wait: Wait, until: float, *, looked: bool, woken: bool) -> bool:
        """Returns when there may be something; False at `until`. `looked`: the call has looked before.
        `woken`: it has been woken since."""
        waits = self._parts.waits
        if woken or (looked and self._parts.delivery.next_visible_ms(*wait.pair) != 0):
            if not woken and not await wait.woken(until):
                return False
            try:
                await self._next_pass()
            except asyncio.CancelledError:
                waits.wake(wait.pair)  # the wake-up is not lost
                raise
            return not waits.closed
        await asyncio.sleep(0)  # the last look was cut short, or others look: they may go first
        if looked:
            await asyncio.sleep(0)  # a pass later: in the next one, whoever waited meanwhile looks
        await self._next_pass()
        return asyncio.get_running_loop().time() < until and not waits.closed

    async def _next_pass(self) -> None:
        """Returns in a pass of the loop without a long look so far."""
        while self.is_resting:  # noqa: ASYNC110 (whoever goes first may look for long again)
            await asyncio.sleep(0)

    def _rest(self) -> None:
        """The pass of the loop has had its long look."""
        if not self.is_resting:
            self.is_resting = True
            asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self.is_resting = False

    def attempt(self, attempt: ReceiveRequest, context: Context) -> list[DeliveredRun]:
        if context.done():
            return []  # the client is gone: a message delivered to it would be lost for its invisible time
        waits, pair = self._parts.waits, (attempt.group.name, attempt.topic)
        others = waits.other_filters(pair, attempt.filter)
        if others:
            attempt = replace(attempt, others=others, left=[])
        delivered = self._parts.delivery.receive_runs(attempt)
        if self._parts.delivery.last_reads >= LONG_LOOK_READS:
            self._rest()
        tracing = self._parts.tracing
        if tracing is not None and delivered:
            tracing.delivered(attempt, delivered, dict(context.invocation_metadata() or ()))
        for filter_ in attempt.left:
            waits.wake_for(pair, filter_)
        return delivered

    async def watch_redeliveries(self) -> None:
        """Wakes receives when messages become visible again, and makes messages whose last attempt has ended
        dead letters. Runs until it is cancelled."""
        parts, earlier = self._parts, asyncio.Event()
        while True:
            due_ms, now_ms = parts.delivery.next_due_ms(), parts.clock_ms()
            wait_ms = REDELIVERY_WAIT_MAX_MS if due_ms is None else due_ms - now_ms
            wait_ms = min(max(wait_ms, REDELIVERY_TURN_MS), REDELIVERY_WAIT_MAX_MS)
            earlier.clear()
            parts.delivery.due_watch.wait(now_ms + wait_ms, earlier.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await earlier.wait()
                await asyncio.sleep(REDELIVERY_GATHER_S)
            parts.waits.wake_pairs(parts.delivery.due_pairs(parts.clock_ms()))
            parts.delivery.make_dead_letters(parts.clock_ms())


def check_readable(store: MessageStore, topic: str) -> None:
    """Raises TroveError TOPIC_NOT_FOUND, PERMISSION_MISSING."""
    config = store.topics.get(topic)
    if config is None:
        queue_ids(store, topic)  # a topic that only the store's queues know can be read as well
    elif not config.readable or config.queue_count < 1:
        raise TroveError(errors.PERMISSION_MISSING, f"topic {topic} has no queue that may be read")


def check_consumer(group: SubscriptionGroup) -> None:
    """Raises TroveError PERMISSION_MISSING if the group may not consume."""
    if not group.consume_enable:
        raise TroveError(errors.PERMISSION_MISSING, f"group {group.name} may not consume")
