"""All checks of a store in order: the sizes of queue and index files, the segments in parallel, then each
queue and index file against the segments' content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_spark.audit.config_check import check_small_files
from trovemq_spark.audit.found import Counted, FindingList
from trovemq_spark.audit.groups import known_groups, unacknowledged
from trovemq_spark.audit.index_check import check_index, index_facts, index_paths
from trovemq_spark.audit.queue_check import LogBounds, check_queue
from trovemq_spark.audit.segment_check import SegmentResult, check_segment
from trovemq_spark.audit.store import (
    AuditedStore,
    QueueKey,
    is_locked,
    open_store,
    queue_facts,
    queue_keys,
)
from trovemq_spark.audit.unique_keys import find_twice, keys_of_segment
from trovemq_spark.job import Report
from trovemq_spark.log.scan import unfinished_notes
from trovemq_spark.log.sizes import FileSizes
from trovemq_spark.tasks import Runner
from trovemq_store.check.layouts import INDEX_DIRECTORY
from trovemq_store.check.log_rules import report_tail
from trovemq_store.check.queue_rules import UnknownPlaces
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY
from trovemq_store.log.segments import file_name

CHECKS: Final = ("log", "queues", "index", "messageIds", "groups", "files")

_OF_SEGMENTS_ALONE: Final = frozenset({"log", "messageIds"})
NOTES_MAX: Final = 1000
"""The most notes that are listed."""


class Audit:
    """One audit; call run() once."""

    def __init__(
        self, runner: Runner, checks: frozenset[str], groups: frozenset[str], report: Report
    ) -> None:
        self._runner = runner
        self._checks = checks
        self._groups = groups
        self._report = report

    def run(self, text: str, sizes: FileSizes) -> None:
        """Fills the report. Raises TroveError STORE_FAILED if there is no store."""
        found = FindingList()
        store = open_store(text, sizes, found)
        if not store.place.exists(LOG_DIRECTORY):
            self._checks &= _OF_SEGMENTS_ALONE
            self._report.notes.append(f"{text} is not a whole store: only its segments are checked")
        store = self._examine_files(store, found)
        results = self._check_segments(store)
        end = max((result.end for result in results), default=store.log.begin)
        gaps = [(PhysicalOffset(gap.begin), PhysicalOffset(gap.end)) for gap in store.log.gaps]
        if "log" in self._checks:
            self._check_log(store, results, end, found)
        if "queues" in self._checks:
            unknown = UnknownPlaces(
                sorted(gaps + [damage for result in results for damage in result.damages])
            )
            self._check_queues(store, LogBounds(store.log.begin, end, unknown), results)
        if "index" in self._checks:
            self._add(self._runner.map("index files", partial(check_index, store, end), store.index_files))
        if "messageIds" in self._checks:
            read = partial(keys_of_segment, store)
            self._add(
                self._runner.shuffle("message ids", read, store.log.segments, partial(find_twice, store))
            )
        if "files" in self._checks:
            last = max((result.last_store_timestamp for result in results), default=0)
            check_small_files(store, last, found)
        if "groups" in self._checks:
            open_messages = unacknowledged(store, self._runner, self._groups, found)
            self._report.facts["unacknowledged"] = [one.to_json() for one in open_messages]
            self._report.note_missing(self._groups, known_groups(store), "committed offset of group")
        self._add([Counted.of(found)])
        self._report.findings.sort(key=lambda finding: (finding.file, finding.offset, finding.kind))
        self._report_facts(store, results, end)

    # --- the steps --------------------------------------------------------------------------------------
    def _examine_files(self, store: AuditedStore, found: FindingList) -> AuditedStore:
        """The store with the facts of its queue and index files."""
        examined = self._runner.map("queue files", partial(queue_facts, store), queue_keys(store))
        queues = {key: facts for key, facts, _ in examined if facts.files}
        if "queues" in self._checks:
            self._add(Counted.of(each) for _, _, each in examined)
        index_files = []
        if store.index_is_readable and "index" in self._checks:
            results = self._runner.map("index files", partial(index_facts, store), index_paths(store))
            index_files = [facts for facts, _ in results if facts is not None]
            self._add(counted for _, counted in results)
        known_end = store.known_end
        if not store.own_state and store.clean:
            known_end = max([known_end, *(facts.last_record_end for facts in queues.values())])
        return replace(
            store,
            queues=queues,
            index_files=tuple(index_files),
            known_end=min(known_end, store.log.capacity_end),
        )

    def _check_segments(self, store: AuditedStore) -> list[SegmentResult]:
        if not self._checks & {"log", "queues", "index"}:
            return []
        check = partial(check_segment, store, self._checks)
        results = self._runner.map("segments", check, store.log.segments)
        self._add(result.found for result in results)
        return results

    def _check_log(
        self, store: AuditedStore, results: list[SegmentResult], end: int, found: FindingList
    ) -> None:
        for gap in store.log.gaps:
            path = f"{LOG_DIRECTORY}/{file_name(gap.begin)}"
            found.of("segmentMissing").add(path, 0, f"the log from {gap.begin} to {gap.end} is missing")
        size = store.log.segments[0].size
        for file in store.log.segments:
            if file.size != size:
                path = f"{LOG_DIRECTORY}/{file.name}"
                found.of("segmentSize").add(path, 0, f"has {file.size} bytes, the first segment {size}")
        tail_bytes = sum(result.bytes_after for result in results)
        note = not store.clean or not store.own_state
        report_tail(found.of("logTail"), store.log_place(end), end, tail_bytes, note=note)

    def _check_queues(self, store: AuditedStore, log: LogBounds, results: list[SegmentResult]) -> None:
        runs: dict[QueueKey, list[NDArray[np.void]]] = {key: [] for key in store.queues}
        for result in results:
            for key, part in result.runs.items():
                runs.setdefault(key, []).append(part)
        self._add(
            self._runner.map("queues", partial(check_queue, store, log), sorted(runs.items(), key=_key))
        )

    # --- the report ---------------------------------------------------------------------------------------
    def _add(self, counted: Iterable[Counted]) -> None:
        for one in counted:
            for found in one.kept:
                if not found.note:
                    self._report.found(found.finding())
                elif len(self._report.notes) < NOTES_MAX:
                    self._report.notes.append(str(found))
            kept = sum(not found.note for found in one.kept)
            self._report.finding_count += one.finding_count - kept

    def _report_facts(self, store: AuditedStore, results: list[SegmentResult], end: int) -> None:
        self._report.facts["shutdown"] = "clean" if store.clean else "open or killed"
        if is_locked(store):
            self._report.notes.append(
                "another process has the store open: findings in files that it writes may be wrong"
            )
        if not results:
            return
        items = [result.items for result in results]
        self._report.facts |= {
            "commitLogMinOffset": store.log.begin,
            "commitLogMaxOffset": end,
            "segments": len(store.log.segments),
            "records": sum(result.records for result in results),
            "recordsOfDeletedTopics": sum(result.dead_records for result in results),
            "damagedBytes": sum(stop - begin for result in results for begin, stop in result.damages),
            "queues": len(store.queues),
            "unitsCompared": sum(result.units for result in results),
            "indexFiles": len(store.index_files),
            "itemsCompared": sum(one.compared for one in items),
        }
        unindexed_from = min((one.unindexed_from for one in items if one.unindexed_from >= 0), default=-1)
        for count, what in (
            (sum(one.unindexed for one in items), f"records from {unindexed_from} on are not indexed yet"),
            (sum(one.double for one in items), "duplicate items"),
            (sum(one.tagless for one in items), "tags have no item, as in stores of RocketMQ before 5.4"),
            (sum(one.damaged for one in items), "items are of damaged records"),
        ):
            if count:
                self._report.notes.append(f"{INDEX_DIRECTORY}: {count} {what}")
        if store.log.segments[-1].end > end and not store.clean:
            self._report.notes.append(f"the store was not closed: its log is read up to {end}")
            self._report.notes += unfinished_notes(store.log, end)


def _key(item: tuple[QueueKey, list[NDArray[np.void]]]) -> QueueKey:
    return item[0]
