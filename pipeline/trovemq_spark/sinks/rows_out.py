"""Makes the columns that the SDK sends from Arrow rows: one chunk for the rows of a topic and queue, in
order.

All rows of a chunk are sent in the same way: as columns, or one by one (those with a delay or a sharding key,
which a batch of columns cannot carry).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import DELAY_LEVELS_SECONDS

Int64s = NDArray[np.int64]
CHUNK_BYTES_MAX: Final = 1 << 20
"""Bytes of bodies, properties and the other parts of the records; one frame to the broker."""
CHUNK_ROWS_MAX: Final = 4096
RECORD_BYTES: Final = 320
"""The most bytes of a record without its body, keys, tag and properties."""


@dataclass(slots=True)
class Chunk:
    """Messages of one topic and one queue (None: any). Item i of each list belongs to message i; None: no
    message has one."""

    topic: str
    queue_id: int | None
    rows: Int64s
    """Their row numbers in the partition, from 0."""
    bodies: list[bytes]
    keys: list[Any] | None = None
    tags: list[str | None] | None = None
    properties: list[dict[str, str]] | None = None
    message_ids: list[str] | None = None
    groups: list[str | None] | None = None
    """Sharding keys."""
    delays_seconds: list[int] | None = None
    """0: no delay."""

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def sent_singly(self) -> bool:
        """Whether they cannot be sent as columns."""
        return self.groups is not None or self.delays_seconds is not None


@dataclass(frozen=True, slots=True)
class OutgoingPlan:
    """The part that is the same for all rows of a partition. `message_id_prefix`: makes deterministic message
    ids."""

    topic: str | None = None
    message_id_prefix: str | None = None


def chunks_of(batch: pa.RecordBatch, plan: OutgoingPlan, first_row: int) -> Iterator[Chunk]:
    """The chunks of a batch whose first row is number `first_row` of its partition.

    Raises TroveError REQUEST_ILLEGAL, TOPIC_ILLEGAL, QUEUE_NOT_FOUND with the row's number (field row).
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    _check_values(columns, plan, first_row)
    for rows in _alike(columns, plan, batch.num_rows):
        sizes = _sizes(columns, rows)
        for part in cut(sizes, rows):
            yield _chunk(columns, part, plan, first_row)


def cut(
    sizes: Int64s, rows: Int64s, bytes_max: int = CHUNK_BYTES_MAX, rows_max: int = CHUNK_ROWS_MAX
) -> Iterator[Int64s]:
    """`rows` in order, in parts of at most this many bytes and rows; a larger row is a separate part."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(rows):
        stop = int(np.searchsorted(ends, before + bytes_max, side="right"))
        stop = min(max(stop, start + 1), start + rows_max)
        yield rows[start:stop]
        start, before = stop, int(ends[stop - 1])


def _alike(columns: dict[str, pa.Array], plan: OutgoingPlan, count: int) -> Iterator[Int64s]:
    """The numbers of the rows that can share a chunk, each group in the order of its rows."""
    marks = []
    if plan.topic is None:
        marks.append(columns["topic"].dictionary_encode().indices.to_numpy())
    if "queueId" in columns:
        marks.append(pc.fill_null(columns["queueId"].cast(pa.int64()), -1).to_numpy())
    if "shardingKey" in columns:
        marks.append(columns["shardingKey"].is_valid().to_numpy(zero_copy_only=False))
    if "delayLevel" in columns:
        marks.append(pc.fill_null(columns["delayLevel"].cast(pa.int64()), 0).to_numpy() > 0)
    if not marks:
        yield np.arange(count)
        return
    together = np.stack([mark.astype(np.int64) for mark in marks], axis=1)
    groups, group_of = np.unique(together, axis=0, return_inverse=True)
    order = np.argsort(group_of.reshape(-1), kind="stable")
    yield from np.split(order, np.searchsorted(group_of.reshape(-1)[order], np.arange(1, len(groups))))


def _sizes(columns: dict[str, pa.Array], rows: Int64s) -> Int64s:
    """The approximate bytes of each record."""
    sizes: Int64s = pc.binary_length(columns["body"]).to_numpy().astype(np.int64) + RECORD_BYTES
    for name in ("keys", "tags", "messageId"):
        if name in columns and _is_text(columns[name].type):
            sizes += pc.fill_null(pc.binary_length(columns[name]), 0).to_numpy()
    if "properties" in columns:
        sizes += map_bytes(columns["properties"])
    return sizes[rows]


def map_bytes(maps: pa.MapArray) -> Int64s:
    """int64[n], the bytes of each map's names and values."""
    offsets = maps.offsets.to_numpy()
    first = int(offsets[0])
    sizes = np.zeros(int(offsets[-1]) - first + 1, np.int64)
    for texts in (maps.keys, maps.items):
        part = texts.slice(first, len(sizes) - 1)
        sizes[1:] += pc.fill_null(pc.binary_length(part), 0).to_numpy() + 1
    ends = np.cumsum(sizes)
    found: Int64s = ends[offsets[1:] - first] - ends[offsets[:-1] - first]
    return found


