"""Checks a whole stopped store: every record, every consume-queue unit, every item of the indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.check.findings import Findings
from trovemq_store.check.log_rules import check_checkpoint, report_tail
from trovemq_store.check.stopped_store import StoppedStore, log_steps, open_index
from trovemq_store.check.store_check import StoreCheck
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.check.trees_check import check_trees
from trovemq_store.files.files import UnreadableError
from trovemq_store.log import checkpoint
from trovemq_store.topics.offsets import OFFSETS_PATH, ConsumerOffsets
from trovemq_store.topics.topics import TopicTable
from trovemq_store.topics.topics_file import TOPICS_PATH

_OWN_FILES: Final = {"checkpoint", "lock", "abort"}


@dataclass(frozen=True, slots=True)
class Summary:
    """The state of the store, as a recovery would find it, and the counts of findings."""

    clean: bool
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    records: int
    records_of_deleted_topics: int
    bytes_cut: int
    damaged_bytes: int
    last_store_timestamp: EpochMs
    queues: int
    findings: int
    notes: int

    def to_json(self) -> dict[str, object]:
        return {
            "shutdown": "clean" if self.clean else "killed",
            "commitLogMinOffset": self.log_begin,
            "commitLogMaxOffset": self.log_end,
            "records": self.records,
            "recordsOfDeletedTopics": self.records_of_deleted_topics,
            "bytesCut": self.bytes_cut,
            "damagedBytes": self.damaged_bytes,
            "lastStoreTimestamp": self.last_store_timestamp,
            "queues": self.queues,
            "findings": self.findings,
            "notes": self.notes,
        }


def verify(view: StoreView, findings: Findings) -> Summary:
    """Reads everything once. Findings are faults that recovery cannot repair; notes are faults that it
    repairs."""
    scan = LogScan()
    check = StoreCheck(StoppedStore(view), open_index(view, findings), findings)
    for _ in check.steps(log_steps(view, scan)):
        pass
    for _ in check.finish(scan.end):
        pass
    bytes_cut = view.bytes_after(scan.end)
    _report_log(view, scan, bytes_cut, findings)
    _check_files(view, findings)
    check_trees(view, findings)
    return Summary(
        clean=view.clean,
        log_begin=view.log.min_offset,
        log_end=scan.end,
        records=check.progress.records,
        records_of_deleted_topics=check.progress.dead_records,
        bytes_cut=bytes_cut,
        damaged_bytes=check.progress.damaged_bytes,
        last_store_timestamp=scan.last_store_timestamp,
        queues=len(view.queues),
        findings=findings.finding_count,
        notes=findings.note_count,
    )


def _report_log(view: StoreView, scan: LogScan, bytes_cut: int, findings: Findings) -> None:
    note = not view.clean or view.state is None
    report_tail(findings, view.log_place(scan.end), scan.end, bytes_cut, note=note)
    if view.log.segments.capacity_end:
        saved = checkpoint.load(view.files)
        check_checkpoint(findings, saved, scan.last_store_timestamp, note=not view.clean)


def _check_files(view: StoreView, findings: Findings) -> None:
    """Checks that the tables can be read, and that queue files have the size of the settings."""
    for path, load in ((TOPICS_PATH, TopicTable.load), (OFFSETS_PATH, ConsumerOffsets.load)):
        try:
            fault = load(view.files).fault
        except (DamagedError, UnreadableError) as error:
            findings.add(path, 0, str(error))
        else:
            if fault:
                what = f"{fault}; the second copy is read, without the last change"
                findings.add(path, 0, what, note=not view.clean)  # a killed RocketMQ leaves such a file
    size = view.settings.consume_queue_file_size
    for path in view.files.walk("consumequeue"):
        if view.files.file_size(path) not in (0, size):
            findings.add(
                path, 0, f"has {view.files.file_size(path)} bytes, mappedFileSizeConsumeQueue is {size}"
            )
