"""Batches of more records than are read as rows."""

from __future__ import annotations

import pytest

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import BatchEncoder, RecordBatch, encode_record, pack_host, patch_batch
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.validate import read_batch

COUNT = 2 * ROWS_MAX
NOW_MS = EpochMs(1_700_000_000_000)


def rules(topic: str, *, crc: bool) -> QueueRules:
    return QueueRules(topic, 0, body_size_max=1_000, store_host_ipv6=False, append_property_crc=crc)


def test_a_compressed_body_of_one_byte_passed_with_the_byte_after_it() -> None:
    """0x7801 begins a stream of zlib; the 1 is the size of the topic's name."""
    bodies = [bytes(8)] * COUNT + [b"\x78"]
    data = b"".join(
        encode_record("t", body, sys_flag=SYS_FLAG_COMPRESSED if len(body) == 1 else 0) for body in bodies
    )
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        read_batch(memoryview(bytearray(data)), rules("t", crc=False))


def test_checked_records_of_one_layout_get_their_seal() -> None:
    encoder = BatchEncoder("t", append_property_crc=True)
    keys = [f"{number:032}" for number in range(COUNT)]
    data = memoryview(encoder.encode([bytes(8)] * COUNT, queue_id=0, unique_keys=keys, born_timestamp=NOW_MS))
    batch = read_batch(data, rules("t", crc=True))
    assert batch.alike is not None
    assert batch.checked
    patch_batch(
        data,
        batch,
        first_queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(0),
        store_timestamp=NOW_MS,
        store_host=pack_host("10.0.0.1:10911"),
        born_host=None,
        append_property_crc=True,
        seal=-5,
    )
    assert set(RecordBatch.split(data).prepared_transaction_offsets.tolist()) == {-5}
