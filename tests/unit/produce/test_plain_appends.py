"""A few records take the short way or that of batches: files, results and errors are the same."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import BORN_HOST, SMALL_SYNC, flush
from tests.unit.produce.test_append import Bench, record
from trovemq_broker.produce import plain_appends
from trovemq_broker.produce.plain_appends import PART_MAX
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records.columns import QueuePart
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
sent_to = st.tuples(few_records | few_records | st.just([{}] * (PART_MAX + 1)), st.integers(0, 90))
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


def append(bench: Bench, topic: str, data: bytes, *, owned: bool = False) -> object:
    """The result, or the error."""
    records = memoryview(bytearray(data)) if owned else data
    try:
        result = bench.appender.append(topic, QueueId(0), records, BORN_HOST, owned=owned)
    except TroveError as error:
        return error.symbol, str(error)
    return result._replace(positions=None), result.positions.tolist()  # type: ignore[arg-type]


def append_joined(
    bench: Bench, sent: dict[tuple[str, int], tuple[list[Any], int]], at: int, byte: int, last: dict[str, Any]
) -> object:
    """Records of several queues, the last of which also has the fields `last`; one byte is changed."""
    parts = [QueuePart(*queue, len(fields)) for queue, (fields, _) in sent.items()]
    data = bytearray()
    for (topic, queue_id), (chosen, size) in sent.items():
        for number, fields in enumerate(chosen):
            is_last = (topic, queue_id) == (parts[-1].topic, parts[-1].queue_id) and number == len(chosen) - 1
            named = {"queue_id": QueueId(queue_id), **fields, **(last if is_last else {})}
            data += record(bytes(size), topic=topic, **named)
    data[at % len(data)] ^= byte
    try:
        results = bench.appender.append_joined(parts, data)
    except TroveError as error:
        return error.symbol, str(error)
    return [(result._replace(positions=None), result.positions.tolist()) for result in results]  # type: ignore[arg-type]


def act(bench: Bench, action: str, *values: Any) -> object:
    if action == "send":
        topic, chosen, size, owned = values
        data = b"".join(record(bytes(size), topic=topic, **fields) for fields in chosen)
        return append(bench, topic, data, owned=owned)
    if action == "uniform":
        topic, fields, count, size, at, byte = values
        keyed = "unique_key" in fields
        names = [{"unique_key": f"{number:06}"} if keyed else {} for number in range(count)]
        bodies = [bytes([number % 251] * size) for number in range(count)]
        rows = zip(bodies, names, strict=True)
        spoiled = bytearray(b"".join(record(body, topic=topic, **fields | name) for body, name in rows))
        spoiled[at % len(spoiled)] ^= byte
        return append(bench, topic, bytes(spoiled))
    if action == "joined":
        return append_joined(bench, *values)
    if action == "spoil":
        topic, at, byte = values
        spoiled = bytearray(record(b"body", topic=topic))
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


def by_batches(patch: pytest.MonkeyPatch) -> None:
    for name in ("append", "append_joined"):
        patch.setattr(plain_appends.PlainAppends, name, lambda *_args, **_named: None)


@given(st.lists(sends | uniform | joined | others, max_size=25))
def test_both_ways_do_the_same(actions: list[tuple[Any, ...]]) -> None:
    bench = open_bench()
    plain = [act(bench, *action) for action in actions]
    with pytest.MonkeyPatch.context() as patch:
        by_batches(patch)
        other = open_bench()
        assert [act(other, *action) for action in actions] == plain
    assert files_of(bench.store) == files_of(other.store)


@given(st.lists(st.tuples(st.sampled_from([7, 8, 33, 256, 257]), st.integers(0, 90)), min_size=2, max_size=6))
def test_large_batches_are_stored_alike_by_both_ways(sizes: list[tuple[int, int]]) -> None:
    bench = open_bench(ROOMY_SYNC)
    actions = [
        ("uniform", "orders", {"tag": "paid", "unique_key": "0"}, count, size, 0, 0) for count, size in sizes
    ]
    with pytest.MonkeyPatch.context() as patch:
        taken = count_ways(bench, patch)
        plain = [act(bench, *action) for action in actions]
        assert taken() >= len(actions) - 1, "all but the first of the queue"
    with pytest.MonkeyPatch.context() as patch:
        by_batches(patch)
        other = open_bench(ROOMY_SYNC)
        assert [act(other, *action) for action in actions] == plain
    assert files_of(bench.store) == files_of(other.store)


def test_a_uniform_batch_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench()
    taken = count_ways(bench, monkeypatch)
    for count in (1, 50, 8):
        act(bench, "uniform", "orders", {"tag": "paid", "unique_key": "0"}, count, 60, 0, 0)
    assert taken() == 2, "all but the first of the segment and queue"
    flush(bench.store)
    queue = bench.store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert len({code for _, _, code in queue.units(QueueOffset(0), 59).tolist()}) == 1
    assert queue.max_offset == 59


def count_ways(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how many appends took the short way so far."""
    taken = 0
    append_plain = bench.store.append_plain

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal taken
        result = append_plain(*args, **named)
        taken += result is not None
        return result

    monkeypatch.setattr(bench.store, "append_plain", counted)
    return lambda: taken


