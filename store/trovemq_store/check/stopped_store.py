"""A stopped store, for the checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from numpy import bool_
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch
from trovemq_store.check import layouts
from trovemq_store.check.checked_store import LogStep, OpenIndex
from trovemq_store.check.findings import Findings
from trovemq_store.check.index_check import complete_below
from trovemq_store.check.index_rules import has_right_size
from trovemq_store.check.layouts import QueueView
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.log import state
from trovemq_store.log.reader import LogReader
from trovemq_store.log.whole_runs import WholeRuns


class StoppedStore:
    """CheckedStore of a StoreView."""

    live = False

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._queues = {(queue.topic, queue.queue_id): queue for queue in view.queues}
        self.clean = view.clean

    @property
    def min_offset(self) -> PhysicalOffset:
        return self._view.log.min_offset

    def deleted_below(self, topic: str) -> PhysicalOffset:
        return self._view.deletions.deleted_below(topic)

    def alive_mask(self, records: RecordBatch, physical_offset: PhysicalOffset) -> NDArray[bool_] | None:
        return self._view.deletions.alive_mask(records, physical_offset)

    def log_place(self, physical_offset: PhysicalOffset) -> tuple[str, int]:
        return self._view.log_place(physical_offset)

    def queue(self, topic: str, queue_id: QueueId) -> QueueView | None:
        return self._queues.get((topic, queue_id))

    def queue_keys(self) -> Iterable[tuple[str, QueueId]]:
        return self._queues


def log_steps(view: StoreView, scan: LogScan) -> Iterator[LogStep]:
    """Steps over the log, from its beginning to the end that recovery would find; fills `scan`."""
    reader = WholeRuns(
        LogReader(view.log, view.log.min_offset, view.known_end, step_ms=state.step_ms(view.state)),
        sealed=state.runs_sealed(view.state),
    )
    passed = 0
    for run in reader:
        yield from (LogStep(damage=damage) for damage in reader.damages[passed:])
        passed = len(reader.damages)
        scan.last_store_timestamp = max(
            scan.last_store_timestamp, EpochMs(int(run.records.store_timestamps.max()))
        )
        yield LogStep(run=run)
    yield from (LogStep(damage=damage) for damage in reader.damages[passed:])
    yield from (LogStep(unfinished=run) for run in reader.unfinished)
    scan.end = max(reader.position, view.log.min_offset)
    scan.damages.extend(reader.damages)


def open_index(view: StoreView, findings: Findings) -> OpenIndex:
    """The index files; one of a wrong size is a finding, and left out."""
    slots, items = view.settings.index_slot_count, view.settings.index_item_count
    files = layouts.with_known_counts(
        [
            layouts.read_index(view.files, path, slots, items)
            for path in layouts.index_paths(view.files)
            if has_right_size(path, view.files.file_size(path), slots, items, findings)
        ]
    )
    return OpenIndex(files, complete_below(files))
