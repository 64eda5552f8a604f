"""A process with 256 MiB for its data: writes a store of 384 MiB, reads it, looks things up, opens it again
as after a kill, and reads it once more.

    python -m tests.durability.small_memory_child DIRECTORY
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.engine import NOW_MS, SMALL, append, flush, record
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.real import RealFileSystem

LIMIT_BYTES: Final = 256 << 20
SETTINGS: Final = replace(
    SMALL,
    commit_log_file_size=64 << 20,
    consume_queue_file_size=20 * 30_000,
    index_slot_count=50_000,
    index_item_count=20_000,
    body_size_max=1 << 20,
    batch_size_max=4 << 20,
    undispatched_bytes_max=16 << 20,
    flush_mode="sync",
)
BODY_SIZE: Final = 16 << 10
PER_BATCH: Final = 96
BATCHES: Final = 256
"""Of 1.5 MiB each."""


def write(store: MessageStore) -> None:
    store.topics.create("orders", queue_count=1)
    for batch in range(BATCHES):
        records = [
            record(
                b"%08d" % number * (BODY_SIZE // 8),
                keys=f"k{number}",
                append_property_crc=SETTINGS.append_property_crc,
            )
            for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH)
        ]
        append(store, *records, now_ms=NOW_MS + batch)
        if batch % 4 == 3:
            flush(store)
        if batch % 32 == 31:
            store.flush_projections(index=True)


def read(store: MessageStore) -> None:
    """Everything once, in order, and some of it by key."""
    number = 0
    for _, records, _ in store.scan(store.min_offset, store.visible_offset):
        for message in records.messages():
            assert message.body[:8] == b"%08d" % number, number
            number += 1
    assert number == BATCHES * PER_BATCH
    for chosen in range(0, number, number // 50):
        (page,) = query_pages(store, KeyQuery("orders", f"k{chosen}", KeyType.KEY))
        assert len(page.physical_offsets) == 1


def refuses_more() -> bool:
    """Whether the limit is one."""
    try:
        return len(bytearray(LIMIT_BYTES)) < 0
    except MemoryError:
        return True


def main(root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    print("refused" if refuses_more() else "the limit limits nothing")
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    write(store)
    assert store.end_offset > 1.4 * LIMIT_BYTES
    print("written")
    read(store)
    print("read")
    store = MessageStore.open(RealFileSystem(root), SETTINGS, NOW_MS)
    assert not store.recovery.clean
    read(store)
    store.close(NOW_MS + BATCHES)
    print("recovered")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
