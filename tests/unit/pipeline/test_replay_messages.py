"""The fields of a replayed message, against a model; which messages are recognised as a run's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.records.layout import RESERVED_PROPERTIES
from trovemq_proto.records.properties import check_unique_key, message_properties
from trovemq_spark.replay.ledger import SourceQueue
from trovemq_spark.replay.messages import COLUMNS, PREFIX, offsets_of, record_sizes, replayed
from trovemq_spark.replay.task import by_queue
from trovemq_spark.table.schema import arrow_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.text("abc", min_size=1, max_size=4)
USER_NAMES = TEXT
NAMES = (
    USER_NAMES
    | st.sampled_from(sorted(RESERVED_PROPERTIES))
    | st.sampled_from([f"{PREFIX}RUN", "__RMQ.TRANSIENT.x"])
)
ROW = st.fixed_dictionaries(
    {
        "queueOffset": st.integers(0, 1 << 40),
        "offsetMsgId": TEXT,
        "keys": st.none() | st.lists(TEXT, min_size=1, max_size=3).map(" ".join),
        "tags": st.none() | TEXT,
        "messageId": st.none() | TEXT | st.sampled_from(["", "a b", "x" * 256]),
        "body": st.binary(max_size=9),
        "properties": st.none() | st.dictionaries(NAMES, TEXT, max_size=5),
        "born": st.integers(0, 1 << 41),
        "stored": st.integers(0, 1 << 41),
    }
)


def batch_of(rows: list[dict[str, Any]], queues: list[SourceQueue]) -> pa.RecordBatch:
    table = [
        {
            **row,
            "topic": queue.topic,
            "brokerName": queue.broker or None,
            "queueId": queue.queue_id,
            "bornTimestamp": EPOCH + timedelta(milliseconds=row["born"]),
            "storeTimestamp": EPOCH + timedelta(milliseconds=row["stored"]),
        }
        for row, queue in zip(rows, queues, strict=True)
    ]
    return pa.RecordBatch.from_pylist(table, schema=arrow_schema(COLUMNS))


@given(
    rows=st.lists(ROW, min_size=1, max_size=8),
    broker=st.sampled_from(["", "broker-a"]),
    cut=st.integers(0, 7),
)
def test_a_message_keeps_the_users_properties_and_names_its_origin(
    rows: list[dict[str, Any]], broker: str, cut: int
) -> None:
    queue = SourceQueue("orders", broker, 5)
    begin = min(cut, len(rows) - 1)
    batch = batch_of(rows, [queue] * len(rows)).slice(begin)
    chunk = replayed(batch, queue, "run-1", ("target", 2))
    assert (chunk.topic, chunk.queue_id, chunk.delays_seconds) == ("target", 2, None)
    assert chunk.properties is not None
    assert chunk.message_ids is not None
    for i, row in enumerate(rows[begin:]):
        own = row["properties"] or {}
        kept = {
            name: text
            for name, text in own.items()
            if name not in RESERVED_PROPERTIES and not name.startswith((PREFIX, "__RMQ.TRANSIENT."))
        }
        origin = {
            "RUN": "run-1",
            "TOPIC": "orders",
            "QUEUE": "5",
            "OFFSET": str(row["queueOffset"]),
            "MSG_ID": row["offsetMsgId"],
            "BORN_TIMESTAMP": str(row["born"]),
            "STORE_TIMESTAMP": str(row["stored"]),
        } | ({"BROKER": broker} if broker else {})
        assert chunk.properties[i] == kept | {PREFIX + name: text for name, text in origin.items()}
        assert chunk.bodies[i] == row["body"]
        assert (chunk.tags[i] if chunk.tags else None) == row["tags"]
        keys = chunk.keys[i] if chunk.keys else None
        assert (keys if keys is None or isinstance(keys, str) else " ".join(keys)) == row["keys"]
        assert (chunk.groups[i] if chunk.groups else None) == own.get("__SHARDINGKEY")
        check_unique_key(chunk.message_ids[i])
        if row["messageId"] and " " not in row["messageId"] and len(row["messageId"]) < 256:
            assert chunk.message_ids[i] == row["messageId"]
        message_properties(chunk.message_ids[i], keys, row["tags"], chunk.properties[i])
    sizes = record_sizes(batch)
    for size, body, properties in zip(sizes.tolist(), chunk.bodies, chunk.properties, strict=True):
        assert size >= len(body) + sum(len(name) + len(text) + 2 for name, text in properties.items())


RUNS = st.sampled_from(["run-1", "run-2"])
SOURCES = st.builds(
    SourceQueue, st.sampled_from(["one", "two"]), st.sampled_from(["", "b"]), st.integers(0, 2)
)


@given(sent=st.lists(st.tuples(RUNS, SOURCES, st.integers(0, 99)), max_size=20), run=RUNS, queue=SOURCES)
def test_only_messages_of_this_run_and_queue_are_its_own(
    sent: list[tuple[str, SourceQueue, int]], run: str, queue: SourceQueue
) -> None:
    maps: list[dict[str, str] | None] = [None, {"user": "1"}]
    expected = []
    for other_run, source, offset in sent:
        own = {f"{PREFIX}RUN": other_run, f"{PREFIX}TOPIC": source.topic, f"{PREFIX}OFFSET": str(offset)}
        own[f"{PREFIX}QUEUE"] = str(source.queue_id)
        maps.append(own | ({f"{PREFIX}BROKER": source.broker} if source.broker else {}))
        # A source that names brokers names all of them, so "" meets no other.
        same = source == queue or (not queue.broker and source.topic == queue.topic)
        if other_run == run and same and source.queue_id == queue.queue_id:
            expected.append(offset)
    assert offsets_of(pa.array(maps, pa.map_(pa.string(), pa.string())), queue, run) == expected


@given(queues=st.lists(SOURCES, max_size=12))
def test_a_sorted_batch_is_cut_where_its_queues_change(queues: list[SourceQueue]) -> None:
    queues = sorted(queues)
    row = {"queueOffset": 0, "offsetMsgId": "m", "body": b"", "born": 0, "stored": 0}
    rows: list[dict[str, Any]] = [row | {"queueOffset": i} for i in range(len(queues))]
    found = list(by_queue(batch_of(rows, queues)))
    assert [queue for queue, _ in found] == sorted(set(queues))
    seen = [(queue, offset) for queue, part in found for offset in part.column("queueOffset").to_pylist()]
    assert seen == [(queue, i) for i, queue in enumerate(queues)]
