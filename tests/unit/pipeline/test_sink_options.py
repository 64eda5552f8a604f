"""The input of the writer of topics: options, columns, and rows made into chunks, against a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from trovemq_proto.errors import TroveError
from trovemq_spark.sinks.options import COLUMNS, OPTIONS, check_columns, parse_sink_options
from trovemq_spark.sinks.rows_out import OutgoingPlan, chunks_of, cut, map_bytes
from trovemq_spark.sinks.topic_writer import (
    NotDeduplicatedWarning,
    Sent,
    aborted,
    batch_writer,
    stream_writer,
)

SERVER = {"nameServer": "127.0.0.1:1"}
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "array<int>": ArrayType(IntegerType()),
}


def struct(columns: str) -> StructType:
    """`name type, …`; Spark's own parser of this needs a JVM."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema.add(name, TYPES[kind])
    return schema


def refusal(options: dict[str, str], columns: str) -> TroveError:
    with pytest.raises(TroveError) as caught:
        batch_writer(SERVER | options, struct(columns), False)
    assert caught.value.symbol == "OPTION_ILLEGAL"
    return caught.value


def test_every_option_has_its_tables_default_and_is_known_in_any_case() -> None:
    defaults = parse_sink_options(SERVER)
    for option in OPTIONS:
        if option.default:
            given = parse_sink_options(SERVER | {option.name.upper(): option.default})
            assert getattr(given, option.field) == getattr(defaults, option.field)
            assert getattr(given, option.field) == option.kind.parse(option.default)


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({"topc": "t"}, "body binary", "did you mean topic"),
        ({"topic": "t", "exactlyOnce": "transaction"}, "body binary", "none or dedup"),
        ({"topic": "t", "inFlightBytes": "-1"}, "body binary", "number of bytes"),
        ({"topic": "t", "queryId": "two words"}, "body binary", "no space"),
        ({"topic": "t", "queryId": "q" * 191}, "body binary", "at most 190"),
        ({}, "body binary", "option topic, or a column topic"),
        ({"topic": "t"}, "tags string", "column body"),
        ({"topic": "t"}, "body int", "expected string or binary"),
        ({"topic": "t"}, "body binary, tag string", "did you mean tags"),
        ({"topic": "t"}, "body binary, properties string", "map<string,string>"),
        ({"topic": "t"}, "body binary, keys array<int>", "array<string>"),
        ({"topic": "t"}, "body binary, queueId double", "expected int"),
        ({"topic": "t", "exactlyOnce": "dedup"}, "body binary, messageId string", "leave out"),
    ],
)
def test_a_wrong_option_or_column_is_refused_saying_what_is_accepted(
    options: dict[str, str], columns: str, words: str
) -> None:
    error = refusal(options, columns)
    assert words in error.message
    assert error.fields["field"]


def test_the_server_must_be_named() -> None:
    with pytest.raises(TroveError, match="nameServer is missing"):
        parse_sink_options({"topic": "t"})


def test_an_output_mode_other_than_append_is_refused() -> None:
    schema = struct("body binary")
    for make in (batch_writer, stream_writer):
        with pytest.raises(TroveError, match="append"):
            make(SERVER | {"topic": "t"}, schema, True)


def test_dedup_says_once_where_a_topic_is_not_deduplicated() -> None:
    schema = struct("body binary")
    writer = batch_writer(SERVER | {"topic": "t", "exactlyOnce": "dedup"}, schema, False)
    with pytest.warns(NotDeduplicatedWarning) as caught:
        writer.commit([Sent(3, deduplicated=True), None, Sent(2), Sent(1)])
    assert len(caught) == 1
    writer.commit([Sent(3, deduplicated=True), Sent(0)])
    batch_writer(SERVER | {"topic": "t"}, schema, False).commit([Sent(3)])


def test_an_abort_counts_what_stays() -> None:
    text = aborted([Sent(3), None, Sent(4), None])
    assert "7 messages of 2 finished tasks" in text
    assert "other 2 tasks" in text


def test_every_column_is_known_by_its_own_name() -> None:
    options = parse_sink_options(SERVER)
    types = {"properties": "map<string,string>", "queueId": "int", "delayLevel": "int"}
    schema = struct(", ".join(f"{name} {types.get(name, 'string')}" for name in COLUMNS))
    check_columns(schema, options)


