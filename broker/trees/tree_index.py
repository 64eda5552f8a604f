"""One index of the trees: what several builders take of the log, up to one position, committed with it.

A step has three parts: begin() on the engine's thread says what part of the log it takes; run() reads that
part, sorts what the builders make of it and commits, and may run in another thread; finish() on the engine's
thread moves `position`. One step at a time, of all indexes of a store.

Invariants
- `position` is that of the last commit: what lies below is in the trees, and nothing above.
- Nothing is committed that is not on disk in the log: the trees are never ahead of it.
- A record that is applied again (after a crash, say) gives the same entries: keys hold the physical offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from zlib_ng.zlib_ng import crc32

from broker.dispatch.dispatcher import LogRuns
from broker.projection import DispatchBatch
from broker.storage.trees import TreeChange, Trees
from broker.topics.deletions import TopicDeletions
from broker.trees.layout import MARK, META, Mark, mark_key
from broker.trees.topic_numbers import TopicNumbers

RUN_BYTES_MAX: Final = 1 << 20
STEP_RECORDS_MAX: Final = 1 << 20
"""What a step makes of a record is in memory until it is committed: up to about 700 bytes."""


class TreeBuilder(Protocol):
    """What an index consists of."""

    def changes(self, runs: Sequence[DispatchBatch], numbers: TopicNumbers) -> list[TreeChange]:
        """What the trees get for these runs of the log, in log order (`alive` is filled in), sorted by
        key."""
        ...


@dataclass(slots=True)
class TreeStep:
    """A part of the log, [begin, end), on its way into the trees."""

    index: TreeIndex
    begin: int
    end: int
    bytes_max: int
    mark: Mark = field(default=Mark(0))
    record_count: int = 0
    done: bool = False
    read: tuple[list[DispatchBatch], int] | None = None
    """The runs, and where the next step goes on; where it is given, another index has read the same part."""

    def run(self) -> None:
        """Blocks. StorageError: nothing was committed."""
        self.index.carry_out(self)


class TreeIndex:
    """See above. `name` is that of its mark; `on_committed` is told of each new position, in finish().
    `start` (position, limit) says where the next step is to begin: further back, where something is to be
    read again, or at the limit, where the log has nothing for the index."""

    def __init__(
        self,
        name: str,
        trees: Trees,
        builders: Sequence[TreeBuilder],
        numbers: TopicNumbers,
        deletions: TopicDeletions,
        read_log: LogRuns,
        on_committed: Callable[[int], None] = lambda _position: None,
        start: Callable[[int, int], int] = lambda position, _limit: position,
    ) -> None:
        self.name: Final = name
        self._trees = trees
        self._builders = builders
        self._numbers = numbers
        self._deletions = deletions
        self._read_log = read_log
        self._on_committed = on_committed
        self._start = start
        with trees.read() as reader:
            value = reader.get(META, mark_key(name))
        self.mark = Mark(*MARK.unpack(value)) if value else Mark(0)
        self.record_count = 0
        """Indexed since the store was opened."""

    @property
    def position(self) -> int:
        """Everything in the log below it is in the trees."""
        return self.mark.position

    def begin(self, limit: int, bytes_max: int) -> TreeStep | None:
        """The next step, about bytes_max long; None where everything below `limit` (which is on disk) is
        there."""
        begin = self._start(self.position, limit)
        if begin != self.position and (begin < limit or self.position < limit):
            self.mark = self.mark._replace(position=begin)
        if begin >= limit:
            return None
        return TreeStep(self, begin, limit, bytes_max)

    def carry_out(self, step: TreeStep) -> None:
        """TreeStep.run()."""
        deletions = self._deletions.snapshot()
        self._numbers.begin_step(deletions)
        if step.read is None:
            step.read = self._read(step, deletions)
        runs, end = step.read
        mark = self._mark_of(runs, end)
        try:
            changes = [
                change for builder in self._builders for change in builder.changes(runs, self._numbers)
            ]
            changes += self._numbers.changes()
            changes.append(TreeChange(META, [(mark_key(self.name), MARK.pack(*mark))]))
            self._trees.commit(changes)
        except BaseException:
            with self._trees.read() as reader:
                self._numbers.forget(reader)
            raise
        step.mark, step.done = mark, True
        step.record_count = sum(len(run.records) for run in runs)

    def _read(self, step: TreeStep, deletions: TopicDeletions) -> tuple[list[DispatchBatch], int]:
        """The runs of the step, and where the next one goes on."""
        runs: list[DispatchBatch] = []
        byte_count = record_count = 0
        for run in self._read_log(step.begin, step.end, RUN_BYTES_MAX):
            alive = deletions.alive_mask(run.records, run.physical_offset)
            runs.append(DispatchBatch(run.records, run.physical_offset, run.end, alive))
            byte_count += run.records.nbytes
            record_count += len(run.records)
            if byte_count >= step.bytes_max or record_count >= STEP_RECORDS_MAX:
                return runs, run.end
        return runs, step.end  # nothing but blanks and damage is left

    def _mark_of(self, runs: Sequence[DispatchBatch], end: int) -> Mark:
        for run in reversed(runs):
            if len(run.records):
                last = len(run.records) - 1
                record = run.records.record(last)
                return Mark(
                    end,
                    run.physical_offset + int(run.records.positions[last]),
                    len(record),
                    int(run.records.store_timestamps[last]),
                    crc32(record),
                )
        return self.mark._replace(position=end)

    def finish(self, step: TreeStep) -> None:
        """Whatever became of run()."""
        if step.done:
            self.mark = step.mark
            self.record_count += step.record_count
            self._on_committed(self.position)


def catch_up(indexes: Iterable[TreeIndex], limit: int, bytes_max: int) -> None:
    """Everything below `limit` into every index; blocks. StorageError. Indexes that are equally far share
    what is read."""
    lagging = list(indexes)
    while lagging:
        before: TreeStep | None = None
        for index in tuple(lagging):
            step = index.begin(limit, bytes_max)
            if step is None:
                lagging.remove(index)
                continue
            if before is not None and before.begin == step.begin:
                step.read = before.read
            try:
                step.run()
            finally:
                index.finish(step)
            before = step
