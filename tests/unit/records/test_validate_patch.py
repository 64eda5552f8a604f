"""The broker's treatment of a client's batch: check it, fill it in."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.reference import MAGIC_V1, Record
from tests.unit.records.strategies import runs, sealed
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import (
    RecordBatch,
    decode_message,
    pack_host,
    parse_properties,
    patch_batch,
    validate_batch,
)
from trovemq_proto.records import columns as columns_module
from trovemq_proto.records import fields as fields_module
from trovemq_proto.records import validate as validate_module
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX

TOPIC, QUEUE_ID, BODY_SIZE_MAX = "orders", 3, 30
CRC_PROPERTY = b"__CRC32#\x010000000000\x02"
HOSTS = {False: pack_host("10.0.0.1:10911"), True: pack_host("[fe80::1]:10911")}


@pytest.fixture(scope="module", params=[0, 1000], ids=["vectorised", "plain"])
def small_batch_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """Makes batches of any size take one of the two paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validate_module, "ROWS_MAX", request.param)
        patch.setattr(validate_module, "UNIFORM_MIN", 1 << 30)
        patch.setattr(columns_module, "ROWS_MAX", request.param)
        patch.setattr(fields_module, "ROWS_MAX", request.param)
        yield request.param


def fit(record: Record, *, ipv6: bool, crc: bool) -> Record:
    """The record as a client would send it to TOPIC's queue."""
    block = record.properties
    if block and not block.endswith(b"\x02"):
        block += b"\x02"
    return sealed(
        replace(
            record,
            magic=MAGIC_V1,
            topic=TOPIC.encode(),
            queue_id=QUEUE_ID,
            body=record.body[:BODY_SIZE_MAX],
            sys_flag=record.sys_flag & 0x13 | (0x20 if ipv6 else 0),
            born_timestamp=abs(record.born_timestamp) % BORN_TIMESTAMP_MAX,
            born_host=bytes(20 if record.sys_flag & 0x10 else 8),
            store_host=bytes(20 if ipv6 else 8),
            reconsume_times=0,
            prepared_offset=0,
            properties=block + (CRC_PROPERTY if crc else b""),
        )
    )


def validate(data: bytes | bytearray, *, ipv6: bool = False, crc: bool = False) -> RecordBatch:
    return validate_batch(
        data,
        topic=TOPIC,
        queue_id=QUEUE_ID,
        body_size_max=BODY_SIZE_MAX,
        store_host_ipv6=ipv6,
        append_property_crc=crc,
    )


STREAMS = (zlib.compress(b"body"), zlib.compress(b"body", 0), bytes.fromhex("789c"))


def has_forbidden_name(record: Record) -> bool:
    names = parse_properties(record.properties)
    allowed = ("TROVEMQ_PRODUCER", "TROVEMQ_SEQUENCE")
    return any(name.startswith("TROVEMQ_") and name not in allowed for name in names)


def is_fit(record: Record, *, ipv6: bool, crc: bool) -> bool:
    return (
        record.magic == MAGIC_V1
        and record.topic == TOPIC.encode()
        and record.queue_id == QUEUE_ID
        and len(record.body) <= BODY_SIZE_MAX
        and record.sys_flag & ~0x333 == 0
        and bool(record.sys_flag & 0x20) == ipv6
        and 0 <= record.born_timestamp <= BORN_TIMESTAMP_MAX
        and 0 <= int.from_bytes(record.born_host[-4:], signed=True) <= 65_535
        and not record.reconsume_times
        and not record.prepared_offset
        and (not record.sys_flag & 1 or (record.body in STREAMS and record.sys_flag & 0x700 in (0, 0x300)))
        and (not record.properties or record.properties.endswith(b"\x02"))
        and not has_forbidden_name(record)
        and (len(record.properties) >= 20 and record.properties[-20:-11] == CRC_PROPERTY[:9]) == crc
        and zlib.crc32(record.body) & 0x7FFFFFFF == record.body_crc
    )


