"""Searches over several brokers: merged in the order of time, and complete only where all answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trovemq import ReplicaLag, TroveError, Where, errors
from trovemq._lookup import message_search
from trovemq._lookup.message_search import Searches
from trovemq._net.relays import Relays
from trovemq._wire.replica_lags import longest_lag
from trovemq._wire.searches import SearchPageAnswer, SearchQuestion
from trovemq.models.search import EVERY_MESSAGE, SearchPart, combined
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import Message, decode_message
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.patch import patch_batch

pytestmark = pytest.mark.asyncio
TIME_MAX = (1 << 63) - 1


def stored(broker: str, number: int, timestamp: int) -> bytes:
    """A record as that broker has it."""
    data = bytearray(encode_record("orders", b"", queue_id=0, properties={"UNIQ_KEY": f"{broker}-{number}"}))
    patch_batch(
        data,
        RecordBatch.split(data),
        first_queue_offset=QueueOffset(number),
        physical_offset=PhysicalOffset(1_000 * number),
        store_timestamp=EpochMs(timestamp),
        store_host=bytes(8),
        born_host=bytes(8),
        append_property_crc=False,
    )
    return bytes(data)


class Brokers:
    """The client's view of a cluster; each broker answers in pages of two messages."""

    def __init__(self, times: list[list[int]]) -> None:
        self.records = {
            f"b{i}": [stored(f"b{i}", n, timestamp) for n, timestamp in enumerate(sorted(of_it))]
            for i, of_it in enumerate(times)
        }
        self.down: set[str] = set()
        self.without_topic: set[str] = set()
        self.replicas: set[str] = set()
        infos = [SimpleNamespace(name=name) for name in self.records]
        routes = SimpleNamespace(
            brokers=lambda _=None: infos,
            brokers_of=lambda _topic, broker: [i for i in infos if broker in (None, i.name)],
            lost_brokers_of=lambda _topic: [],
            state=SimpleNamespace(lost=()),
        )
        self.pool: Any = SimpleNamespace(
            routes=routes,
            connection=lambda info: info.name,
            explained=self.explained,
            options=SimpleNamespace(call_timeout_ms=1_000),
            unseen=lambda: 0,
        )
        self.pool.relays = Relays(self.pool)

    async def explained(self, error: TroveError) -> TroveError:
        """No broker is lost."""
        return error

    async def pages(
        self,
        connection: str,
        broker: str,
        question: SearchQuestion,
        *,
        messages_max: int,
        cursor: str,
        timeout_ms: int,
        explain: bool = False,
    ) -> AsyncIterator[SearchPageAnswer]:
        assert (connection, timeout_ms) == (broker, 1_000)
        if broker in self.down:
            raise TroveError(errors.BROKER_UNREACHABLE)
        if broker in self.without_topic:
            raise TroveError(errors.TOPIC_NOT_FOUND)
        part = SearchPart(broker, "term", 0, 1, 2, at_least=False)
        if explain:
            yield SearchPageAnswer(b"", None, True, False, "", (part,), 0, 0, 3, ())
            return
        found = self.records[broker][:: -1 if question.newest_first else 1]
        begin = int(cursor or 0)
        end = min(len(found), begin + messages_max)
        for at in range(begin, end, 2):
            yield SearchPageAnswer(
                b"".join(found[at : min(at + 2, end)]), None, False, False, "", (), 0, 0, 0, ()
            )
        complete = end == len(found)
        on = "" if complete else str(end)
        lag = ReplicaLag(int(broker[1:]), 9) if broker in self.replicas else None
        yield SearchPageAnswer(b"", None, True, complete, on, (part,), 5, 7, 3, ("a note",), lag)


TIMES = st.lists(st.lists(st.integers(1, 20), max_size=8), min_size=1, max_size=3)


def question(newest_first: bool = True, where: Where = EVERY_MESSAGE) -> SearchQuestion:
    return SearchQuestion("orders", where, 0, TIME_MAX, newest_first)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TIMES, st.integers(1, 5), st.booleans())
async def test_pages_of_all_brokers_are_one_answer_in_the_order_of_time(
    monkeypatch: pytest.MonkeyPatch, times: list[list[int]], page_size: int, newest_first: bool
) -> None:
    brokers = Brokers(times)
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    searches = Searches(brokers.pool)
    found: list[Message] = []
    cursor = None
    while True:
        answer = await searches.search(question(newest_first), page_size, cursor, None, explain=False)
        found += answer.messages
        assert len(answer.messages) == page_size or answer.complete
        if answer.complete:
            assert answer.cursor is None
            break
        cursor = answer.cursor
    everything = [decode_message(record) for records in brokers.records.values() for record in records]
    assert {m.message_id for m in found} == {m.message_id for m in everything}
    assert len(found) == len(everything)
    times_found = [message.store_timestamp for message in found]
    assert times_found == sorted(times_found, reverse=newest_first)
    at_once = [m async for m in searches.search_all(question(newest_first), page_size, None)]
    assert [m.message_id for m in at_once] == [m.message_id for m in found]


