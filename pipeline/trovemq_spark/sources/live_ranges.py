"""The ranges of queue offsets to read: first and last offset, lost messages, and how ranges are split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from trovemq import Client
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.sources.live_client import Span, describe, offsets_at
from trovemq_spark.sources.offsets import (
    EARLIEST_MARK,
    LATEST_MARK,
    NO_IDENTITIES,
    Identities,
    Positions,
    Queue,
    QueueOffsets,
)
from trovemq_spark.sources.options import SourceOptions
from trovemq_spark.sources.rows import LOGGER

Offsets = dict[Queue, int]


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """One task's part: the offsets [start, end) of a queue of the topic with that identity (None: not known).
    Picklable."""

    queue: Queue
    start: int
    end: int
    identity: int | None = None

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


async def starting_offsets(client: Client, spans: Mapping[Queue, Span], options: SourceOptions) -> Offsets:
    """Where each queue's reading begins, by the options.

    Raises TroveError OPTION_ILLEGAL if an unread queue is named, or if all messages are older than
    startingTimestamp; DATA_LOST; the cluster's errors.
    """
    if options.starting_timestamp is not None:
        found = await offsets_at(client, spans, options.starting_timestamp)
        if options.starting_offsets_by_timestamp_strategy == "error":
            _check_as_young(found, spans, options.starting_timestamp)
        return found
    return _resolved(options.starting_offsets, spans, "startingOffsets", options.fail_on_data_loss)


async def ending_offsets(client: Client, spans: Mapping[Queue, Span], options: SourceOptions) -> Offsets:
    """Where each queue's reading ends, exclusive. Raises TroveError OPTION_ILLEGAL if an unread queue is
    named; DATA_LOST; the cluster's errors."""
    if options.ending_timestamp is not None:
        return await offsets_at(client, spans, options.ending_timestamp)
    return _resolved(options.ending_offsets, spans, "endingOffsets", options.fail_on_data_loss)


def _resolved(wanted: QueueOffsets, spans: Mapping[Queue, Span], option: str, fail: bool) -> Offsets:
    for queue in sorted(wanted.queues.keys() - spans.keys()):
        text = f"option {option} names {describe(queue)}, which is not among the queues that are read"
        raise TroveError(errors.OPTION_ILLEGAL, text, field=option)
    offsets = {}
    for queue, span in spans.items():
        offset = wanted.of(queue)
        positions = Positions({}, dict(wanted.identities))
        if queue in wanted.queues and not positions.same_topic(queue, span.identity):
            lose_topic(
                queue, offset, fail=fail, then=f"reading begins at its earliest offset, {span.minimum}"
            )
            offset = EARLIEST_MARK
        marks = {EARLIEST_MARK: span.minimum, LATEST_MARK: span.maximum}
        offsets[queue] = within(queue, marks.get(offset, offset), span, fail=fail)
    return offsets


def _check_as_young(found: Offsets, spans: Mapping[Queue, Span], timestamp_ms: int) -> None:
    for queue in sorted(queue for queue, offset in found.items() if offset >= spans[queue].maximum):
        text = f"{describe(queue)}: no message was stored at or after startingTimestamp = {timestamp_ms}"
        advice = "set startingOffsetsByTimestampStrategy=latest to begin at the end of such queues"
        raise TroveError(errors.OPTION_ILLEGAL, f"{text}; {advice}", field="startingTimestamp")


def within(queue: Queue, wanted: int, span: Span, *, fail: bool) -> int:
    """The offset, if the queue has it. Otherwise raises DATA_LOST, or, without `fail`, returns the nearest
    one."""
    if span.minimum <= wanted <= span.maximum:
        return wanted
    nearest = max(span.minimum, min(wanted, span.maximum))
    lose(queue, wanted, span, fail=fail, then=f"reading continues at {nearest}")
    return nearest


def lose(queue: Queue, wanted: int, span: Span, *, fail: bool, then: str) -> None:
    """Messages to read no longer exist: raises DATA_LOST, or logs it with the reaction `then`."""
    text = (
        f"{describe(queue)}: offset {wanted} is requested, its offsets are now {span.minimum} (minimum) to "
        f"{span.maximum} (end)"
    )
    report_loss(queue, wanted, text, fail=fail, then=then, min_offset=span.minimum)


def lose_topic(queue: Queue, wanted: int, *, fail: bool, then: str) -> None:
    """The messages to read were of a topic that is gone: raises DATA_LOST, or logs it with the reaction
    `then`."""
    text = (
        f"{describe(queue)}: the topic was deleted and recreated ({errors.TOPIC_RECREATED.symbol}), "
        f"and offset {wanted} is the deleted one's"
    )
    error = f"{text}: to read the new topic, start with a new checkpoint, or set failOnDataLoss=false once"
    report_loss(queue, wanted, text, fail=fail, then=then, error=error)


def report_loss(
    queue: Queue,
    wanted: int,
    text: str,
    *,
    fail: bool,
    then: str,
    error: str | None = None,
    **fields: int,
) -> None:
    """The message at the offset `wanted` cannot be read, as `text` says: raises DATA_LOST, or logs it with
    the reaction `then`. `error`: the text of the exception, if it names another remedy than the table."""
    if fail:
        raise TroveError(
            errors.DATA_LOST,
            error or f"{text}; {errors.DATA_LOST.what_to_do}",
            topic=queue.topic,
            broker=queue.broker,
            queue_id=queue.queue_id,
            wanted=wanted,
            **fields,
        )
    LOGGER.warning("%s; %s", text, then)


def ranges_between(
    starts: Mapping[Queue, int], ends: Mapping[Queue, int], identities: Identities = NO_IDENTITIES
) -> list[QueueRange]:
    """A range for each queue that both have and that has messages to read, in order."""
    ranges = [
        QueueRange(queue, starts[queue], ends[queue], identities.get((queue.topic, queue.broker)))
        for queue in sorted(ends)
        if queue in starts
    ]
    return [part for part in ranges if part.size]


def split_ranges(ranges: Iterable[QueueRange], count_min: int | None) -> list[QueueRange]:
    """The same offsets in at least `count_min` parts, if there are enough offsets; large ranges are split."""
    ranges = list(ranges)
    total = sum(part.size for part in ranges)
    if count_min is None or len(ranges) >= count_min:
        return ranges
    parts: list[QueueRange] = []
    for whole in ranges:
        count = min(whole.size, -(-whole.size * count_min // total))
        cuts = [whole.start + whole.size * i // count for i in range(count + 1)]
        parts += [replace(whole, start=start, end=end) for start, end in pairwise(cuts)]
    return parts
