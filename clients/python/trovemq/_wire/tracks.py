"""The call of BiographyService (message tracks) on one connection: the SDK's own values in and out."""

from __future__ import annotations

from trovemq.models.track import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent
from trovemq_proto.v1 import biography_pb2, query_pb2

from .connection import Connection
from .replica_lags import replica_lag

Place = tuple[str, int, int]


async def track(connection: Connection, broker: str, identifier: str | Place, topic: str) -> MessageTrack:
    """The broker's tracks of the messages; raises TroveError."""
    request = biography_pb2.BiographyRequest(topic=topic, max_lag_ms=connection.max_lag_ms)
    if isinstance(identifier, str):
        request.id = identifier
    else:
        place = query_pb2.QueueLocation(
            topic=identifier[0], queue_id=identifier[1], queue_offset=identifier[2]
        )
        request.location.CopyFrom(place)
    reply = await connection.ask(
        "BiographyService/Biography", request, biography_pb2.BiographyReply.FromString
    )
    return MessageTrack(
        tuple(_copy(broker, copy) for copy in reply.copies),
        tuple(_event(broker, event) for event in reply.events),
        tuple(_status(broker, status) for status in reply.verdicts),
        reply.complete,
        (),
        tuple(f"{broker}: {note}" for note in reply.notes),
        replica_lag(reply),
    )


def _copy(broker: str, copy: biography_pb2.MessageCopy) -> MessageCopy:
    return MessageCopy(
        broker=broker,
        message=copy.message,
        role=copy.role,
        topic=copy.topic,
        queue_id=copy.queue_id,
        queue_offset=copy.queue_offset,
        physical_offset=copy.physical_offset,
        size=copy.size,
        offset_msg_id=copy.offset_msg_id,
        message_id=copy.unique_key,
        keys=copy.keys,
        tag=copy.tag,
        born_timestamp=copy.born_timestamp,
        born_host=copy.born_host,
        store_timestamp=copy.store_timestamp,
        store_host=copy.store_host,
        reconsume_times=copy.reconsume_times,
        group=copy.group,
        producer_group=copy.producer_group,
        message_group=copy.message_group,
        deliver_timestamp=copy.deliver_timestamp,
    )


def _event(broker: str, event: biography_pb2.BiographyEvent) -> TrackEvent:
    return TrackEvent(
        broker=broker,
        message=event.message,
        timestamp=event.timestamp,
        kind=event.kind,
        group=event.group,
        client_id=event.client_id,
        attempt=event.attempt,
        until=event.until,
        count=event.count,
        topic=event.topic,
        queue_id=event.queue_id,
        queue_offset=event.queue_offset,
        detail=event.detail,
    )


def _status(broker: str, status: biography_pb2.GroupVerdict) -> ConsumptionStatus:
    return ConsumptionStatus(
        broker=broker,
        message=status.message,
        group=status.group,
        reason=status.reason,
        consumed=status.consumed,
        until=status.until,
        attempt=status.attempt,
        client_id=status.client_id,
        ahead=status.ahead,
        ahead_estimated=status.ahead_estimated,
        blocked_by=_offset(status.blocked_by),
        committed=_offset(status.committed),
        next_offset=_offset(status.next_offset),
        online=status.online,
        subscribed=status.subscribed,
        filter=status.filter,
        topic=status.topic,
        queue_id=status.queue_id,
        queue_offset=status.queue_offset,
        detail=status.detail,
    )


def _offset(value: int) -> int | None:
    return None if value < 0 else value
