"""The conditions of the options of `trovemq-log` on each record: its topic, queue, place and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from trovemq_spark.option_kinds import option_error
from trovemq_spark.sources.conditions import (
    INT64_MAX,
    PHYSICAL_OFFSET,
    STORE_TIMESTAMP,
    Condition,
    NumberBetween,
    QueueRanges,
    TopicIn,
    TopicMatches,
)
from trovemq_spark.sources.offsets import LATEST_MARK, Queue, QueueOffsets
from trovemq_spark.sources.options import SourceOptions

_US_PER_MS: Final = 1000


def asked_conditions(options: SourceOptions) -> list[Condition]:
    """The options' conditions on each record; the beginning of a stream is a place and no condition."""
    conditions: list[Condition] = []
    if options.subscribe is not None:
        conditions.append(TopicIn(frozenset(options.subscribe)))
    if options.subscribe_pattern is not None:
        conditions.append(TopicMatches(options.subscribe_pattern))
    if options.assign is not None:
        whole = {(queue.topic, queue.queue_id): (0, INT64_MAX) for queue in _own(options.assign, options)}
        conditions.append(QueueRanges(whole, only=True))
    if not options.streaming:
        conditions += _range_conditions(options)
    return conditions


def _range_conditions(options: SourceOptions) -> Iterator[Condition]:
    begins_at_place = options.starting_timestamp is not None or options.starting_physical_offset is not None
    ends_at_place = options.ending_timestamp is not None or options.ending_physical_offset is not None
    starting = QueueOffsets(0, {}) if begins_at_place else options.starting_offsets
    ending = QueueOffsets(0, {}) if ends_at_place else options.ending_offsets
    if ranges := _queue_ranges(starting.queues, ending.queues, options):
        yield QueueRanges(ranges, only=False)
    if options.starting_timestamp is not None:
        yield NumberBetween(STORE_TIMESTAMP, low=options.starting_timestamp * _US_PER_MS)
    if options.ending_timestamp is not None:
        yield NumberBetween(STORE_TIMESTAMP, high=options.ending_timestamp * _US_PER_MS - 1)
    if options.starting_physical_offset is not None:
        yield NumberBetween(PHYSICAL_OFFSET, low=options.starting_physical_offset)
    if options.ending_physical_offset is not None:
        yield NumberBetween(PHYSICAL_OFFSET, high=options.ending_physical_offset - 1)


def _queue_ranges(
    starting: Mapping[Queue, int], ending: Mapping[Queue, int], options: SourceOptions
) -> dict[tuple[str, int], tuple[int, int]]:
    ranges = {}
    for queue in _own(starting.keys() | ending.keys(), options):
        end = ending.get(queue, LATEST_MARK)
        begin = max(starting.get(queue, 0), 0)
        ranges[queue.topic, queue.queue_id] = begin, INT64_MAX if end == LATEST_MARK else end
    return ranges


def _own(queues: Iterable[Queue], options: SourceOptions) -> list[Queue]:
    """The queues; a log belongs to one broker. Raises TroveError OPTION_ILLEGAL if they are of several
    brokers."""
    found = sorted(queues)
    brokers = sorted({queue.broker for queue in found})
    if len(brokers) > 1:
        raise option_error(f"a log is of one broker, not of {', '.join(brokers)}", "assign")
    if brokers and options.broker_name is not None and brokers != [options.broker_name]:
        raise option_error(
            f"brokerName is {options.broker_name}, the queues are of {brokers[0]}", "brokerName"
        )
    return found
