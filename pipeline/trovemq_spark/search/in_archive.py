"""The search in an archive: only the files, and only their row groups, that may have a matching row.

Files are chosen by the manifest (topic, store time, physical offset), row groups by the bloom filters of the
key columns (archive/bloom.py) and the statistics of the store time. Gaps that the archive records (damage of
the log, segments that were removed before they were archived) make the answer incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from trovemq_proto.errors import TroveError
from trovemq_proto.records.keys import key_word
from trovemq_spark.archive.bloom import FileFilters
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import KEY_LIST
from trovemq_spark.search.pieces import FilePiece
from trovemq_spark.search.question import TIME_MAX, Question

_THREADS: Final = 4


@dataclass
class ArchivePart:
    """The part of an archive to read."""

    pieces: list[FilePiece] = field(default_factory=list)
    file_count: int = 0
    """The number of all files of the archive."""
    notes: list[str] = field(default_factory=list)
    """Remarks on the archive's gaps."""
    has_topic: bool = True
    """Whether there is a file of the requested topic."""

    @classmethod
    def open(cls, archive: str, question: Question) -> ArchivePart:
        """Raises TroveError ARCHIVE_ILLEGAL; OSError."""
        manifest = Manifest.open(archive)
        files = manifest.files()
        part = cls(file_count=len(files))
        part.has_topic = not question.topic or any(entry.topic == question.topic for entry in files)
        try:
            physical_offset = question.physical_offset
        except TroveError:
            return part  # not an offsetMsgId: no row has it
        with ThreadPoolExecutor(_THREADS) as executor:
            entries = manifest.files(_selection(question, physical_offset))
            pieces = executor.map(lambda entry: _piece(manifest, entry, question), entries)
            part.pieces = [piece for piece in pieces if piece.row_groups != ()]
        part.notes = list(_missing(manifest, physical_offset))
        return part

    @property
    def complete(self) -> bool:
        """Whether the archive has the log without gaps from its beginning on."""
        return not self.notes


def _missing(manifest: Manifest, physical_offset: int | None) -> Iterator[str]:
    for source in manifest.sources:
        for begin, end in manifest.holes(source):
            if physical_offset is None or begin <= physical_offset < end:
                of = f" of {source}" if source else ""
                yield f"the archive has nothing of [{begin}, {end}) of the log{of}"


def _selection(question: Question, physical_offset: int | None) -> Selection:
    return Selection(
        topics=frozenset([question.topic]) if question.topic else None,
        stored_from_ms=question.begin_ms if question.begin_ms > 0 else None,
        stored_to_ms=question.end_ms if question.end_ms < TIME_MAX else None,
        physical_offset=physical_offset,
        damage=True,
    )


def _piece(manifest: Manifest, entry: FileEntry, question: Question) -> FilePiece:
    if entry.is_damage:
        return FilePiece(manifest.place, entry.file, entry.bytes, is_damage=True)
    if not (question.offset_msg_id or question.message_id or question.key):
        return FilePiece(manifest.place, entry.file, entry.bytes)
    with FileFilters(manifest.place, entry) as filters:
        groups = _row_groups(filters, question)
        bytes_read = entry.bytes * len(groups) // max(1, filters.row_group_count)
    return FilePiece(manifest.place, entry.file, bytes_read, groups)


def _row_groups(filters: FileFilters, question: Question) -> tuple[int, ...]:
    """The row groups that may have the requested ids and keys."""
    groups = set(range(filters.row_group_count))
    for column, value in (("offsetMsgId", question.offset_msg_id), ("messageId", question.message_id)):
        if value and groups:
            groups &= filters.groups_with(column, [value])
    if question.key and groups:
        own = filters.groups_with(KEY_LIST, [key_word(question.key.encode()).decode()])
        groups &= own | filters.groups_with("messageId", [question.key])
    return tuple(sorted(groups))
