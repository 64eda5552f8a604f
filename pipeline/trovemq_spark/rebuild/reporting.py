"""The findings and results of a rebuild, for the job's report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_spark.job import Finding, Report
from trovemq_spark.log.scan import unfinished_notes
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.rebuild.queues import QueueResult
from trovemq_spark.rebuild.runs import SegmentRuns
from trovemq_spark.storage import StoragePath
from trovemq_store.index.consume_queue import ROOT_DIRECTORY as QUEUE_DIRECTORY
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_store.log.segments import file_name

_LISTED_MAX: Final = 20


def report_log(store: str, log: LogDirectory, runs: list[SegmentRuns], report: Report) -> None:
    place = _log_places(store, log)
    for gap in log.gaps:
        file = f"{place(log.begin)[0].rpartition('/')[0]}/{file_name(gap.begin)}".lstrip("/")
        what = f"bytes {gap.begin} to {gap.end - 1} of the log are missing"
        report.found(Finding("segmentMissing", what, file, 0))
    for found in runs:
        for damage in found.damages:
            size = damage.end - damage.physical_offset
            file, offset = place(damage.physical_offset)
            what = f"{size} bytes are not a good record ({damage.state.name.lower()})"
            report.found(Finding("recordDamaged", what, file, offset))
    last = runs[-1].segment_start
    end = max(found.end for found in runs)
    if end < log.capacity_end:
        file, _ = place(last)
        report.notes.append(f"{file} is read up to its byte {end - last}")
        report.notes += unfinished_notes(log, end)
    written = [found for found in runs if found.record_count]
    report.facts |= {
        "segments": len(log.segments),
        "logBegin": log.begin,
        "logEnd": end,
        "lastStoreTimestamp": written[-1].last_store_timestamp if written else 0,
        "records": sum(found.record_count for found in runs),
        "recordsOfDeletedTopics": sum(found.deleted_count for found in runs),
        "damagedPlaces": sum(len(found.damages) for found in runs),
    }


def report_queues(store: str, log: LogDirectory, queues: list[QueueResult], report: Report) -> None:
    place = _log_places(store, log)
    for result in queues:
        for fault in result.faults:
            file, offset = place(fault.physical_offset)
            report.found(Finding(fault.kind, fault.what, file, offset))
        report.finding_count += result.fault_count - len(result.faults)
    kept = [result for result in queues if result.unit_count]
    report.facts |= {
        "queues": len(kept),
        "units": sum(result.unit_count for result in kept),
        "blankUnits": sum(result.blank_count for result in kept),
        "consumeQueueFiles": sum(len(result.files) for result in kept),
    }


def note_absent_queues(store: str, queues: list[QueueResult], report: Report) -> None:
    """Notes queues that the store has and the log has no record of: only their own last file shows where they
    continue."""
    made = {f"{result.topic}/{result.queue_id}" for result in queues}
    deletions = open_deletions(store)
    absent = [
        name
        for entry in StoragePath(store).entries(QUEUE_DIRECTORY, recursive=True)
        if not entry.is_directory and entry.name.count("/") == 3
        for name in [entry.name.split("/", 1)[1].rpartition("/")[0]]
        if name not in made and not (deletions and deletions.deleted_below(name.partition("/")[0]))
    ]
    if absent:
        listed = ", ".join(sorted(set(absent))[:_LISTED_MAX])
        report.notes.append(
            f"the log has no record left of {len(set(absent))} queues of the store ({listed}): they are not "
            "made; keep their last files, or their next messages get the number 0"
        )


def _log_places(store: str, log: LogDirectory) -> Callable[[int], tuple[str, int]]:
    """Physical offset -> (file, byte in it), for messages."""
    prefix = f"{LOG_DIRECTORY}/" if StoragePath(store).exists(LOG_DIRECTORY) else ""

    def place(physical_offset: int) -> tuple[str, int]:
        segment = log.covering(physical_offset, physical_offset + 1)[0]
        return prefix + segment.name, physical_offset - segment.start

    return place
