"""Faults of consume queues and index files: see damaged_store.py."""

from __future__ import annotations

import numpy as np

from tests.support.damaged_store import (
    FAULTS,
    SEGMENT_SIZE,
    UNIT_SIZE,
    UNITS_A_FILE,
    DamagedStore,
    Place,
    Where,
    fault_of,
)


@fault_of(FAULTS)
def units_swapped(store: DamagedStore) -> Place:
    record = store.pick(16)
    units = store.read(record.unit_file, record.unit_at, 2 * UNIT_SIZE)
    store.write(record.unit_file, record.unit_at, units[UNIT_SIZE:] + units[:UNIT_SIZE])
    return record.unit("unitPlace")


@fault_of(FAULTS)
def unit_points_to_no_record(store: DamagedStore) -> Place:
    record = store.pick(17)
    store.write(record.unit_file, record.unit_at, (record.physical + 1).to_bytes(8))
    return record.unit("unitPlace")


@fault_of(FAULTS)
def unit_of_another_topic(store: DamagedStore) -> Place:
    record = store.pick(18)
    other = next(r for r in store.records if r.topic != record.topic)
    store.write(record.unit_file, record.unit_at, store.read(other.unit_file, other.unit_at, UNIT_SIZE))
    return record.unit("unitPlace")


@fault_of(FAULTS)
def unit_with_a_wrong_size(store: DamagedStore) -> Place:
    record = store.pick(19)
    store.write(record.unit_file, record.unit_at + 8, (record.size + 1).to_bytes(4))
    return record.unit("unitSize")


@fault_of(FAULTS)
def unit_with_a_wrong_tag_hash(store: DamagedStore) -> Place:
    record = store.pick(20)
    store.flip(record.unit_file, record.unit_at + 19)
    return record.unit("unitTagsCode")


@fault_of(FAULTS)
def unit_missing(store: DamagedStore) -> Place:
    record = store.pick(21)
    store.write(record.unit_file, record.unit_at, bytes(UNIT_SIZE))
    return record.unit("unitMissing")


@fault_of(FAULTS)
def unit_too_many(store: DamagedStore) -> Place:
    last = _last_of_a_queue(store)
    unit = store.read(last.unit_file, last.unit_at, UNIT_SIZE)
    store.write(last.unit_file, last.unit_at + UNIT_SIZE, unit)
    return "unitExtra", last.unit_file, last.unit_at + UNIT_SIZE


@fault_of(FAULTS)
def queue_file_cut_short(store: DamagedStore) -> Place:
    record = store.pick(22)
    with (store.root / record.unit_file).open("r+b") as file:
        file.truncate(record.unit_at)
    return "queueFile", record.unit_file, 0


@fault_of(FAULTS)
def queue_file_missing_in_the_middle(store: DamagedStore) -> Place:
    record = next(
        r for r in store.records
        if UNITS_A_FILE <= r.queue_offset < 2 * UNITS_A_FILE
        and any((store.root / r.unit_file).parent.glob(f"*{2 * UNITS_A_FILE * UNIT_SIZE}"))
    )  # fmt: skip
    (store.root / record.unit_file).unlink()
    return "queueFile", record.unit_file, 0


@fault_of(FAULTS)
def last_queue_file_missing(store: DamagedStore) -> Place:
    last = _last_of_a_queue(store)
    assert last.queue_offset >= UNITS_A_FILE
    (store.root / last.unit_file).unlink()
    return "unitMissing", last.unit_file, 0


@fault_of(FAULTS)
def whole_queue_missing(store: DamagedStore) -> Place:
    record = store.pick(23)
    directory = (store.root / record.unit_file).parent
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
    return "unitMissing", f"consumequeue/{record.topic}/{record.queue_id}", 0


