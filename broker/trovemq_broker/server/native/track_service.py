"""TrackService: the track of one message. The work is done on the loop in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import grpc

from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.query.lacking import lacking_note
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.read_core import ReadCore
from trovemq_broker.server.wire import track_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.track.diagnosis import Members
from trovemq_broker.track.message_tracker import MessageTrack, MessageTracker
from trovemq_daemon.grpc_services import add_service
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset

SYNC_WAIT_MAX_S: Final = 5.0


class TrackReads:
    """Of a follower, which knows no groups, and a part of the broker's service. The method is that of
    biography.proto; every refusal is a TroveError."""

    def __init__(
        self,
        core: ReadCore,
        one_more: Callable[[], AbstractContextManager[None]],
        tracker: MessageTracker | None = None,
    ) -> None:
        """`one_more` counts a query while it runs, and raises if there are too many."""
        self._reads = core
        self._one_more = one_more
        self._tracker = tracker or MessageTracker(core.store, None)

    async def biography(self, request: Request, _context: Context) -> Reply:
        with self._one_more():
            events_end = await self._bring_events_to_disk()
            command = wire.track_of(request)
            steps = self._tracker.steps(command.identifier, command.topic, self._reads.clock_ms, events_end)
            found = await self._reads.turns.run(steps)
            return wire.track_reply(found, lacking_note(self._reads.store, "", _first_ms(found)))

    async def _bring_events_to_disk(self) -> QueueOffset | None:
        """Returns where the events end that the answer is to have. A follower has no others than those that
        it reads: None."""
        return None


class TrackService(TrackReads):
    """Of a broker."""

    def __init__(self, core: BrokerCore, one_more: Callable[[], AbstractContextManager[None]]) -> None:
        self._core = core
        tracker = MessageTracker(core.store, core.model, self._members_of, self._subscribed_groups)
        super().__init__(core, one_more, tracker)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def _bring_events_to_disk(self) -> QueueOffset | None:
        """Writes pending events to the log, so that the answer has everything up to now. If that fails, the
        answer has a note."""
        events = self._core.model.events
        events_end = events.next_offset
        try:
            events.flush(self._core.clock_ms())
            events_end = events.next_offset
            async with asyncio.timeout(SYNC_WAIT_MAX_S):
                await self._core.group_commit.durable(self._core.store.end_offset)
        except (TroveError, TimeoutError):
            pass
        return events_end

    def _members_of(self, group: str, topic: str) -> Members:
        members = self._core.registry.members(group)
        wanted = self._core.registry.subscription(group, topic)
        filters: list[Filter] = []
        if wanted is not None:
            try:
                filters = [parse_filter(wanted.kind, wanted.expression)]
            except TroveError:
                filters = []  # it cannot be parsed: its consumers get an error, and all messages wait
        return Members(
            len(members),
            sum(topic in member.description.subscriptions for member in members),
            wanted.expression if wanted is not None else "",
            filters,
        )

    def _subscribed_groups(self, topic: str) -> list[str]:
        return [group for group, _ in self._core.registry.subscriptions(topic=topic)]


def _first_ms(found: MessageTrack) -> int:
    """A time before which no copy was stored."""
    return min(min(copy.born_ms, copy.store_ms) for tracked in found.messages for copy in tracked.copies)
