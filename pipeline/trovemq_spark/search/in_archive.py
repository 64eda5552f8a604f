"""The archive's part: of all its files only those, and of these only the row groups, that may have an answer.

Files go by the manifest (topic, store time, physical offset); row groups by the bloom filters of the key
columns (archive/bloom.py) and by the statistics of the store time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_offset_msg_id
from trovemq_spark.archive.bloom import row_groups_with
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import KEY_LIST
from trovemq_spark.search.pieces import FilePiece
from trovemq_spark.search.question import TIME_MAX, Question

_THREADS: Final = 4


@dataclass
class ArchivePart:
    """What of an archive is to be read."""

    pieces: list[FilePiece] = field(default_factory=list)
    file_count: int = 0
    """All files of the archive."""

    @classmethod
    def open(cls, archive: str, question: Question) -> ArchivePart:
        """TroveError ARCHIVE_ILLEGAL; OSError."""
        manifest = Manifest.open(archive)
        selection = _selection(question)
        if selection is None:
            return cls(file_count=len(manifest.files()))
        entries = manifest.files(selection)

        def piece(entry: FileEntry) -> FilePiece:
            groups = _row_groups(manifest, entry, question)
            return FilePiece(manifest.place, entry.file, entry.bytes, groups)

        with ThreadPoolExecutor(_THREADS) as executor:
            pieces = list(executor.map(piece, entries))
        return cls([one for one in pieces if one.row_groups != ()], len(manifest.files()))


def _selection(question: Question) -> Selection | None:
    """None: no file can have an answer."""
    physical_offset = None
    if question.msg_id:
        try:
            _, physical_offset = decode_offset_msg_id(question.msg_id)
        except TroveError:
            return None
    return Selection(
        topics=frozenset([question.topic]) if question.topic else None,
        stored_from_ms=question.begin_ms if question.begin_ms > 0 else None,
        stored_to_ms=question.end_ms if question.end_ms < TIME_MAX else None,
        physical_offset=physical_offset,
    )


def _row_groups(manifest: Manifest, entry: FileEntry, question: Question) -> tuple[int, ...] | None:
    """The row groups that may have the ids and keys that are asked for; None: any may."""
    groups: set[int] | None = None
    for column, value in (("msgId", question.msg_id), ("uniqueKey", question.unique_key)):
        if value:
            found = set(row_groups_with(manifest.place, entry, column, [value]))
            groups = found if groups is None else groups & found
    if question.key:
        found = set(row_groups_with(manifest.place, entry, KEY_LIST, [question.key]))
        found.update(row_groups_with(manifest.place, entry, "uniqueKey", [question.key]))
        groups = found if groups is None else groups & found
    return None if groups is None else tuple(sorted(groups))
