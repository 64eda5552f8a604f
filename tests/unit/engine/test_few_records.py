"""Batches of few records take a way without columns: everything is the same as by columns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, open_store, record
from trovemq_broker.server.monitoring import traffic as traffic_module
from trovemq_daemon.metrics import Buckets
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch, columns, index_entries, queue_units, validate
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_PREPARED
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import sectors
from trovemq_store.log.projection import DispatchBatch

MODULES = (columns, index_entries, queue_units, traffic_module, validate)

sizes = st.lists(st.integers(0, 300), min_size=1, max_size=8)
batches = st.lists(st.tuples(st.integers(0, 3), sizes, st.booleans()), min_size=1, max_size=6)


def by_columns(patch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        patch.setattr(module, "ROWS_MAX", 0)
    patch.setattr(validate, "PART_ROWS_MAX", 0)
    patch.setattr(validate, "UNIFORM_MIN", 1 << 30)


def stored(sent: list[tuple[int, list[int], bool]]) -> dict[str, bytes]:
    """All files of a store that got these batches: queue, sizes of the bodies, whether they have tags."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    for number, (queue_number, bodies, tagged) in enumerate(sent):
        queue_id = QueueId(queue_number)
        tags = ["t" * (size % 3) if tagged else "" for size in bodies]
        records = [
            record(bytes(size), queue_id=queue_id, tag=tag, unique_key=f"u{number}")
            for size, tag in zip(bodies, tags, strict=True)
        ]
        append(store, *records, queue_id=queue_id)
        if number % 2:
            store.dispatch()
    store.close(NOW_MS)
    names = [f"{directory}/{name}" for directory in ("commitlog", "index") for name in files.list(directory)]
    for queue in files.list("consumequeue/orders"):
        directory = f"consumequeue/orders/{queue}"
        names += [f"{directory}/{name}" for name in files.list(directory)]
    return {name: files.read_bytes(name) for name in names}


@given(batches)
def test_the_store_has_the_same_bytes(sent: list[tuple[int, list[int], bool]]) -> None:
    few = stored(sent)
    with pytest.MonkeyPatch.context() as patch:
        by_columns(patch)
        assert stored(sent) == few


FLAGS = {"plain": 0, "half": SYS_FLAG_TRANSACTION_PREPARED, "commit": SYS_FLAG_TRANSACTION_COMMIT}


@given(st.lists(st.tuples(st.sampled_from(sorted(FLAGS)), st.integers(0, 1)), min_size=2, max_size=6))
def test_transactions_and_several_queues_are_left_to_the_columns(kinds: list[tuple[str, int]]) -> None:
    """Runs of the log as a replay reads them."""

    def units() -> list[Any]:
        store = open_store(MemoryFileSystem(), SMALL)
        append(store, record(b"first"))
        store.dispatch()
        offsets = {0: 1, 1: 0}
        data = b""
        for kind, queue_id in kinds:
            data += record(
                b"x",
                queue_id=QueueId(queue_id),
                sys_flag=FLAGS[kind],
                queue_offset=offsets[queue_id],
                tag=kind,
            )
            offsets[queue_id] += kind != "half"
        begin = store.end_offset
        batch = RecordBatch.split(data, topic="orders")
        queues = store.consume_queues
        queues.apply(DispatchBatch(batch, begin, PhysicalOffset(begin + len(data))))
        found = [queues.get("orders", QueueId(queue_id)) for queue_id in (0, 1)]
        return [[] if queue is None else queue.units(queue.min_offset, 100).tolist() for queue in found]

    few = units()
    with pytest.MonkeyPatch.context() as patch:
        by_columns(patch)
        assert units() == few


@given(st.lists(st.sampled_from([0, 1, 500, 511, 512, 700]), min_size=1, max_size=6))
def test_properties_that_look_like_a_lost_sector_are_refused_alike(zeros: list[int]) -> None:
    records = [record(b"x", properties={"a": "b" + "\0" * count + "c"}) for count in zeros]
    batch = RecordBatch.split(b"".join(records))

    def refused() -> bool:
        try:
            sectors.check_properties(batch)
        except TroveError:
            return True
        return False

    few = refused()
    assert few == any(count >= 512 for count in zeros)
    with pytest.MonkeyPatch.context() as patch:
        by_columns(patch)
        assert refused() == few


of_one_size = st.builds(lambda size, count: [size] * count, st.integers(0, 9_000), st.integers(1, 40))


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=9) | of_one_size)
def test_sizes_are_counted_alike(bodies: list[int]) -> None:
    data = b"".join(record(bytes(size)) for size in bodies)
    batch = RecordBatch.split(data)

    def counted() -> tuple[list[int], float]:
        traffic = traffic_module.Traffic()
        traffic.appended("orders", len(batch), len(data), batch.positions)
        found = traffic.message_sizes["orders"]
        return found.counts, found.total

    few = counted()
    sizes = Buckets(traffic_module.MESSAGE_SIZE_BUCKETS)
    for size in batch.sizes.tolist():
        sizes.add(size)
    assert few == (sizes.counts, sizes.total)
    with pytest.MonkeyPatch.context() as patch:
        by_columns(patch)
        assert counted() == few


@pytest.mark.parametrize("count", [ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1])
def test_the_last_few_and_the_first_many(count: int) -> None:
    for uneven in (False, True):
        data = b"".join(record(bytes(n % 7 if uneven else 5)) for n in range(count))
        batch = RecordBatch.split(data)
        assert (len(batch), batch.nbytes, bytes(batch.record(count - 1))) == (
            count,
            len(data),
            data[-len(batch.record(count - 1)) :],
        )
