"""The rules of an index file, as functions over one file or a run of records: for the scrub of a live store,
`verify` and the Spark audit alike. The hash table's chains: index_chains.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.check import layouts
from trovemq_store.check.findings import Findings
from trovemq_store.check.layouts import IndexView
from trovemq_store.log.projection import DispatchBatch

_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)

Int64s = NDArray[np.int64]
Numbers = NDArray[np.uint64]


class KeyItems(NamedTuple):
    """The items of a run's records, in log order."""

    record_index: Int64s
    numbers: Numbers
    """mix() of physical offset and hash."""
    physical_offsets: Int64s
    alive: NDArray[np.bool_]
    """False: the record's topic was deleted, so that its items may still exist, but need not."""


def key_items(run: DispatchBatch, *, tags: bool) -> KeyItems:
    record_index, hashes = run.records.index_entries(tags)
    offsets = run.physical_offset + run.records.positions[record_index]
    alive = np.ones(len(offsets), np.bool_) if run.alive is None else run.alive[record_index]
    return KeyItems(record_index, mix(offsets, hashes.astype(np.int64)), offsets, alive)


def mix(physical_offsets: Int64s, hashes: Int64s) -> Numbers:
    """One number for each pair: equal pairs give equal numbers, different pairs almost never do."""
    return physical_offsets.astype(np.uint64) * _MIX + hashes.astype(np.uint64)


def has_right_size(path: str, size: int, slot_count: int, item_count: int, findings: Findings) -> bool:
    wanted = layouts.index_file_size(slot_count, item_count)
    if size != wanted:
        findings.add(path, 0, f"has {size} bytes, {slot_count} slots and {item_count} items take {wanted}")
    return size == wanted


def check_count(file: IndexView, findings: Findings) -> None:
    """Compares the header's count, where 0 means 1. ChainCheck reports a count beyond the file's capacity."""
    counted = int(file.header["item_count"])
    if max(counted, int(counted == 0)) != file.item_count and counted <= len(file.items):
        findings.add(file.path, 36, f"names {counted} items, has {file.item_count}")


def check_header_offsets(file: IndexView, findings: Findings, *, note: bool) -> None:
    first, last = file.items["physical_offset"][[1, file.item_count - 1]].tolist()
    for name, at, expected in (("begin_physical_offset", 16, first), ("end_physical_offset", 24, last)):
        if int(file.header[name]) != expected:
            what = f"{name} is {file.header[name]}, its item says {expected}"
            findings.add(file.path, at, what, note=note)


def check_header_times(
    file: IndexView, findings: Findings, begin: int | None, end: int | None, counted_from: int, *, note: bool
) -> None:
    """begin, end: store times of the first and the last item's record, None if they are not known.
    counted_from: the time from which the items' seconds count."""
    there = int(file.header["begin_timestamp"]), int(file.header["end_timestamp"])
    # A recovery that cannot read the last record takes the time from its item.
    estimate = counted_from + 1000 * int(file.items["seconds"][file.item_count - 1])
    wrong = []
    if begin is not None and there[0] != begin:
        wrong.append((0, "begin_timestamp", there[0], begin))
    if end is not None and there[1] not in (end, estimate):
        wrong.append((8, "end_timestamp", there[1], end))
    for at, name, found, known in wrong:
        findings.add(file.path, at, f"{name} is {found}, its record says {known}", note=note)


def wrong_item(item: int, key_hash: int, physical_offset: PhysicalOffset) -> str:
    return f"item {item} (hash {key_hash}, record {physical_offset}) is not a key of that record"


def wrong_seconds(item: int, seconds: int, expected: int) -> str:
    return f"item {item} says {seconds} seconds, its record {expected}"
