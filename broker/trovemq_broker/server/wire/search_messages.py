"""Reads the requests of SearchService as commands, and makes its replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

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
from trovemq_broker.query.search.search import SearchPage, SearchPart
from trovemq_broker.server.wire.native_messages import moved_offsets
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import search_pb2
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY

SERVICE: Final = search_pb2.DESCRIPTOR.services_by_name["SearchService"]
NOTES_MAX: Final = 64

_KINDS: Final = {
    search_pb2.SEARCH_KEY: KEY,
    search_pb2.SEARCH_UNIQUE_ID: UNIQUE_KEY,
    search_pb2.SEARCH_TAG: TAG,
    search_pb2.SEARCH_PROPERTY: PROPERTY,
}


@dataclass(frozen=True, slots=True)
class Search:
    """A search. `explain`: without messages, only with the work that it would take."""

    query: SearchQuery
    messages_max: int
    cursor: str
    explain: bool


@dataclass(slots=True)
class SearchTotals:
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


def search_of(request: search_pb2.SearchRequest) -> Search:
    """The command of a Search. Raises TroveError REQUEST_ILLEGAL."""
    where = _condition(request.where, DEPTH_MAX + 1) if request.HasField("where") else EVERYTHING
    begin, end = EpochMs(request.begin), EpochMs(request.end or TIME_MAX)
    query = SearchQuery(request.topic, where, begin, end, not request.oldest_first)
    return Search(query, request.messages_max, request.cursor, request.explain)


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


def page_of(page: SearchPage) -> search_pb2.SearchPage:
    return search_pb2.SearchPage(
        records=b"".join(page.records), queue_offsets=moved_offsets(page.records, page.queue_offsets)
    )


def last_page(page: SearchPage, totals: SearchTotals) -> search_pb2.SearchPage:
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
