"""scan_run finds the records that check_record finds one by one, also where many in a row have one size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueOffset
from trovemq_proto.records import RecordBatch, RecordState, check_record, encode_record, patch_batch, scan_run
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_proto.records.scan import few_records_of_log

HOST = bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x91])
BLANK = bytes.fromhex("00000040 cbd43194") + bytes(56)
TAILS = [b"", bytes(200), BLANK, BLANK + bytes(200), b"\x00\x00\x00\x08" + bytes(100), b"\x7f" * 100]

same_sizes = st.tuples(st.integers(0, 2), st.integers(1, 80))
"""(size of the body, how many records in a row)."""


def stored(rows: list[tuple[int, int]]) -> bytearray:
    """The records as they lie in a log from physical offset 0 on."""
    data = bytearray().join(encode_record("orders", bytes(size)) * count for size, count in rows)
    patch_batch(
        data, RecordBatch.split(data), first_queue_offset=QueueOffset(0), physical_offset=LOG_ORIGIN,
        store_timestamp=EpochMs(5_000), store_host=HOST, born_host=None, append_property_crc=False,
    )  # fmt: skip
    return data


def one_by_one(data: memoryview, limit: int, bytes_max: int) -> tuple[list[int], int, RecordState]:
    positions: list[int] = []
    position = 0
    while True:
        state, size = check_record(data, position, limit, physical_offset=position)
        if state is not RecordState.RECORD or (positions and position + size > bytes_max):
            return positions, position, state
        positions.append(position)
        position += size


@given(
    st.lists(same_sizes, min_size=1, max_size=4),
    st.sampled_from(TAILS),
    st.integers(0, 300),
    st.none() | st.integers(0, 10_000),
    st.sampled_from([0, 1000, 5000, 1 << 20]),
)
def test_rows_of_records_of_one_size(
    rows: list[tuple[int, int]], tail: bytes, cut: int, flipped: int | None, bytes_max: int
) -> None:
    data = stored(rows)
    if flipped is not None:
        data[flipped % len(data)] ^= 1
    view = memoryview(bytes(data) + tail)
    limit = max(0, len(view) - cut)
    batch, end, stop = scan_run(
        view, 0, limit, physical_offset_of_data=0, check_crc=True, bytes_max=bytes_max
    )
    assert (batch.positions.tolist(), end, stop) == one_by_one(view, limit, bytes_max)


@given(st.lists(same_sizes, min_size=1, max_size=4), st.none() | st.integers(0, 10_000), st.integers(0, 1))
def test_few_records_of_a_log_are_those_of_the_scan(
    rows: list[tuple[int, int]], flipped: int | None, moved: int
) -> None:
    data = stored(rows)
    if flipped is not None:
        data[flipped % len(data)] ^= 1
    view = memoryview(bytes(data))
    scanned, end, _ = scan_run(
        view, 0, len(view), physical_offset_of_data=moved, check_crc=False, bytes_max=len(view)
    )
    few = few_records_of_log(view, moved)
    is_whole = end == len(view)
    assert (few is not None) == (is_whole and len(scanned) <= ROWS_MAX)
    if few is not None:
        assert few.positions.tolist() == scanned.positions.tolist()
        assert few.sizes.tolist() == scanned.sizes.tolist()
        assert few.store_timestamps.tolist() == scanned.store_timestamps.tolist()
