"""trovemq/tables.json: which contents the files of the tables may have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.table_notes import (
    CONTENTS_MAX,
    NOTES_PATH,
    NotedContent,
    TableNote,
    TableNotes,
)


def at(offset: int) -> PhysicalOffset:
    return PhysicalOffset(offset)


NOTE = TableNote(at(5), (NotedContent(None, at(7)), NotedContent(0xABCD, at(9))))


def test_notes_are_read_as_they_were_saved() -> None:
    files = MemoryFileSystem()
    notes = TableNotes.load(files)
    assert notes.get("topic") is None
    notes.set("topic", NOTE)
    notes.save()
    again = TableNotes.load(files.after_power_cut())
    assert again.get("topic") == NOTE
    assert again.get("group") is None


def test_a_note_names_the_end_of_each_content() -> None:
    assert NOTE.end_of(0xABCD) == 9
    assert NOTE.end_of(1) is None
    assert NOTE.base_end == 7


def test_the_next_content_is_noted_beside_the_present_one() -> None:
    note = TableNote(at(5), (NotedContent(1, at(9)),)).with_next(NotedContent(2, at(20)), at(4))
    assert (note.begin, note.end_of(1), note.end_of(2)) == (4, 9, 20)


def test_contents_of_writes_that_fail_again_and_again_are_bounded() -> None:
    note = NOTE
    for number in range(100):
        note = note.with_next(NotedContent(number, at(number)), at(5))
    assert len(note.contents) == CONTENTS_MAX
    assert note.end_of(99) == 99


def test_an_unknown_table_is_kept() -> None:
    files = MemoryFileSystem()
    notes = TableNotes.load(files)
    notes.set("offsets", NOTE)
    notes.save()
    again = TableNotes.load(files)
    again.set("topic", NOTE)
    again.save()
    assert TableNotes.load(files).get("offsets") == NOTE


def written(document: Any) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.write_atomic(NOTES_PATH, json.dumps(document).encode())
    return files


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(TroveError) as caught:
        TableNotes.load(written({"formatVersion": 2, "tables": {}}))
    assert caught.value.spec is errors.STORE_NEWER


@pytest.mark.parametrize(
    "document",
    [
        {"formatVersion": 0, "tables": {}},
        {"formatVersion": 1, "tables": []},
        {"formatVersion": 1, "tables": {"topic": []}},
        {"formatVersion": 1, "tables": {"topic": {"begin": -1, "files": []}}},
        {"formatVersion": 1, "tables": {"topic": {"begin": 1, "files": [{"crc": "x", "end": 1}]}}},
        {"formatVersion": 1, "tables": {"topic": {"begin": 1, "files": [{"crc": 1}]}}},
    ],
)
def test_a_damaged_note_is_an_error(document: Any) -> None:
    with pytest.raises(TroveError) as caught:
        TableNotes.load(written(document))
    assert caught.value.spec is errors.STORE_FAILED
