"""Exactly the records of a topic that have one unique key: for the broker's own look-ups in the log.

The key index has 31 bits of a hash: each record that it names is compared. The part of the log that the index
does not cover yet is read; if the disk does not return the index, all of the log is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import PROPERTY_UNIQ_KEY, index_hash, parse_properties
from trovemq_proto.records.fields import read_fields
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError


def records_with_unique_key(
    store: MessageStore, topic: str, unique_key: str, begin: PhysicalOffset
) -> Iterator[memoryview]:
    """Visible, undamaged records from the physical offset `begin` on, in log order. Needs a key index."""
    key_hash = index_hash(topic, unique_key)
    for physical_offset in _candidates(store, key_hash, max(begin, store.min_offset)):
        try:
            record = store.record_at(physical_offset)
        except DamagedError:
            continue  # damaged: record_at() has counted it
        if record is not None and _answers(record, topic, unique_key):
            yield record


def _candidates(store: MessageStore, key_hash: int, begin: PhysicalOffset) -> list[PhysicalOffset]:
    """Physical offsets of records that may have a key of that hash, each once."""
    assert store.key_index is not None, "without a key index the queues are read"
    assert begin >= store.min_offset, "the log has all records from there on"
    indexed_end = max(begin, store.key_index.position)
    try:
        found = set(store.key_index.candidates(key_hash, begin, indexed_end))
    except StorageError:
        found, indexed_end = set(), begin
    for physical_offset, records, _ in store.scan(indexed_end, store.visible_offset):
        entries = records.index_entries(tags=False)
        hits = entries.record_index[entries.hashes == key_hash]
        found.update((physical_offset + records.positions[np.unique(hits)]).tolist())
    return sorted(found)


def _answers(record: memoryview, topic: str, unique_key: str) -> bool:
    fields = read_fields(record, 0, len(record))
    assert fields is not None, "the store returns records that are well formed"
    assert fields.size == len(record), "the store returns whole records"
    if record[fields.topic_position : fields.topic_position + fields.topic_size] != topic.encode():
        return False
    return parse_properties(bytes(record[fields.property_position :])).get(PROPERTY_UNIQ_KEY) == unique_key
