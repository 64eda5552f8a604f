"""Candidates from a store's key index. The index is only read, also while a broker has the store open.

The log is scanned where the index is not reliable: before its first item, after its last, and, if the store
was not closed cleanly, after the last file that was on disk according to the checkpoint. An index that
contradicts itself, or lacks a file, is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq_proto.errors import TroveError
from trovemq_proto.records import index_hash
from trovemq_proto.records.keys import key_word
from trovemq_store.check import layouts
from trovemq_store.check.layouts import IndexView
from trovemq_store.check.store_view import infer_sizes
from trovemq_store.files.files import StorageError
from trovemq_store.files.read_only import ReadOnlyFileSystem
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
    """The candidates for a key (or unique key) in these topics. None if the index cannot be used."""
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
    _check_note(files, paths, log_begin)
    settings = infer_sizes(files, {})
    views = [
        layouts.read_index(files, path, settings.index_slot_count, settings.index_item_count)
        for path in paths
    ]
    if any(view.item_count < len(view.items) for view in views[:-1]):
        raise _ContradictionError("a file that is not the last one is not full")
    if files.exists(ABORT_PATH):
        trusted = synced_end(files, checkpoint.load(files).index_msg_timestamp)
        views = [view for view in views[:-1] if int(view.header["end_physical_offset"]) <= trusted]
    return [view for view in views if view.item_count > 1]


def _check_note(files: ReadOnlyFileSystem, paths: list[str], log_begin: int) -> None:
    """Compares the files with our broker's list of them (store/trovemq_store/index/key_index.py)."""
    if not files.exists(_NOTE_PATH):
        return
    noted = json.loads(files.read_bytes(_NOTE_PATH)).get("files", {})
    names = {path.rpartition("/")[2] for path in paths}
    if any(name not in names and end >= log_begin for name, end in noted.items()):
        raise _ContradictionError("a file is missing")


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
