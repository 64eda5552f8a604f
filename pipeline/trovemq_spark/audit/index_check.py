"""Checks one index file: its header, its hash table, and items that name places outside of the log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trovemq_spark.audit.found import Counted, FindingList
from trovemq_spark.audit.item_check import open_view
from trovemq_spark.audit.store import AuditedStore, IndexFacts
from trovemq_spark.log.scan import record_at
from trovemq_store.check import layouts
from trovemq_store.check.index_chains import ChainCheck
from trovemq_store.check.index_rules import (
    check_count,
    check_header_offsets,
    check_header_times,
    has_right_size,
)
from trovemq_store.check.layouts import IndexView
from trovemq_store.files.files import StorageError

_UNKNOWN = IndexFacts("", 0, 0, 0, 0)


def index_paths(store: AuditedStore) -> list[tuple[str, bool]]:
    """(path, whether it is the newest) of every index file, oldest first."""
    names = [name for name in store.files.list(layouts.INDEX_DIRECTORY) if name.isdecimal()]
    return [(f"{layouts.INDEX_DIRECTORY}/{name}", name == names[-1]) for name in names]


def index_facts(store: AuditedStore, item: tuple[str, bool]) -> tuple[IndexFacts | None, Counted]:
    """The header of an index file; None, with a finding, if its size is wrong or it cannot be read."""
    path, is_newest = item
    found = FindingList("indexFileSize")
    slots, items = store.sizes.index_slot_count, store.sizes.index_item_count
    try:
        if not has_right_size(path, store.files.file_size(path), slots, items, found):
            return None, Counted.of(found)
        view = open_view(store, replace(_UNKNOWN, path=path))
    except (StorageError, ValueError) as error:
        found.add(path, 0, f"cannot be read: {error}")
        return None, Counted.of(found)
    # All files but the newest are full, whatever their headers say.
    view = layouts.with_known_counts([view] if is_newest else [view, view])[0]
    physical = view.used["physical_offset"].astype(np.int64)
    if not len(physical):
        return IndexFacts(path, view.item_count, 0, 0, -1), Counted.of(found)
    begin = record_time(store, int(physical[0]))
    begin = int(view.header["begin_timestamp"]) if begin is None else begin
    bounds = int(physical.min()), int(physical.max())
    return IndexFacts(path, view.item_count, begin, *bounds), Counted.of(found)


def check_index(store: AuditedStore, log_end: int, facts: IndexFacts) -> Counted:
    """Checks the file's chains and header, and its items after the log's end."""
    found = FindingList()
    view = replace(open_view(store, facts), item_count=facts.item_count)
    check_count(view, found.of("indexHeader"))
    if facts.item_count > 1:
        found.kind = "indexChain"
        for _ in ChainCheck(view, found, growing=False, note=not store.clean).steps():
            pass
        _check_header(store, view, found.of("indexHeader"))
        _check_outside(store, view, log_end, found.of("indexItem"))
    return Counted.of(found)


def _check_header(store: AuditedStore, view: IndexView, found: FindingList) -> None:
    note = not store.clean
    first, last = view.items["physical_offset"][[1, view.item_count - 1]].tolist()
    begin, end = record_time(store, first), record_time(store, last)
    counted_from = int(view.header["begin_timestamp"]) if begin is None else begin
    check_header_times(view, found, begin, end, counted_from, note=note)
    check_header_offsets(view, found, note=note)


def _check_outside(store: AuditedStore, view: IndexView, log_end: int, found: FindingList) -> None:
    physical = view.used["physical_offset"].astype(np.int64)
    beyond = np.flatnonzero(physical >= log_end) + 1
    if len(beyond):
        first = int(beyond[0])
        what = f"{len(beyond)} items from item {first} on lie after the log's end"
        is_tail = len(beyond) == view.item_count - first
        found.add(view.path, view.item_offset(first), what, note=is_tail)


def record_time(store: AuditedStore, physical_offset: int) -> int | None:
    """Store time of the good record that begins there, epoch ms; None if there is none."""
    for file in store.log.covering(physical_offset, physical_offset + 1):
        records = record_at(store.log.open_segment(file), physical_offset)
        return int(records.store_timestamps[0]) if len(records) else None
    return None
