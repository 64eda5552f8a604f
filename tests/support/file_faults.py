"""Faults of small files, and those that only our own stores can have: see damaged_store.py."""

from __future__ import annotations

import json
import struct

from tests.support.damaged_store import (
    FAULTS,
    OWN_FAULTS,
    DamagedStore,
    Place,
    fault_of,
)
from trovemq_proto.records.layout import STORE_TIMESTAMP_AT


@fault_of(FAULTS)
def committed_offsets_unreadable(store: DamagedStore) -> Place:
    (store.root / "config/consumerOffset.json").write_bytes(b'{"offsetTable":{')
    return "config", "config/consumerOffset.json", 0


@fault_of(FAULTS)
def topics_unreadable(store: DamagedStore) -> Place:
    (store.root / "config/topics.json").write_bytes(b"\xff\xfe nonsense")
    return "config", "config/topics.json", 0


@fault_of(FAULTS)
def committed_offset_behind_the_queue(store: DamagedStore) -> Place:
    record = store.pick(24)
    table = {"offsetTable": {f"{record.topic}@someone": {str(record.queue_id): 1_000_000}}}
    (store.root / "config/consumerOffset.json").write_text(json.dumps(table))
    return "committedOffset", "config/consumerOffset.json", 0


@fault_of(FAULTS)
def checkpoint_later_than_the_log(store: DamagedStore) -> Place:
    store.write("checkpoint", 0, struct.pack(">q", 1 << 50))
    return "checkpoint", "checkpoint", 0


@fault_of(FAULTS)
def checkpoint_cut_short(store: DamagedStore) -> Place:
    with (store.root / "checkpoint").open("r+b") as file:
        file.truncate(100)
    return "checkpoint", "checkpoint", 0


@fault_of(OWN_FAULTS)
def bit_flipped_in_a_header(store: DamagedStore) -> Place:
    record = store.pick(1)
    store.flip(record.file, record.at + STORE_TIMESTAMP_AT + 6)
    return record.reported()


@fault_of(OWN_FAULTS)
def bit_flipped_in_properties(store: DamagedStore) -> Place:
    record = store.pick(2)
    store.flip(record.file, record.at + record.properties_at + 12)
    return record.reported()


@fault_of(OWN_FAULTS)
def bit_flipped_in_the_state(store: DamagedStore) -> Place:
    store.flip("trovemq/state.json", 40)
    return "config", "trovemq/state.json", 0


@fault_of(OWN_FAULTS)
def bit_flipped_in_the_deletions(store: DamagedStore) -> Place:
    store.flip("trovemq/deletions.json", 20)
    return "config", "trovemq/deletions.json", 0
