"""The options of one reader, checked against the table and against each other.

As in Spark, names may be in any case of letters. An option that is unknown, does not belong to this kind of
reader, or contradicts another one is an error, because skipping a mistyped option would read wrong rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from trovemq_spark.connection_options import ConnectionOptions
from trovemq_spark.option_kinds import nearest, option_error
from trovemq_spark.sources import offsets
from trovemq_spark.sources.offsets import Queue, QueueOffsets
from trovemq_spark.sources.option_table import (
    BATCH,
    DROPMALFORMED,
    FAILFAST,
    FOREIGN_NAMES,
    LIVE,
    LOG,
    OPTIONS,
    PERMISSIVE,
    STREAM,
    Option,
)
from trovemq_spark.table.schema import ALL_COLUMNS, DAMAGE_COLUMN, column_names

__all__ = [
    "BATCH",
    "BATCH_BYTES_MAX",
    "DROPMALFORMED",
    "FAILFAST",
    "LIVE",
    "LOG",
    "OPTIONS",
    "PERMISSIVE",
    "STREAM",
    "SourceOptions",
    "parse_source_options",
]

BATCH_BYTES_MAX: Final = 8 << 20
"""An Arrow batch ends at batchRows rows or this many bytes of records, whichever comes first."""


@dataclass(frozen=True, slots=True)
class SourceOptions(ConnectionOptions):
    """The options of one reader, checked. Picklable. Options of other kinds of readers have their default or
    None."""

    source: str
    streaming: bool
    name_server: str | None
    path: str | None
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    assign: frozenset[Queue] | None
    sub_expression: str
    starting_offsets: QueueOffsets
    ending_offsets: QueueOffsets
    starting_timestamp: int | None
    ending_timestamp: int | None
    starting_offsets_by_timestamp_strategy: str
    starting_physical_offset: int | None
    ending_physical_offset: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    fail_on_data_loss: bool
    mode: str
    columns: tuple[str, ...] | None
    """As spelled in ALL_COLUMNS."""
    include_properties: bool
    include_header: bool
    broker_name: str | None
    check_crc: bool
    batch_rows: int
    pull_batch_size: int
    pull_timeout_ms: int
    reconnect_timeout_ms: int
    consumer_group: str | None
    pushdown: bool

    @property
    def column_names(self) -> list[str]:
        """The columns of the table, in order, before a user's schema narrows them."""
        if self.columns is not None:
            return list(self.columns)
        return column_names(
            header=self.include_header, damage=self.mode == PERMISSIVE, properties=self.include_properties
        )


def parse_source_options(
    given: Mapping[str, str], source: str = LIVE, *, streaming: bool | None = False
) -> SourceOptions:
    """The options of a reader of format `source` (LIVE or LOG).

    given: name -> text, names in any case; streaming: None while it is unknown (Spark requests the schema
        first). Raises TroveError OPTION_ILLEGAL for an unknown, illegal or contradictory option; it names the
        option and the nearest known name.
    """
    mode = None if streaming is None else STREAM if streaming else BATCH
    values = _defaults(streaming)
    seen: dict[str, str] = {}
    for name, text in given.items():
        option = _find(name, source, mode)
        if option.field in seen:
            raise option_error(f"{seen[option.field]} and {name} are one option: give it once", name)
        seen[option.field] = name
        values[option.field] = _value(option, name, text)
    _check_together(values, set(seen), source, streaming)
    _check_columns(values)
    return SourceOptions(source=source, streaming=bool(streaming), **values)


def _defaults(streaming: bool | None) -> dict[str, Any]:
    values = {
        option.field: option.kind.parse(option.default) if option.default else None
        for option in OPTIONS
        if option.field != "starting_offsets"  # depends on the kind of reader
    }
    values["starting_offsets"] = offsets.ALL_LATEST if streaming else offsets.ALL_EARLIEST
    return values


