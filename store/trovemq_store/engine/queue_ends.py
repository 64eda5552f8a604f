"""How far queues reach in a part of the log that is not dispatched.

A queue offset is given once in the log. So the next one comes after the records that only the log has, too,
and not after those of the consume queue alone.
"""

from __future__ import annotations

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId, QueueOffset
from trovemq_proto.records.queue_units import run_end, units_of
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch

LogQueueEnds = dict[tuple[str, QueueId], QueueOffset]
"""(topic, queue id) -> the queue offset after its last record."""


def add_queue_ends(ends: LogQueueEnds, run: DispatchBatch) -> None:
    """Adds the records of the run that get a unit in a consume queue."""
    for unit_run in units_of(run.records, run.physical_offset, LOG_ORIGIN, run.alive):
        queue = unit_run[0], QueueId(unit_run[1])
        ends[queue] = max(ends.get(queue, QueueOffset(0)), QueueOffset(run_end(unit_run)))


def last_store_timestamp(log: CommitLog, consume_queues: ConsumeQueues) -> EpochMs:
    """STORETIMESTAMP of the last record that has a unit; 0 if there is none."""
    last = LOG_ORIGIN
    for topic in consume_queues.topics():
        for queue in consume_queues.queues(topic):
            if queue.max_offset == queue.min_offset:
                continue
            last = max(last, queue.unit(QueueOffset(queue.max_offset - 1))[0])
    return log.store_timestamp_at(last) or EpochMs(0)
