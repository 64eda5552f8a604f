"""How far the files of the tables have the log's records: `trovemq/tables.json`, which RocketMQ
does not have.

    {"formatVersion": 1,
     "tables": {"topic": {"begin": offset, "files": [{"crc": CRC-32, "end": offset}, …]}, "group": {…}},
     "crc32": "…"}

begin   the records from this physical offset on give the whole table, without its file; of an empty table
        2^63 - 1
files   contents that the file may have: one, or two while it is replaced. `crc`: of the content, null for no
        file; `end`: the content has all records of the table that end at or below this physical offset
(the CRC: store/trovemq_store/files/sealed_json.py)

The note of `deletion` has one content, no file: the records up to its end delete no topic. So a start without
`trovemq/deletions.json` reads the later ones alone (engine/deletion_records.py).

A table's file with another CRC was written by RocketMQ, by a version before this file, or by hand. Its
differences from the content that is noted last then become records (table_differences.py).

Invariants
- The new content is noted before the file is replaced, beside the old one: else a crash between the two would
  make our file a foreign one, which undoes later records.
- No noted end is beyond the synced end of the log.
- Unknown tables are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile

NOTES_PATH: Final = "trovemq/tables.json"
FORMAT_VERSION: Final = 1
OF_EMPTY: Final = PhysicalOffset((1 << 63) - 1)
NO_DELETIONS: Final = "deletion"
CONTENTS_MAX: Final = 8
"""Contents that are noted of one file: more than two only while its writes fail."""


@dataclass(frozen=True, slots=True)
class NotedContent:
    """A content that the file may have; crc None: there is no file."""

    crc: int | None
    end: PhysicalOffset


@dataclass(frozen=True, slots=True)
class TableNote:
    """A table's note, by the table above."""

    begin: PhysicalOffset
    contents: tuple[NotedContent, ...]

    def end_of(self, crc: int) -> PhysicalOffset | None:
        """The end of the content with that CRC; None if it is not one that we wrote."""
        return next((one.end for one in reversed(self.contents) if one.crc == crc), None)

    @property
    def base_end(self) -> PhysicalOffset:
        """The end of the content that another program found before it wrote the file."""
        return min((one.end for one in self.contents), default=LOG_ORIGIN)

    def with_next(self, content: NotedContent, begin: PhysicalOffset) -> TableNote:
        """The note before the file gets this content."""
        kept = self.contents[-(CONTENTS_MAX - 1) :]
        return TableNote(min(self.begin, begin), (*kept, content))


class TableNotes:
    """The notes of one store, by the kind of the table. May be used in any thread, by one at a time."""

    def __init__(self, file: JsonFile, tables: Mapping[str, Any]) -> None:
        self._file = file
        self._tables = dict(tables)

    @classmethod
    def load(cls, files: FileSystem) -> TableNotes:
        """TroveError STORE_NEWER for a format that we do not know, STORE_FAILED if it is damaged."""
        file = JsonFile(files, NOTES_PATH, mirror=True, sealed=True)
        document = file.load()
        if document is None:
            return cls(file, {})
        version = document.get("formatVersion")
        if isinstance(version, int) and version > FORMAT_VERSION:
            what = f"{NOTES_PATH} has format {version}; this version knows {FORMAT_VERSION}"
            raise TroveError(errors.STORE_NEWER, what, file=NOTES_PATH)
        notes = document.get("tables")
        if version != FORMAT_VERSION or not isinstance(notes, dict):
            raise DamagedError(errors.STORE_FAILED, f"{NOTES_PATH} is damaged", file=NOTES_PATH)
        read = cls(file, notes)
        for kind in notes:
            read.get(kind)
        return read

    def get(self, kind: str) -> TableNote | None:
        """TroveError STORE_FAILED if it is damaged."""
        value = self._tables.get(kind)
        if value is None:
            return None
        try:
            return TableNote(_offset(value["begin"]), tuple(map(_content, value["files"])))
        except (KeyError, TypeError, ValueError) as error:
            what = f"{NOTES_PATH}: the note of {kind} is damaged"
            raise DamagedError(errors.STORE_FAILED, what, file=NOTES_PATH) from error

    def set(self, kind: str, note: TableNote) -> None:
        """Durable with the next save()."""
        files = [{"crc": one.crc, "end": one.end} for one in note.contents]
        self._tables = {**self._tables, kind: {"begin": note.begin, "files": files}}

    def save(self) -> None:
        """Durable when it returns; may block. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR."""
        self._file.save({"formatVersion": FORMAT_VERSION, "tables": self._tables})


def _content(value: Any) -> NotedContent:
    crc = value["crc"]
    if crc is not None and not isinstance(crc, int):
        raise ValueError("the CRC is not a number")
    return NotedContent(crc, _offset(value["end"]))


def _offset(value: object) -> PhysicalOffset:
    if not isinstance(value, int) or value < 0:
        raise ValueError("the offset is not a number")
    return PhysicalOffset(value)
