"""QueryService: messages by any identifier, by key, by time. Queries run on the loop in bounded pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import grpc

from trovemq_broker.query.get_message import get_message_at, message_steps
from trovemq_broker.query.lacking import with_lacking_note
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.query.queue_offsets import queue_offsets
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.wire import query_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore


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
        add_service(server, wire.SERVICE, self)

    @property
    def running(self) -> int:
        """The number of running queries."""
        return self._running

    async def get_message(self, request: Request, _context: Context) -> Reply:
        self.lookup_count += 1
        with self.one_more():
            match wire.get_of(request):
                case wire.GetById(identifier, topic):
                    found = await self._turns.run(message_steps(self._store, identifier, topic))
                case wire.GetByLocation(topic, queue_id, queue_offset):
                    found = get_message_at(self._store, topic, queue_id, queue_offset)
            return wire.message_reply(found)

    async def query_by_key(self, request: Request, context: Context) -> AsyncIterator[Reply]:
        with self._traffic.answering("QueryByKey", context):
            async with aclosing(self._pages(request)) as pages:
                async for page in pages:
                    yield page

    async def _pages(self, request: Request) -> AsyncGenerator[Reply, None]:
        command = wire.key_query_of(request)
        query = command.query
        self.lookup_count += 1
        with self.one_more():
            pages = query_pages(self._store, query, messages_max=command.messages_max, cursor=command.cursor)
            notes: list[str] = []
            async with aclosing(self._turns.each(pages)) as made:
                async for page in made:
                    notes += page.notes[: wire.NOTES_MAX - len(notes)]
                    page = with_lacking_note(self._store, page, query.topic, query.begin, notes)  # noqa: PLW2901
                    if page.records or page.last:
                        yield wire.page_of(page, notes if page.last else None)

    async def search_offset(self, request: Request, _context: Context) -> Reply:
        command = wire.search_offset_of(request)
        offset = search_offset(
            self._store, command.topic, command.queue_id, command.time_ms, upper=command.upper
        )
        return wire.offset_reply(offset)

    async def queue_offsets(self, request: Request, _context: Context) -> Reply:
        command = wire.queue_offsets_of(request)
        found = queue_offsets(self._store, command.topic, command.queue_ids)
        return wire.queue_offsets_reply(found, self._store.topic_identity(command.topic))

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
