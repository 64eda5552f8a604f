"""SearchService: a topic's messages by conditions. Searches run on the loop in bounded pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.query.lacking import with_lacking_note
from trovemq_broker.query.search.conditions import (
    DEPTH_MAX,
    EVERYTHING,
    TIME_MAX,
    AllOf,
    AnyOf,
    Condition,
    Has,
    SearchQuery,
)
from trovemq_broker.query.search.search import SearchPage, SearchPart, search_page, search_pages
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.wire.native_messages import moved_offsets
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import search_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY

SERVICE: Final = search_pb2.DESCRIPTOR.services_by_name["SearchService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
NOTES_MAX: Final = 64

_KINDS: Final = {
    search_pb2.SEARCH_KEY: KEY,
    search_pb2.SEARCH_UNIQUE_ID: UNIQUE_KEY,
    search_pb2.SEARCH_TAG: TAG,
    search_pb2.SEARCH_PROPERTY: PROPERTY,
}


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
        add_service(server, SERVICE, self)

    async def search(
        self, request: search_pb2.SearchRequest, context: Context
    ) -> AsyncIterator[search_pb2.SearchPage]:
        with self._traffic.answering("Search", context):
            async with aclosing(self._pages(request)) as pages:
                async for page in pages:
                    yield page

    async def _pages(self, request: search_pb2.SearchRequest) -> AsyncGenerator[search_pb2.SearchPage, None]:
        query = _query(request)
        with self._one_more():
            self.counters.searches += 1
            if request.explain:
                page = search_page(
                    self._store,
                    query,
                    messages_max=request.messages_max,
                    cursor=request.cursor,
                    explain=True,
                )
                yield _last(page, _Totals(page.parts))
                return
            totals: _Totals | None = None
            pages = search_pages(self._store, query, messages_max=request.messages_max, cursor=request.cursor)
            async for page in self._turns.each(pages):
                totals = totals or _Totals(page.parts)
                totals.add(page)
                self.counters.search_entries += page.entries
                self.counters.search_scanned_bytes += page.scanned_bytes
                if page.last:
                    notes = totals.notes
                    page = with_lacking_note(self._store, page, query.topic, query.begin, notes)  # noqa: PLW2901
                    yield _last(page, totals)
                    return
                if page.records:
                    yield _page(page)


@dataclass(slots=True)
class _Totals:
    """The sums of all pages of one answer; `parts` are those of the first page."""

    parts: tuple[SearchPart, ...]
    entries: int = 0
    scanned_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, page: SearchPage) -> None:
        self.entries += page.entries
        self.scanned_bytes += page.scanned_bytes
        new = [note for note in page.notes if note not in self.notes]
        self.notes += new[: NOTES_MAX - len(self.notes)]


def _query(request: search_pb2.SearchRequest) -> SearchQuery:
    where = _condition(request.where, DEPTH_MAX + 1) if request.HasField("where") else EVERYTHING
    begin, end = EpochMs(request.begin), EpochMs(request.end or TIME_MAX)
    return SearchQuery(request.topic, where, begin, end, not request.oldest_first)


def _condition(condition: search_pb2.SearchCondition, depth: int) -> Condition:
    """`depth`: the allowed nesting; a deeper condition is refused here, before Python's own limit."""
    if not depth:
        raise TroveError(errors.REQUEST_ILLEGAL, f"conditions more than {DEPTH_MAX} deep", field="where")
    match condition.WhichOneof("condition"):
        case "has":
            has = condition.has
            kind = _KINDS.get(has.field)
            if kind is None:
                raise TroveError(
                    errors.REQUEST_ILLEGAL, f"search field {has.field} is unknown", field="where"
                )
            return Has(kind, has.value.encode(), has.is_prefix, has.name if kind == PROPERTY else "")
        case "all_of":
            return AllOf(tuple(_condition(part, depth - 1) for part in condition.all_of.parts))
        case "any_of":
            return AnyOf(tuple(_condition(part, depth - 1) for part in condition.any_of.parts))
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "a condition is empty", field="where")


def _page(page: SearchPage) -> search_pb2.SearchPage:
    return search_pb2.SearchPage(
        records=b"".join(page.records), queue_offsets=moved_offsets(page.records, page.queue_offsets)
    )


def _last(page: SearchPage, totals: _Totals) -> search_pb2.SearchPage:
    return search_pb2.SearchPage(
        records=b"".join(page.records),
        queue_offsets=moved_offsets(page.records, page.queue_offsets),
        last=True,
        complete=page.complete,
        cursor=page.cursor,
        parts=[
            search_pb2.SearchPart(
                index=part.index,
                begin=part.begin,
                end=part.end,
                entries=part.entries,
                at_least=part.at_least,
            )
            for part in totals.parts
        ],
        entries=totals.entries,
        scanned_bytes=totals.scanned_bytes,
        lag_bytes=page.lag_bytes,
        notes=totals.notes,
    )
