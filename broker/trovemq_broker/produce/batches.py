"""Batches that wait to be appended together, and the part of the result that each sender gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, Protocol, TypeAlias

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records.layout import BORN_HOST_AT, HOST_SIZE_IPV4, RECORD_SIZE_MIN
from trovemq_proto.records.limits import PORT_MAX
from trovemq_store.engine.append_result import FIRST, NO_ORIGINALS, AppendResult, new_result
from trovemq_store.files.files import Buffer
from trovemq_store.topics.creators import Creator

COPY_SIZE_MAX: Final = 4 << 10
"""Bytes of a batch whose record_count is not known: a smaller one costs less if it is copied and appended
with others (bench/second_paths.py, "frames"). Gathered bytes do not count towards unsynced_bytes_max."""
_HEAD: Final = Struct(">i32xi12xi")  # TOTALSIZE, SYSFLAG and the born port of a record with IPv4 hosts
assert _HEAD.size == BORN_HOST_AT + HOST_SIZE_IPV4, "all fields up to the born host"


class Batch(NamedTuple):
    """Encoded records for one queue.

    record_count: of the records, each of which has its own born host; 0: not known. born_host: the sender's
    address, for all records; None: each has its own. owned: the records are a writable view that the caller
    never uses again, so they are not copied. stream: batches with the same one keep their order in the log
    across queues. split: parts of the batch, of several senders, each with its own Done; if the batch is
    refused, they are appended one after the other instead, and the batch's own Done is not called.
    """

    topic: str
    queue_id: QueueId
    records: Buffer
    record_count: int = 0
    born_host: bytes | None = None
    owned: bool = False
    stream: object = None
    split: Callable[[], Iterable[tuple[Batch, Done]]] | None = None


class Done(Protocol):
    """Is called once with the result of a batch, or with the reason why it was not appended. Must not raise.

    ended_at: when the append ended, by time.perf_counter(). error: of its sync; the records are in the log
    all the same.
    """

    def __call__(
        self, outcome: AppendResult | Exception, ended_at: float = 0.0, error: TroveError | None = None, /
    ) -> None: ...


_new_batch: Final = partial(tuple.__new__, Batch)  # without a Python call
Waiting: TypeAlias = tuple[Batch, Done, Creator]
"""The creator: the batch's caller, in whose name it may create its topic."""


def joinable(batch: Batch) -> Batch | None:
    """A copy of a small record with IPv4 hosts, with the born host of its sender; None of any other batch."""
    topic, queue_id, records, _, born_host, owned, stream, _ = batch
    found = len(records)
    if born_host is None or len(born_host) != HOST_SIZE_IPV4 or not RECORD_SIZE_MIN <= found <= COPY_SIZE_MAX:
        return None
    size, sys_flag, born_port = _HEAD.unpack_from(records)
    if size != found or sys_flag or not 0 <= born_port <= PORT_MAX:
        return None
    record = memoryview(records if owned else bytearray(records))
    record[BORN_HOST_AT : BORN_HOST_AT + HOST_SIZE_IPV4] = born_host
    return _new_batch((topic, queue_id, record, 1, None, True, stream, None))


def record_count(waiting: Sequence[Waiting]) -> int:
    """The records of all batches."""
    return sum([batch.record_count for batch, _, _ in waiting])


def fail_all(waiting: Iterable[Waiting], error: Exception) -> None:
    """Answers each batch with the error."""
    for _, done, _ in waiting:
        done(error)


def parts_of(waiting: Iterable[Waiting], result: AppendResult) -> list[AppendResult]:
    """The part of each batch; none of them has duplicates or gaps."""
    status, begin, _, store_timestamp, queue_offset, _, store_host, positions, *_ = result
    parts, first, place = [], 0, 0
    for (_, _, records, count, *_), _, _ in waiting:
        size = len(records)
        parts.append(
            new_result(
                (
                    status,
                    begin + place,
                    size,
                    store_timestamp,
                    queue_offset + first,
                    count,
                    store_host,
                    FIRST if count == 1 else positions[first : first + count] - place,
                    *NO_ORIGINALS,
                )
            )
        )
        first += count
        place += size
    return parts