def _last_of_a_queue(store: DamagedStore) -> Where:
    lasts: dict[tuple[str, int], Where] = {}
    for record in store.records:
        lasts[record.topic, record.queue_id] = record
    return next(
        last for last in lasts.values()
        if last.queue_offset > UNITS_A_FILE and last.queue_offset % UNITS_A_FILE < UNITS_A_FILE - 2
    )  # fmt: skip


@fault_of(FAULTS)
def item_with_a_wrong_hash(store: DamagedStore) -> Place:
    file = store.index()
    store.write(file.path, store.item_at(50), (int(file.items[50]["hash"]) ^ 1).to_bytes(4))
    return "indexItem", file.path, store.item_at(50)


@fault_of(FAULTS)
def item_of_another_record(store: DamagedStore) -> Place:
    file = store.index()
    here = int(file.items[60]["physical_offset"])
    other = next(r for r in store.records if r.physical > here)
    store.write(file.path, store.item_at(60) + 4, other.physical.to_bytes(8))
    return "indexItem", file.path, store.item_at(60)


@fault_of(FAULTS)
def item_behind_the_end_of_the_log(store: DamagedStore) -> Place:
    file = store.index()
    store.write(file.path, store.item_at(70) + 4, (store.end + 4_096).to_bytes(8))
    return "indexItem", file.path, store.item_at(70)


@fault_of(FAULTS)
def item_lost_for_a_key(store: DamagedStore) -> Place:
    file = store.index()
    physical = int(file.items[80]["physical_offset"])
    store.write(file.path, store.item_at(80), (int(file.items[80]["hash"]) ^ 1).to_bytes(4))
    return (
        "indexMissing",
        f"commitlog/{physical // SEGMENT_SIZE * SEGMENT_SIZE:020d}",
        physical % SEGMENT_SIZE,
    )


@fault_of(FAULTS)
def item_with_wrong_seconds(store: DamagedStore) -> Place:
    path = store.index().path
    store.write(path, store.item_at(90) + 12, (4_000).to_bytes(4))
    return "indexTime", path, store.item_at(90)


@fault_of(FAULTS)
def item_with_a_wrong_predecessor(store: DamagedStore) -> Place:
    path = store.index().path
    store.write(path, store.item_at(100) + 16, (101).to_bytes(4))
    return "indexChain", path, store.item_at(100)


@fault_of(FAULTS)
def chain_cut(store: DamagedStore) -> Place:
    """The key of the older item is there, and no look-up reaches it."""
    file = store.index()
    item = int(np.flatnonzero(file.items["previous"] > 0)[-1])
    older = int(file.items[item]["previous"])
    store.write(file.path, store.item_at(item) + 16, bytes(4))
    return "indexChain", file.path, store.item_at(older)


@fault_of(FAULTS)
def slot_names_another_chain(store: DamagedStore) -> Place:
    file = store.index()
    first, second = np.flatnonzero(file.slots > 0)[:2].tolist()
    store.write(file.path, 40 + 4 * first, int(file.slots[second]).to_bytes(4))
    return "indexChain", file.path, 40 + 4 * first


@fault_of(FAULTS)
def index_begin_time_wrong(store: DamagedStore) -> Place:
    store.flip(store.index().path, 5)
    return "indexHeader", store.index().path, 0


@fault_of(FAULTS)
def index_end_offset_wrong(store: DamagedStore) -> Place:
    store.flip(store.index().path, 30)
    return "indexHeader", store.index().path, 24


@fault_of(FAULTS)
def index_item_count_wrong(store: DamagedStore) -> Place:
    path = store.index().path
    store.write(path, 36, (17).to_bytes(4))
    return "indexHeader", path, 36


@fault_of(FAULTS)
def index_slot_count_wrong(store: DamagedStore) -> Place:
    path = store.index().path
    store.flip(path, 35)
    return "indexChain", path, 32


@fault_of(FAULTS)
def index_file_cut_short(store: DamagedStore) -> Place:
    path = store.index().path
    with (store.root / path).open("r+b") as file:
        file.truncate(5_000)
    return "indexFileSize", path, 0
