"""SearchService: a topic's messages by conditions. Searches run on the loop in bounded pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Final

import grpc

from trovemq_broker.query.lacking import with_lacking_note
from trovemq_broker.query.search.search import search_page, search_pages
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.wire import search_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_store.engine.message_store import MessageStore


@dataclass(slots=True)
class SearchCounters:
    """Counters since the start."""

    searches: int = 0
    search_entries: int = 0
    search_scanned_bytes: int = 0


class SearchService:
    """The method is that of search.proto; every refusal is a TroveError. `one_more` counts a search while it
    runs, together with other queries, and raises if there are too many."""

    def __init__(
        self,
        store: MessageStore,
        one_more: Callable[[], AbstractContextManager[None]],
        traffic: Traffic,
        turns: Turns,
    ) -> None:
        self._store = store
        self._one_more = one_more
        self._traffic = traffic
        self._turns = turns
        self.counters: Final = SearchCounters()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    async def search(self, request: Request, context: Context) -> AsyncIterator[Reply]:
        with self._traffic.answering("Search", context):
            async with aclosing(self._pages(request)) as pages:
                async for page in pages:
                    yield page

    async def _pages(self, request: Request) -> AsyncGenerator[Reply, None]:
        command = wire.search_of(request)
        query, messages_max, cursor = command.query, command.messages_max, command.cursor
        with self._one_more():
            self.counters.searches += 1
            if command.explain:
                page = search_page(self._store, query, messages_max=messages_max, cursor=cursor, explain=True)
                yield wire.last_page(page, wire.SearchTotals(page.parts))
                return
            totals: wire.SearchTotals | None = None
            pages = search_pages(self._store, query, messages_max=messages_max, cursor=cursor)
            async with aclosing(self._turns.each(pages)) as made:
                async for page in made:
                    totals = totals or wire.SearchTotals(page.parts)
                    totals.add(page)
                    self.counters.search_entries += page.entries
                    self.counters.search_scanned_bytes += page.scanned_bytes
                    if page.last:
                        notes = totals.notes
                        page = with_lacking_note(self._store, page, query.topic, query.begin, notes)  # noqa: PLW2901
                        yield wire.last_page(page, totals)
                        return
                    if page.records:
                        yield wire.page_of(page)
