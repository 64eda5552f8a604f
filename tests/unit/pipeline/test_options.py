"""Options of the Spark sources: legal ones are read, illegal ones are refused by name."""

from __future__ import annotations

import pickle
import random
from dataclasses import fields
from typing import Any

import pytest

from trovemq_proto.errors import TroveError
from trovemq_spark.option_kinds import BYTES, DURATION
from trovemq_spark.sources.live_batch import tags_of
from trovemq_spark.sources.offsets import ALL_EARLIEST, ALL_LATEST, Queue
from trovemq_spark.sources.option_table import FOREIGN_NAMES, OPTIONS, Option
from trovemq_spark.sources.options import BATCH, LIVE, LOG, STREAM, SourceOptions, parse_source_options
from trovemq_spark.table.schema import ALL_COLUMNS, column_names

REQUIRED = {LIVE: {"nameServer": "127.0.0.1:9876", "subscribe": "T"}, LOG: {"path": "/store"}}


def parse(source: str = LOG, *, streaming: bool | None = False, **options: Any) -> SourceOptions:
    return parse_source_options(REQUIRED[source] | options, source, streaming=streaming)


def refusal(source: str = LOG, *, streaming: bool | None = False, **options: Any) -> TroveError:
    with pytest.raises(TroveError) as caught:
        parse(source, streaming=streaming, **options)
    assert caught.value.symbol == "OPTION_ILLEGAL"
    return caught.value


def a_value(option: Option) -> str:
    examples = {
        "assign": '{"T": {"b": [0]}}',
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestampStrategy": "latest",
        "mode": "permissive",
        "columns": "topic,body",
        "maxTriggerDelay": "3s",
        "grpcTransport": "trovemq",
        "minOffsetsPerTrigger": "1",
    }
    kinds = {"number": "7", "true | false": "true", "bytes": "1k", "text": "x", "names": "a,b"}
    return examples.get(option.name) or kinds.get(option.kind.name, "a.*")


def test_each_option_is_a_field_and_has_its_names_once() -> None:
    assert {option.field for option in OPTIONS} == {f.name for f in fields(SourceOptions)} - {
        "source",
        "streaming",
    }
    names = [name.lower() for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(set(names)) == len(names)
    assert all(option.meaning for option in OPTIONS)
    assert {name.lower() for name in FOREIGN_NAMES.values()} <= set(names)
    assert not {name.lower() for name in FOREIGN_NAMES} & set(names)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_is_taken_where_it_belongs_and_refused_elsewhere(option: Option) -> None:
    source = random.Random(option.name)
    for name in (option.name, *option.aliases):
        mixed = "".join(source.choice((letter.lower(), letter.upper())) for letter in name)
        for where in (LIVE, LOG):
            for mode in (BATCH, STREAM):
                topics = {"subscribe", "subscribe_pattern", "assign"}
                given = dict(REQUIRED[where])
                if option.field in topics or option.field in ("name_server", "path"):
                    given = {
                        key: text
                        for key, text in given.items()
                        if key not in ("nameServer", "path", "subscribe")
                        or (key == "nameServer" and option.field != "name_server")
                        or (key == "path" and option.field != "path")
                        or (key == "subscribe" and option.field not in topics)
                    }
                given[mixed] = a_value(option)
                if option.belongs(where, mode):
                    found = parse_source_options(given, where, streaming=mode == STREAM)
                    expected = option.kind.parse(a_value(option))
                    assert getattr(found, option.field) == expected
                    assert pickle.loads(pickle.dumps(found)) == found
                else:
                    with pytest.raises(TroveError, match=rf"{option.name} (belongs|does not)") as caught:
                        parse_source_options(given, where, streaming=mode == STREAM)
                    assert caught.value.fields["field"] == mixed


def test_defaults_are_those_of_the_table() -> None:
    for source in (LIVE, LOG):
        batch, stream = parse(source), parse(source, streaming=True)
        assert (batch.starting_offsets, stream.starting_offsets) == (ALL_EARLIEST, ALL_LATEST)
        for option in OPTIONS:
            if option.name in (*REQUIRED[source], "startingOffsets"):
                continue
            expected = option.kind.parse(option.default) if option.default else None
            assert getattr(batch, option.field) == getattr(stream, option.field) == expected


@pytest.mark.parametrize(
    ("source", "name", "meant"),
    [
        (LOG, "sbscribe", "subscribe"),
        (LOG, "failOnDataloss_", "failOnDataLoss"),
        (LOG, "startingOffset", "startingOffsets"),
        (LIVE, "kafka.bootstrap.servers", "nameServer"),
        (LIVE, "kafka.group.id", "consumerGroup"),
        (LIVE, "nameServr", "nameServer"),
        (LOG, "colums", "columns"),
    ],
)
def test_a_mistyped_name_gets_the_right_one_as_a_hint(source: str, name: str, meant: str) -> None:
    given: dict[str, Any] = {name: "x"}
    error = refusal(source, streaming=None, **given)
    assert f"did you mean {meant}?" in error.message
    assert error.fields["field"] == name


def test_an_unknown_name_lists_what_there_is() -> None:
    error = refusal(zzzzzz="x")
    assert "did you mean" not in error.message
    assert "maxOffsetsPerTrigger" not in error.message
    assert "minPartitions" in error.message
    assert "maxOffsetsPerTrigger" in refusal(streaming=None, zzzzzz="x").message


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "a", "subscribePattern": "b"},
        {"subscribe": "a", "assign": '{"a": {"b": [1]}}'},
        {"startingTimestamp": "2", "endingTimestamp": "1"},
        {"startingPhysicalOffset": "2", "endingPhysicalOffset": "1"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t": {"b": {"0": -1}}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"t": {"b": {"0": -2}}}'},
        {"columns": "topic,nothing"},
        {"columns": "topic,TOPIC"},
        {"columns": "damage"},
        {"subscribe": "a,,b"},
        {"subscribe": "a,a"},
        {"subscribePattern": "("},
        {"mode": "strict"},
        {"batchRows": "0"},
        {"batchRows": "x"},
        {"batchRows": "1048577"},
        {"failOnDataLoss": "yes"},
        {"path": " "},
    ],
)
def test_contradicting_or_useless_options_are_refused(options: dict[str, Any]) -> None:
    assert refusal(**options).message


