"""Format `trovemq`: topics of a running cluster as a table, by its routes and the brokers' Fetch stream.

One task reads one queue, or with minPartitions a part of one. The range of a task, offsets [start, end) of a
queue, is determined when the first query on the result of .load() is planned. Spark 4.2 keeps the ranges for
later queries, which therefore miss later messages: call load() again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from trovemq import Client
from trovemq_spark.option_kinds import option_error
from trovemq_spark.sources.live_client import Cluster, Selection, identities_of, queue_spans
from trovemq_spark.sources.live_fetch import FetchSettings, read_range
from trovemq_spark.sources.live_pushdown import Bounds
from trovemq_spark.sources.live_ranges import (
    QueueRange,
    ending_offsets,
    ranges_between,
    split_ranges,
    starting_offsets,
)
from trovemq_spark.sources.options import LIVE, SourceOptions, parse_source_options
from trovemq_spark.sources.rows import columns_of_schema
from trovemq_spark.table.schema import spark_schema

if TYPE_CHECKING:
    Options = MutableMapping[str, str]

_ALL_TAGS: Final = "*"
_TAGS_SEPARATOR: Final = "||"
_SQL: Final = re.compile(r"[=<>()'\"]|\s(is|in|and|or|not|between|like|contains)\s", re.IGNORECASE)


class TroveDataSource(DataSource):
    """`spark.read.format("trovemq")`, `readStream`, `write` and `writeStream`.

    Options: sources/option_table.py, sinks/options.py; wrong ones raise TroveError OPTION_ILLEGAL.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return LIVE

    def schema(self) -> StructType:
        return spark_schema(parse_source_options(self.options, LIVE, streaming=None).column_names)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source_options(self.options, LIVE)
        parts = options, selection_of(options), settings_of(options, schema)
        return LivePushdownReader(*parts) if options.pushdown else LiveReader(*parts)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from trovemq_spark.sources.live_stream import LiveStreamReader

        options = parse_source_options(self.options, LIVE, streaming=True)
        return LiveStreamReader(options, selection_of(options), settings_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from trovemq_spark.sinks import topic_writer

        return topic_writer.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from trovemq_spark.sinks import topic_writer

        return topic_writer.stream_writer(self.options, schema, overwrite)


def selection_of(options: SourceOptions) -> Selection:
    """The queues that the options select."""
    return Selection(options.subscribe or (), options.subscribe_pattern, options.assign or frozenset())


def settings_of(options: SourceOptions, schema: StructType) -> FetchSettings:
    """How tasks read for this schema. Raises TroveError OPTION_ILLEGAL for other columns or types than
    ours."""
    assert options.name_server is not None, "checked with the options"
    return FetchSettings(
        cluster=Cluster(options.name_server, options.reconnect_timeout_ms, options.connection()),
        names=columns_of_schema(schema, options),
        tags=tags_of(options.sub_expression),
        batch_rows=options.batch_rows,
        messages_max=options.pull_batch_size,
        pull_timeout_ms=options.pull_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
        mode=options.mode,
    )


def tags_of(expression: str) -> tuple[str, ...]:
    """The tags of `a || b`; none for all messages. Raises TroveError OPTION_ILLEGAL, also for SQL-92, which
    would select nothing as a tag."""
    if expression.strip() == _ALL_TAGS:
        return ()
    if _SQL.search(expression):
        raise option_error(
            f"option subExpression = {expression!r}: tags with || between them, not SQL-92. Use .where() on "
            "tags, keys or properties",
            "subExpression",
        )
    tags = tuple(part.strip() for part in expression.split(_TAGS_SEPARATOR))
    if not all(tags):
        text = f"option subExpression = {expression!r}: expected tags with || between them, or *"
        raise option_error(text, "subExpression")
    return tags


class LiveReader(DataSourceReader):
    """Reads the messages that are in the queues when the query is planned."""

    def __init__(self, options: SourceOptions, selection: Selection, settings: FetchSettings) -> None:
        self._options = options
        self._selection = selection
        self._settings = settings
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        tags = self._bounds.tags(self._settings.tags)
        if tags is None:
            return []
        ranges = self._settings.cluster.ask(self._ranges, wait_ms=self._options.pull_timeout_ms)
        return split_ranges(ranges, self._options.min_partitions)

    async def _ranges(self, client: Client) -> list[QueueRange]:
        spans = await queue_spans(client, self._selection)
        starts = await starting_offsets(client, spans, self._options)
        ends = await ending_offsets(client, spans, self._options)
        allowed = set(self._bounds.queues(starts))
        ranges = [
            part for part in ranges_between(starts, ends, identities_of(spans)) if part.queue in allowed
        ]
        return await self._bounds.narrowed(client, ranges)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark makes one task without a partition if there are none.
        if not isinstance(partition, QueueRange):
            return iter(())
        return read_range(partition, self._settings)


class LivePushdownReader(LiveReader):
    """Accepts conditions: see option pushdown. Spark refuses such a reader unless its setting is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        self._bounds.add(filters)
        tags = self._bounds.tags(self._settings.tags)
        if tags is not None:
            self._settings = replace(self._settings, tags=tags)
        return filters
