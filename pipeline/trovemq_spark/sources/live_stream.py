"""Format `trovemq` as a stream: offsets {"TOPIC": {"BROKER": {"QUEUE": next offset, "topicIdentity": …}}}.

Only the two offsets of a batch determine its content, so a batch that Spark repeats after a crash has the
same rows. Therefore a new queue (of a matching topic, a new broker, or more queues) is first added to the
offsets with its beginning, and is read from the next batch on. A queue whose broker is unreachable stays in
the offsets.

If a topic was deleted and recreated, its identity is another one, which is data loss: its messages that were
not read are gone. Without failOnDataLoss the new topic is read from its beginning. Checkpoints of earlier
versions have no identity: the topic that is found is assumed to be theirs, and its identity is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from trovemq import Client
from trovemq_spark.option_kinds import option_error
from trovemq_spark.sources.live_admission import Delay, share
from trovemq_spark.sources.live_client import (
    Cluster,
    Selection,
    Span,
    describe,
    identities_of,
    mean_record_size,
    queue_spans,
    wait_for_brokers,
)
from trovemq_spark.sources.live_fetch import FetchSettings, read_range
from trovemq_spark.sources.live_ranges import (
    Offsets,
    QueueRange,
    lose_topic,
    ranges_between,
    report_loss,
    split_ranges,
    starting_offsets,
    within,
)
from trovemq_spark.sources.live_report import report_group_offsets
from trovemq_spark.sources.offsets import Positions, Queue, offsets_from_json
from trovemq_spark.sources.options import LIVE, SourceOptions


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance plans as long as the query runs; copies of it read in the tasks."""

    def __init__(self, options: SourceOptions, selection: Selection, settings: FetchSettings) -> None:
        self._options = options
        self._selection = selection
        self._settings = settings
        self._delay = Delay(options.min_offsets_per_trigger or 0, options.max_trigger_delay_ms)
        self._target: Offsets | None = None  # for availableNow
        self._committed: Offsets = {}

    # --- planning -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        async def initial(client: Client) -> Positions:
            spans = await queue_spans(client, self._selection)
            return Positions(await starting_offsets(client, spans, self._options), identities_of(spans))

        return self._cluster.ask(initial, wait_ms=self._options.pull_timeout_ms).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        wait_ms = self._cluster.reconnect_timeout_ms
        spans = self._cluster.ask(lambda client: queue_spans(client, self._selection), wait_ms=wait_ms)
        self._target = {queue: span.maximum for queue, span in spans.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        # Spark needs one limit to see that there is a limit; latestOffset applies all of them.
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        async def latest(client: Client) -> Positions:
            begin = _positions(start)
            starts = begin.offsets
            if self._options.fail_on_data_loss:
                brokers = {queue.broker for queue in starts}
                await wait_for_brokers(client, brokers, self._cluster.reconnect_timeout_ms)
            spans = await queue_spans(client, self._selection)
            known = Positions(self._known(begin, spans), begin.identities | identities_of(spans))
            if known.offsets != starts or not all(_same_topic(begin, known, queue) for queue in starts):
                return known
            ends = self._ends(starts, spans)
            if not isinstance(limit, ReadAllAvailable):
                ends = await self._admitted(client, starts, ends)
            return replace(known, offsets=ends)

        return self._cluster.ask(latest, wait_ms=self._cluster.reconnect_timeout_ms).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        return None  # a request per batch, for a figure that a group's lag shows

    def _known(self, begin: Positions, spans: Mapping[Queue, Span]) -> Offsets:
        """The starts, with the beginnings of new queues and new topics; data loss is handled here."""
        known: Offsets = {}
        fail = self._options.fail_on_data_loss
        for queue, offset in begin.offsets.items():
            span = spans.get(queue)
            if span is None:
                _miss(queue, offset, fail=fail)
                known[queue] = offset
            elif not begin.same_topic(queue, span.identity):
                lose_topic(queue, offset, fail=fail, then=f"it is read from its beginning, {span.minimum}")
                known[queue] = span.minimum
            else:
                known[queue] = within(queue, offset, span, fail=fail)
        for queue in spans.keys() - begin.offsets.keys():
            if self._target is None or queue in self._target:
                known[queue] = spans[queue].minimum
        return known

    def _ends(self, starts: Offsets, spans: Mapping[Queue, Span]) -> Offsets:
        """The present ends; under availableNow those at the start of the query."""
        ends = {}
        for queue, offset in starts.items():
            end = spans[queue].maximum if queue in spans else offset
            if self._target is not None:
                end = min(end, self._target.get(queue, offset))
            ends[queue] = max(end, offset)
        return ends

    async def _admitted(self, client: Client, starts: Offsets, ends: Offsets) -> Offsets:
        options = self._options
        backlogs = {queue: ends[queue] - starts[queue] for queue in ends}
        waits = options.min_offsets_per_trigger is not None and self._target is None
        if waits and self._delay.holds(sum(backlogs.values())):
            return starts
        limits = [options.max_offsets_per_trigger, await self._rows_of_bytes(client, starts, backlogs)]
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is None:
            return ends
        taken = share(backlogs, limit)
        return {queue: offset + taken.get(queue, 0) for queue, offset in starts.items()}

    async def _rows_of_bytes(
        self, client: Client, starts: Offsets, backlogs: Mapping[Queue, int]
    ) -> int | None:
        """maxBytesPerTrigger in rows, approximately: by the mean size of the next records of the longest
        backlog."""
        size_max, total = self._options.max_bytes_per_trigger, sum(backlogs.values())
        if size_max is None or not total:
            return None
        longest = max(backlogs, key=lambda queue: backlogs[queue])
        mean = await mean_record_size(client, longest, starts[longest])
        return max(int(size_max / mean), 1) if mean else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = _positions(start), _positions(end)
        same = {queue: at for queue, at in begin.offsets.items() if _same_topic(begin, stop, queue)}
        ranges = ranges_between(same, stop.offsets, stop.identities)
        return split_ranges(ranges, self._options.min_partitions)

    # --- reading --------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, QueueRange), partition
        return read_range(partition, self._settings)

    # --- after a batch --------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this when it plans the next batch; see live_report.py."""
        group, offsets = self._options.consumer_group, offsets_from_json(end)
        if group is None:
            return
        moved = {queue: offset for queue, offset in offsets.items() if self._committed.get(queue) != offset}
        if not report_group_offsets(self._cluster, group, moved):
            self._committed = offsets

    @property
    def _cluster(self) -> Cluster:
        return self._settings.cluster


def _positions(document: dict[str, Any]) -> Positions:
    try:
        return Positions.from_json(document)
    except ValueError as error:
        text = f"the checkpoint has the offset {document}, which is none of {LIVE}: it is another query's"
        raise option_error(f"{text}. Start with a new checkpoint ({error})", "checkpointLocation") from None


def _same_topic(begin: Positions, end: Positions, queue: Queue) -> bool:
    return begin.same_topic(queue, end.identities.get((queue.topic, queue.broker)))


def _miss(queue: Queue, offset: int, *, fail: bool) -> None:
    """A queue of the query's offsets does not exist: raises DATA_LOST, or logs it."""
    text = (
        f"{describe(queue)} was read up to offset {offset}, and is not there: its topic was deleted or is no "
        "longer subscribed, its broker left, or the checkpoint is that of another query"
    )
    report_loss(queue, offset, text, fail=fail, then="it is skipped while it is away")