@pytest.mark.parametrize(
    "options",
    [
        {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
        {"startingOffsets": '{"t": {"b": {"0": 1}}}'},
        {"maxBytesPerTrigger": "0"},
        {"maxTriggerDelay": "soon"},
    ],
)
def test_a_stream_refuses_likewise(options: dict[str, Any]) -> None:
    assert refusal(streaming=True, **options).message


def test_an_option_under_two_names_is_refused() -> None:
    assert "one option" in refusal(subscribe="a", topic="a").message


def test_a_missing_required_argument_is_named() -> None:
    for given, source, name in (
        ({}, LOG, "path"),
        ({"subscribe": "T"}, LIVE, "nameServer"),
        ({"nameServer": "h:1"}, LIVE, "subscribe"),
    ):
        with pytest.raises(TroveError) as caught:
            parse_source_options(given, source)
        assert caught.value.fields["field"] == name


def test_columns_are_spelled_as_the_table_spells_them() -> None:
    assert parse(columns="BODY, queueid").column_names == ["body", "queueId"]
    assert parse().column_names == column_names()
    everything = parse(includeHeader="true", mode="permissive").column_names
    assert everything == list(ALL_COLUMNS)
    assert "properties" not in parse(includeProperties="false").column_names


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("1k", 1024), ("2 MB", 2 << 20), ("3g", 3 << 30), ("5b", 5)]
)
def test_bytes(text: str, value: int) -> None:
    assert BYTES.parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("250ms", 250), ("3s", 3000), ("15m", 900_000), ("1H", 3_600_000)]
)
def test_durations(text: str, value: int) -> None:
    assert DURATION.parse(text) == value


def test_assigned_queues_and_offsets_are_read() -> None:
    options: Any = parse(
        LOG,
        assign='{"a": {"b": [1, 0]}}',
        startingOffsets='{"a": {"b": {"1": 5, "0": -2}}}',
        endingOffsets='{"a": {"b": {"1": 9, "0": -1}}}',
    )
    one, zero = Queue("a", "b", 1), Queue("a", "b", 0)
    assert options.assign == {one, zero}
    assert (options.starting_offsets.of(one), options.ending_offsets.of(one)) == (5, 9)
    assert options.starting_offsets.of(Queue("other", "b", 0)) == -2


@pytest.mark.parametrize(
    "expression",
    ["TAGS = 'a'", "a IS NOT NULL", "price > 10", "(a) || b", 'x in ("a")', "a BETWEEN 1 AND 2", "a and b"],
)
def test_an_sql_expression_is_not_taken_for_a_tag_that_no_message_has(expression: str) -> None:
    with pytest.raises(TroveError, match=r"not SQL-92. Use \.where\(\)") as caught:
        tags_of(expression)
    assert caught.value.symbol == "OPTION_ILLEGAL"


def test_tags_are_taken_as_they_are() -> None:
    assert tags_of(" * ") == ()
    assert tags_of("a||order in|| is-not ||Größe") == ("a", "order in", "is-not", "Größe")


def test_partitions_without_number_are_refused() -> None:
    for source in (LIVE, LOG):
        assert parse(source, minPartitions="10000").min_partitions == 10_000
        assert "from 1 to 10000" in refusal(source, minPartitions="10001").message
