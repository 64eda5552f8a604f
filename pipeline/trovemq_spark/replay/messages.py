"""A replayed message has the body, keys, tag, message id, sharding key and user properties of the original,
and its origin. Its place, store time and born time are new.

| property                     | value                                     |
|------------------------------|-------------------------------------------|
| TROVE_REPLAY_RUN             | which replay sent it: its ledger's `run`  |
| TROVE_REPLAY_TOPIC           | the original's topic                      |
| TROVE_REPLAY_BROKER          | its broker, if known                      |
| TROVE_REPLAY_QUEUE           | its queue                                 |
| TROVE_REPLAY_OFFSET          | its queue offset                          |
| TROVE_REPLAY_MSG_ID          | its offsetMsgId                           |
| TROVE_REPLAY_BORN_TIMESTAMP  | epoch ms                                  |
| TROVE_REPLAY_STORE_TIMESTAMP | epoch ms                                  |

Left out: RocketMQ's other names (RESERVED_PROPERTIES: delays, transactions, retries, dead letters, POP …) and
TroveMQ's own (internal_properties.py), with which the broker would process the message again like the
original, and these names of an earlier replay. If the message id is missing or cannot be sent (too long, with
a space), one is made from the original's place.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trovemq_proto.records.internal_properties import INTERNAL_PREFIX, TRANSIENT_PREFIX
from trovemq_proto.records.layout import PROPERTY_SHARDING_KEY, RESERVED_PROPERTIES
from trovemq_proto.records.properties import UNIQUE_KEY_SIZE_MAX
from trovemq_spark.replay.ledger import SourceQueue
from trovemq_spark.sinks.rows_out import RECORD_BYTES, Chunk, Int64s, dicts, key_values, map_bytes, values

PREFIX: Final = "TROVE_REPLAY_"
RUN: Final = f"{PREFIX}RUN"
TOPIC: Final = f"{PREFIX}TOPIC"
BROKER: Final = f"{PREFIX}BROKER"
QUEUE: Final = f"{PREFIX}QUEUE"
OFFSET: Final = f"{PREFIX}OFFSET"
MSG_ID: Final = f"{PREFIX}MSG_ID"
BORN_TIMESTAMP: Final = f"{PREFIX}BORN_TIMESTAMP"
STORE_TIMESTAMP: Final = f"{PREFIX}STORE_TIMESTAMP"
_OWN_BYTES: Final = 600
"""The most bytes of these properties, without the topic's name."""

COLUMNS: Final = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "offsetMsgId",
    "keys",
    "tags",
    "messageId",
    "body",
    "properties",
    "bornTimestamp",
    "storeTimestamp",
)
"""The columns that are read from the source."""


def record_sizes(rows: pa.RecordBatch) -> Int64s:
    """int64[n], the approximate bytes of each message when it is sent."""
    sizes: Int64s = pc.fill_null(pc.binary_length(rows.column("body")), 0).to_numpy().astype(np.int64)
    return sizes + map_bytes(rows.column("properties")) + RECORD_BYTES + _OWN_BYTES


def replayed(rows: pa.RecordBatch, queue: SourceQueue, run: str, target: tuple[str, int]) -> Chunk:
    """The messages of these rows, all of one source queue. target: (topic, queue id)."""
    maps = rows.column("properties")
    own = dicts(_user_properties(maps))
    for properties, origin in zip(own, _origins(rows, queue, run), strict=True):
        properties.update(origin)
    keys, tags = rows.column("keys"), rows.column("tags")
    groups = pc.map_lookup(maps, pa.scalar(PROPERTY_SHARDING_KEY), "last")
    return Chunk(
        topic=target[0],
        queue_id=target[1],
        rows=rows.column("queueOffset").to_numpy(),
        bodies=values(rows.column("body").cast(pa.binary())),
        keys=None if keys.null_count == len(keys) else key_values(keys),
        tags=None if tags.null_count == len(tags) else values(tags),
        properties=own,
        message_ids=_unique_keys(rows, queue),
        groups=None if groups.null_count == len(groups) else values(groups),
    )


def _origins(rows: pa.RecordBatch, queue: SourceQueue, run: str) -> list[dict[str, str]]:
    """The origin of each message, as properties."""
    same = {RUN: run, TOPIC: queue.topic, QUEUE: str(queue.queue_id)}
    if queue.broker:
        same[BROKER] = queue.broker
    columns: dict[str, list[Any]] = {OFFSET: _texts(rows.column("queueOffset"))}
    columns[MSG_ID] = values(rows.column("offsetMsgId"))
    for name, column in ((BORN_TIMESTAMP, "bornTimestamp"), (STORE_TIMESTAMP, "storeTimestamp")):
        columns[name] = _texts(
            rows.column(column).cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        )
    return [
        same | {name: text for name, text in zip(columns, row, strict=True) if text}
        for row in zip(*columns.values(), strict=True)
    ]


def _texts(numbers: pa.Array) -> list[Any]:
    return values(numbers.cast(pa.string()))


def _user_properties(maps: pa.MapArray) -> pa.MapArray:
    """The maps without the names that may not, or need not, be sent again."""
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names, items = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    reserved = pc.is_in(names, value_set=pa.array(sorted(RESERVED_PROPERTIES), names.type))
    for prefix in (PREFIX, INTERNAL_PREFIX, TRANSIENT_PREFIX):
        reserved = pc.or_(reserved, pc.starts_with(names, prefix))
    kept = pc.invert(reserved)
    before = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False), dtype=np.int32)))
    cuts = pa.array(before[offsets - first].astype(np.int32))
    return pa.MapArray.from_arrays(cuts, names.filter(kept), items.filter(kept))


def _unique_keys(rows: pa.RecordBatch, queue: SourceQueue) -> list[str]:
    keys = rows.column("messageId")
    bad = pc.or_(
        pc.greater(pc.binary_length(keys), UNIQUE_KEY_SIZE_MAX), pc.match_substring_regex(keys, "[ \x01\x02]")
    )
    bad = pc.fill_null(pc.or_(bad, pc.equal(keys, "")), True)
    if not pc.any(bad).as_py():
        return values(keys)
    made = pc.binary_join_element_wise(
        f"replay-{queue.topic}-{queue.broker}-{queue.queue_id}"[: UNIQUE_KEY_SIZE_MAX - 40].replace(" ", "_"),
        rows.column("queueOffset").cast(pa.string()),
        "-",
    )
    return values(pc.if_else(bad, made, keys))


def offsets_of(properties: pa.MapArray, queue: SourceQueue, run: str) -> list[int]:
    """The original queue offsets of the messages of this queue that this run has sent, in order."""

    def is_value(name: str, value: str) -> pa.Array:
        return pc.fill_null(pc.equal(pc.map_lookup(properties, pa.scalar(name), "last"), value), False)

    ours = pc.and_(is_value(RUN, run), is_value(TOPIC, queue.topic))
    ours = pc.and_(ours, is_value(QUEUE, str(queue.queue_id)))
    if queue.broker:
        ours = pc.and_(ours, is_value(BROKER, queue.broker))
    found = pc.map_lookup(properties, pa.scalar(OFFSET), "last").filter(ours)
    return [int(text) for text in found.to_pylist()]