def _find(name: str, source: str, mode: str | None) -> Option:
    lower = name.lower()
    usable = [option for option in OPTIONS if option.belongs(source, mode)]
    for option in OPTIONS:
        if lower not in (option.name.lower(), *(alias.lower() for alias in option.aliases)):
            continue
        if source not in option.sources:
            raise option_error(
                f"option {option.name} belongs to format {option.sources[0]}, not {source}", name
            )
        if mode is not None and mode not in option.modes:
            raise option_error(f"option {option.name} does not belong to a {mode} reading", name)
        return option
    known = [spelling for option in usable for spelling in (option.name, *option.aliases)]
    same = FOREIGN_NAMES.get(lower)
    hint = f"; did you mean {same}?" if same in known else nearest(name, known)
    names = ", ".join(option.name for option in usable)
    of_mode = f" of a {mode} reading" if mode else ""
    raise option_error(f"format {source} has no option {name!r}{hint} Its options{of_mode}: {names}", name)


def _value(option: Option, name: str, text: str) -> Any:
    try:
        return option.kind.parse(str(text))
    except ValueError as error:
        raise option_error(f"option {name} = {text!r}: expected {error}", name) from None


def _check_together(values: Mapping[str, Any], seen: set[str], source: str, streaming: bool | None) -> None:
    topics = [name for name in ("subscribe", "subscribe_pattern", "assign") if name in seen]
    if len(topics) > 1:
        raise option_error("give only one of subscribe, subscribePattern and assign", "subscribe")
    if source == LIVE and not values["name_server"]:
        raise option_error(
            "option nameServer is missing: HOST:PORT of a nameserver or a broker", "nameServer"
        )
    if source == LIVE and not topics:
        raise option_error("one of subscribe, subscribePattern and assign is required", "subscribe")
    if source == LOG and not values["path"]:
        raise option_error(
            "option path is missing: .load(PATH) of a store or a directory of segments", "path"
        )
    _check_offsets(values, source, streaming)
    for low, high in (
        ("starting_timestamp", "ending_timestamp"),
        ("starting_physical_offset", "ending_physical_offset"),
        ("min_offsets_per_trigger", "max_offsets_per_trigger"),
    ):
        if values[low] is not None and values[high] is not None and values[low] > values[high]:
            names = {option.field: option.name for option in OPTIONS}
            raise option_error(
                f"{names[low]} = {values[low]} is above {names[high]} = {values[high]}", names[low]
            )


def _check_offsets(values: Mapping[str, Any], source: str, streaming: bool | None) -> None:
    """As in Kafka's connector, a batch cannot begin at the latest offset or end at the earliest."""
    starting, ending = values["starting_offsets"], values["ending_offsets"]
    if streaming and source == LOG and starting.is_named:
        raise option_error(
            f"a stream of {LOG} goes through the log as a whole, not queue by queue: use earliest, latest, "
            "startingPhysicalOffset or startingTimestamp",
            "startingOffsets",
        )
    if streaming is False and offsets.LATEST_MARK in (starting.default, *starting.queues.values()):
        raise option_error("a batch that begins at the latest offset has no rows", "startingOffsets")
    if offsets.EARLIEST_MARK in (ending.default, *ending.queues.values()):
        raise option_error("a batch that ends at the earliest offset has no rows", "endingOffsets")


def _check_columns(values: dict[str, Any]) -> None:
    if values["columns"] is None:
        return
    by_lower = {name.lower(): name for name in ALL_COLUMNS}
    for name in values["columns"]:
        if name.lower() not in by_lower:
            raise option_error(
                f"option columns: there is no column {name!r}{nearest(name, ALL_COLUMNS)} "
                f"Columns: {', '.join(ALL_COLUMNS)}",
                "columns",
            )
    columns = tuple(by_lower[name.lower()] for name in values["columns"])
    if len(set(columns)) < len(columns):
        raise option_error("option columns: each name once", "columns")
    if DAMAGE_COLUMN in columns and values["mode"] != PERMISSIVE:
        raise option_error(f"the column {DAMAGE_COLUMN} is there with mode = {PERMISSIVE} only", "columns")
    values["columns"] = columns


assert {option.field for option in OPTIONS} | {"source", "streaming"} == {
    field.name for field in fields(SourceOptions)
}, "each option of the table has its field"
