"""QueryService: messages by any identifier, by key, by time. Queries run on the loop in bounded pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.query.get_message import IdentifierKind, get_message_at, message_steps
from trovemq_broker.query.key_query import TIME_MAX, KeyQuery, KeyType
from trovemq_broker.query.lacking import with_lacking_note
from trovemq_broker.query.query_by_key import QueryPage, query_pages
from trovemq_broker.query.queue_offsets import queue_offsets
from trovemq_broker.query.search_offset import search_offset
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.wire.native_messages import moved_offsets
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.v1 import query_pb2
from trovemq_store.engine.message_store import MessageStore

SERVICE: Final = query_pb2.DESCRIPTOR.services_by_name["QueryService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
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


class QueryService:
    """The methods are those of query.proto; every refusal is a TroveError."""

    def __init__(self, store: MessageStore, queries_max: int, traffic: Traffic, turns: Turns) -> None:
        self._store = store
        self._traffic = traffic
        self._turns = turns
        self.queries_max = queries_max
        self._running = 0
        self.lookup_count = 0
        """Look-ups by key and id since the start."""

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    @property
    def running(self) -> int:
        """The number of running queries."""
        return self._running

    async def get_message(
        self, request: query_pb2.GetMessageRequest, _context: Context
    ) -> query_pb2.GetMessageReply:
        self.lookup_count += 1
        with self.one_more():
            match request.WhichOneof("identifier"):
                case "id":
                    found = await self._turns.run(message_steps(self._store, request.id, request.topic))
                case "location":
                    place = request.location
                    found = get_message_at(
                        self._store, place.topic, QueueId(place.queue_id), QueueOffset(place.queue_offset)
                    )
                case _:
                    raise TroveError(errors.REQUEST_ILLEGAL, "give an id or a location")
            return query_pb2.GetMessageReply(
                kind=_KIND[found.kind],
                records=b"".join(found.records),
                queue_offsets=moved_offsets(found.records, found.queue_offsets),
                more=not found.complete,
            )

    async def query_by_key(
        self, request: query_pb2.QueryByKeyRequest, context: Context
    ) -> AsyncIterator[query_pb2.QueryPage]:
        with self._traffic.answering("QueryByKey", context):
            async with aclosing(self._pages(request)) as pages:
                async for page in pages:
                    yield page

    async def _pages(self, request: query_pb2.QueryByKeyRequest) -> AsyncGenerator[query_pb2.QueryPage, None]:
        query = _key_query(request)
        self.lookup_count += 1
        with self.one_more():
            pages = query_pages(self._store, query, messages_max=request.messages_max, cursor=request.cursor)
            notes: list[str] = []
            async for page in self._turns.each(pages):
                notes += page.notes[: NOTES_MAX - len(notes)]
                page = with_lacking_note(self._store, page, query.topic, query.begin, notes)  # noqa: PLW2901
                if page.records or page.last:
                    yield _page(page, notes if page.last else None)

    async def search_offset(
        self, request: query_pb2.SearchOffsetRequest, _context: Context
    ) -> query_pb2.SearchOffsetReply:
        offset = search_offset(
            self._store,
            request.topic,
            QueueId(request.queue_id),
            EpochMs(request.timestamp),
            upper=request.upper,
        )
        return query_pb2.SearchOffsetReply(offset=offset)

    async def queue_offsets(
        self, request: query_pb2.QueueOffsetsRequest, _context: Context
    ) -> query_pb2.QueueOffsetsReply:
        found = queue_offsets(self._store, request.topic, list(map(QueueId, request.queue_ids)))
        return query_pb2.QueueOffsetsReply(
            queues=[
                query_pb2.QueueOffsets(queue_id=queue_id, min_offset=low, max_offset=high)
                for queue_id, low, high in found
            ],
            topic_identity=self._store.topic_identity(request.topic),
        )

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts a query while it runs. Raises TroveError LIMIT_EXCEEDED."""
        if self._running >= self.queries_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._running} queries are running (queries_max)")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


def _key_query(request: query_pb2.QueryByKeyRequest) -> KeyQuery:
    key_type = _KEY_TYPE.get(request.type)
    if key_type is None:
        raise TroveError(errors.REQUEST_ILLEGAL, f"key type {request.type} is unknown", field="type")
    return KeyQuery(
        request.topic, request.key, key_type, EpochMs(request.begin), EpochMs(request.end or TIME_MAX)
    )


def _page(page: QueryPage, notes: list[str] | None) -> query_pb2.QueryPage:
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
