"""Frames of the Consume stream as the SDK's own values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import consumer_pb2

from .connection import Connection, Metadata, Stream
from .failures import error_from_wire
from .frames import split_records

_METHOD: Final = "/trovemq.v1.ConsumerService/Consume"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive messages of one queue, under one receipt."""

    queue_id: int
    first_offset: int
    count: int
    attempt: int
    receipt: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a settlement: `error` is that of all its messages, `refused` has those of single
    offsets."""

    settlement_id: int
    error: TroveError | None
    refused: dict[int, TroveError]


@dataclass(frozen=True, slots=True)
class ConsumeAnswer:
    """One reply: results, and a batch unless `batch` is 0. `joined`: another client has joined the group.
    `void_batch`: the messages of batches up to this one that the program has not begun are to be returned."""

    batch: int
    runs: list[Run]
    records: memoryview
    results: list[Result]
    stopped: bool
    joined: bool
    void_batch: int


def open_consume(connection: Connection, metadata: Metadata) -> Stream:
    """A Consume stream: it takes serialised frames, and `read` returns ConsumeAnswer."""
    return connection.open(_METHOD, consume_answer, metadata=metadata)


def consume_answer(data: bytes | bytearray) -> ConsumeAnswer:
    """Deserialises a ConsumeReply without copying its records."""
    records, rest = split_records(data)
    reply = consumer_pb2.ConsumeReply.FromString(rest)
    runs = [Run(one.queue_id, one.first_offset, one.count, one.attempt, one.receipt) for one in reply.runs]
    results = [
        Result(
            one.settlement_id,
            error_from_wire(one.error) if one.HasField("error") else None,
            {each.offset: error_from_wire(each.error) for each in one.refused},
        )
        for one in reply.results
    ]
    return ConsumeAnswer(reply.batch, runs, records, results, reply.stopped, reply.joined, reply.void_batch)


consume_answer.takes_view = True  # type: ignore[attr-defined]  # trovemq_rpc need not copy the message


def start_of(filter_type: str, filter_: str, invisible_ms: int | None) -> consumer_pb2.ConsumeStart:
    """The frame that starts the stream. invisible_ms None: the broker renews the leases."""
    return consumer_pb2.ConsumeStart(filter_type=filter_type, filter=filter_, invisible_ms=invisible_ms or 0)


def settlement(
    settlement_id: int, receipt: str, offsets: Sequence[int], change: tuple[int, bool] | None
) -> consumer_pb2.Settlement:
    """A settlement of the messages at these rising offsets. `change`: the invisible time in ms and `suspend`
    of returned messages; None: they are acknowledged."""
    made = consumer_pb2.Settlement(
        settlement_id=settlement_id, receipt=receipt, ranges=list(_ranges(offsets))
    )
    if change is not None:
        made.kind = consumer_pb2.RETURN
        made.invisible_ms, made.suspend = change
    return made


def _ranges(offsets: Sequence[int]) -> Iterable[int]:
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return first, len(offsets)
    found: list[int] = []
    end = -1
    for offset in offsets:
        if offset == end:
            found[-1] += 1
        else:
            found += (offset, 1)
        end = offset + 1
    return found


def consume_frame(
    group: str,
    topic: str,
    *,
    start: consumer_pb2.ConsumeStart | None = None,
    credit: tuple[int, int] = (0, 0),
    received_batch: int = 0,
    settlements: Iterable[consumer_pb2.Settlement] = (),
    stop: bool = False,
) -> bytes:
    """A serialised ConsumeFrame; `credit`: messages, negative if credit is taken back, and bytes."""
    return consumer_pb2.ConsumeFrame(
        group=group,
        topic=topic,
        start=start,
        credit_messages=credit[0],
        credit_bytes=credit[1],
        received_batch=received_batch,
        settlements=settlements,
        stop=stop,
    ).SerializeToString()
