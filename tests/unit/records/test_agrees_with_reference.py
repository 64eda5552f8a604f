"""The vectorised codec and the plain reference see the same in any bytes."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.reference import Record
from tests.unit.records.strategies import placed, runs, sealed, spoiled
from trovemq_proto.errors import TroveError
from trovemq_proto.records import (
    RecordBatch,
    RecordState,
    check_record,
    decode_message,
    scan_run,
    uniform_properties,
)
from trovemq_proto.records import index_entries as index_module
from trovemq_proto.records.geometry import measure

COLUMNS = {
    "body_crcs": "body_crc",
    "queue_ids": "queue_id",
    "flags": "flag",
    "queue_offsets": "queue_offset",
    "physical_offsets": "physical_offset",
    "sys_flags": "sys_flag",
    "born_timestamps": "born_timestamp",
    "store_timestamps": "store_timestamp",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offsets": "prepared_offset",
}


def assert_same(batch: RecordBatch, records: list[Record], data: bytes) -> None:
    assert batch.positions.tolist() == [record.position for record in records]
    assert batch.sizes.tolist() == [record.total_size for record in records]
    for column, field in COLUMNS.items():
        assert getattr(batch, column).tolist() == [getattr(record, field) for record in records], column
    assert (batch.magic.astype(np.int64) % 2**32).tolist() == [record.magic for record in records]
    assert list(map(bytes, batch.stored_bodies())) == [record.body for record in records]
    topics = [record.topic.decode("utf-8", "replace") for record in records]
    assert batch.topics == topics
    grouped = {int(i): topic for topic, indexes in batch.topic_groups() for i in indexes}
    assert [grouped[i] for i in range(len(records))] == topics
    for name in ("TAGS", "KEYS", "a"):
        values = [reference.properties(record.properties).get(name) for record in records]
        assert batch.property_values(name) == values
    assert [bytes(view) for view in batch.select(range(len(records)))] == [
        data[record.position : record.position + record.total_size] for record in records
    ]


def assert_same_index(batch: RecordBatch, records: list[Record]) -> None:
    assert batch.tags_codes().tolist() == list(map(reference.tags_code, records))
    for tags in (True, False):
        entries = batch.index_entries(tags)
        expected = [(i, h) for i, r in enumerate(records) for h in reference.index_hashes(r, tags)]
        assert list(zip(entries.record_index.tolist(), entries.hashes.tolist(), strict=True)) == expected
        assert entries.record_index.dtype == np.int64
        assert entries.hashes.dtype == np.int32


@pytest.mark.slow
@given(runs())
def test_columns_and_index_of_good_runs(run: list[Record]) -> None:
    data, records = placed(run, 1 << 40)
    for source in (data, bytearray(data), memoryview(data)):
        batch = RecordBatch.split(source)
        assert_same(batch, records, data)
    assert_same_index(RecordBatch.split(data), records)


@pytest.mark.parametrize(
    ("small_batch_max", "odd_share"),
    [pytest.param(0, 16, id="scanned"), pytest.param(0, 1, id="rows"), pytest.param(1000, 16, id="plain")],
)
@given(run=runs(min_size=1))
def test_index_of_few_records_in_each_way(run: list[Record], small_batch_max: int, odd_share: int) -> None:
    data, records = placed(run, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "ROWS_MAX", small_batch_max)
        patch.setattr(uniform_properties, "ODD_SHARE", odd_share)
        assert_same_index(RecordBatch.split(data), records)


def test_a_last_property_without_an_end_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "ROWS_MAX", 0)
    blank = Record(0, 0, reference.MAGIC_V1, 0, 0, 0, 0, 0, 0, 5, bytes(8), 7, bytes(8), 0, 0, b"", b"", b"")
    blocks = [b"UNIQ_KEY\x01first\x02", b"TAGS\x01a\x02KEYS\x01k1 k2"]
    run = [sealed(replace(blank, topic=b"orders", properties=block)) for block in blocks]
    data, records = placed(run, 0)
    assert_same_index(RecordBatch.split(data), records)


def test_times_of_delivery_beside_a_topic_whose_name_is_as_long() -> None:
    """One layout and two topics: the schedule topic's tags codes are times all the same."""
    blank = Record(0, 0, reference.MAGIC_V1, 0, 0, 0, 0, 0, 0, 5, bytes(8), 7, bytes(8), 0, 0, b"", b"", b"")
    topics = [b"SCHEDULE_TOPIC_XXXX", b"some_topic_as_long_"] * 20
    run = [sealed(replace(blank, topic=topic, properties=b"DELAY\x012\x02")) for topic in topics]
    data, records = placed(run, 0)
    assert RecordBatch.split(data).uniform
    assert_same_index(RecordBatch.split(data), records)


