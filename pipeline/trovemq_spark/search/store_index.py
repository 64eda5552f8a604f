"""Candidates from a store's key index. The index is only read, also while a broker has the store open.

The log is scanned where the index is not reliable: before its first item, after its last, and, if the store
was not closed cleanly, after the last file that was on disk according to the checkpoint. A file may end
before it is full, where store times step back. The log is scanned from that file on, unless our broker's note
of a clean stop has the file's end. An index that contradicts itself, or lacks a file, is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from trovemq_proto.errors import TroveError
from trovemq_proto.records import index_hash
from trovemq_proto.records.keys import key_word
from trovemq_store.check import layouts
from trovemq_store.check.layouts import IndexView
from trovemq_store.check.store_view import infer_sizes
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem
from trovemq_store.files.sealed_json import check_seal
from trovemq_store.index.key_index import synced_end
from trovemq_store.log import checkpoint

ABORT_PATH: Final = "abort"
_NOTE_PATH: Final = "trovemq/key-index.json"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Records that may have the key; the index has all of those in [begin, end)."""

    physical_offsets: list[int]
    begin: int
    end: int


def candidates(
    files: ReadOnlyFileSystem, topics: Iterable[str], key: str, log_begin: int
) -> Candidates | None:
    """The candidates for a key (or message id) in these topics. None if the index cannot be used."""
    try:
        views = _views(files, log_begin)
        if not views:
            return None
        begin = int(views[0].items["physical_offset"][1])
        end = int(views[-1].items["physical_offset"][views[-1].item_count - 1])
        found: set[int] = set()
        words = {key, key_word(key.encode()).decode()}
        for key_hash in {index_hash(topic, word) for topic in topics for word in words}:
            for view in views:
                found.update(_walk(view, key_hash))
    except (StorageError, TroveError, _ContradictionError, ValueError):
        return None
    return Candidates(sorted(offset for offset in found if begin <= offset < end), begin, end)


class _ContradictionError(Exception):
    """The index contradicts itself."""


def _views(files: ReadOnlyFileSystem, log_begin: int) -> list[IndexView]:
    paths = layouts.index_paths(files)
    note = _read_note(files)
    _check_files(note, paths, log_begin)
    settings = infer_sizes(files, {})
    views = [
        layouts.read_index(files, path, settings.index_slot_count, settings.index_item_count)
        for path in paths
    ]
    if files.exists(ABORT_PATH):
        trusted = synced_end(files, checkpoint.load(files).index_msg_timestamp)
        whole = takewhile(_is_full, views[:-1])
        views = [view for view in whole if int(view.header["end_physical_offset"]) <= trusted]
    else:
        ends = _noted_ends(note, views)
        whole = takewhile(lambda view: _is_full(view) or _ends_as_noted(view, ends), views[:-1])
        count = len(list(whole))
        views = views if count == len(views) - 1 else views[:count]
    return [view for view in views if view.item_count > 1]


def _is_full(view: IndexView) -> bool:
    return view.item_count == len(view.items)


def _ends_as_noted(view: IndexView, ends: Mapping[str, int]) -> bool:
    """Whether a file that is not full has all items up to the end that the note states."""
    last, unused = view.items[view.item_count - 1], view.items[view.item_count]
    is_last = int(unused["physical_offset"]) == 0 and int(unused["hash"]) == 0
    return is_last and ends.get(_name(view.path)) == int(last["physical_offset"])


def _read_note(files: ReadOnlyFileSystem) -> dict[str, Any]:
    """Our broker's note beside the index (store/trovemq_store/index/key_index.py); empty if there is none.
    Raises ValueError if it is damaged."""
    if not files.exists(_NOTE_PATH):
        return {}
    data = files.read_bytes(_NOTE_PATH)
    check_seal(data)
    note: dict[str, Any] = json.loads(data)
    return note


def _noted_ends(note: Mapping[str, Any], views: list[IndexView]) -> dict[str, int]:
    """The physical offset of each file's last record; empty if another broker wrote since the note."""
    place = [(_name(view.path), view.item_count) for view in views[-1:]]
    return note.get("files", {}) if place == [(note.get("file"), note.get("count"))] else {}


def _check_files(note: Mapping[str, Any], paths: list[str], log_begin: int) -> None:
    """Compares the files with those of the note."""
    names = set(map(_name, paths))
    if any(name not in names and end >= log_begin for name, end in note.get("files", {}).items()):
        raise _ContradictionError("a file is missing")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _walk(view: IndexView, key_hash: int) -> Iterable[int]:
    """Physical offsets of the items of this hash."""
    item = int(view.slots[key_hash % len(view.slots)])
    if item >= view.item_count:
        raise _ContradictionError(f"{view.path}: a slot names item {item} of {view.item_count}")
    while item > 0:
        there, physical_offset, _, previous = view.items[item].tolist()
        if there == key_hash:
            yield physical_offset
        if previous >= item:
            raise _ContradictionError(f"{view.path}: item {item} is before {previous}")
        item = previous
