"""Stores the progress of a streaming query as the offsets of a consumer group on the brokers: for lag,
dashboards, operators.

The query itself uses only its checkpoint; these offsets have no influence on which messages are read. Spark
reports the commit of a batch to a source only when it plans the next one. So offsets that are stored by the
source lag by a batch, and the last batch is never reported. report_offsets() stores them after the end of a
query, OffsetReporter after each batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from trovemq_proto.errors import TroveError
from trovemq_spark.sources.live_client import Cluster, commit_group_offsets
from trovemq_spark.sources.offsets import Queue, offsets_from_json
from trovemq_spark.sources.rows import LOGGER

RECONNECT_TIMEOUT_MS: Final = 10_000


def report_group_offsets(cluster: Cluster, group: str, offsets: Mapping[Queue, int]) -> list[str]:
    """Stores a group's next offsets on the brokers, durably.

    Returns the offsets that could not be stored, in words; they are logged as well. A failed report is not an
    error, because the query uses its checkpoint.
    """
    if not offsets:
        return []
    try:
        failures = cluster.ask(lambda client: commit_group_offsets(client, group, offsets))
    except TroveError as error:
        failures = [str(error)]
    for failure in failures:
        LOGGER.warning("progress is not reported to group %s: %s", group, failure)
    return failures


def report_offsets(
    query: StreamingQuery,
    server: str,
    group: str,
    *,
    reconnect_timeout_ms: int = RECONNECT_TIMEOUT_MS,
) -> list[str]:
    """To be called after awaitTermination(): stores the progress of a query of format `trovemq` as the
    offsets of a group.

    Args:
        query: The query; each of its sources that reads `trovemq` is reported.
        server: HOST:PORT of nameservers, with commas, or of a broker.
        group: The consumer group.
        reconnect_timeout_ms: How long a broker may take.

    Returns:
        The offsets that could not be stored, in words. A query without progress in this
        run stores nothing.
    """
    progress = query.lastProgress
    sources = progress.sources if progress is not None else ()
    offsets = _end_offsets(source.endOffset for source in sources)
    return report_group_offsets(Cluster(server, reconnect_timeout_ms), group, offsets)


class OffsetReporter(StreamingQueryListener):
    """Reports after each batch: `session.streams.addListener(OffsetReporter(server, group))`.

    query_name: only queries of this name; None: all queries.
    """

    def __init__(self, server: str, group: str, query_name: str | None = None) -> None:
        self._cluster = Cluster(server, RECONNECT_TIMEOUT_MS)
        self._group = group
        self._query_name = query_name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        progress = event.progress
        if self._query_name in (None, progress.name):
            report_group_offsets(
                self._cluster, self._group, _end_offsets(source.endOffset for source in progress.sources)
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        pass


def _end_offsets(documents: Iterable[Any]) -> dict[Queue, int]:
    """The end offsets in the documents (or their texts) that are ours; other sources are skipped."""
    offsets: dict[Queue, int] = {}
    for document in documents:
        try:
            parsed = json.loads(document) if isinstance(document, str) else document
            offsets |= offsets_from_json(parsed)
        except ValueError:
            continue
    return offsets
