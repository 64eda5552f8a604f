"""Reads the requests of QueryService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq_broker.query.get_message import FoundMessages, IdentifierKind
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.query_by_key import QueryPage
from trovemq_broker.query.queue_offsets import QueueOffsets
from trovemq_broker.server.wire.native_messages import moved_offsets
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.v1 import query_pb2

SERVICE: Final = query_pb2.DESCRIPTOR.services_by_name["QueryService"]
NOTES_MAX: Final = 64

_KIND: Final = {
    IdentifierKind.OFFSET_MSG_ID: query_pb2.OFFSET_MSG_ID,
    IdentifierKind.UNIQUE_KEY: query_pb2.UNIQUE_KEY,
    IdentifierKind.QUEUE_LOCATION: query_pb2.QUEUE_LOCATION,
}
_KEY_TYPE: Final = {
    query_pb2.KEY: KeyType.KEY,
    query_pb2.UNIQUE: KeyType.UNIQUE,
    query_pb2.TAG: KeyType.TAG,
}


@dataclass(frozen=True, slots=True)
class GetById:
    """A look-up by any id. `topic`: "" if it is not given."""

    identifier: str
    topic: str


@dataclass(frozen=True, slots=True)
class GetByLocation:
    """A look-up of the message at a queue offset."""

    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class QueryByKey:
    """A query for at most `messages_max` messages (0: the default), from the cursor on."""

    query: KeyQuery
    messages_max: int
    cursor: str


@dataclass(frozen=True, slots=True)
class SearchOffset:
    """A search for the smallest queue offset with at least this time; `upper`: for the largest with at most
    this time."""

    topic: str
    queue_id: QueueId
    time_ms: EpochMs
    upper: bool


@dataclass(frozen=True, slots=True)
class GetQueueOffsets:
    """A look-up of the first and last offsets of queues; without queue ids, of all queues."""

    topic: str
    queue_ids: list[QueueId]


def get_of(request: query_pb2.GetMessageRequest) -> GetById | GetByLocation:
    """The command of a GetMessage. Raises TroveError REQUEST_ILLEGAL."""
    match request.WhichOneof("identifier"):
        case "id":
            return GetById(request.id, request.topic)
        case "location":
            place = request.location
            return GetByLocation(place.topic, QueueId(place.queue_id), QueueOffset(place.queue_offset))
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give an id or a location")


def key_query_of(request: query_pb2.QueryByKeyRequest) -> QueryByKey:
    """The command of a QueryByKey. Raises TroveError REQUEST_ILLEGAL."""
    key_type = _KEY_TYPE.get(request.type)
    if key_type is None:
        raise TroveError(errors.REQUEST_ILLEGAL, f"key type {request.type} is unknown", field="type")
    begin, end = EpochMs(request.begin), EpochMs(request.end or TIME_MAX)
    query = KeyQuery(request.topic, request.key, key_type, begin, end)
    return QueryByKey(query, request.messages_max, request.cursor)


def search_offset_of(request: query_pb2.SearchOffsetRequest) -> SearchOffset:
    """The command of a SearchOffset."""
    return SearchOffset(request.topic, QueueId(request.queue_id), EpochMs(request.timestamp), request.upper)


def queue_offsets_of(request: query_pb2.QueueOffsetsRequest) -> GetQueueOffsets:
    """The command of a QueueOffsets."""
    return GetQueueOffsets(request.topic, list(map(QueueId, request.queue_ids)))


def message_reply(found: FoundMessages) -> query_pb2.GetMessageReply:
    return query_pb2.GetMessageReply(
        kind=_KIND[found.kind],
        records=b"".join(found.records),
        queue_offsets=moved_offsets(found.records, found.queue_offsets),
        more=not found.complete,
    )


def page_of(page: QueryPage, notes: list[str] | None) -> query_pb2.QueryPage:
    """`notes`: those of all pages for the last page, None for the others."""
    records = b"".join(page.records)
    if notes is None:
        return query_pb2.QueryPage(records=records)
    return query_pb2.QueryPage(
        records=records,
        last=True,
        complete=page.complete,
        cursor=page.cursor,
        index_last_update_timestamp=page.index_last_update_timestamp,
        index_last_update_physical_offset=page.index_last_update_physical_offset,
        notes=notes,
    )


def offset_reply(offset: QueueOffset) -> query_pb2.SearchOffsetReply:
    return query_pb2.SearchOffsetReply(offset=offset)


def queue_offsets_reply(
    found: Iterable[QueueOffsets], topic_identity: PhysicalOffset
) -> query_pb2.QueueOffsetsReply:
    return query_pb2.QueueOffsetsReply(
        queues=[
            query_pb2.QueueOffsets(queue_id=queue_id, min_offset=low, max_offset=high)
            for queue_id, low, high in found
        ],
        topic_identity=topic_identity,
    )
