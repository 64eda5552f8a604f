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
from trovemq_store.topics.config_marks import reason_text
from trovemq_store.topics.subscription_groups import SubscriptionGroup

POLLING_MAX_S: Final = 20.0
REDELIVERY_WAIT_MAX_MS: Final = 500  # the clock may be set meanwhile
REDELIVERY_GATHER_S: Final = 0.05  # a redelivery that is due earlier than expected is this late
REDELIVERY_TURN_MS: Final = 1
EXPENSIVE_SCAN_READS: Final = 256
"""A scan for messages with this many reads, about a millisecond (no benchmark has a case for it), is the last
one of its iteration of the event loop: a filter may drop most of a backlog, and a client may receive hundreds
of times at once. The next iteration is for other receives."""


class ReplySpace(Protocol):
    """The space for the reply that has the messages."""

    def has_capacity(self) -> bool:
        """Whether the reply may be made in this step of the loop."""
        ...

    async def wait_for_capacity(self) -> None:
        """Returns when it may. Raises TroveError LIMIT_EXCEEDED."""
        ...


class Receiver:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.has_scanned = False
        """Whether an expensive scan was made in this iteration of the event loop."""

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
        core = self._core
        now_ms = core.clock_ms()
        lasts_ms = self._lasts_ms(invisible_ms)
        check_readable(core.store, topic)
        settings = core.group_for_use(group, (topic,))
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
        settings = self._core.settings
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
        clients = self._core.registry
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

        `space`: the messages are received when there is space for their reply; at first there is.
        `looked`: the call has scanned just now.
        """
        waits = self._core.waits
        if self._core.registry.has_unregistered(attempt.client_id):
            return []  # the client's termination overtook the call: no call would return its messages
        looks = not looked and not self.has_scanned
        delivered = self.attempt(attempt, context) if looks else []
        if delivered or waits.closed:
            return delivered
        client = self._core.registry.get(attempt.client_id)
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
        """The messages that a waiting receive gets. `woken`: it was woken, and has not scanned since."""
        delivered: list[DeliveredRun] = []
        waits, pair = self._core.waits, wait.pair
        while not delivered and await self._wait_for_messages(wait, until, looked=looked, woken=woken):
            looked, woken = True, False
            if space is not None and not space.has_capacity():
                waits.wake(pair)  # receives with space scan first
                await space.wait_for_capacity()
            if context.done() or self.is_gone(client):
                break
            attempt = self.renewed(attempt)
            delivered = self.attempt(attempt, context)
        if delivered or context.done() or self.is_gone(client):
            waits.wake(pair)  # there may be more than one call takes
        return delivered

    def renewed(self, attempt: ReceiveRequest) -> ReceiveRequest:
        """The request for another scan: topic and group may have been deleted or changed meanwhile. Raises
        TroveError TOPIC_NOT_FOUND, PERMISSION_MISSING, GROUP_NOT_FOUND."""
        core = self._core
        check_readable(core.store, attempt.topic)
        current = core.groups.require(attempt.group.name)
        return replace(attempt, group=current, now_ms=core.clock_ms())

    def is_gone(self, client: Client | None) -> bool:
        """Whether the client, which was known when its call began, has unregistered or expired since."""
        return client is not None and self._core.registry.get(client.client_id) is not client

    async def _wait_for_messages(self, wait: Wait, until: float, *, looked: bool, woken: bool) -> bool:
        """Returns True when there may be messages, False at `until`. `looked`: the call has scanned before.
        `woken`: it has been woken since."""
        waits = self._core.waits
        if woken or (looked and self._core.delivery.next_visible_ms(*wait.pair) != 0):
            if not woken and not await wait.woken(until):
                return False
            try:
                await self._next_iteration()
            except asyncio.CancelledError:
                waits.wake(wait.pair)  # the wake-up is not lost
                raise
            return not waits.closed
        await asyncio.sleep(0)  # the scan was cut short, or other receives scan: they may go first
        if looked:
            await asyncio.sleep(0)  # in the next iteration, receives that waited meanwhile scan
        await self._next_iteration()
        return asyncio.get_running_loop().time() < until and not waits.closed

    async def _next_iteration(self) -> None:
        """Returns in an iteration of the event loop without an expensive scan so far."""
        while self.has_scanned:  # noqa: ASYNC110 (another receive may scan for long again)
            await asyncio.sleep(0)

    def _note_scan(self) -> None:
        """This iteration of the event loop has had its expensive scan."""
        if not self.has_scanned:
            self.has_scanned = True
            asyncio.get_running_loop().call_soon(self._forget_scan)

    def _forget_scan(self) -> None:
        self.has_scanned = False

    def attempt(self, attempt: ReceiveRequest, context: Context) -> list[DeliveredRun]:
        if context.done():
            return []  # the client is gone: a message delivered to it would be lost for its invisible time
        waits, pair = self._core.waits, (attempt.group.name, attempt.topic)
        others = waits.other_filters(pair, attempt.filter)
        if others:
            attempt = replace(attempt, others=others, left=[])
        delivered = self._core.delivery.receive_runs(attempt)
        if self._core.delivery.last_reads >= EXPENSIVE_SCAN_READS:
            self._note_scan()
        tracing = self._core.tracing
        if tracing is not None and delivered:
            tracing.delivered(attempt, delivered, dict(context.invocation_metadata() or ()))
        for filter_ in attempt.left:
            waits.wake_for(pair, filter_)
        return delivered

    async def watch_redeliveries(self) -> None:
        """Wakes receives when messages become visible again, and makes messages whose last attempt has ended
        dead letters. Runs until it is cancelled."""
        core, earlier = self._core, asyncio.Event()
        while True:
            due_ms, now_ms = core.delivery.next_due_ms(), core.clock_ms()
            wait_ms = REDELIVERY_WAIT_MAX_MS if due_ms is None else due_ms - now_ms
            wait_ms = min(max(wait_ms, REDELIVERY_TURN_MS), REDELIVERY_WAIT_MAX_MS)
            earlier.clear()
            core.delivery.due_watch.wait(now_ms + wait_ms, earlier.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await earlier.wait()
                await asyncio.sleep(REDELIVERY_GATHER_S)
            core.waits.wake_pairs(core.delivery.due_pairs(core.clock_ms()))
            core.delivery.make_dead_letters(core.clock_ms())


def check_readable(store: MessageStore, topic: str) -> None:
    """Raises TroveError TOPIC_NOT_FOUND, PERMISSION_MISSING."""
    config = store.topics.get(topic)
    if config is None:
        queue_ids(store, topic)  # a topic that only the store's queues know can be read as well
    elif not config.readable or config.queue_count < 1:
        what = f"topic {topic} has no queue that may be read{reason_text(config.attributes)}"
        raise TroveError(errors.PERMISSION_MISSING, what)


def check_consumer(group: SubscriptionGroup) -> None:
    """Raises TroveError PERMISSION_MISSING if the group may not consume."""
    if not group.consume_enable:
        what = f"group {group.name} may not consume{reason_text(group.attributes)}"
        raise TroveError(errors.PERMISSION_MISSING, what)
