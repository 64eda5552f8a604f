"""Batches of several queues in one run: the store has the same bytes as after one append for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, open_store, read_queue, record, with_crc_property
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.validate import read_batch, read_parts
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

TOPICS = ("orders", "others", "o" * 127)
ROOMY = replace(SMALL, commit_log_file_size=1 << 18, batch_size_max=1 << 17)
Queue = tuple[str, QueueId]
Sends = dict[Queue, list[int]]
"""By queue, the sizes of the bodies."""

queues = st.tuples(st.sampled_from(TOPICS), st.integers(0, 3).map(QueueId))
turns = st.dictionaries(queues, st.lists(st.integers(0, 60), min_size=1, max_size=9), min_size=1, max_size=6)


def records_of(queue: Queue, sizes: Sequence[int]) -> bytearray:
    """Messages of odd sizes have a tag and a key."""
    return bytearray().join(
        with_crc_property(
            record(
                bytes(size),
                topic=queue[0],
                queue_id=queue[1],
                tag="t" * (size % 2),
                keys="k" * (size % 2),
                unique_key=f"u{number}",
            )
        )
        for number, size in enumerate(sizes)
    )


def checked_parts(data: bytearray, parts: Sequence[QueuePart]) -> RecordBatch:
    rules = [rules_of((part.topic, QueueId(part.queue_id))) for part in parts]
    return read_parts(memoryview(data), parts, rules)


def checked(data: bytearray, queue: Queue) -> RecordBatch:
    return read_batch(memoryview(data), rules_of(queue))


def rules_of(queue: Queue) -> QueueRules:
    return QueueRules(*queue, body_size_max=8_192, store_host_ipv6=False, append_property_crc=True)


def append_joined(store: MessageStore, sent: Sends) -> None:
    parts = [QueuePart(*queue, len(sizes)) for queue, sizes in sent.items()]
    data = bytearray().join(records_of(queue, sizes) for queue, sizes in sent.items())
    store.append(checked_parts(data, parts), parts, NOW_MS)


def append_singly(store: MessageStore, sent: Sends) -> None:
    for queue, sizes in sent.items():
        data = records_of(queue, sizes)
        batch = checked(data, queue)
        store.append(batch, ((*queue, len(batch)),), NOW_MS)


def stored(sent: Sequence[Sends], *, joined: bool) -> dict[str, bytes]:
    """All files of a store that got these sends, turn by turn."""
    files = MemoryFileSystem()
    store = open_store(files, ROOMY, topics=TOPICS)
    for turn in sent:
        (append_joined if joined else append_singly)(store, turn)
        store.dispatch()
    store.close(NOW_MS)
    directories = ["commitlog", "index"]
    for topic in files.list("consumequeue"):
        directories += [f"consumequeue/{topic}/{queue}" for queue in files.list(f"consumequeue/{topic}")]
    names = [f"{directory}/{name}" for directory in directories for name in files.list(directory)]
    return {name: files.read_bytes(name) for name in names}


@given(st.lists(turns, min_size=1, max_size=4))
def test_the_store_has_the_same_bytes(sent: list[Sends]) -> None:
    assert stored(sent, joined=True) == stored(sent, joined=False)


@given(turns, st.data())
def test_parts_are_refused_as_batches_of_their_queues_are(sent: Sends, data: st.DataObject) -> None:
    parts = [QueuePart(*queue, len(sizes)) for queue, sizes in sent.items()]
    batches = [records_of(queue, sizes) for queue, sizes in sent.items()]
    damaged = data.draw(st.sampled_from(batches))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    refused = 0
    for queue, batch in zip(sent, batches, strict=True):
        with suppress(TroveError):
            checked(batch, queue)
            continue
        refused += 1
    joined = bytearray().join(batches)
    with pytest.raises(TroveError) if refused else nullcontext():
        assert len(checked_parts(joined, parts)) == sum(map(len, sent.values()))


def test_a_run_that_is_refused_uses_no_queue_offset() -> None:
    store = open_store(MemoryFileSystem(), SMALL, topics=TOPICS)
    before = store.end_offset
    with pytest.raises(TroveError, match="do not fit"):
        append_joined(store, {("orders", QueueId(0)): [7_000], ("others", QueueId(0)): [7_000]})
    assert store.end_offset == before
    append_joined(store, {("orders", QueueId(0)): [6_000], ("others", QueueId(0)): [5_000]})
    store.dispatch()
    assert [store.consume_queues.next_offset(topic, QueueId(0)) for topic in TOPICS] == [1, 1, 0]
    store.close(NOW_MS)


def test_parts_that_do_not_have_all_records_are_refused() -> None:
    data = records_of(("orders", QueueId(0)), [1, 2])
    with pytest.raises(TroveError, match="another number of records"):
        checked_parts(data, [QueuePart("orders", 0, 1)])


@pytest.mark.parametrize("count", [1, 40])
def test_a_queue_that_came_twice_in_a_batch_had_a_gap(count: int) -> None:
    """As rows, and as columns."""
    store = open_store(MemoryFileSystem(), ROOMY, topics=TOPICS)
    first, other = ("orders", QueueId(0)), ("orders", QueueId(1))
    append_singly(store, {first: [1], other: [1]})
    store.dispatch()
    data = bytearray().join(
        records_of(queue, [size] * count) for queue, size in ((first, 2), (other, 3), (first, 4))
    )
    parts = [QueuePart(*queue, count) for queue in (first, other, first)]
    results = store.append(checked_parts(data, parts), parts, NOW_MS)
    assert [result.first_queue_offset for result in results] == [1, 1, 1 + count]
    store.dispatch()
    assert [len(one.body) for one in read_queue(store, *first)] == [1, *[2] * count, *[4] * count]
    assert [len(one.body) for one in read_queue(store, *other)] == [1, *[3] * count]
