"""SearchService: a request becomes a search, or an error that names its fault."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import SMALL, flush, open_store, send
from trovemq_broker.query.search import search
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.search_service import SearchService
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.records import RecordBatch
from trovemq_proto.v1 import search_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

pytestmark = pytest.mark.asyncio
CONTEXT: Any = None


@pytest.fixture
def store() -> MessageStore:
    opened = open_store(MemoryFileSystem(), replace(SMALL, tree_index_enable=True))
    for number in range(6):
        send(opened, b"body", keys=f"k{number % 2}", tag="t")
    return opened


def service(store: MessageStore, limit: ErrorSpec | None = None) -> SearchService:
    def one_more() -> AbstractContextManager[None]:
        if limit is not None:
            raise TroveError(limit)
        return nullcontext()

    return SearchService(store, one_more, Traffic(), Turns())


async def asked(of: SearchService, request: search_pb2.SearchRequest) -> list[search_pb2.SearchPage]:
    return [page async for page in of.search(request, CONTEXT)]


def having(value: str, field: int = search_pb2.SEARCH_KEY) -> search_pb2.SearchCondition:
    has = search_pb2.SearchHas(value=value)
    has.field = field  # type: ignore[assignment]  # also one that there is not
    return search_pb2.SearchCondition(has=has)


def deep(depth: int) -> search_pb2.SearchCondition:
    where = having("k")
    for _ in range(depth):
        where = search_pb2.SearchCondition(all_of=search_pb2.SearchConditions(parts=[where]))
    return where


async def test_every_page_but_the_last_is_records_alone(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WORK_MAX", 20)
    flush(store)
    store.catch_up_trees()
    of = service(store)
    tagged = search_pb2.SearchRequest(topic="orders", where=having("t", search_pb2.SEARCH_TAG))
    pages = await asked(of, tagged)
    assert len(pages) > 1
    assert [page.last for page in pages] == [False] * (len(pages) - 1) + [True]
    assert sum(len(RecordBatch.split(page.records)) for page in pages if page.records) == 6
    assert pages[-1].complete
    assert pages[-1].parts
    assert (of.counters.searches, of.counters.search_scanned_bytes) == (1, 0)
    assert of.counters.search_entries > 0


async def test_a_limit_a_cursor_and_either_order(store: MessageStore) -> None:
    request = search_pb2.SearchRequest(topic="orders", where=having("k1"), oldest_first=True, messages_max=2)
    (page,) = await asked(service(store), request)
    assert (page.complete, len(RecordBatch.split(page.records))) == (False, 2)
    request.cursor = page.cursor
    (rest,) = await asked(service(store), request)
    assert (rest.complete, len(RecordBatch.split(rest.records))) == (True, 1)


async def test_explain_gives_one_page_without_records(store: MessageStore) -> None:
    of = service(store)
    any_of = search_pb2.SearchConditions(parts=[having("k1"), having("x")])
    where = search_pb2.SearchCondition(any_of=any_of)
    (page,) = await asked(of, search_pb2.SearchRequest(topic="orders", where=where, explain=True))
    assert (page.records, page.complete, page.lag_bytes) == (b"", False, store.visible_offset)
    assert [part.index for part in page.parts] == ["log: scanned"]


@pytest.mark.parametrize(
    ("request_", "spec"),
    [
        (search_pb2.SearchRequest(topic="orders", where=having("k", 9)), errors.REQUEST_ILLEGAL),
        (
            search_pb2.SearchRequest(topic="orders", where=search_pb2.SearchCondition()),
            errors.REQUEST_ILLEGAL,
        ),
        (search_pb2.SearchRequest(topic="orders", where=deep(12)), errors.REQUEST_ILLEGAL),
        (search_pb2.SearchRequest(topic="orders", messages_max=-1), errors.REQUEST_ILLEGAL),
        (search_pb2.SearchRequest(topic="orders", cursor="1.0.0"), errors.CURSOR_ILLEGAL),
        (search_pb2.SearchRequest(topic="nowhere"), errors.TOPIC_NOT_FOUND),
    ],
)
async def test_what_makes_no_sense_is_refused(
    store: MessageStore, request_: search_pb2.SearchRequest, spec: ErrorSpec
) -> None:
    with pytest.raises(TroveError) as refused:
        await asked(service(store), request_)
    assert refused.value.spec is spec


async def test_it_counts_among_the_queries_that_may_run(store: MessageStore) -> None:
    with pytest.raises(TroveError) as refused:
        await asked(service(store, errors.LIMIT_EXCEEDED), search_pb2.SearchRequest(topic="orders"))
    assert refused.value.spec is errors.LIMIT_EXCEEDED