def test_single_messages_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench()
    taken = count_ways(bench, monkeypatch)
    for number in range(9):
        append(bench, "orders", record(b"body", tag="paid", keys="order-42", unique_key=f"{number}"))
    assert taken() == 8, "all but the first of the segment and queue"


@given(st.lists(joined, min_size=1, max_size=8))
def test_joined_appends_do_the_same_by_both_ways(actions: list[tuple[Any, ...]]) -> None:
    """After one to every queue."""
    actions = [("joined", {queue: ([{}], 9) for queue in PLAIN_QUEUES}, 0, 0, {}), *actions]
    bench = open_bench(ROOMY_SYNC)
    plain = [(act(bench, *action), len(bench.store.dispatch())) for action in actions]
    with pytest.MonkeyPatch.context() as patch:
        by_batches(patch)
        other = open_bench(ROOMY_SYNC)
        assert [(act(other, *action), len(other.store.dispatch())) for action in actions] == plain
    assert files_of(bench.store) == files_of(other.store)


def test_joined_appends_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(ROOMY_SYNC)
    taken = list[bool]()
    append_plain = bench.appender._plain.append_joined

    def counted(*args: Any, **named: Any) -> Any:
        results = append_plain(*args, **named)
        taken.append(results is not None)
        return results

    monkeypatch.setattr(bench.appender._plain, "append_joined", counted)
    sent = {("orders", queue_id): ([{"tag": "paid"}, {}], 20) for queue_id in range(4)}
    sent[("anything", 2)] = ([{}], 30)
    for _ in range(3):
        assert act(bench, "joined", sent, 0, 0, {})
    assert act(bench, "joined", sent | {("anything", 3): ([{}] * (PART_MAX + 1), 1)}, 0, 0, {})
    assert taken == [False, True, True, False], "all but the first of the segment and queues, and a long one"
    flush(bench.store)
    queue = bench.store.consume_queues.get("orders", QueueId(3))
    assert queue is not None
    assert [code != 0 for _, _, code in queue.units(QueueOffset(0), 8).tolist()] == [True, False] * 4


def test_a_queue_is_learnt_again_when_its_topic_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench()
    taken = count_ways(bench, monkeypatch)
    data = record(b"body")
    for _ in range(3):
        append(bench, "orders", data)
    bench.store.topics.alter("orders", options={"order": "priority"})
    before = taken()
    assert before == 2
    append(bench, "orders", data)
    assert taken() == before


def test_the_known_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_appends, "QUEUES_KNOWN", 2)
    bench = open_bench()
    for queue_id in range(4):
        for _ in range(2):
            bench.appender.append("orders", QueueId(queue_id), record(b"", queue_id=QueueId(queue_id)), None)
    assert len(bench.appender._plain._queues) <= 2
    assert files_of(bench.store)


def test_a_failed_write_leaves_no_trace_of_a_single_record() -> None:
    """As test_append's for batches: the next message has the offset of the refused one."""
    bench = open_bench()
    append(bench, "orders", record(b"one"))
    end = bench.store.end_offset
    segment = next(iter(bench.store.log.segments))

    def fail(*_arguments: object) -> None:
        raise StorageError("write", "commitlog/0", errno.EIO, "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment.file, "write", fail)
        assert append(bench, "orders", record(b"two"))[0] == "UNKNOWN_ERROR"  # type: ignore[index]
    assert bench.store.end_offset == end
    result = bench.appender.append("orders", QueueId(0), record(b"three"), None)
    assert (result.first_queue_offset, result.physical_offset) == (1, end)