SPOILERS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"topic": b"orderS"},
        {"topic": b"order"},
        {"magic": reference.MAGIC_V2},
        {"queue_id": 4},
        {"queue_id": -1},
        {"body": b"x" * (BODY_SIZE_MAX + 1)},
        {"sys_flag": 0x4},
        {"sys_flag": 0x40},
        {"sys_flag": -(2**31)},
        {"sys_flag": 0x301},
        {"sys_flag": 0x1, "body": b"plain"},
        {"sys_flag": 0x1, "body": b""},
        {"sys_flag": 0x1, "body": STREAMS[0]},
        {"sys_flag": 0x301, "body": STREAMS[1]},
        {"sys_flag": 0x301, "body": STREAMS[2]},
        {"sys_flag": 0x201, "body": STREAMS[0]},
        {"sys_flag": 0x101, "body": STREAMS[0]},
        {"born_timestamp": -1},
        {"born_timestamp": BORN_TIMESTAMP_MAX},
        {"born_timestamp": BORN_TIMESTAMP_MAX + 1},
        {"sys_flag": 0x10, "born_host": b"\xff" * 20},
        {"sys_flag": 0x10, "born_host": bytes(16) + (65_535).to_bytes(4)},
        {"sys_flag": 0, "born_host": bytes(4) + (65_536).to_bytes(4)},
        {"reconsume_times": 1},
        {"reconsume_times": -(2**31)},
        {"prepared_offset": -1},
        {"prepared_offset": 1 << 40},
        {"properties": b"TROVEMQ_TX_BEGIN\x010\x02"},
        {"properties": b"TROVEMQ_MINE\x010\x02"},
        {"properties": b"a\x01b\x02TROVEMQ_PRODUCER\x01p\x02TROVEMQ_SEQUENCE\x011\x02"},
        {"properties": b"a\x01TROVEMQ_TX_ID\x02"},
        {"properties": b"a\x01b\x01TROVEMQ_TX_ID\x01c\x02TROVEMQ_\x02TROVEMQ_X\x01\x02"},
        {"properties": b"a\x01b"},
        {"properties": b"a\x01b\x02"},
        {"properties": CRC_PROPERTY},
        {"properties": b""},
    ]
)


@given(runs(min_size=1), st.booleans(), st.booleans(), st.data())
def test_validate_takes_what_is_fit_and_nothing_else(
    small_batch_max: int, run: list[Record], ipv6: bool, crc: bool, data: st.DataObject
) -> None:
    records = [fit(record, ipv6=ipv6, crc=crc) for record in run]
    for _ in range(data.draw(st.integers(0, 2))):
        i = data.draw(st.integers(0, len(records) - 1))
        records[i] = replace(records[i], **data.draw(SPOILERS))
        if len(records[i].born_host) != (20 if records[i].sys_flag & 0x10 else 8):
            records[i] = replace(records[i], born_host=bytes(20 if records[i].sys_flag & 0x10 else 8))
        records[i] = replace(records[i], store_host=bytes(20 if records[i].sys_flag & 0x20 else 8))
        records[i] = sealed(records[i])
        if data.draw(st.integers(0, 5)) == 0:
            records[i] = replace(records[i], body_crc=records[i].body_crc ^ 1)
    raw = b"".join(map(reference.encode, records))
    if all(is_fit(record, ipv6=ipv6, crc=crc) for record in records):
        assert len(validate(raw, ipv6=ipv6, crc=crc)) == len(records)
        return
    with pytest.raises(TroveError) as refused:
        validate(raw, ipv6=ipv6, crc=crc)
    named = records[int(str(refused.value.fields["record"]))]
    assert not is_fit(named, ipv6=ipv6, crc=crc), "of several unfit records the refusal names one"
    symbols = {"MESSAGE_SIZE_EXCEEDED"} if len(named.body) > BODY_SIZE_MAX else {"BATCH_ILLEGAL"}
    if has_forbidden_name(named):
        symbols.add("PROPERTY_ILLEGAL")
    assert refused.value.symbol in symbols