def _chunk(columns: dict[str, pa.Array], rows: Int64s, plan: OutgoingPlan, first_row: int) -> Chunk:
    taken = pa.array(rows)

    def column(name: str) -> pa.Array | None:
        """The column; None if it is missing or has only nulls."""
        found = columns[name].take(taken) if name in columns else None
        return None if found is None or found.null_count == len(found) else found

    queues, tags, groups = column("queueId"), column("tags"), column("shardingKey")
    keys, own, uniques, delays = (
        column("keys"),
        column("properties"),
        column("messageId"),
        column("delayLevel"),
    )
    numbers = rows + first_row
    chunk = Chunk(
        topic=columns["topic"][int(rows[0])].as_py() if plan.topic is None else plan.topic,
        queue_id=None if queues is None else queues[0].as_py(),
        rows=numbers,
        bodies=values(columns["body"].take(taken).cast(pa.binary())),
        keys=None if keys is None else key_values(keys),
        tags=None if tags is None else values(tags),
        properties=None if own is None else dicts(own),
        message_ids=None if uniques is None else [key or uuid.uuid4().hex for key in values(uniques)],
        groups=None if groups is None else values(groups),
    )
    if delays is not None and pc.any(pc.greater(delays, 0)).as_py():
        chunk.delays_seconds = [DELAY_LEVELS_SECONDS[level - 1] for level in delays.to_pylist()]
    if plan.message_id_prefix is not None:
        chunk.message_ids = numbered_keys(plan.message_id_prefix, numbers)
    return chunk


def numbered_keys(prefix: str, numbers: Int64s) -> list[str]:
    """prefix-NNNNNNNNNNNN for each number: keys of the same size are encoded fastest."""
    keys: list[str] = np.char.add(f"{prefix}-", np.char.zfill(numbers.astype("U20"), 12)).tolist()
    return keys


def values(array: pa.Array) -> list[Any]:
    """The items as Python objects, made by Arrow in one call."""
    found: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return found


def key_values(keys: pa.Array) -> list[Any]:
    """The keys as the SDK requires them: a text for one key, a list for several."""
    if not _is_text(keys.type):
        return keys.to_pylist()  # type: ignore[no-any-return]
    if not pc.any(pc.match_substring(keys, " ")).as_py():
        return values(keys)
    return pc.split_pattern(keys, " ").to_pylist()  # type: ignore[no-any-return]


def dicts(maps: pa.MapArray) -> list[dict[str, str]]:
    """One dict per row; an empty one for a null."""
    offsets = maps.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    names = values(maps.keys.slice(first, last - first))
    texts = values(maps.items.slice(first, last - first))
    pairs = list(zip(names, texts, strict=True))
    cuts = [offset - first for offset in offsets]
    return [dict(pairs[begin:end]) for begin, end in pairwise(cuts)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_values(columns: dict[str, pa.Array], plan: OutgoingPlan, first_row: int) -> None:
    """Refuses values that the SDK cannot take: missing required values, numbers out of range."""
    required = ("body",) if plan.topic is not None else ("body", "topic")
    for name in required:
        _refuse(columns[name].is_null(), first_row, f"{name} is null")
    if "queueId" in columns:
        _refuse(pc.less(columns["queueId"], 0), first_row, "queueId is negative")
    if "delayLevel" in columns:
        high = len(DELAY_LEVELS_SECONDS)
        levels = columns["delayLevel"].cast(pa.int64())
        outside = pc.or_(pc.less(levels, 0), pc.greater(levels, high))
        _refuse(outside, first_row, f"delayLevel is not 0..{high}")
        if "queueId" in columns:
            both = pc.and_kleene(pc.greater(levels, 0), columns["queueId"].is_valid())
            _refuse(both, first_row, "a delayed message gets its queue when it is due: leave queueId null")
    if "properties" in columns:
        items = columns["properties"].items
        if items.null_count:
            raise TroveError(errors.PROPERTY_ILLEGAL, "the value of a property is null: leave it out")


def _refuse(bad: pa.Array, first_row: int, what: str) -> None:
    found = pc.index(bad, value=True).as_py()
    if found >= 0:
        row = first_row + found
        raise TroveError(errors.REQUEST_ILLEGAL, f"row {row} of its partition: {what}", row=row)
