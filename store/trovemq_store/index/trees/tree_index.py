"""One index of the trees: entries that several builders make from the log up to one position, which is
committed with them.

A step has three parts: begin() on the engine's thread chooses the part of the log; run() reads that part,
sorts the builders' entries and commits, and may run in another thread; finish() on the engine's thread moves
`position`. A store runs one step at a time, of all its indexes; indexes at the same position may share one.

Invariants
- `position` is that of the last commit: the trees have all entries below it, and none above.
- Nothing is committed that is not on disk in the log: the trees are never ahead of it.
- A record that is applied again (after a crash, say) gives the same entries: keys hold the physical offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.trees import TreeChange, Trees
from trovemq_store.index.dispatcher import LogRuns
from trovemq_store.index.trees.layout import MARK, META, Mark, mark_key
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.topics.deletions import TopicDeletions

RUN_BYTES_MAX: Final = 1 << 21
STEP_RECORDS_MAX: Final = 1 << 20
STEP_HELD_BYTES_MAX: Final = 256 << 20
"""The entries of a step are in memory until they are committed: about 300 bytes for a record with an id, a
key and a tag."""


class TreeBuilder(Protocol):
    """A part of an index. It keeps nothing of a run but the entries to put."""

    def begin(self, numbers: TopicNumbers) -> None:
        """Begins a step; forgets the entries of an earlier one."""
        ...

    def add(self, run: DispatchBatch) -> None:
        """A run of the log, in log order (`alive` is filled in), that has records."""
        ...

    @property
    def held_bytes(self) -> int:
        """The most memory that the entries take until they are committed."""
        ...

    def changes(self) -> list[TreeChange]:
        """The trees' changes for the runs since begin(), sorted by key. Once a step."""
        ...


def changes_of(
    builder: TreeBuilder, runs: Iterable[DispatchBatch], numbers: TopicNumbers
) -> list[TreeChange]:
    """The changes of one builder for runs in log order, without an index."""
    builder.begin(numbers)
    for run in runs:
        if len(run.records):
            builder.add(run)
    return builder.changes()


@dataclass(slots=True)
class TreeStep:
    """One step: adds the part [begin, end) of the log to the trees."""

    index: TreeIndex
    begin: PhysicalOffset
    end: PhysicalOffset
    bytes_max: int
    mark: Mark = field(default=Mark(LOG_ORIGIN))
    record_count: int = 0
    done: bool = False
    beside: list[TreeStep] = field(default_factory=list)
    """Other indexes at the same position: the log is read once for all of them, and committed together."""

    def run(self) -> None:
        """Blocks. StorageError: nothing was committed."""
        self.index.carry_out(self)


class TreeIndex:
    """One index in the trees. `name` is that of its mark; `on_committed` is called with each new position, in
    finish(). `start` (position, limit) says where the next step is to begin: earlier if something must be
    read again, at the limit if the log has nothing for the index."""

    def __init__(
        self,
        name: str,
        trees: Trees,
        builders: Sequence[TreeBuilder],
        numbers: TopicNumbers,
        deletions: TopicDeletions,
        read_log: LogRuns,
        on_committed: Callable[[PhysicalOffset], None] = lambda _position: None,
        start: Callable[[PhysicalOffset, PhysicalOffset], PhysicalOffset] = lambda position, _limit: position,
    ) -> None:
        self.name: Final = name
        self._trees = trees
        self.builders: Final = builders
        self._numbers = numbers
        self._deletions = deletions
        self._read_log = read_log
        self._on_committed = on_committed
        self._start = start
        with trees.read() as reader:
            value = reader.get(META, mark_key(name))
        self.mark = Mark(*MARK.unpack(value)) if value else Mark(LOG_ORIGIN)
        self.record_count = 0
        """Records that were indexed since the store was opened."""

    @property
    def position(self) -> PhysicalOffset:
        """Everything in the log below it is in the trees."""
        return self.mark.position

    def begin(self, limit: PhysicalOffset, bytes_max: int) -> TreeStep | None:
        """The next step, about bytes_max long; None if everything below `limit` (which is on disk) is
        there."""
        begin = self._start(self.position, limit)
        if begin != self.position and (begin < limit or self.position < limit):
            self.mark = self.mark._replace(position=begin)
        if begin >= limit:
            return None
        return TreeStep(self, begin, limit, bytes_max)

    def carry_out(self, step: TreeStep) -> None:
        """TreeStep.run(), also for the other indexes that share the step."""
        steps = [step, *step.beside]
        deletions = self._deletions.snapshot()
        self._numbers.begin_step(deletions)
        builders = [builder for each in steps for builder in each.index.builders]
        try:
            for builder in builders:
                builder.begin(self._numbers)
            end, last, record_count = self._read(step, deletions, builders)
            marks = [each.index.mark_of(last, end) for each in steps]
            changes = [change for builder in builders for change in builder.changes()]
            changes += self._numbers.changes()
            for each, mark in zip(steps, marks, strict=True):
                changes.append(TreeChange(META, [(mark_key(each.index.name), MARK.pack(*mark))]))
            fault_point("trees.before_commit")
            self._trees.commit(changes)
            fault_point("trees.after_commit")
        except BaseException:
            with self._trees.read() as reader:
                self._numbers.forget(reader)
            raise
        for each, mark in zip(steps, marks, strict=True):
            each.mark, each.record_count, each.done = mark, record_count, True

    def _read(
        self, step: TreeStep, deletions: TopicDeletions, builders: Sequence[TreeBuilder]
    ) -> tuple[PhysicalOffset, DispatchBatch | None, int]:
        """Adds the runs of the step to the builders. Returns where the next step continues, the last run that
        has records, and the number of records."""
        last = None
        byte_count = record_count = 0
        for run in self._read_log(step.begin, step.end, min(RUN_BYTES_MAX, step.bytes_max)):
            if not len(run.records):
                continue
            alive = deletions.alive_mask(run.records, run.physical_offset)
            last = DispatchBatch(run.records, run.physical_offset, run.end, alive)
            for builder in builders:
                builder.add(last)
            byte_count += run.records.nbytes
            record_count += len(run.records)
            held = sum(builder.held_bytes for builder in builders)
            full = record_count >= STEP_RECORDS_MAX or held >= STEP_HELD_BYTES_MAX
            if full or byte_count >= step.bytes_max:
                return run.end, last, record_count
        return step.end, last, record_count  # the rest has only blanks and damage

    def mark_of(self, run: DispatchBatch | None, end: PhysicalOffset) -> Mark:
        """The mark of position `end`. run: the last one that has records, if any."""
        if run is None:
            return self.mark._replace(position=end)
        last = len(run.records) - 1
        record = run.records.record(last)
        return Mark(
            end,
            run.offset_of(last),
            len(record),
            EpochMs(int(run.records.store_timestamps[last])),
            crc32(record),
        )

    def finish(self, step: TreeStep) -> None:
        """Call after run(), also if it failed."""
        if step.done:
            self.mark = step.mark
            self.record_count += step.record_count
            self._on_committed(self.position)


def catch_up(indexes: Iterable[TreeIndex], limit: PhysicalOffset, bytes_max: int) -> None:
    """Brings every index up to `limit`; blocks. StorageError. Indexes that share the lowest position continue
    together."""
    while steps := [step for index in indexes if (step := index.begin(limit, bytes_max)) is not None]:
        begin = min(step.begin for step in steps)
        first, *first.beside = [step for step in steps if step.begin == begin]
        try:
            first.run()
        finally:
            for step in (first, *first.beside):
                step.index.finish(step)