@given(
    runs(min_size=1),
    st.integers(2, 12),
    st.booleans(),
    st.integers(0, 11),
    SPOILERS | st.just({}),
    st.booleans(),
    st.booleans(),
)
def test_of_records_of_one_layout_the_one_that_is_unfit_is_found(
    small_batch_max: int,
    run: list[Record],
    count: int,
    crc: bool,
    at: int,
    change: dict[str, Any],
    changed_crc: bool,
    any_size: bool,
) -> None:
    """Their header fields are compared with the first one's."""
    same = sealed(replace(fit(run[0], ipv6=False, crc=crc), sys_flag=0, born_host=bytes(8)))
    records = [replace(same, born_timestamp=same.born_timestamp // 2 + number) for number in range(count)]
    if any_size:
        records = [sealed(replace(one, body=bytes(number))) for number, one in enumerate(records)]
    at %= count
    changed = sealed(replace(records[at], **change))
    if len(changed.born_host) == 8 and not changed.sys_flag & 0x30:
        records[at] = replace(changed, body_crc=changed.body_crc ^ changed_crc)
    raw = b"".join(map(reference.encode, records))
    if is_fit(records[at], ipv6=False, crc=crc):
        assert len(validate(raw, crc=crc)) == count
        return
    with pytest.raises(TroveError) as refused:
        validate(raw, crc=crc)
    assert int(str(refused.value.fields["record"])) == at


@pytest.mark.parametrize(
    "spoiler", [{"body": bytes(BODY_SIZE_MAX + 1)}, {"topic": b"orders2"}, {"sys_flag": 0x4}]
)
def test_one_unfit_record_among_bodies_of_any_size_is_found(
    small_batch_max: int, spoiler: dict[str, Any]
) -> None:
    blank = Record(
        0, 0, MAGIC_V1, 0, QUEUE_ID, 0, 0, 0, 0, 1, bytes(8), 1, bytes(8), 0, 0, b"", b"orders", b""
    )
    records = [sealed(replace(blank, body=bytes(number))) for number in range(20)]
    assert len(validate(b"".join(map(reference.encode, records)))) == 20
    records[7] = sealed(replace(records[7], **spoiler))
    with pytest.raises(TroveError) as refused:
        validate(b"".join(map(reference.encode, records)))
    assert refused.value.fields["record"] == "7"


def test_a_short_header_at_the_end_of_the_buffer_after_longer_ones(small_batch_max: int) -> None:
    long = Record(
        0, 0, MAGIC_V1, 0, QUEUE_ID, 0, 0, 0, 16, 1, bytes(20), 1, bytes(8), 0, 0, b"", b"orders", b""
    )
    short = sealed(replace(long, sys_flag=0, born_host=bytes(8)))
    raw = reference.encode(sealed(long)) * 19 + reference.encode(short)
    assert len(validate(raw)) == 20


@given(runs(min_size=1), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_patch_fills_in(
    small_batch_max: int, run: list[Record], ipv6: bool, crc: bool, born_ipv6: bool, data: st.DataObject
) -> None:
    born_host = data.draw(st.sampled_from([None, HOSTS[born_ipv6]]))
    records = [fit(record, ipv6=ipv6, crc=crc) for record in run]
    raw = b"".join(map(reference.encode, records))
    buffer = bytearray(raw)
    batch = patch_batch(
        buffer,
        validate(raw, ipv6=ipv6, crc=crc),
        first_queue_offset=QueueOffset(1 << 40),
        physical_offset=PhysicalOffset(1 << 50),
        store_timestamp=EpochMs(1_700_000_000_123),
        store_host=HOSTS[ipv6],
        born_host=born_host,
        append_property_crc=crc,
    )
    position = 0
    for i, record in enumerate(records):
        own_form = born_host is not None and len(born_host) == len(record.born_host)
        expected = replace(
            record,
            queue_offset=(1 << 40) + i,
            physical_offset=(1 << 50) + position,
            store_timestamp=1_700_000_000_123,
            store_host=HOSTS[ipv6],
            born_host=born_host if own_form and born_host is not None else record.born_host,
        )
        if crc:
            expected = with_crc(expected)
        size = expected.total_size
        assert bytes(buffer[position : position + size]) == reference.encode(expected)
        position += size
    assert batch.queue_offsets.tolist() == [(1 << 40) + i for i in range(len(records))]
    assert batch.physical_offsets.tolist() == [(1 << 50) + p for p in batch.positions.tolist()]
    assert set(batch.store_timestamps.tolist()) == {1_700_000_000_123}


def with_crc(record: Record) -> Record:
    covered = reference.encode(record)[:-20]
    digits = str(zlib.crc32(covered) & 0x7FFFFFFF).rjust(10, "0")[::-1]
    return replace(record, properties=record.properties[:-20] + b"__CRC32#\x01" + digits.encode() + b"\x02")


def test_crc_digits_stand_least_significant_first() -> None:
    digits = f"{907060870:010}"[::-1]
    assert digits == "0780607090"


def test_an_empty_batch_is_illegal() -> None:
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        validate(b"")


@given(st.binary(max_size=400))
def test_validate_of_noise(noise: bytes) -> None:
    with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
        validate(noise)


def test_a_property_block_beyond_the_limit_is_named_so() -> None:
    record = sealed(fit(blank_fields(), ipv6=False, crc=False))
    record = sealed(replace(record, properties=b"a\x01" + b"b" * 40_000 + b"\x02"))
    for count in (1, 9):
        with pytest.raises(TroveError, match="PROPERTIES_SIZE_EXCEEDED"):
            validate(reference.encode(record) * count)


def blank_fields() -> Record:
    return Record(0, 0, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"body", b"t", b"")


def test_a_filled_in_record_decodes() -> None:
    raw = reference.encode(fit(blank_fields(), ipv6=False, crc=False))
    batch = patch_batch(
        bytearray(raw),
        validate(raw),
        first_queue_offset=QueueOffset(5),
        physical_offset=PhysicalOffset(12345),
        store_timestamp=EpochMs(9),
        store_host=HOSTS[False],
        born_host=None,
        append_property_crc=False,
    )
    assert batch.message(0) == decode_message(batch.record(0))
    assert batch.message(0).offset_msg_id == "0A00000100002A9F0000000000003039"
