"""All checks over one pass of the log, as steps of bounded work."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.check import layouts
from trovemq_store.check.checked_store import CheckedStore, LogStep, OpenIndex, ReadAhead
from trovemq_store.check.findings import Findings
from trovemq_store.check.index_check import IndexCheck
from trovemq_store.check.log_rules import report_damage
from trovemq_store.check.queue_check import QueueCheck, with_alive
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.consume_queue import ROOT_DIRECTORY
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.whole_runs import UnfinishedRun

Steps = Generator[ReadAhead | None, OSError | None, None]
"""Yields a ReadAhead if these bytes are read next, None if a step is done."""


@dataclass(slots=True)
class Progress:
    """How far a check is; complete when it has ended. `position` is a physical offset."""

    position: PhysicalOffset = LOG_ORIGIN
    records: int = 0
    dead_records: int = 0
    damaged_bytes: int = 0


class StoreCheck:
    """One check of one store; steps() once, to its end. begun_at: where a live store's log ended when the
    check began."""

    def __init__(
        self,
        store: CheckedStore,
        index: OpenIndex,
        findings: Findings,
        *,
        begun_at: PhysicalOffset = LOG_ORIGIN,
    ) -> None:
        self._store = store
        self._findings = findings
        self._queues = QueueCheck(store, findings, begun_at)
        self._index = IndexCheck(store, index, findings)
        self.progress = Progress(position=store.min_offset)

    @property
    def unit_count(self) -> int:
        """Consume-queue units compared so far."""
        return self._queues.unit_count

    @property
    def item_count(self) -> int:
        """Key-index items compared so far."""
        return self._index.item_count

    def steps(self, log: Iterable[LogStep]) -> Steps:
        """Index files, then the log with the units and items of its records, then surplus units and items."""
        yield from self._index_steps()
        yield from self._log_steps(log)

    def _index_steps(self) -> Steps:
        files = self._index.check_files()
        unreadable: bool | None = None
        while True:
            try:
                file = files.send(unreadable)
            except StopIteration:
                return
            failure = yield None if file is None else ReadAhead(file.path, 0, _used_size(file))
            unreadable = file is not None and failure is not None
            if file is not None and unreadable:
                self._findings.add(file.path, 0, f"cannot be read: {failure}")

    def _log_steps(self, log: Iterable[LogStep]) -> Steps:
        steps, failure = iter(log), None
        while True:
            try:
                step = steps.send(failure) if isinstance(steps, Generator) else next(steps)
            except StopIteration:
                return
            failure = yield step.read_ahead
            if step.damage is not None:
                begin, end = step.damage.physical_offset, step.damage.end
                self.progress.position = end
                self.progress.damaged_bytes += end - begin
                report_damage(self._findings, self._store.log_place(begin), step.damage)
                self._queues.damage(begin, end)
                self._index.damage(begin, end)
            if step.unfinished is not None:
                self._add_unfinished(step.unfinished)
            if step.run is not None:
                yield from self._check_run(step.run)

    def _add_unfinished(self, run: UnfinishedRun) -> None:
        path, offset = self._store.log_place(run.physical_offset)
        what = f"transaction {run.transaction_id} has {run.seen} of its {run.count} records"
        self._findings.add(path, offset, what)

    def _check_run(self, run: DispatchBatch) -> Steps:
        run = with_alive(self._store, run)
        self.progress.records += len(run.records)
        if run.alive is not None:
            self.progress.dead_records += int((~run.alive).sum())
        try:
            for _ in self._queues.run(run):
                yield None
        except UnreadableError as error:
            self._findings.add(ROOT_DIRECTORY, 0, str(error))
        yield None
        self._index.run(run)
        self.progress.position = run.end
        yield None

    def finish(self, end: PhysicalOffset) -> Steps:
        """Call after steps(); the checked part of the log ends at `end`."""
        try:
            for _ in self._queues.finish(end):
                yield None
        except UnreadableError as error:
            self._findings.add(ROOT_DIRECTORY, 0, str(error))
        self._index.finish(end)


def _used_size(file: layouts.IndexView) -> int:
    return file.item_offset(file.item_count)
