"""The replies of a Consume stream, serialised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trovemq_broker.groups.delivery.request import DeliveredRun
from trovemq_broker.server.wire.frames import write_with_records
from trovemq_proto.v1 import common_pb2, consumer_pb2, group_pb2

JOINED: Final = consumer_pb2.ConsumeReply(joined=True).SerializeToString()
STOPPED: Final = consumer_pb2.ConsumeReply(stopped=True).SerializeToString()


def batch_reply(batch: int, runs: Sequence[DeliveredRun], size: int) -> bytes:
    """The batch, made with one copy of the records, of which there are `size` bytes."""
    head = consumer_pb2.ConsumeReply(batch=batch)
    for run in runs:
        head.runs.add(
            queue_id=run.queue_id,
            first_offset=run.first_offset,
            count=len(run.records),
            attempt=run.attempt,
            receipt=run.receipt,
        )
    return write_with_records(head, (piece for run in runs for piece in run.pieces), size)


def settings_reply(settings: group_pb2.GroupSettings) -> bytes:
    """The settings of the stream's group."""
    return consumer_pb2.ConsumeReply(settings=settings).SerializeToString()


def ended_reply(error: common_pb2.Error) -> bytes:
    """No more batches come."""
    return consumer_pb2.ConsumeReply(ended=error).SerializeToString()


def void_reply(batch: int) -> bytes:
    """Deliveries of batches up to this one may be void."""
    return consumer_pb2.ConsumeReply(void_batch=batch).SerializeToString()
