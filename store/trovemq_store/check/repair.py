"""Rebuilds a stopped store's consume queues and key index from its log. The log itself is only read.

Order, so that an interrupted repair is completed by the next one, or by the next start:
 1. the store is marked as open, with nothing of its projections on disk;
 2. their files are removed;
 3. the log is read from its beginning, and both are built from its records;
 4. their positions are saved, and a store that was closed cleanly is marked as that again.

Damaged records stay where they are; their queues have blanks in their place. If all records of a queue are
gone from the log, its last file is kept, so that the queue keeps its next offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.check.layouts import QueueView
from trovemq_store.check.queue_rules import unit_indexes
from trovemq_store.check.store_view import StoreView
from trovemq_store.engine.opening import ABORT_PATH, LOCK_PATH, IndexFileNames, last_indexed_offset, take_lock
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.consume_queue import ROOT_DIRECTORY
from trovemq_store.index.consume_queues import GAP_UNITS_MAX, ConsumeQueues, QueueGap
from trovemq_store.index.key_index import DIRECTORY as INDEX_DIRECTORY
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.index.trees.layout import DIRECTORY as TREES_DIRECTORY
from trovemq_store.log import state
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage, LogReader
from trovemq_store.log.state import StoreState
from trovemq_store.log.whole_runs import WholeRuns

KEY_INDEX_NOTE: Final = "trovemq/key-index.json"
_FLUSH_BYTES: Final = 256 << 20


@dataclass(slots=True)
class Repaired:
    """The result of a repair."""

    records: int = 0
    queues: int = 0
    queues_kept: int = 0
    units: int = 0
    index_files: int = 0
    damages: list[Damage] = field(default_factory=list)
    misplaced: list[tuple[PhysicalOffset, PhysicalOffset]] = field(default_factory=list)
    gaps: list[QueueGap] = field(default_factory=list)
    shortened: list[tuple[str, int, int, int]] = field(default_factory=list)
    """(topic, queue id, end before, end now): the log's last records of these queues are lost."""

    def to_json(self) -> dict[str, object]:
        return {
            "records": self.records,
            "queuesRebuilt": self.queues,
            "queuesKept": self.queues_kept,
            "units": self.units,
            "indexFiles": self.index_files,
            "damagedPlaces": len(self.damages) + len(self.misplaced),
            "blankUnits": sum(gap.count for gap in self.gaps),
            "queuesShortened": len(self.shortened),
        }


def repair(view: StoreView, root: Path) -> Repaired:
    """TroveError STORE_LOCKED, STORE_FAILED; StorageError: run it again."""
    return repair_files(view, RealFileSystem(root))


def repair_files(view: StoreView, files: FileSystem) -> Repaired:
    """repair() of any file system: `view` shows the same files."""
    take_lock(files)
    try:
        return _Repair(view, files).run()
    finally:
        files.unlock(LOCK_PATH)


