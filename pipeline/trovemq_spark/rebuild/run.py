"""The rebuild from beginning to end: segments to runs, runs to consume queues, entries to index files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.job import Report
from trovemq_spark.log.parts import LogPart, plan_parts
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.log.sizes import FileSizes
from trovemq_spark.rebuild.blocks import EntryRange, Piece
from trovemq_spark.rebuild.index import IndexTask, build_index_file, file_names, plan_files
from trovemq_spark.rebuild.queues import QueueResult, QueueTask, build_queue
from trovemq_spark.rebuild.reporting import note_absent_queues, report_log, report_queues
from trovemq_spark.rebuild.runs import SegmentRuns, SegmentTask, extract_runs
from trovemq_spark.rebuild.workspace import Workspace, open_workspace
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import Runner
from trovemq_store.index.consume_queue import ROOT_DIRECTORY as QUEUE_DIRECTORY
from trovemq_store.index.key_index import DIRECTORY as INDEX_DIRECTORY
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_store.log.time_runs import STEP_MIN_MS

Parts = Literal["both", "consumequeue", "index"]
JOB: Final = "rebuild"
_PARTS_A_CORE: Final = 4
_UNEVEN: Final = 1.2
"""Cutting examines every record's length, which is not worth it for a little idle time."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The input and the output of a rebuild."""

    store: str
    out: StoragePath
    sizes: FileSizes
    """All sizes are known."""
    parts: Parts = "both"
    tags: bool = True
    part_size_min: int = 16 << 20
    """Segments are not cut into parts smaller than this."""

    @property
    def with_queues(self) -> bool:
        return self.parts != INDEX_DIRECTORY

    @property
    def with_index(self) -> bool:
        return self.parts != QUEUE_DIRECTORY


def rebuild(wanted: Rebuild, runner: Runner) -> Report:
    """Writes the files. Raises TroveError STORE_FAILED, OFFSET_OUT_OF_RANGE (a segment was removed
    meanwhile), JOB_RUNNING, OPTION_ILLEGAL, DISK_FULL; OSError. Then the results of an earlier run are
    unchanged, except that on an object store some files may be new."""
    if wanted.out.exists(LOG_DIRECTORY):
        message = f"{wanted.out} holds a commit log: write to another directory, and move the result"
        raise TroveError(errors.OPTION_ILLEGAL, message, field="out")
    log = LogDirectory.open(wanted.store)
    report = Report(JOB)
    with open_workspace(wanted.out) as workspace:
        runs = _extract(wanted, log, workspace, runner)
        report_log(wanted.store, log, runs, report)
        report.facts |= {
            "consumeQueueFileSize": wanted.sizes.consume_queue_file_size,
            "indexSlotCount": wanted.sizes.index_slot_count,
            "indexItemCount": wanted.sizes.index_item_count,
        }
        queue_tasks = _queue_tasks(wanted, log, runs, workspace) if wanted.with_queues else []
        index_tasks = _index_tasks(wanted, runs, workspace) if wanted.with_index else []
        tasks: list[QueueTask | IndexTask] = [*index_tasks, *queue_tasks]
        results = runner.map("files", _build, tasks, _weight)
        queues = [result for result in results if isinstance(result, QueueResult)]
        if wanted.with_queues:
            workspace.publish(QUEUE_DIRECTORY, {name for result in queues for name in result.files})
            report_queues(wanted.store, log, queues, report)
            note_absent_queues(wanted.store, queues, report)
        if wanted.with_index:
            workspace.publish(INDEX_DIRECTORY, {f"{INDEX_DIRECTORY}/{task.name}" for task in index_tasks})
            report.facts["indexFiles"] = len(index_tasks)
            report.facts["indexItems"] = sum(task.entry_count for task in index_tasks)
    return report


def _extract(wanted: Rebuild, log: LogDirectory, workspace: Workspace, runner: Runner) -> list[SegmentRuns]:
    deletions = open_deletions(wanted.store)
    tasks = [
        SegmentTask(
            log,
            part,
            deletions if deletions is not None and deletions.any else None,
            workspace.blocks,
            wanted.with_queues,
            wanted.with_index,
            wanted.tags,
        )
        for part in _parts(log, wanted.part_size_min, runner.core_count)
    ]
    return runner.map("segments", extract_runs, tasks, lambda task: task.size)


def _parts(log: LogDirectory, part_size_min: int, core_count: int) -> list[LogPart]:
    """The segments, cut into parts if there are too few of them for all cores."""
    segment_count = len(log.segments)
    turns = -(-segment_count // core_count)
    if turns * core_count <= _UNEVEN * segment_count:
        return plan_parts(log, log.begin, log.capacity_end)
    size = sum(segment.size for segment in log.segments)
    part_count = min(_PARTS_A_CORE * core_count, size // part_size_min)
    return plan_parts(log, log.begin, log.capacity_end, min_parts=part_count)


def _queue_tasks(
    wanted: Rebuild, log: LogDirectory, runs: list[SegmentRuns], workspace: Workspace
) -> list[QueueTask]:
    pieces: dict[tuple[str, int], list[Piece]] = {}
    for found in runs:
        for piece in found.pieces:
            pieces.setdefault((piece.topic, piece.queue_id), []).append(piece)
    file_size = wanted.sizes.consume_queue_file_size
    return [
        QueueTask(topic, queue_id, own, workspace.blocks, workspace.target, file_size, log.begin == 0)
        for (topic, queue_id), own in sorted(pieces.items())
    ]


def _index_tasks(wanted: Rebuild, runs: list[SegmentRuns], workspace: Workspace) -> list[IndexTask]:
    sizes, blocks = wanted.sizes, workspace.blocks
    files = plan_files(_index_blocks(runs), sizes.index_item_count)
    names = file_names(_first_timestamp(file.ranges, blocks) for file in files)
    befores = [None, *(file.ranges[-1].one(-1) if file.is_full else None for file in files[:-1])]
    return [
        IndexTask(
            name,
            file.ranges,
            before,
            blocks,
            workspace.target,
            sizes.index_slot_count,
            sizes.index_item_count,
        )
        for name, file, before in zip(names, files, befores, strict=False)
    ]


def _index_blocks(runs: list[SegmentRuns]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """(block, entries, the entries at which store times step back) of each block, in log order."""
    before_ms = 0
    for found in runs:
        if found.entry_count:
            times = found.entry_times
            steps = (0, *times.steps) if times.first_ms < before_ms - STEP_MIN_MS else times.steps
            before_ms = times.last_ms
            yield found.block, found.entry_count, steps


def _first_timestamp(ranges: tuple[EntryRange, ...], blocks: StoragePath) -> int:
    return int(ranges[0].one(0).entries(blocks)["store_timestamp"][0])


def _build(task: QueueTask | IndexTask) -> QueueResult | int:
    return build_queue(task) if isinstance(task, QueueTask) else build_index_file(task)


def _weight(task: QueueTask | IndexTask) -> int:
    """The estimated cost, in written units; each file has a fixed cost."""
    if isinstance(task, QueueTask):
        return 2_000 + task.unit_count
    return 2_000 + 4 * task.entry_count + task.slot_count // 8
