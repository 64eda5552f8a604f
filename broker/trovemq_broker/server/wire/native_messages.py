"""Converts protobuf messages to our own types and back, so that the engine's packages use no generated
types."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, cast
from urllib.parse import unquote

import numpy as np

from trovemq_broker.fetch.pull import PullRequest, PullResult
from trovemq_broker.produce.append import Durability
from trovemq_broker.produce.outgoing import OutgoingMessage
from trovemq_broker.produce.put_status import put_status
from trovemq_broker.server.wire.frames import write_with_records
from trovemq_broker.server.wire.replica_reads import replica_lag
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import pack_host
from trovemq_proto.records.layout import QUEUE_OFFSET_AT
from trovemq_proto.v1 import common_pb2, message_pb2
from trovemq_store.engine.message_store import AppendResult

_DURABILITY: Final = {"disk": common_pb2.DISK, "memory": common_pb2.MEMORY}

PEERS_KNOWN: Final = 4_096


@lru_cache(maxsize=PEERS_KNOWN)
def born_host_of(peer: str) -> bytes | None:
    """The host form of a record for gRPC's name of the peer (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`).
    None if the peer has no address (a Unix socket).
    """
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    try:
        return pack_host(unquote(address))
    except TroveError:
        return None


def wire_durability(durability: Durability) -> common_pb2.Durability:
    return _DURABILITY[durability]


def wire_copies(copies: int) -> int:
    """The field `copies` of a reply: a single copy is not written."""
    return copies if copies > 1 else 0


def _status(error: TroveError) -> common_pb2.PutMessageStatus:
    return cast("common_pb2.PutMessageStatus", common_pb2.PutMessageStatus.Value(put_status(error)))


def append_reply(
    frame_id: int,
    result: AppendResult,
    durability: Durability,
    broker: str,
    append_time_us: int,
    copies: int = 1,
) -> message_pb2.AppendReply:
    reply = message_pb2.AppendReply(
        frame_id=frame_id,
        status=common_pb2.PUT_OK,
        first_queue_offset=result.first_queue_offset,
        physical_offset=result.physical_offset,
        record_count=result.message_count,
        store_timestamp=result.store_timestamp,
        durability=_DURABILITY[durability],
        store_host=result.store_host,
        append_time_us=append_time_us,
        broker=broker,
    )
    if copies > 1:
        reply.copies = copies
    if result.duplicates:
        reply.duplicate = True
    for index, place in result.duplicates.items():
        reply.duplicates.add(
            index=index,
            queue_id=place.queue_id,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            store_timestamp=place.store_timestamp,
        )
    for index, gap in result.gaps.items():
        reply.sequence_gaps.add(index=index, first=gap.first, last=gap.last)
    return reply


def mark_failed(reply: message_pb2.AppendReply, error: TroveError) -> None:
    """Marks a reply whose sync failed, or that waited too long for its sync or for the copies: the message is
    in the log of the broker, at least in memory."""
    reply.status = _status(error)
    reply.error.CopyFrom(error_to_wire(error))
    reply.copies = 0
    if error.spec is not errors.REPLICA_TIMEOUT:  # which says that the sync has ended
        reply.durability = common_pb2.MEMORY


def refused_reply(frame_id: int, error: TroveError, broker: str) -> message_pb2.AppendReply:
    return message_pb2.AppendReply(
        frame_id=frame_id,
        status=_status(error),
        error=error_to_wire(error),
        broker=broker,
    )


def outgoing_message(message: message_pb2.OutgoingMessage) -> OutgoingMessage:
    return OutgoingMessage(
        body=message.body,
        tag=message.tag,
        keys=tuple(message.keys),
        unique_key=message.unique_key,
        properties=dict(message.properties),
        flag=message.flag,
        born_timestamp=EpochMs(message.born_timestamp),
    )


def pull_request(request: message_pb2.FetchRequest) -> PullRequest:
    return PullRequest(
        request.topic,
        QueueId(request.queue_id),
        QueueOffset(request.offset),
        request.messages_max,
        request.bytes_max,
        tuple(request.tags),
        PhysicalOffset(request.topic_identity) if request.HasField("topic_identity") else None,
        request.max_lag_ms,
    )


def fetch_reply(
    fetch_id: int, result: PullResult, topic_identity: PhysicalOffset, replies_left: int = 0
) -> bytes:
    """A serialised FetchReply."""
    head = message_pb2.FetchReply(
        fetch_id=fetch_id,
        next_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        queue_offsets=result.queue_offsets,
        damaged_offsets=result.damaged_offsets,
        replies_left=replies_left,
        topic_identity=topic_identity,
        replica=None if result.replica is None else replica_lag(result.replica),
    )
    return write_with_records(head, result.slices, result.byte_count)


def fetch_error(fetch_id: int, error: TroveError) -> bytes:
    """A serialised FetchReply."""
    fields = error.fields
    return message_pb2.FetchReply(
        fetch_id=fetch_id,
        error=error_to_wire(error),
        min_offset=int(fields.get("min_offset", 0)),
        max_offset=int(fields.get("max_offset", 0)),
    ).SerializeToString()


def moved_offsets(records: Sequence[memoryview], queue_offsets: list[QueueOffset]) -> bytes:
    """The queue offset of each record, if one of them differs from the record's own; else nothing."""
    own = [int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], signed=True) for record in records]
    return b"" if own == queue_offsets else np.asarray(queue_offsets, "<i8").tobytes()
