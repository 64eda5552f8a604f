"""Searches on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from trovemq.models.replica import ReplicaLag
from trovemq.models.search import SearchPart, Where
from trovemq_proto.v1 import search_pb2

from .connection import Connection
from .convert import queue_offsets_of
from .replica_lags import replica_lag

_METHOD = "/trovemq.v1.SearchService/Search"
_FIELDS = {
    "key": search_pb2.SEARCH_KEY,
    "message_id": search_pb2.SEARCH_UNIQUE_ID,
    "tag": search_pb2.SEARCH_TAG,
    "property": search_pb2.SEARCH_PROPERTY,
}


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """The search; times are epoch ms and inclusive."""

    topic: str
    where: Where
    begin: int
    end: int
    newest_first: bool


@dataclass(frozen=True, slots=True)
class SearchPageAnswer:
    """One page; the fields after `last` are set on the last page only."""

    records: bytes
    queue_offsets: Sequence[int] | None
    last: bool
    complete: bool
    cursor: str
    parts: tuple[SearchPart, ...]
    entries: int
    scanned_bytes: int
    lag_bytes: int
    notes: tuple[str, ...]
    replica: ReplicaLag | None = None


async def search_pages(
    connection: Connection,
    broker: str,
    question: SearchQuestion,
    *,
    messages_max: int,
    cursor: str,
    timeout_ms: int,
    explain: bool = False,
) -> AsyncIterator[SearchPageAnswer]:
    """The pages of one search, the last one marked."""
    request = search_pb2.SearchRequest(
        topic=question.topic,
        where=_condition(question.where),
        begin=question.begin,
        end=question.end,
        oldest_first=not question.newest_first,
        messages_max=messages_max,
        cursor=cursor,
        explain=explain,
        max_lag_ms=connection.max_lag_ms,
    )
    decode = search_pb2.SearchPage.FromString
    async for page in connection.replies(_METHOD, request, decode, timeout_ms=timeout_ms):
        yield _page(page, broker)


def _condition(where: Where) -> search_pb2.SearchCondition:
    if where.kind in _FIELDS:
        has = search_pb2.SearchHas(
            field=_FIELDS[where.kind], name=where.name, value=where.value, is_prefix=where.is_prefix
        )
        return search_pb2.SearchCondition(has=has)
    parts = search_pb2.SearchConditions(parts=[_condition(part) for part in where.parts])
    if where.kind == "any":
        return search_pb2.SearchCondition(any_of=parts)
    return search_pb2.SearchCondition(all_of=parts)


def _page(page: search_pb2.SearchPage, broker: str) -> SearchPageAnswer:
    parts = (
        SearchPart(broker, part.index, part.begin, part.end, part.entries, part.at_least)
        for part in page.parts
    )
    return SearchPageAnswer(
        page.records,
        queue_offsets_of(page.queue_offsets),
        page.last,
        page.complete,
        page.cursor,
        tuple(parts),
        page.entries,
        page.scanned_bytes,
        page.lag_bytes,
        tuple(page.notes),
        replica_lag(page),
    )
