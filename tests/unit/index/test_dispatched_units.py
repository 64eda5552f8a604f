"""Consume queues that get a batch in one way are those that got it in a way of its form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.oracles.consume_queues import FormerQueues
from tests.support.projections import batch_of, stored, tree
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.fields import split_fields
from trovemq_proto.records.layout import QUEUE_OFFSET_AT, SCHEDULE_TOPIC, SYS_FLAG_AT
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import UNIT_SIZE
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS: Final = StoreSettings(consume_queue_file_size=50 * UNIT_SIZE)
TOPICS: Final = ("orders", "others", SCHEDULE_TOPIC)
FORMS: Final = ("bytes", "topic", "rows", "uniform", "parts", "row parts")


@dataclass(frozen=True)
class Stretch:
    """Records of one queue that follow one another in a batch; `jump`: queue offsets left out before them."""

    count: int
    topic: str
    queue_id: int
    jump: int = 0
    transaction: int = 0
    tag: str = ""
    keys: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        properties = dict(self.properties)
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "tag": self.tag,
            "keys": self.keys,
            "properties": properties,
        }


@dataclass(frozen=True)
class Step:
    stretches: tuple[Stretch, ...]
    form: str
    alive: tuple[bool, ...] = ()  # repeated
    back: int = 0  # records of the batches before that are replayed


STRETCHES: Final = st.builds(
    Stretch,
    count=st.one_of(st.integers(1, 3), st.integers(1, 70)),
    topic=st.sampled_from(TOPICS),
    queue_id=st.integers(0, 2),
    jump=st.sampled_from([0] * 12 + [1, 2, 30, -1, -2, -1_000]),
    transaction=st.sampled_from([0, 0, 0, 0, 0x4, 0x8, 0xC]),
    tag=st.sampled_from(["", "", "a", "Aa", "ab cd", "größe", "\U0001f600", "x" * 200]),
    keys=st.sampled_from(["", "", "k", "k l  m", "schlüssel"]),
    properties=st.sampled_from(
        [(), (), (("DELAY", "3"),), (("XTAGS", "b"),), (("k", "TAGS"),), (("UNIQ_KEY", "u" * 32),)]
    ),
)
STEPS: Final = st.lists(
    st.builds(
        Step,
        stretches=st.one_of(
            STRETCHES.map(lambda one: (one,)), st.lists(STRETCHES, min_size=1, max_size=6).map(tuple)
        ),
        form=st.sampled_from(FORMS),
        alive=st.one_of(st.just(()), st.just(()), st.lists(st.booleans(), min_size=1, max_size=5).map(tuple)),
        back=st.sampled_from([0, 0, 0, 1, 5]),
    ),
    min_size=1,
    max_size=5,
)


class Log:
    def __init__(self) -> None:
        self.data = b""
        self.starts: list[int] = []
        self.ends: dict[tuple[str, int], int] = {}

    def add(self, stretch: Stretch) -> None:
        queue = (stretch.topic, stretch.queue_id)
        for number in range(stretch.count):
            offset = self.ends.get(queue, 0) + (stretch.jump if number == 0 else 0)
            at = len(self.data)
            record = bytearray(stored(at, 0, NOW_MS, **stretch.fields))
            record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = offset.to_bytes(8, signed=True)
            record[SYS_FLAG_AT + 3] |= stretch.transaction
            self.starts.append(at)
            self.data += record
            if stretch.transaction in (0, 0x8):
                self.ends[queue] = offset + 1

    def batch(self, step: Step) -> DispatchBatch:
        first = len(self.starts)
        for stretch in step.stretches:
            self.add(stretch)
        begin = self.starts[max(0, first - step.back)]
        data = memoryview(self.data)[begin:]
        count = len(self.starts) - max(0, first - step.back)
        alive = None
        if step.alive:
            alive = np.resize(np.array(step.alive), count)
        records = records_of(data, step, plain=first - step.back >= 0 == step.back)
        return DispatchBatch(records, PhysicalOffset(begin), PhysicalOffset(len(self.data)), alive)


def records_of(data: memoryview, step: Step, *, plain: bool) -> RecordBatch:
    """The records in the step's form, if an append can make it of them; else only their bytes."""
    rows = list(split_fields(data))
    first, topics = step.stretches[0], {stretch.topic for stretch in step.stretches}
    queues = {(stretch.topic, stretch.queue_id) for stretch in step.stretches}
    if not plain or any(stretch.transaction for stretch in step.stretches):
        return RecordBatch.split(data)
    if "parts" in step.form and len(queues) == len(step.stretches):
        batch = RecordBatch.of_rows(data, rows, None) if "row" in step.form else RecordBatch.split(data)
        batch.parts = [QueuePart(one.topic, one.queue_id, one.count) for one in step.stretches]
        return batch
    if len(topics) > 1:
        return RecordBatch.split(data)
    if step.form == "rows":
        return RecordBatch.of_rows(data, rows, first.topic)
    if step.form == "uniform" and len(step.stretches) == 1:
        return RecordBatch.of_uniform(data, rows[0], len(rows), first.topic, checked=True)
    return RecordBatch.split(data, topic=first.topic if step.form == "topic" else None)


def applied(queues: ConsumeQueues, batch: DispatchBatch) -> object:
    """All that a caller and the disk see afterwards."""
    try:
        queues.apply(batch)
        error = None
    except TroveError as caught:
        error = (caught.symbol, str(caught), caught.fields)
    ends = {
        (topic, queue.queue_id): (queue.min_offset, queue.max_offset, queue._known)
        for topic in queues.topics()
        for queue in queues.queues(topic)
    }
    return error, queues.position, queues.take_grown(), queues.gaps, queues.misplaced, ends


def fresh(batch: DispatchBatch, step: Step, plain: bool) -> DispatchBatch:
    """The batch without the columns that were computed for it."""
    records = records_of(batch.records.data, step, plain=plain)
    return DispatchBatch(records, batch.physical_offset, batch.end, batch.alive)


@given(steps=STEPS, gaps=st.sampled_from([None, (5, False), (1 << 20, False), (5, True)]))
def test_units_of_any_batch_are_those_of_its_own_form(
    steps: list[Step], gaps: tuple[int, bool] | None
) -> None:
    files = [MemoryFileSystem(), MemoryFileSystem()]
    both = [FormerQueues(files[0], SETTINGS), ConsumeQueues(files[1], SETTINGS)]
    for queues in both:
        queues.load(None)
        if gaps is not None:
            queues.allow_gaps(gaps[0], rebuilding=gaps[1])
    log = Log()
    for step in steps:
        batch = log.batch(step)
        again = fresh(batch, step, plain=batch.physical_offset == both[0].position)
        assert applied(both[0], again) == applied(both[1], batch), step
        assert tree(files[0], "consumequeue") == tree(files[1], "consumequeue")
        assert both[0]._dirty._paths == both[1]._dirty._paths
        if both[0].position < batch.end:
            break


def test_interleaved_records_of_a_transaction_are_joined_by_queue() -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    data = b""
    for number in range(40):
        data += stored(len(data), number // 4, NOW_MS, queue_id=number % 4)
    queues.apply(batch_of(data, 0))
    assert queues.take_grown() == [("orders", queue_id) for queue_id in range(4)]
    assert [queue.max_offset for queue in queues.queues("orders")] == [10] * 4
