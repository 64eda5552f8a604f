"""Faults of the commit log: see damaged_store.py."""

from __future__ import annotations

from tests.support.damaged_store import (
    FAULTS,
    SEGMENT_SIZE,
    DamagedStore,
    Place,
    Where,
    fault_of,
)
from trovemq_proto.records import BLANK_SIZE
from trovemq_proto.records.layout import MAGIC_BLANK_BYTES


@fault_of(FAULTS)
def bit_flipped_in_a_body(store: DamagedStore) -> Place:
    record = store.pick(1)
    store.flip(record.file, record.at + record.body_at)
    return record.reported()


@fault_of(FAULTS)
def bit_flipped_in_a_bodys_crc(store: DamagedStore) -> Place:
    record = store.pick(2)
    store.flip(record.file, record.at + 8)
    return record.reported()


@fault_of(FAULTS)
def bit_flipped_in_a_magic(store: DamagedStore) -> Place:
    record = store.pick(3)
    store.flip(record.file, record.at + 5)
    return record.reported()


@fault_of(FAULTS)
def bit_flipped_in_a_size(store: DamagedStore) -> Place:
    record = store.pick(4)
    store.flip(record.file, record.at + 3, bit=4)
    return record.reported()


@fault_of(FAULTS)
def physical_offset_of_a_record_wrong(store: DamagedStore) -> Place:
    record = store.pick(5)
    store.flip(record.file, record.at + 33)
    return record.reported()


@fault_of(FAULTS)
def length_of_a_topic_wrong(store: DamagedStore) -> Place:
    record = store.pick(6)
    store.flip(record.file, record.at + record.topic_at - 1)
    return record.reported()


@fault_of(FAULTS)
def length_of_properties_wrong(store: DamagedStore) -> Place:
    record = store.pick(7)
    store.flip(record.file, record.at + record.properties_at - 1)
    return record.reported()


@fault_of(FAULTS)
def record_overwritten_with_zeros(store: DamagedStore) -> Place:
    record = store.pick(8)
    store.write(record.file, record.at, bytes(record.size))
    return record.reported()


@fault_of(FAULTS)
def record_torn(store: DamagedStore) -> Place:
    record = store.pick(9)
    half = record.size // 2
    store.write(record.file, record.at + half, bytes(record.size - half))
    return record.reported()


@fault_of(FAULTS)
def size_of_a_blank_wrong(store: DamagedStore) -> Place:
    following = next(r for r in store.records if r.at == 0 and r.physical)
    before = store.records[store.records.index(following) - 1]
    at = before.at + before.size
    assert store.read(before.file, at + 4, 4) == MAGIC_BLANK_BYTES
    store.write(before.file, at, (SEGMENT_SIZE - at + BLANK_SIZE).to_bytes(4))
    return "log", before.file, at


@fault_of(FAULTS)
def segment_missing_in_the_middle(store: DamagedStore) -> Place:
    name = store.pick(10).file
    (store.root / name).unlink()
    return "segmentMissing", name, 0


@fault_of(FAULTS)
def segment_cut_short(store: DamagedStore) -> Place:
    record = store.pick(11)
    with (store.root / record.file).open("r+b") as file:
        file.truncate(record.at)
    return "segmentSize", record.file, 0


@fault_of(FAULTS)
def record_stands_twice(store: DamagedStore) -> Place:
    return _copy_to_the_end(store, store.pick(12))


def _copy_to_the_end(store: DamagedStore, record: Where) -> Place:
    data = bytearray(store.read(record.file, record.at, record.size))
    data[28:36] = store.end.to_bytes(8)
    at = store.end % SEGMENT_SIZE
    assert at + record.size + BLANK_SIZE <= SEGMENT_SIZE
    file = f"commitlog/{store.end - at:020d}"
    store.write(file, at, bytes(data))
    return "queueDuplicate", file, at


@fault_of(FAULTS)
def last_record_of_a_queue_stands_twice(store: DamagedStore) -> Place:
    return _copy_to_the_end(store, store.records[-1])


@fault_of(FAULTS)
def hole_in_the_offsets_of_a_queue(store: DamagedStore) -> Place:
    record = store.pick(13)
    store.write(record.file, record.at + 12, (7_777).to_bytes(4))  # it now says that it is of another queue
    return store.next_in_queue(record).reported("queueHole")


@fault_of(FAULTS)
def record_says_another_queue(store: DamagedStore) -> Place:
    record = store.pick(14)
    store.write(record.file, record.at + 12, (7_777).to_bytes(4))
    return record.unit("unitExtra")


@fault_of(FAULTS)
def unique_key_of_another_message(store: DamagedStore) -> Place:
    record = store.pick(15)
    other = store.next_in_queue(record)
    name = b"UNIQ_KEY\x01"
    blocks = [store.read(each.file, each.at, each.size) for each in (record, other)]
    begins = [block.index(name) + len(name) for block in blocks]
    ends = [block.index(b"\x02", begin) for block, begin in zip(blocks, begins, strict=True)]
    key = blocks[0][begins[0] : ends[0]]
    assert len(key) == ends[1] - begins[1]
    store.write(other.file, other.at + begins[1], key)
    return other.reported("messageId")


@fault_of(FAULTS)
def bytes_behind_a_tag_changed(store: DamagedStore) -> Place:
    record = next(
        r
        for r in store.records[len(store.records) // 3 :]
        if b"TAGS\x01" in store.read(r.file, r.at, r.size) and r.topic.startswith("Roll")
    )
    at = store.read(record.file, record.at, record.size).index(b"TAGS\x01") + 5
    store.flip(record.file, record.at + at)
    return record.unit("unitTagsCode")