@given(runs(min_size=1), st.data())
def test_columns_of_chosen_records(run: list[Record], data: st.DataObject) -> None:
    raw, records = placed(run, 0)
    chosen = data.draw(st.lists(st.sampled_from(range(len(records))), unique=True).map(sorted))
    batch = RecordBatch(
        raw,
        np.array([records[i].position for i in chosen], np.int64),
        np.array([records[i].total_size for i in chosen], np.int64),
    )
    picked = [records[i] for i in chosen]
    assert_same(batch, picked, raw)
    assert_same_index(batch, picked)


@given(runs(), st.data())
def test_split_of_any_bytes(run: list[Record], data: st.DataObject) -> None:
    raw = data.draw(spoiled(placed(run, 0)[0]))
    records = reference.split(raw)
    if records is None:
        with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
            RecordBatch.split(raw)
    else:
        batch = RecordBatch.split(raw)
        assert_same(batch, records, raw)
        assert_same_index(batch, records)
        for record in records:
            decoded_or_damaged(raw[record.position : record.position + record.total_size], record)


@given(runs(min_size=1), st.data())
def test_geometry_of_any_bytes(run: list[Record], data: st.DataObject) -> None:
    """Both measurements stop at the first record that the reference does not parse."""
    raw, records = placed(run, 0)
    spoilt = data.draw(spoiled(raw))[: len(raw)].ljust(len(raw), b"\x00")
    positions = np.array([record.position for record in records], np.int64)
    sizes = np.array([record.total_size for record in records], np.int64)
    good = []
    for record in records:
        read = reference.parse(spoilt, record.position)
        good.append(read is not None and read.total_size == record.total_size)
    well_formed = measure(memoryview(spoilt), positions, sizes).well_formed
    assert well_formed == [*good, False].index(False)


def decoded_or_damaged(raw: bytes, record: Record) -> None:
    if record.body and zlib.crc32(record.body) & 0x7FFFFFFF != record.body_crc:
        with pytest.raises(TroveError, match="RECORD_DAMAGED"):
            decode_message(raw)
        return
    if record.sys_flag & 1:
        return
    message = decode_message(raw)
    assert message.properties == reference.properties(record.properties)
    assert message.topic == record.topic.decode("utf-8", "replace")
    assert message.body == record.body
    assert (message.queue_offset, message.physical_offset) == (record.queue_offset, record.physical_offset)


@given(runs(min_size=1))
def test_messages_in_bulk_are_those_one_by_one(run: list[Record]) -> None:
    data, records = placed(run, 0)
    batch = RecordBatch.split(data)
    expected = [decode_message(data[r.position : r.position + r.total_size]) for r in records]
    assert list(batch.messages()) == expected
    assert [batch.message(i) for i in range(len(batch))] == expected
    assert list(map(bytes, batch.bodies())) == [message.body for message in expected]


@given(runs(), st.data(), st.booleans(), st.booleans(), st.sampled_from([0, 300, 1 << 30]))
def test_scan_of_any_bytes(
    run: list[Record], data: st.DataObject, check_crc: bool, check_position: bool, bytes_max: int
) -> None:
    base = 1 << 33
    before = data.draw(st.binary(max_size=3))
    raw = before + data.draw(spoiled(placed(run, base + len(before))[0]))
    view = memoryview(raw)
    physical_offset_of_data = base if check_position else None
    batch, end, stop = scan_run(
        view,
        len(before),
        len(raw),
        physical_offset_of_data=physical_offset_of_data,
        check_crc=check_crc,
        bytes_max=bytes_max,
    )
    expected: list[int] = []
    position = len(before)
    while True:
        at = base + position if check_position else None
        state, size = reference.state(raw, position, at, check_crc)
        found = check_record(view, position, len(raw), physical_offset=at, check_crc=check_crc)
        assert (found[0].value, found[1]) == (state, size)
        if state != "record" or (expected and position + size > len(before) + bytes_max):
            break
        expected.append(position)
        position += size
    assert (batch.positions.tolist(), end, stop) == (expected, position, RecordState(state))


@pytest.mark.parametrize(
    ("position", "size"), [(-1, 91), (0, -1), (2**63 - 1, 100), (100, 2**63 - 1), (0, 101), (10, 91)]
)
def test_records_outside_of_the_buffer(position: int, size: int) -> None:
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        RecordBatch(bytes(100), np.array([position], np.int64), np.array([size], np.int64))


@given(st.binary(max_size=300), st.integers(0, 300))
def test_noise_never_crashes(noise: bytes, position: int) -> None:
    position = min(position, len(noise))
    view = memoryview(noise)
    state, _ = check_record(view, position, len(noise), physical_offset=None)
    batch, end, stop = scan_run(
        view, position, len(noise), physical_offset_of_data=0, check_crc=True, bytes_max=1 << 20
    )
    assert state is not RecordState.RECORD
    assert (len(batch), end) == (0, position)
    assert stop is not RecordState.RECORD
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        decode_message(noise)