# --- rows to chunks -----------------------------------------------------------------------------------

TEXT = st.text("abc", min_size=1, max_size=3)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=20),
        "topic": st.sampled_from(["one", "two"]),
        "tags": st.none() | TEXT,
        "keys": st.none() | st.lists(TEXT, min_size=1, max_size=3).map(" ".join),
        "properties": st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
        "queueId": st.none() | st.integers(0, 2),
        "messageId": st.none() | TEXT,
        "shardingKey": st.none() | TEXT,
    }
)
SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("topic", "tags", "keys", "messageId", "shardingKey")]
    + [("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string())), ("queueId", pa.int32())]
)


def arrow(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(rows=st.lists(ROW, max_size=30), skipped=st.integers(0, 3), first=st.integers(0, 5))
def test_each_row_is_in_one_chunk_as_it_was_and_in_order_within_its_queue(
    rows: list[dict[str, Any]], skipped: int, first: int
) -> None:
    batch = arrow(rows).slice(skipped)
    rows = rows[skipped:]
    seen: dict[int, dict[str, Any]] = {}
    for chunk in chunks_of(batch, OutgoingPlan(), first):
        assert list(chunk.rows) == sorted(chunk.rows)
        for i, number in enumerate(chunk.rows.tolist()):
            assert number not in seen
            keys = chunk.keys[i] if chunk.keys else None
            seen[number] = {
                "body": chunk.bodies[i],
                "topic": chunk.topic,
                "queueId": chunk.queue_id,
                "tags": chunk.tags[i] if chunk.tags else None,
                "keys": keys if keys is None or isinstance(keys, str) else " ".join(keys),
                "properties": (chunk.properties[i] if chunk.properties else None) or {},
                "messageId": chunk.message_ids[i]
                if chunk.message_ids and rows[number - first]["messageId"]
                else None,
                "shardingKey": chunk.groups[i] if chunk.groups else None,
            }
    expected = {first + i: row | {"properties": row["properties"] or {}} for i, row in enumerate(rows)}
    assert seen == expected


@given(sizes=st.lists(st.integers(1, 50), max_size=40), most=st.integers(1, 80), rows_max=st.integers(1, 9))
def test_parts_are_in_order_and_no_larger_than_they_may_be(
    sizes: list[int], most: int, rows_max: int
) -> None:
    parts = list(cut(np.array(sizes, np.int64), np.arange(len(sizes)), most, rows_max))
    assert [row for part in parts for row in part.tolist()] == list(range(len(sizes)))
    for part in parts:
        assert len(part) <= rows_max
        assert len(part) == 1 or sum(sizes[row] for row in part.tolist()) <= most


@given(
    maps=st.lists(
        st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), max_size=9
    ),
    skipped=st.integers(0, 3),
)
def test_the_bytes_of_properties_are_those_of_the_block_that_is_written(
    maps: list[dict[str, str] | None], skipped: int
) -> None:
    array = pa.array(maps, pa.map_(pa.string(), pa.string())).slice(skipped)
    expected = [
        sum(len(name.encode()) + len(text.encode()) + 2 for name, text in (own or {}).items())
        for own in maps[skipped:]
    ]
    assert map_bytes(array).tolist() == expected


def test_deterministic_unique_keys_depend_on_the_row_not_on_its_batch() -> None:
    rows = [{"body": b"%d" % i, "topic": "one"} for i in range(10)]
    plan = OutgoingPlan(None, "query-7-3")
    whole = [key for chunk in chunks_of(arrow(rows), plan, 0) for key in chunk.message_ids or []]
    halves = [
        key
        for start in (0, 5)
        for chunk in chunks_of(arrow(rows[start : start + 5]), plan, start)
        for key in chunk.message_ids or []
    ]
    assert whole == halves == [f"query-7-3-{i:012d}" for i in range(10)]


@pytest.mark.parametrize(
    "bad",
    [{"body": None, "topic": "t"}, {"body": b"", "topic": None}, {"body": b"", "topic": "t", "queueId": -1}],
)
def test_a_row_that_no_topic_can_take_is_named_by_its_number(bad: dict[str, Any]) -> None:
    with pytest.raises(TroveError, match="row 12 of its partition") as caught:
        list(chunks_of(arrow([{"body": b"", "topic": "t"}] * 2 + [bad]), OutgoingPlan(), 10))
    assert caught.value.fields["row"] == "12"
