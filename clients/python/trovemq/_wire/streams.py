"""The messages of the streams Append and Fetch, as the SDK's own values: in columns, for many messages at
once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq.fetched import Buffer, FetchedBatch
from trovemq.receipts import NO_GAPS, AppendOutcome, Duplicate
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, message_pb2

from .failures import error_from_wire
from .frames import split_records
from .replica_lags import replica_lag

COPIED_SIZE_MAX: Final = 8_192
"""Bytes of a reply up to which it is copied: protobuf's decoding alone is 17 calls fewer than to find its
records. No benchmark has a case for the number."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One reply of a Fetch stream: a batch, or the error of that request only."""

    fetch_id: int
    error: TroveError | None
    batch: FetchedBatch
    replies_remaining: int = 0
    """How many more replies the fetch may get; 0: it has ended."""


def append_outcome(data: bytes) -> AppendOutcome:
    """Deserialises an AppendReply."""
    reply = message_pb2.AppendReply.FromString(data)
    status, duplicates, gaps = reply.status, reply.duplicates, reply.sequence_gaps
    # As AppendOutcome(…) does, which is a function in Python.
    return tuple.__new__(
        AppendOutcome,
        (
            reply.frame_id,
            _STATUS_NAMES[status],
            error_from_wire(reply.error) if status != _PUT_OK and reply.HasField("error") else None,
            reply.first_queue_offset,
            reply.physical_offset,
            reply.record_count,
            reply.store_timestamp,
            "disk" if reply.durability == _DISK else "memory",
            reply.store_host,
            reply.broker,
            _duplicates(duplicates) if duplicates else (),
            {each.index: range(each.first, each.last + 1) for each in gaps} if gaps else NO_GAPS,
            reply.copies or 1,
        ),
    )


def _duplicates(duplicates: Iterable[message_pb2.Duplicate]) -> tuple[Duplicate, ...]:
    return tuple(
        Duplicate(each.index, each.queue_id, each.queue_offset, each.physical_offset, each.store_timestamp)
        for each in duplicates
    )


_DISK, _PUT_OK = common_pb2.DISK, common_pb2.PUT_OK
_STATUS_NAMES = {value: name for name, value in common_pb2.PutMessageStatus.items()}


def fetch_answer(data: bytes) -> FetchAnswer:
    """Deserialises a FetchReply. Records of some size are not copied."""
    if len(data) <= COPIED_SIZE_MAX:
        reply = message_pb2.FetchReply.FromString(data)
        records: Buffer = reply.records
    else:
        records, rest = split_records(data)
        reply = message_pb2.FetchReply.FromString(rest)
    batch = FetchedBatch(
        data=records,
        next_offset=reply.next_offset,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        queue_offsets=offsets_column(reply.queue_offsets),
        damaged_offsets=tuple(reply.damaged_offsets),
        topic_identity=reply.topic_identity if reply.HasField("topic_identity") else None,
        replica=replica_lag(reply),
    )
    error = error_from_wire(reply.error) if reply.HasField("error") else None
    return FetchAnswer(reply.fetch_id, error, batch, reply.replies_left)


def fetch_request(
    fetch_id: int,
    topic: str,
    queue_id: int,
    *,
    offset: int,
    messages_max: int,
    bytes_max: int,
    wait_ms: int,
    tags: tuple[str, ...],
    replies_max: int = 0,
    topic_identity: int | None = None,
    max_lag_ms: int = 0,
) -> bytes:
    """A serialised FetchRequest."""
    return message_pb2.FetchRequest(
        fetch_id=fetch_id,
        topic=topic,
        queue_id=queue_id,
        offset=offset,
        messages_max=messages_max,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        tags=tags,
        replies_max=replies_max,
        topic_identity=topic_identity,
        max_lag_ms=max_lag_ms,
    ).SerializeToString()


def more_replies(fetch_id: int, topic: str, queue_id: int, count: int) -> bytes:
    """A serialised FetchRequest for `count` more replies to a standing fetch."""
    return message_pb2.FetchRequest(
        fetch_id=fetch_id, topic=topic, queue_id=queue_id, replies_more=count
    ).SerializeToString()


def offsets_column(data: bytes) -> array[int] | None:
    """Queue offsets from the wire (little-endian int64); None if there are none."""
    if not data:
        return None
    offsets = array("q", data)
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets
