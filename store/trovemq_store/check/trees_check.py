"""The B+trees of a stopped store against the log: LMDB's structure, then every entry of the search trees.

Trees that lag are checked as far as they are. If a start would rebuild them, that is a note. Faults that a
start would not notice, and that make the results of searches wrong, are findings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from lmdb.verify import VerifyError
from lmdb.verify import verify as verify_pages

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.check.findings import Findings
from trovemq_store.check.stopped_trees import contradicting, open_stopped, search_mark
from trovemq_store.check.store_view import LogScan, StoreView
from trovemq_store.files.files import UnreadableError
from trovemq_store.files.lmdb_trees import DATA_NAME
from trovemq_store.files.trees import TreeReader, key_after
from trovemq_store.index.trees.layout import (
    DIRECTORY,
    LOCATION,
    LOCATION_ENTRY,
    META,
    NUMBER,
    OFFSET,
    PROPERTY,
    PROPERTY_FROM,
    TERM,
    TERM_HEAD,
    postings,
)
from trovemq_store.index.trees.search_entries import SearchEntries
from trovemq_store.index.trees.topic_numbers import TopicNumbers
from trovemq_store.index.trees.tree_index import changes_of
from trovemq_store.log.projection import DispatchBatch

PATH: Final = f"{DIRECTORY}/{DATA_NAME}"
_FINDINGS_MAX: Final = 8


def check_trees(view: StoreView, findings: Findings) -> None:
    if not view.files.exists(PATH):
        return  # they are created at the next start
    damage = _pages(view)
    for problem in damage[:_FINDINGS_MAX]:
        findings.add(PATH, 0, problem)
    if damage:
        return
    trees, why = open_stopped(view)
    if trees is None:
        findings.add(PATH, 0, f"{why}; they are rebuilt", note=True)
        return
    try:
        mark = search_mark(trees)
        if contradiction := contradicting(view, mark):
            findings.add(PATH, 0, f"{contradiction}; they are rebuilt", note=True)
            return
        with trees.read() as reader:
            _Entries(view, reader, findings).check(mark.position)
    except UnreadableError as error:
        findings.add(PATH, 0, str(error))
    finally:
        trees.close()


def _pages(view: StoreView) -> list[str]:
    try:
        return [str(problem) for problem in verify_pages(view.files.absolute(PATH))]  # type: ignore[no-untyped-call]
    except (VerifyError, OSError) as error:
        return [str(error)]


class _Entries:
    """The entries of `location` and `term` below one position, compared with the log."""

    def __init__(self, view: StoreView, reader: TreeReader, findings: Findings) -> None:
        self._view = view
        self._reader = reader
        self._findings = findings
        self._numbers = TopicNumbers(reader, view.deletions)
        self._declared = _declared(reader)
        self._expected = {LOCATION: 0, TERM: 0}
        self._missing = 0

    def check(self, position: PhysicalOffset) -> None:
        builder = SearchEntries(self._declared_by)
        scan = LogScan()
        for run in self._view.runs(scan, check_crc=False):
            indexed = run.physical_offset + run.records.positions < position
            if not indexed.any():
                break
            alive = run.alive[indexed] if run.alive is not None else None
            self._compare(replace(run, records=run.records.where(indexed), alive=alive), builder)
        for tree, found in ((LOCATION, self._count_locations(position)), (TERM, self._count_terms())):
            if found > self._expected[tree] and not self._missing:
                text = f"{tree} has {found - self._expected[tree]} entries that the log has not"
                self._findings.add(PATH, 0, text)

    def _declared_by(self, topic: str) -> tuple[str, ...]:
        entry = self._numbers.find(topic)
        begin = NUMBER.pack(entry.number) if entry is not None else b"-"
        return tuple(key[4:].decode() for key in self._declared if key.startswith(begin))

    def _compare(self, run: DispatchBatch, builder: SearchEntries) -> None:
        for change in changes_of(builder, [run], self._numbers):
            if change.tree == LOCATION:
                for key, value in change.puts:
                    self._location(key, value)
            else:
                self._terms([*change.puts, *change.entries()])

    def _location(self, key: bytes, value: bytes) -> None:
        wanted = np.frombuffer(value, LOCATION_ENTRY)
        offsets = OFFSET.unpack(key)[0] + wanted["distance"].astype(np.int64)
        self._expected[LOCATION] += len(wanted)
        found: dict[int, bytes] = {}
        before = next(self._reader.items(LOCATION, b"", OFFSET.pack(int(offsets[0]) + 1), reverse=True), None)
        begin = key if before is None else before[0]
        for at, entries in self._reader.items(LOCATION, begin, OFFSET.pack(int(offsets[-1]) + 1)):
            for entry in np.frombuffer(entries, LOCATION_ENTRY):
                found[OFFSET.unpack(at)[0] + int(entry["distance"])] = entry.tobytes()[4:]
        for offset, entry in zip(offsets.tolist(), wanted, strict=True):
            if found.get(offset) != entry.tobytes()[4:]:
                self._report_missing(offset, LOCATION)

    def _terms(self, entries: list[tuple[bytes, bytes]]) -> None:
        for key, value in entries:
            term, offsets = key[: -OFFSET.size], postings(key, value)
            kind = TERM_HEAD.unpack_from(key)[1]
            if kind == PROPERTY:
                begin = self._declared[_declaration(term)]
                offsets = [offset for offset in offsets if offset >= begin]
                if not offsets:
                    continue
            else:
                self._expected[TERM] += len(offsets)
            found = self._postings(term, offsets[0], offsets[-1])
            for offset in offsets:
                if offset not in found:
                    self._report_missing(offset, TERM)

    def _postings(self, term: bytes, first: int, last: int) -> set[int]:
        before = next(self._reader.items(TERM, term, term + OFFSET.pack(first + 1), reverse=True), None)
        begin = term + OFFSET.pack(first) if before is None else before[0]
        found: set[int] = set()
        for key, value in self._reader.items(TERM, begin, term + OFFSET.pack(last + 1)):
            found.update(postings(key, value))
        return found

    def _report_missing(self, physical_offset: PhysicalOffset, tree: str) -> None:
        self._missing += 1
        if self._missing <= _FINDINGS_MAX:
            self._findings.add(PATH, 0, f"{tree} lacks an entry of the record at {physical_offset}")

    def _alive(self) -> set[int]:
        entries = (self._numbers.find(topic) for topic in self._numbers.names())
        return {entry.number for entry in entries if entry is not None}

    def _count_locations(self, position: PhysicalOffset) -> int:
        alive = np.array(sorted(self._alive()), np.int64)
        count = 0
        for key, value in self._reader.items(LOCATION, b""):
            entries = np.frombuffer(value, LOCATION_ENTRY)
            offsets = OFFSET.unpack(key)[0] + entries["distance"].astype(np.int64)
            there = np.isin(entries["topic"], alive) & (offsets >= self._view.log.min_offset)
            count += int(np.count_nonzero(there & (offsets < position)))
        return count

    def _count_terms(self) -> int:
        alive, count = self._alive(), 0
        for key, value in self._reader.items(TERM, b""):
            number, kind = TERM_HEAD.unpack_from(key)
            if number in alive and kind != PROPERTY:
                count += sum(offset >= self._view.log.min_offset for offset in postings(key, value))
        return count


def _declared(reader: TreeReader) -> dict[bytes, int]:
    """By topic number and property name: the offset from which on records have terms of the property."""
    return {
        key[len(PROPERTY_FROM) :]: OFFSET.unpack(value)[0]
        for key, value in reader.items(META, PROPERTY_FROM, key_after(PROPERTY_FROM))
    }


def _declaration(term: bytes) -> bytes:
    """The topic number and name in a property's term."""
    return term[: NUMBER.size] + term[TERM_HEAD.size :].partition(b"\x01")[0]
