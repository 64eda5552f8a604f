"""The options of the writer of format `trovemq`, and the columns that it takes, each in one table.

As in Spark, options may be in any case of letters. An unknown option is an error, and so is a column that is
unknown or has another type, because skipping a misspelt `tags` would lose data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from trovemq_spark.connection_options import ROWS as CONNECTION_ROWS
from trovemq_spark.connection_options import ConnectionOptions
from trovemq_spark.option_kinds import (
    BYTES,
    DURATION,
    TEXT,
    Kind,
    choice,
    nearest,
    option_error,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NONE: Final = "none"
DEDUP: Final = "dedup"
QUERY_ID_SIZE_MAX: Final = 190
"""Bytes: the message id that begins with it has at most 255, with three numbers."""


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `default`: in the form of the option's text; empty: none."""

    name: str
    field: str
    kind: Kind
    default: str
    meaning: str


# fmt: off
OPTIONS: Final = (
    Option("nameServer", "name_server", TEXT, "",
           "nameserver or broker, HOST:PORT; several with commas; required"),
    Option("topic", "topic", TEXT, "", "the topic of all rows; wins over the column topic"),
    Option("exactlyOnce", "exactly_once", choice(NONE, DEDUP), NONE,
           "dedup: message ids of query, batch, partition and row, the same in a repeated write"),
    Option("queryId", "query_id", TEXT, "",
           "the beginning of dedup's message ids; default: a stream's id, a new one for each batch write"),
    Option("inFlightBytes", "in_flight_bytes", BYTES, "16m", "the most unacknowledged bytes of a task"),
    Option("deliveryTimeout", "delivery_timeout_ms", DURATION, "30s",
           "how long a message may wait for its acknowledgement, retries included"),
    *(Option(*row) for row in CONNECTION_ROWS),
)
# fmt: on
IGNORED: Final = frozenset({"checkpointlocation", "path"})
"""Options of Spark itself, which every sink gets."""

COLUMNS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "body": ("string or binary", ("string", "binary")),
    "topic": ("string", ("string",)),
    "tags": ("string", ("string",)),
    "keys": ("string (several separated by a space) or array<string>", ("string", "array<string>")),
    "properties": ("map<string,string>", ("map<string,string>",)),
    "queueId": ("int", ("int", "bigint", "smallint", "tinyint")),
    "delayLevel": ("int", ("int", "bigint", "smallint", "tinyint")),
    "shardingKey": ("string", ("string",)),
    "messageId": ("string", ("string",)),
}
"""The columns that a row may have, their types in words and by Spark's names; only `body` must be there."""


@dataclass(frozen=True, slots=True)
class SinkOptions(ConnectionOptions):
    """The options of one write, checked. Picklable."""

    name_server: str
    topic: str | None
    exactly_once: str
    query_id: str | None
    in_flight_bytes: int
    delivery_timeout_ms: int


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a writer of format `trovemq`. Raises TroveError OPTION_ILLEGAL, field `field`."""
    by_lower = {option.name.lower(): option for option in OPTIONS}
    values: dict[str, Any] = {
        option.field: option.kind.parse(option.default) if option.default else None for option in OPTIONS
    }
    for name, text in options.items():
        option = by_lower.get(name.lower())
        if option is None:
            if name.lower() in IGNORED:
                continue
            known = [option.name for option in OPTIONS]
            raise option_error(
                f"the writer has no option {name}{nearest(name, known)}. There are: {', '.join(known)}", name
            )
        try:
            values[option.field] = option.kind.parse(text)
        except ValueError as error:
            raise option_error(f"option {option.name} = {text!r}: expected {error}", option.name) from None
    if values["name_server"] is None:
        raise option_error(
            "option nameServer is missing: HOST:PORT of a nameserver or a broker", "nameServer"
        )
    _check_query_id(values["query_id"])
    return SinkOptions(**values)


def _check_query_id(query_id: str | None) -> None:
    if query_id is not None and (
        len(query_id.encode()) > QUERY_ID_SIZE_MAX or any(c in query_id for c in " \x01\x02")
    ):
        raise option_error(
            f"option queryId has at most {QUERY_ID_SIZE_MAX} bytes and no space: it begins message ids",
            "queryId",
        )


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises OPTION_ILLEGAL, which names the accepted columns, for rows that cannot be written."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise option_error(
                f"a topic has no column {field.name} to write{nearest(field.name, COLUMNS)}. "
                f"Select of: {', '.join(COLUMNS)}",
                field.name,
            )
        words, types = COLUMNS[field.name]
        if field.dataType.simpleString() not in types:  # it does not matter whether the column may have nulls
            raise option_error(
                f"the column {field.name} is {field.dataType.simpleString()}: expected {words}", field.name
            )
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise option_error(f"each column once, not {', '.join(names)}", "columns")
    if "body" not in names:
        raise option_error("the column body (string or binary) is missing", "body")
    if options.topic is None and "topic" not in names:
        raise option_error("give the option topic, or a column topic", "topic")
    if options.exactly_once == DEDUP and "messageId" in names:
        raise option_error(
            "exactlyOnce = dedup makes the message ids: leave out the column messageId, or the option",
            "messageId",
        )


assert {option.field for option in OPTIONS} == {field.name for field in fields(SinkOptions)}
