"""Reads the requests of BiographyService as commands, and makes its replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_broker.track.copies import Copy, Location
from trovemq_broker.track.diagnosis import CONSUMED_REASONS, ConsumptionStatus
from trovemq_broker.track.message_tracker import MessageTrack
from trovemq_broker.track.timeline import TrackEvent
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.v1 import biography_pb2

SERVICE: Final = biography_pb2.DESCRIPTOR.services_by_name["BiographyService"]


@dataclass(frozen=True, slots=True)
class TrackMessage:
    """`identifier`: any id of the message, or its queue location; `topic`: "" if it is not given."""

    identifier: str | Location
    topic: str


def track_of(request: biography_pb2.BiographyRequest) -> TrackMessage:
    """The command of a Biography. Raises TroveError REQUEST_ILLEGAL."""
    return TrackMessage(_identifier(request), request.topic)


def _identifier(request: biography_pb2.BiographyRequest) -> str | Location:
    match request.WhichOneof("identifier"):
        case "id":
            return request.id
        case "location":
            place = request.location
            return Location(place.topic, QueueId(place.queue_id), QueueOffset(place.queue_offset))
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give an id or a location")


def track_reply(found: MessageTrack, lacks: str) -> biography_pb2.BiographyReply:
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
