"""The engine's settings for opening a store: sizes, limits and switches, as plain values.

`trovemq_broker.daemon.settings` makes it from files, environment and command line; tests make it directly. A
comment names RocketMQ's setting of the same meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

FlushMode = Literal["sync", "async"]

CONSUME_QUEUE_UNIT_SIZE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Sizes are in bytes. The sizes of files must equal the ones that the store was written with."""

    commit_log_file_size: int = 1_073_741_824  # mappedFileSizeCommitLog
    consume_queue_file_size: int = 6_000_000  # mappedFileSizeConsumeQueue
    index_slot_count: int = 5_000_000  # maxHashSlotNum
    index_item_count: int = 20_000_000  # maxIndexNum
    message_index_enable: bool = True  # messageIndexEnable
    message_index_safe: bool = False  # messageIndexSafe: complete the index before serving
    tree_index_enable: bool = (
        False  # B+trees beside the log: search, deduplication, priority (a broker has them)
    )
    producers_max: int = 10_000  # producers whose sequence numbers are remembered
    body_size_max: int = 4_194_304  # maxMessageSize
    batch_size_max: int = 8_388_608
    append_property_crc: bool = True  # enabledAppendPropCRC
    flush_mode: FlushMode = "sync"  # flushDiskType: SYNC_FLUSH, ASYNC_FLUSH
    store_host: str = "127.0.0.1:8081"  # written into each record (STOREHOST)
    cluster: str = "DefaultCluster"  # brokerClusterName
    broker: str = "broker-a"  # brokerName
    query_messages_max: int = 64  # maxMsgsNumBatch
    query_page_bytes_max: int = 4_194_304
    undispatched_bytes_max: int = 268_435_456
    tables_in_log: bool = False  # topics, groups, offsets, users are records of the log (a broker's are)
    spare_segment_enable: bool = True  # a segment and 8 MiB are kept for a full disk

    def __post_init__(self) -> None:
        assert self.consume_queue_file_size % CONSUME_QUEUE_UNIT_SIZE == 0, "whole units only"
        assert self.commit_log_file_size >= 4096, "a segment holds at least one page"
        assert self.index_slot_count > 0
        assert self.index_item_count > 1
