"""Consume queues that get a batch in any form have the units of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.projections import batch_of, stored
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch, java_hash
from trovemq_proto.records.alike import as_alike
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.fields import split_fields
from trovemq_proto.records.layout import QUEUE_OFFSET_AT, SCHEDULE_TOPIC, SYS_FLAG_AT
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import BLANK_UNIT, UNIT_SIZE
from trovemq_store.index.consume_queues import ConsumeQueues, QueueGapError
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS: Final = StoreSettings(consume_queue_file_size=50 * UNIT_SIZE)
TOPICS: Final = ("orders", "others", SCHEDULE_TOPIC)
FORMS: Final = ("topic", "rows", "uniform", "parts", "row parts", "found alike")


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

    @property
    def code(self) -> int:
        if self.topic == SCHEDULE_TOPIC and "DELAY" in dict(self.properties):
            return NOW_MS + 10_000
        return java_hash(self.tag) if self.tag else 0


@dataclass(frozen=True)
class Step:
    stretches: tuple[Stretch, ...]
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
        alive=st.one_of(st.just(()), st.just(()), st.lists(st.booleans(), min_size=1, max_size=5).map(tuple)),
        back=st.sampled_from([0, 0, 0, 1, 5]),
    ),
    min_size=1,
    max_size=5,
)


class Logged(NamedTuple):
    """A record of the log, by the fields that it was made of. `code`: its tags code."""

    at: int
    size: int
    queue: tuple[str, int]
    offset: int
    has_unit: bool
    code: int


class Log:
    def __init__(self) -> None:
        self.data = b""
        self.records: list[Logged] = []
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
            has_unit = stretch.transaction in (0, 0x8)
            self.records.append(Logged(at, len(record), queue, offset, has_unit, stretch.code))
            if has_unit:
                self.ends[queue] = offset + 1

    def batch(self, step: Step, form: str) -> DispatchBatch:
        first = len(self.starts)
        for stretch in step.stretches:
            self.add(stretch)
        begin = self.starts[max(0, first - step.back)]
        data = memoryview(self.data)[begin:]
        count = len(self.starts) - max(0, first - step.back)
        alive = None
        if step.alive:
            alive = np.resize(np.array(step.alive), count)
        records = records_of(data, step, form, plain=first - step.back >= 0 == step.back)
        return DispatchBatch(records, PhysicalOffset(begin), PhysicalOffset(len(self.data)), alive)


def records_of(data: memoryview, step: Step, form: str, *, plain: bool) -> RecordBatch:
    """The records in that form, if an append can make it of them; else only their bytes."""
    if form == "found alike":
        return as_alike(RecordBatch.split(data))
    rows = list(split_fields(data))
    first, topics = step.stretches[0], {stretch.topic for stretch in step.stretches}
    queues = {(stretch.topic, stretch.queue_id) for stretch in step.stretches}
    if not plain or any(stretch.transaction for stretch in step.stretches):
        return RecordBatch.split(data)
    if "parts" in form and len(queues) == len(step.stretches):
        batch = RecordBatch.of_rows(data, rows, None) if "row" in form else RecordBatch.split(data)
        batch.parts = [QueuePart(one.topic, one.queue_id, one.count) for one in step.stretches]
        return batch
    if len(topics) > 1:
        return RecordBatch.split(data)
    if form == "rows":
        return RecordBatch.of_rows(data, rows, first.topic)
    if form == "uniform" and len(step.stretches) == 1:
        return RecordBatch.of_uniform(data, rows[0], len(rows), first.topic, checked=True)
    return RecordBatch.split(data, topic=first.topic if form == "topic" else None)


class PlainQueues:
    """The units by the rules, record by record: a queue takes any first offset, and then the next ones. A
    known offset is skipped. A record is misplaced where a later one continues without its gap. A longer gap
    than allowed is refused; while the queues are rebuilt, its record is misplaced."""

    def __init__(self, gap_max: int = 0, rebuilding: bool = False) -> None:
        self.units: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
        self.misplaced: set[tuple[int, int]] = set()
        self.gaps: set[tuple[str, int, int, int]] = set()
        self.position = 0
        self._gap_max, self._rebuilding = gap_max, rebuilding

    def apply(self, records: list[Logged], end: int) -> bool:
        """False: it is refused, and nothing has changed."""
        units, gaps = {queue: dict(own) for queue, own in self.units.items()}, set(self.gaps)
        misplaced = set(self.misplaced)
        records = [one for one in records if one.at >= self.position]
        for number, one in enumerate(records):
            own = units.setdefault(one.queue, {})
            after = max(own, default=-2) + 1
            if one.offset < max(0, after):
                continue
            if one.offset > after:
                later = [two.offset for two in records[number + 1 :] if two.queue == one.queue]
                too_long = bool(own) and one.offset - after > self._gap_max
                if any(after <= offset < one.offset for offset in later) or (too_long and self._rebuilding):
                    misplaced.add((one.at, one.at + one.size))
                    continue
                if too_long:
                    return False
                if own:
                    gaps.add((*one.queue, after, one.offset - after))
            own[one.offset] = (one.at, one.size, one.code)
        self.units, self.gaps, self.misplaced, self.position = units, gaps, misplaced, end
        return True

    def state(self) -> object:
        blank = BLANK_UNIT.item()
        return (
            self.position,
            self.gaps,
            self.misplaced,
            {
                queue: (min(own), [own.get(offset, blank) for offset in range(min(own), max(own) + 1)])
                for queue, own in self.units.items()
                if own
            },
        )


def state_of(queues: ConsumeQueues) -> object:
    gaps = {(gap.topic, gap.queue_id, gap.offset, gap.count) for gap in queues.gaps}
    return (
        queues.position,
        gaps,
        set(queues.misplaced),
        {
            (topic, queue.queue_id): (
                queue.min_offset,
                queue.units(queue.min_offset, queue.max_offset).tolist(),
            )
            for topic in queues.topics()
            for queue in queues.queues(topic)
            if queue.has_units
        },
    )


REPEATED: Final = Step((Stretch(2, "orders", 0), Stretch(1, "orders", 0, jump=-2)))
"""The last record has the queue offset of the first one."""


@pytest.mark.parametrize("form", FORMS)
@example(steps=[REPEATED], gaps=None)
@given(steps=STEPS, gaps=st.sampled_from([None, (5, False), (1 << 20, False), (5, True)]))
def test_units_of_any_form_of_a_batch_are_those_of_its_records(
    form: str, steps: list[Step], gaps: tuple[int, bool] | None
) -> None:
    plain = PlainQueues(*(gaps or ()))
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    if gaps is not None:
        queues.allow_gaps(gaps[0], rebuilding=gaps[1])
    log = Log()
    for step in steps:
        batch = log.batch(step, form)
        records = [one for one in log.records if one.at >= batch.physical_offset]
        mask = np.ones(len(records), bool) if batch.alive is None else batch.alive
        wanted = [one for one, alive in zip(records, mask, strict=True) if alive and one.has_unit]
        before = {queue: len(own) for queue, own in plain.units.items()}
        if not plain.apply(wanted, batch.end):
            with pytest.raises(QueueGapError):
                queues.apply(batch)
            return
        queues.apply(batch)
        assert state_of(queues) == plain.state(), step
        grown = {queue for queue, own in plain.units.items() if len(own) > before.get(queue, 0)}
        assert set(queues.take_grown()) == grown
        for topic, queue_id in grown:
            last = max(plain.units[topic, queue_id])
            assert queues._queues[topic][QueueId(queue_id)]._known[0] == last


def test_interleaved_records_of_a_transaction_are_joined_by_queue() -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    data = b""
    for number in range(40):
        data += stored(len(data), number // 4, NOW_MS, queue_id=number % 4)
    queues.apply(batch_of(data, 0))
    assert queues.take_grown() == [("orders", queue_id) for queue_id in range(4)]
    assert [queue.max_offset for queue in queues.queues("orders")] == [10] * 4