class _Repair:
    def __init__(self, view: StoreView, files: FileSystem) -> None:
        self._view = view
        self._files = files
        self._names = IndexFileNames()
        self._done = Repaired()
        self._own = view.state is not None

    def run(self) -> Repaired:
        view, files = self._view, self._files
        saved = view.state or StoreState.of(view.settings, log_end=view.known_end)
        with_index = bool(view.files.list(INDEX_DIRECTORY)) or saved.key_index_last_offset != state.NO_INDEX
        emptied = self._emptied_queues()
        files.write_atomic(ABORT_PATH, b"0")
        fault_point("repair.after_mark")
        state.save(
            files,
            msgspec.structs.replace(
                saved,
                consume_queue_position=0,
                key_index_position=0,
                key_index_last_offset=state.NOTHING_INDEXED if with_index else state.NO_INDEX,
                key_index_closed=False,
                queue_ends={},
                time_runs=None,
            ),
        )
        fault_point("repair.before_removal")
        self._remove_projections(keep=emptied)
        queues = ConsumeQueues(files, view.settings)
        index = KeyIndex(files, view.settings, self._names) if with_index else None
        end = self._rebuild(queues, index)
        log_end = max(saved.log_end, end) if view.clean else saved.log_end
        position = min(end, log_end)
        finished = msgspec.structs.replace(
            saved,
            log_end=log_end,
            consume_queue_position=position,
            key_index_position=position if index is not None else 0,
            key_index_last_offset=last_indexed_offset(index),
            key_index_closed=view.clean and index is not None,
            time_runs=None,
            queue_ends={
                topic: {queue.queue_id: queue.max_offset for queue in queues.queues(topic)}
                for topic in queues.topics()
            },
        )
        self._done.queues = sum(len(queues.queues(topic)) for topic in queues.topics()) - len(emptied)
        self._done.queues_kept = len(emptied)
        self._note_shortened(queues)
        queues.close()
        if index is not None:
            self._done.index_files = len(index.file_names)
            index.close()
        fault_point("repair.before_finish")
        self._finish(finished)
        return self._done

    def _note_shortened(self, queues: ConsumeQueues) -> None:
        for before in self._view.queues:
            end = queues.next_offset(before.topic, before.queue_id)
            if end < before.end and not self._view.deletions.deleted_below(before.topic):
                self._done.shortened.append((before.topic, before.queue_id, before.end, end))

    def _finish(self, finished: StoreState) -> None:
        files = self._files
        if self._own or self._view.clean:
            state.save(files, finished)
        else:
            files.remove(state.PATH)  # another broker's: its next start uses its checkpoint
        if self._view.clean:
            files.remove(ABORT_PATH)
        fault_point("repair.after_finish")
        files.sync_directory("trovemq")
        files.sync_directory("")

    def _emptied_queues(self) -> list[QueueView]:
        """Queues that have units, all of records below the log's beginning."""
        return [queue for queue in self._view.queues if self._is_emptied(queue)]

    def _is_emptied(self, queue: QueueView) -> bool:
        directory = f"{ROOT_DIRECTORY}/{queue.topic}/{queue.queue_id}"
        sizes = {self._files.file_size(f"{directory}/{name}") for name in self._files.list(directory)}
        if sizes != {self._view.settings.consume_queue_file_size}:
            return False  # a file was cut: no start would accept it, and its end is not the queue's
        units = queue.units(max(queue.first, queue.end - 1), queue.end)
        return bool(len(units)) and int(units["physical_offset"][-1]) < self._view.log.min_offset

    def _remove_projections(self, keep: list[QueueView]) -> None:
        files, kept = self._files, {f"{ROOT_DIRECTORY}/{queue.topic}/{queue.queue_id}" for queue in keep}
        for path in list(self._view.files.walk(ROOT_DIRECTORY)):
            directory = path.rpartition("/")[0]
            if directory not in kept:
                files.remove(path)
                fault_point("repair.after_removal")
                files.sync_directory(directory)
                files.remove_directory(directory)
        for name in files.list(INDEX_DIRECTORY):
            files.remove(f"{INDEX_DIRECTORY}/{name}")
        if files.exists(INDEX_DIRECTORY):
            files.sync_directory(INDEX_DIRECTORY)
        files.remove(KEY_INDEX_NOTE)
        for name in files.list(TREES_DIRECTORY):  # they are rebuilt at the next start
            files.remove(f"{TREES_DIRECTORY}/{name}")

    def _rebuild(self, queues: ConsumeQueues, index: KeyIndex | None) -> PhysicalOffset:
        view, done = self._view, self._done
        fault_point("repair.before_rebuild")
        queues.load(None)
        queues.forget_from(view.log.min_offset)
        if index is not None:
            index.load(None)
        reader = WholeRuns(
            LogReader(view.log, view.log.min_offset, view.known_end, step_ms=state.step_ms(view.state)),
            sealed=state.runs_sealed(view.state),
        )
        unflushed = 0
        for found in reader:
            run = replace(found, alive=view.deletions.alive_mask(found.records, found.physical_offset))
            self._names.now_ms = max(self._names.now_ms, EpochMs(int(run.records.store_timestamps[-1])))
            fault_point("repair.before_run")
            self._apply(queues, index, run)
            unflushed += run.records.nbytes
            if unflushed > _FLUSH_BYTES:
                self._flush(queues, index)
                unflushed = 0
        self._flush(queues, index)
        done.damages, done.misplaced, done.gaps = reader.damages, queues.misplaced, queues.gaps
        return max(reader.position, view.log.min_offset)

    def _apply(self, queues: ConsumeQueues, index: KeyIndex | None, run: DispatchBatch) -> None:
        queues.allow_gaps(GAP_UNITS_MAX, rebuilding=True)
        queues.apply(run)
        self._done.units += len(unit_indexes(run))
        self._done.records += len(run.records)
        if index is not None:
            index.apply(run)

    @staticmethod
    def _flush(queues: ConsumeQueues, index: KeyIndex | None) -> None:
        queues.flush()
        if index is not None:
            index.flush()