async def test_an_answer_has_the_longest_lag_of_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([[1], [2], [3]])
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    searches = Searches(brokers.pool)
    assert (await searches.search(question(), 9, None, None, explain=False)).replica is None
    brokers.replicas = {"b1", "b2"}
    assert (await searches.search(question(), 9, None, None, explain=False)).replica == ReplicaLag(2, 9)
    assert longest_lag([ReplicaLag(5, None), ReplicaLag(1, 2), None]) == ReplicaLag(5, None)


async def test_a_broker_that_does_not_answer_makes_the_answer_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers([[1, 2], [3]])
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    searches = Searches(brokers.pool)
    brokers.down.add("b1")
    answer = await searches.search(question(), 10, None, None, explain=False)
    assert ([m.message_id for m in answer.messages], answer.complete) == (["b0-1", "b0-0"], False)
    assert answer.unreachable == ("b1",)
    with pytest.raises(TroveError, match="no answer from b1") as incomplete:
        [m async for m in searches.search_all(question(), 10, None)]
    assert incomplete.value.spec is errors.BROKER_UNREACHABLE
    brokers.down.clear()
    rest = await searches.search(question(), 10, answer.cursor, None, explain=False)
    assert ([m.message_id for m in rest.messages], rest.complete) == (["b1-0"], True)


async def test_a_topic_that_no_broker_has_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([[1], [2]])
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    brokers.without_topic |= {"b0"}
    answer = await Searches(brokers.pool).search(question(), 10, None, None, explain=False)
    assert (len(answer.messages), answer.complete, answer.notes) == (1, True, ("b1: a note",))
    brokers.without_topic |= {"b1"}
    with pytest.raises(TroveError) as missing:
        await Searches(brokers.pool).search(question(), 10, None, None, explain=False)
    assert missing.value.spec is errors.TOPIC_NOT_FOUND


async def test_explain_asks_every_broker_and_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([[1], [2]])
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    answer = await Searches(brokers.pool).search(question(), 10, None, None, explain=True)
    assert [part.broker for part in answer.explain] == ["b0", "b1"]
    assert (answer.messages, answer.complete, answer.cursor, answer.lag_bytes) == ((), False, None, 6)


async def test_a_cursor_of_another_search_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers([[1, 2, 3]])
    monkeypatch.setattr(message_search, "search_pages", brokers.pages)
    searches = Searches(brokers.pool)
    first = await searches.search(question(), 1, None, None, explain=False)
    for other in (question(newest_first=False), question(where=Where.key("k"))):
        with pytest.raises(TroveError) as refused:
            await searches.search(other, 1, first.cursor, None, explain=False)
        assert refused.value.spec is errors.CURSOR_ILLEGAL


def _deep(depth: int) -> Where:
    where = Where.key("k")
    for _ in range(depth):
        where = Where.all_of(where)
    return where


@pytest.mark.parametrize(
    "where", [Where.key(""), Where.tag("x" * 40_000), Where.key("\ud800"), Where("other"), _deep(9)]
)
async def test_a_senseless_condition_is_refused_before_anybody_is_asked(where: Where) -> None:
    with pytest.raises(TroveError) as refused:
        await Searches(Brokers([[1]]).pool).search(question(where=where), 1, None, None, explain=False)
    assert refused.value.spec is errors.REQUEST_ILLEGAL


async def test_conditions_are_combined_by_what_was_given() -> None:
    assert combined(None) == EVERY_MESSAGE
    assert combined(None, key="a") == Where.key("a")
    assert combined(Where.tag("t"), key=["a", "b"]) == Where.all_of(
        Where.tag("t"), Where.key("a"), Where.key("b")
    )
    assert combined(None, message_id="a", message_id_prefix="b", match="any") == Where.any_of(
        Where.message_id("a"), Where.message_id_prefix("b")
    )
    assert combined(None, properties={"p": "v"}, tag="t") == Where.all_of(
        Where.tag("t"), Where.property("p", "v")
    )
    assert Where.key("a") | Where.key_prefix("b") | Where.property_prefix("p", "v") == Where.any_of(
        Where.key("a"), Where.key_prefix("b"), Where.property_prefix("p", "v")
    )
    with pytest.raises(TroveError):
        combined(None, key="a", match="none")
