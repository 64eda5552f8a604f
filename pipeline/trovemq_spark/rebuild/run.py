"""The rebuild from end to end: segments to runs, runs to consume queues, entries to index files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from broker.index.consume_queue import ROOT_DIRECTORY as QUEUE_DIRECTORY
from broker.index.key_index import DIRECTORY as INDEX_DIRECTORY
from broker.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.jobs.job import Progress, Report
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.rebuild.blocks import EntryRange, Piece
from trovemq_spark.rebuild.index import IndexTask, build_index_file, file_names, plan_files
from trovemq_spark.rebuild.queues import QueueResult, QueueTask, build_queue
from trovemq_spark.rebuild.reporting import note_absent_queues, report_log, report_queues
from trovemq_spark.rebuild.runs import SegmentRuns, SegmentTask, extract_runs
from trovemq_spark.rebuild.sizes import FileSizes
from trovemq_spark.rebuild.tasks import Spread, run_tasks
from trovemq_spark.rebuild.workspace import Workspace, open_workspace
from trovemq_spark.storage import Place

Parts = Literal["both", "consumequeue", "index"]
JOB: Final = "rebuild"
_SEGMENT_BINS_EACH: Final = 4
_BUILD_BINS_EACH: Final = 2


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What to rebuild, and where to."""

    store: str
    out: Place
    sizes: FileSizes
    """All of them known."""
    parts: Parts = "both"
    tags: bool = True

    @property
    def with_queues(self) -> bool:
        return self.parts != INDEX_DIRECTORY

    @property
    def with_index(self) -> bool:
        return self.parts != QUEUE_DIRECTORY


def rebuild(wanted: Rebuild, spread: Spread, progress: Progress) -> Report:
    """Writes the files. TroveError STORE_FAILED, OFFSET_OUT_OF_RANGE (a segment went meanwhile), JOB_RUNNING,
    OPTION_ILLEGAL, DISK_FULL; OSError. Then the results of an earlier run are as they were, but on an
    object store some files may be new."""
    if wanted.out.exists(LOG_DIRECTORY):
        message = f"{wanted.out} holds a commit log: write to another directory, and move what was made"
        raise TroveError(errors.OPTION_ILLEGAL, message, field="out")
    log = LogDirectory.open(wanted.store)
    report = Report(JOB)
    with open_workspace(wanted.out) as workspace:
        runs = _extract(wanted, log, workspace, spread, progress)
        report_log(wanted.store, log, runs, report)
        report.facts |= {
            "consumeQueueFileSize": wanted.sizes.consume_queue_file_size,
            "indexSlotCount": wanted.sizes.index_slot_count,
            "indexItemCount": wanted.sizes.index_item_count,
        }
        queue_tasks = _queue_tasks(wanted, log, runs, workspace) if wanted.with_queues else []
        index_tasks = _index_tasks(wanted, runs, workspace) if wanted.with_index else []
        tasks: list[QueueTask | IndexTask] = [*index_tasks, *queue_tasks]
        progress.begin("files", len(tasks))
        results = run_tasks(spread, _build, tasks, _weight, _BUILD_BINS_EACH)
        progress.advance(len(tasks))
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


def _extract(
    wanted: Rebuild, log: LogDirectory, workspace: Workspace, spread: Spread, progress: Progress
) -> list[SegmentRuns]:
    deletions = open_deletions(wanted.store)
    tasks = [
        SegmentTask(
            log,
            segment,
            deletions if deletions is not None and deletions.any else None,
            workspace.blocks,
            wanted.with_queues,
            wanted.with_index,
            wanted.tags,
        )
        for segment in log.segments
    ]
    progress.begin("segments", len(tasks))
    runs = run_tasks(spread, extract_runs, tasks, lambda task: task.segment.size, _SEGMENT_BINS_EACH)
    progress.advance(len(tasks))
    return runs


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
    files = plan_files(((found.segment_start, found.entry_count) for found in runs), sizes.index_item_count)
    names = file_names(_first_timestamp(ranges, blocks) for ranges in files)
    befores = [None, *(ranges[-1].one(-1) for ranges in files[:-1])]
    return [
        IndexTask(
            name, ranges, before, blocks, workspace.target, sizes.index_slot_count, sizes.index_item_count
        )
        for name, ranges, before in zip(names, files, befores, strict=False)
    ]


def _first_timestamp(ranges: tuple[EntryRange, ...], blocks: Place) -> int:
    return int(ranges[0].one(0).entries(blocks)["store_timestamp"][0])


def _build(task: QueueTask | IndexTask) -> QueueResult | int:
    return build_queue(task) if isinstance(task, QueueTask) else build_index_file(task)


def _weight(task: QueueTask | IndexTask) -> int:
    """About how long it takes, in units written; a file costs something by itself."""
    if isinstance(task, QueueTask):
        return 2_000 + task.unit_count
    return 2_000 + 4 * task.entry_count + task.slot_count // 8
