"""TrackService: the track of one message. The work is done on the loop in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.filters.filter import Filter, parse_filter
from trovemq_broker.query.lacking import lacking_note
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.track.copies import Copy, Location
from trovemq_broker.track.diagnosis import CONSUMED_REASONS, ConsumptionStatus, Members
from trovemq_broker.track.message_tracker import MessageTrack, MessageTracker
from trovemq_broker.track.timeline import TrackEvent
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.v1 import biography_pb2
from trovemq_store.engine.message_store import MessageStore

SERVICE: Final = biography_pb2.DESCRIPTOR.services_by_name["BiographyService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SYNC_WAIT_MAX_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackParts:
    """The parts of the service. `durable` waits until the log is on disk up to a physical offset; `one_more`
    counts a query while it runs, and raises if there are too many; `turns` are those of all long work."""

    store: MessageStore
    model: ConsumerState
    registry: ClientRegistry
    durable: Callable[[PhysicalOffset], Awaitable[None]]
    one_more: Callable[[], AbstractContextManager[None]]
    turns: Turns
    clock_ms: Callable[[], EpochMs]


class TrackService:
    """The method is that of biography.proto; every refusal is a TroveError."""

    def __init__(self, parts: TrackParts) -> None:
        self._parts = parts
        self._tracker = MessageTracker(parts.store, parts.model, self._members_of, self._subscribed_groups)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    async def biography(
        self, request: biography_pb2.BiographyRequest, _context: Context
    ) -> biography_pb2.BiographyReply:
        with self._parts.one_more():
            await self._bring_events_to_disk()
            steps = self._tracker.steps(_identifier(request), request.topic, self._parts.clock_ms)
            found = await self._parts.turns.run(steps)
            return _to_wire(found, lacking_note(self._parts.store, "", _first_ms(found)))

    async def _bring_events_to_disk(self) -> None:
        """Writes pending events to the log, so that the answer has everything up to now. If that fails, the
        answer has a note."""
        try:
            self._parts.model.events.flush(self._parts.clock_ms())
            async with asyncio.timeout(SYNC_WAIT_MAX_S):
                await self._parts.durable(self._parts.store.end_offset)
        except (TroveError, TimeoutError):
            return

    def _members_of(self, group: str, topic: str) -> Members:
        members = self._parts.registry.members(group)
        wanted = self._parts.registry.subscription(group, topic)
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
        return [group for group, _ in self._parts.registry.subscriptions(topic=topic)]


def _identifier(request: biography_pb2.BiographyRequest) -> str | Location:
    match request.WhichOneof("identifier"):
        case "id":
            return request.id
        case "location":
            place = request.location
            return Location(place.topic, QueueId(place.queue_id), QueueOffset(place.queue_offset))
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give an id or a location")


def _first_ms(found: MessageTrack) -> int:
    """A time before which no copy was stored."""
    return min(min(copy.born_ms, copy.store_ms) for tracked in found.messages for copy in tracked.copies)


def _to_wire(found: MessageTrack, lacks: str) -> biography_pb2.BiographyReply:
    """`lacks`: the reason why a part may be missing; "" if nothing is."""
    notes = [*found.notes, lacks] if lacks else found.notes
    reply = biography_pb2.BiographyReply(complete=found.complete and not lacks, notes=notes)
    for number, tracked in enumerate(found.messages, 1):
        reply.copies.extend(_copy(number, copy) for copy in tracked.copies)
        reply.events.extend(_event(number, event) for event in tracked.events)
        reply.verdicts.extend(_status(number, status) for status in tracked.statuses)
    return reply


def _copy(number: int, copy: Copy) -> biography_pb2.MessageCopy:
    return biography_pb2.MessageCopy(
        message=number,
        role=copy.role,
        topic=copy.topic,
        queue_id=copy.queue_id,
        queue_offset=copy.queue_offset,
        physical_offset=copy.physical_offset,
        size=copy.size,
        offset_msg_id=copy.offset_msg_id,
        unique_key=copy.unique_key,
        keys=copy.keys,
        tag=copy.tag,
        born_timestamp=copy.born_ms,
        born_host=copy.born_host,
        store_timestamp=copy.store_ms,
        store_host=copy.store_host,
        reconsume_times=copy.reconsume_times,
        group=copy.group,
        producer_group=copy.producer_group,
        message_group=copy.message_group,
        deliver_timestamp=copy.deliver_ms,
    )


def _event(number: int, event: TrackEvent) -> biography_pb2.BiographyEvent:
    return biography_pb2.BiographyEvent(
        message=number,
        timestamp=event.time_ms,
        kind=event.kind,
        group=event.group,
        client_id=event.client_id,
        attempt=event.attempt,
        until=event.until_ms,
        count=event.count,
        topic=event.topic,
        queue_id=event.queue_id,
        queue_offset=event.queue_offset,
        detail=event.detail,
    )


def _status(number: int, status: ConsumptionStatus) -> biography_pb2.GroupVerdict:
    return biography_pb2.GroupVerdict(
        message=number,
        group=status.group,
        reason=status.reason,
        consumed=status.reason in CONSUMED_REASONS,
        until=status.until_ms,
        attempt=status.attempt,
        client_id=status.client_id,
        ahead=status.ahead,
        ahead_estimated=status.ahead_estimated,
        blocked_by=status.blocked_by,
        committed=status.committed,
        next_offset=status.next_offset,
        online=status.online,
        subscribed=status.subscribed,
        filter=status.filter,
        topic=status.topic,
        queue_id=status.queue_id,
        queue_offset=status.queue_offset,
        detail=status.detail,
    )
