"""Which records of a part of the log answer a search: the same as record by record, at a bounded price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, record
from trovemq_broker.query.search.conditions import (
    CONDITIONS_MAX,
    EVERYTHING,
    AllOf,
    AnyOf,
    Condition,
    Has,
    SearchQuery,
)
from trovemq_broker.query.search.matching import answering, answers
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import STORE_TIMESTAMP_AT, SYS_FLAG_AT, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_proto.records.property_scan import PropertyScan
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY

WORDS = st.sampled_from(["a", "ab", "a\x00", "a\x00\x00", "\x00", "\x00a", "abc", "é", "", "x" * 300])
MESSAGES = st.lists(st.tuples(st.lists(WORDS, max_size=3), WORDS, WORDS, WORDS), min_size=1, max_size=12)
SIMPLE = st.builds(
    Has,
    st.sampled_from([KEY, TAG, UNIQUE_KEY]),
    WORDS.filter(bool).map(str.encode),
    st.booleans(),
) | st.builds(Has, st.just(PROPERTY), WORDS.filter(bool).map(str.encode), st.booleans(), st.just("p"))
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    SIMPLE,
    lambda parts: st.builds(
        lambda kind, some: kind(tuple(some)),
        st.sampled_from([AllOf, AnyOf]),
        st.lists(parts, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def batch_of(messages: list[tuple[list[str], str, str, str]]) -> RecordBatch:
    return RecordBatch.split(
        b"".join(
            record(
                b"body",
                topic="flights",
                keys=" ".join(filter(None, keys)),
                tag=tag,
                unique_key=unique_key,
                properties={"p": value} if value else {},
            )
            for keys, tag, unique_key, value in messages
        )
    )


@given(MESSAGES, CONDITIONS)
def test_many_records_at_once_are_judged_as_each_by_itself(
    messages: list[tuple[list[str], str, str, str]], where: Condition
) -> None:
    batch, query = batch_of(messages), SearchQuery("flights", where)
    alone = []
    for index in range(len(batch)):
        one = batch.record(index)
        fields = read_fields(one, 0, len(one))
        assert fields is not None
        alone.append(answers(query, one, fields))
    assert answering(query, batch).tolist() == alone


def test_topic_time_and_rollback_are_judged_alike_for_one_record_and_many() -> None:
    found: list[bytearray] = []
    for topic in ("flights", "flight", "bills"):
        for flags in (0, SYS_FLAG_TRANSACTION_ROLLBACK):
            for stored in (NOW_MS - 1, NOW_MS, NOW_MS + 1):
                one = bytearray(record(b"body", topic=topic, keys="k"))
                one[SYS_FLAG_AT : SYS_FLAG_AT + 4] = flags.to_bytes(4)
                one[STORE_TIMESTAMP_AT : STORE_TIMESTAMP_AT + 8] = stored.to_bytes(8)
                found.append(one)
    batch = RecordBatch.split(b"".join(found))
    for where in (EVERYTHING, Has(KEY, b"k")):
        query = SearchQuery("flights", where, NOW_MS, NOW_MS)
        alone = []
        for one in found:
            fields = read_fields(memoryview(one), 0, len(one))
            assert fields is not None
            alone.append(answers(query, memoryview(one), fields))
        assert [number for number, one in enumerate(alone) if one] == [1]
        assert answering(query, batch).tolist() == alone


def test_a_search_by_64_conditions_held_the_event_loop_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them went through every property, and every value, of a megabyte of the log separately."""
    found: list[str] = []
    for name in ("find", "words"):
        method = getattr(PropertyScan, name)

        def counting(scan: PropertyScan, what: object, name: str = name, method: object = method) -> object:
            found.append(name)
            return method(scan, what)  # type: ignore[operator]

        monkeypatch.setattr(PropertyScan, name, counting)
    batch = batch_of([([f"k{number}", "other"], "t", f"{number}", "v") for number in range(100)])
    where = AnyOf(tuple(Has(KEY, b"k%d" % number, bool(number % 2)) for number in range(CONDITIONS_MAX)))
    found.clear()
    assert answering(SearchQuery("flights", where), batch).sum() == 84  # 0-63, 7*, 9*
    assert sorted(found) == ["find", "words"]
