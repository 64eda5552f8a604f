"""Appends of all kinds of records: files, results and errors are those of the former general way."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import BORN_HOST, SMALL_SYNC, flush, record, with_crc_property
from tests.unit.produce.old_appender import OldAppender
from tests.unit.produce.test_append import Bench
from trovemq_broker.produce import append as append_module
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import pack_host
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.validate import PART_ROWS_MAX
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

TOPICS: dict[str, dict[str, Any]] = {
    "orders": {},
    "grouped": {"message_type": "FIFO"},
    "ranked": {"options": {"order": "priority"}},
    "anything": {"message_type": "MIXED"},
    "once": {"options": {"deduplicate": "1h"}},  # refused here: there are no trees
}
RECORDS: tuple[dict[str, Any], ...] = (
    {},
    {"tag": "paid"},
    {"keys": "order-42", "unique_key": "0A0B"},
    {"properties": {"__SHARDINGKEY": "group"}},
    {"properties": {"_SYS_MSG_PRIORITY_": "3"}},
    {"properties": {"TROVEMQ_TX_ID": "1"}},
    {"properties": {"a": "v" * 600}},
    {"queue_id": 1},
    {"born_host": bytes(20)},
    {"sys_flag": 1},
)
PERMS = (2, 4, 6)
REFUSAL = TroveError(errors.SERVICE_NOT_AVAILABLE, "not now")

sends = st.tuples(
    st.just("send"),
    st.sampled_from(sorted(TOPICS)),
    st.lists(st.sampled_from(RECORDS), min_size=1, max_size=3),
    st.integers(0, 300) | st.integers(0, 9_000),
    st.booleans(),
)
uniform = st.tuples(
    st.just("uniform"),
    st.sampled_from(sorted(TOPICS)),
    st.sampled_from(RECORDS),
    st.integers(7, 50),
    st.integers(0, 90),
    st.integers(0, 9_000),
    st.sampled_from([0, 0, 0, 1, 0x80, 0xFF]),
)
PLAIN_QUEUES = [(topic, queue_id) for topic in ("orders", "anything") for queue_id in range(4)]
few_records = st.lists(st.sampled_from(RECORDS[:3]), min_size=1, max_size=3)
sent_to = st.tuples(few_records | few_records | st.just([{}] * (PART_ROWS_MAX + 1)), st.integers(0, 90))
joined = st.tuples(
    st.just("joined"),
    st.dictionaries(st.sampled_from(PLAIN_QUEUES), st.tuples(few_records, st.integers(0, 90)), min_size=1)
    | st.dictionaries(
        st.tuples(st.sampled_from(sorted(TOPICS)), st.integers(0, 3)), sent_to, min_size=1, max_size=18
    ),
    st.integers(0, 9_000),
    st.sampled_from([0, 0, 0, 0, 1, 0x80, 0xFF]),
    st.sampled_from([{}, {}, {}, *RECORDS[3:]]),
)
others = st.one_of(
    st.tuples(st.sampled_from(["hold", "drain"]), st.booleans()),
    st.tuples(st.just("perm"), st.sampled_from(sorted(TOPICS)), st.sampled_from(PERMS)),
    st.tuples(st.sampled_from(["again", "flush"]), st.sampled_from(sorted(TOPICS))),
    st.tuples(st.just("spoil"), st.sampled_from(sorted(TOPICS)), st.integers(0, 120), st.integers(0, 255)),
)


ROOMY_SYNC = replace(SMALL_SYNC, commit_log_file_size=1 << 20, batch_size_max=1 << 20, index_item_count=2_048)
"""Segments in which many records of a batch have space."""


def open_bench(settings: StoreSettings = SMALL_SYNC) -> Bench:
    bench = Bench(settings)
    for topic, values in TOPICS.items():
        if topic != "orders":
            bench.store.topics.create(topic, 4, **values)
    return bench


def encoded(bench: Bench, body: bytes, **fields: Any) -> bytes:
    """A record as the route says that this store wants it."""
    settings = bench.store.settings
    one = record(body, store_host=bytes(len(pack_host(settings.store_host))), **fields)
    return with_crc_property(one) if settings.append_property_crc else one


def append(bench: Bench, topic: str, data: bytes, *, owned: bool = False) -> object:
    """The result, or the error."""
    records = memoryview(bytearray(data)) if owned else data
    try:
        result = bench.appender.append(topic, QueueId(0), records, BORN_HOST, owned=owned)
    except TroveError as error:
        return error.symbol, str(error), error.fields
    return result._replace(positions=None), result.positions.tolist()  # type: ignore[arg-type]


def append_joined(
    bench: Bench,
    sent: dict[tuple[str, int], tuple[list[Any], int]],
    at: int,
    byte: int,
    last: dict[str, Any],
) -> object:
    """Records of several queues, the last of which also has the fields `last`; one byte is changed."""
    parts = [QueuePart(*queue, len(fields)) for queue, (fields, _) in sent.items()]
    data = bytearray()
    for (topic, queue_id), (chosen, size) in sent.items():
        for number, fields in enumerate(chosen):
            is_last = (topic, queue_id) == (parts[-1].topic, parts[-1].queue_id) and number == len(chosen) - 1
            named = {"queue_id": QueueId(queue_id), **fields, **(last if is_last else {})}
            data += encoded(bench, bytes(size), topic=topic, **named)
    data[at % len(data)] ^= byte
    try:
        results = bench.appender.append_joined(parts, data)
    except TroveError as error:
        return error.symbol, str(error), error.fields
    return [(result._replace(positions=None), result.positions.tolist()) for result in results]  # type: ignore[arg-type]


def act(bench: Bench, action: str, *values: Any) -> object:
    if action == "send":
        topic, chosen, size, owned = values
        data = b"".join(encoded(bench, bytes(size), topic=topic, **fields) for fields in chosen)
        return append(bench, topic, data, owned=owned)
    if action == "uniform":
        topic, fields, count, size, at, byte = values
        keyed = "unique_key" in fields
        names = [{"unique_key": f"{number:06}"} if keyed else {} for number in range(count)]
        bodies = [bytes([number % 251] * size) for number in range(count)]
        rows = zip(bodies, names, strict=True)
        spoiled = bytearray(
            b"".join(encoded(bench, body, topic=topic, **fields | name) for body, name in rows)
        )
        spoiled[at % len(spoiled)] ^= byte
        return append(bench, topic, bytes(spoiled))
    if action == "joined":
        return append_joined(bench, *values)
    if action == "spoil":
        topic, at, byte = values
        spoiled = bytearray(encoded(bench, b"body", topic=topic))
        spoiled[at % len(spoiled)] ^= byte
        return append(bench, topic, bytes(spoiled))
    if action in ("hold", "drain"):
        getattr(bench.appender, action)(REFUSAL if values[0] else None)
    elif action == "perm":
        bench.store.topics.alter(values[0], perm=values[1])
    elif action == "again":
        bench.store.delete_topic(values[0], bench.store.last_store_timestamp)
        bench.store.topics.create(values[0], 4, **TOPICS[values[0]])
    else:
        flush(bench.store)
    return None


def files_of(store: MessageStore) -> dict[str, bytes]:
    flush(store)
    files = store.files.inner
    assert isinstance(files, MemoryFileSystem)
    paths = [path for path in files._files if path.startswith(("commitlog/", "consumequeue/", "index/"))]
    return {path: files.read_bytes(path) for path in paths}


def by_oracle(settings: StoreSettings = SMALL_SYNC) -> Bench:
    bench = open_bench(settings)
    bench.appender.__class__ = OldAppender
    return bench


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("crc", [False, True])
@given(st.lists(sends | uniform | joined | others, max_size=25))
def test_files_results_and_errors_are_the_same(ipv6: bool, crc: bool, actions: list[tuple[Any, ...]]) -> None:
    settings = replace(SMALL_SYNC, append_property_crc=crc, store_host="[::1]:1" if ipv6 else "10.0.0.1:1")
    bench, other = open_bench(settings), by_oracle(settings)
    assert [act(bench, *action) for action in actions] == [act(other, *action) for action in actions]
    assert files_of(bench.store) == files_of(other.store)


LARGE: tuple[dict[str, Any], ...] = (
    {"unique_key": "0"},
    {"tag": "paid", "unique_key": "0"},
    {"properties": {"a": "v" * 600}},
    {"properties": {"__SHARDINGKEY": "group"}},
    {"born_host": bytes(20)},
)


@given(
    st.lists(
        st.tuples(st.sampled_from(LARGE), st.sampled_from([7, 8, 31, 33, 256]), st.integers(0, 90)),
        max_size=4,
    )
)
def test_large_batches_are_stored_alike(sends: list[tuple[dict[str, Any], int, int]]) -> None:
    actions = [("uniform", "orders", fields, count, size, 0, 0) for fields, count, size in sends]
    bench, other = open_bench(ROOMY_SYNC), by_oracle(ROOMY_SYNC)
    assert [act(bench, *action) for action in actions] == [act(other, *action) for action in actions]
    assert files_of(bench.store) == files_of(other.store)


def test_a_queue_follows_changes_of_its_topic() -> None:
    """A topic that was made read-only took messages to queues that had been written before."""
    bench = open_bench()
    data = encoded(bench, b"body")
    append(bench, "orders", data)
    bench.store.topics.alter("orders", perm=4)
    refused = append(bench, "orders", data)
    assert isinstance(refused, tuple)
    assert refused[0] == "SERVICE_NOT_AVAILABLE"


def test_the_known_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "QUEUES_KNOWN", 2)
    bench = open_bench()
    for queue_id in range(4):
        for _ in range(2):
            bench.appender.append("orders", QueueId(queue_id), encoded(bench, b"", queue_id=queue_id), None)
    assert len(bench.appender._queues) <= 2
    assert files_of(bench.store)


def test_a_failed_write_leaves_no_trace_of_a_single_record() -> None:
    """Of batches, too: the next message has the offset of the refused one."""
    bench = open_bench()
    append(bench, "orders", encoded(bench, b"one"))
    end = bench.store.end_offset
    segment = next(iter(bench.store.log.segments))

    def fail(*_arguments: object) -> None:
        raise StorageError("write", "commitlog/0", errno.EIO, "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment.file, "write", fail)
        assert append(bench, "orders", encoded(bench, b"two"))[0] == "UNKNOWN_ERROR"  # type: ignore[index]
    assert bench.store.end_offset == end
    result = bench.appender.append("orders", QueueId(0), encoded(bench, b"three"), None)
    assert (result.first_queue_offset, result.physical_offset) == (1, end)
