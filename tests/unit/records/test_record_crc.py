"""The CRC of a whole record: written right, and no damaged bit of any part passes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch, RecordState, check_record, encode_record, scan_run
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import CRC_PROPERTY_SIZE
from trovemq_proto.records.patch import patch_batch
from trovemq_proto.records.record_crcs import damaged_records

HOST = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x91])


def stored(count: int, *, crc: bool = True, at: int = 0, body: bytes = b"body") -> bytearray:
    """`count` records as they lie in a log at physical offset `at`."""
    data = bytearray().join(
        encode_record("orders", body, properties={"KEYS": f"k{i:03}"}, append_property_crc=crc)
        for i in range(count)
    )
    patch_batch(
        data, RecordBatch.split(data), first_queue_offset=QueueOffset(7), physical_offset=PhysicalOffset(at),
        store_timestamp=EpochMs(5_000), store_host=HOST, born_host=HOST, append_property_crc=True,
    )  # fmt: skip
    return data


@pytest.mark.parametrize("count", [1, 40])
def test_the_digits_are_rocketmqs(count: int) -> None:
    """Spec: CRC 907060870 is stored as 0780607090."""
    for record in map(bytes, RecordBatch.split(stored(count)).select(range(count))):
        crc = zlib.crc32(record[:-CRC_PROPERTY_SIZE]) & 0x7FFFFFFF
        assert record[-20:] == b"__CRC32#\x01" + f"{crc:010}"[::-1].encode() + b"\x02"


def test_no_flipped_bit_of_a_record_passes() -> None:
    data = stored(1)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        state, _ = check_record(memoryview(flipped), 0, len(flipped), physical_offset=0)
        assert state not in (RecordState.RECORD, RecordState.BLANK, RecordState.STALE), bit


def test_a_flipped_bit_among_many_is_found_in_one_pass_and_spares_the_rest() -> None:
    data = stored(40)
    size = len(data) // 40
    for bit in range(0, 8 * size, 5):
        flipped = bytearray(data)
        flipped[20 * size + bit // 8] ^= 1 << bit % 8
        found = scan_run(
            memoryview(flipped), 0, len(data), physical_offset_of_data=0, check_crc=True, bytes_max=1 << 20
        )
        assert len(found[0]) == 20, bit


def test_both_kinds_mix_in_one_run() -> None:
    parts = [stored(1, crc=bool(i % 3)) for i in range(30)]
    data = bytearray().join(parts)
    batch = RecordBatch.split(data)
    assert not damaged_records(batch).any()
    for index in (3, 4):
        data[int(batch.positions[index]) + 90] ^= 1  # of the body
    assert np.flatnonzero(damaged_records(RecordBatch.split(data))).tolist() == [3, 4]
    for row in batch.rows:
        assert crc_matches(batch.data, row) == (row.position not in batch.positions[[3, 4]])


def test_a_property_of_a_record_without_the_crc_is_not_covered() -> None:
    data = stored(1, crc=False)
    data[-2] ^= 1
    fields = read_fields(bytes(data), 0, len(data))
    assert fields is not None
    assert crc_matches(bytes(data), fields)


@pytest.mark.parametrize("crc", [False, True])
def test_a_whole_record_of_another_place_is_stale(crc: bool) -> None:
    data = memoryview(stored(1, crc=crc, at=4096))
    assert check_record(data, 0, len(data), physical_offset=4096)[0] is RecordState.RECORD
    assert check_record(data, 0, len(data), physical_offset=8192) == (RecordState.STALE, 0)
