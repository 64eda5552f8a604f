"""A plain record is one that the checks of batches take, and gets the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.reference import Record
from tests.unit.records.strategies import records, sealed, spoiled
from tests.unit.records.test_validate_patch import (
    BODY_SIZE_MAX,
    CRC_PROPERTY,
    HOSTS,
    QUEUE_ID,
    SPOILERS,
    TOPIC,
    blank_fields,
    fit,
    validate,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch, patch_batch
from trovemq_proto.records.plain_record import PROPERTIES_SIZE_MAX_PLAIN, PlainForm, patch
from trovemq_store.log.sectors import check_properties
from trovemq_store.topics.message_kinds import has_marks

FORMS = {crc: PlainForm(TOPIC, QUEUE_ID, BODY_SIZE_MAX, append_property_crc=crc) for crc in (False, True)}
MARKS = (b"TIMER_DELIVER_MS\x015\x02", b"__SHARDINGKEY\x01g\x02", b"_SYS_MSG_PRIORITY_\x011\x02")


def must_be_plain(record: Record) -> bool:
    """Of the records that validate() takes."""
    block = record.properties
    return (
        not record.sys_flag
        and len(block) <= PROPERTIES_SIZE_MAX_PLAIN
        and b"TROVEMQ_" not in block
        and not any(mark[: mark.index(b"\x01") + 1] in block for mark in MARKS)
    )


def check(raw: bytes, *, crc: bool) -> bool:
    """Whether the bytes are a plain record: then validate() takes it, too, with these fields."""
    fields = FORMS[crc].read(memoryview(raw))
    if fields is None:
        return False
    batch = validate(raw, crc=crc)
    assert batch.rows == [fields]
    assert not has_marks(batch)
    check_properties(batch)
    return True


@given(records(), st.booleans(), st.none() | SPOILERS, st.none() | st.sampled_from(MARKS))
def test_it_is_read_where_batches_take_it_and_nowhere_else(
    record: Record, crc: bool, spoiler: dict[str, object] | None, mark: bytes | None
) -> None:
    record = fit(record, ipv6=False, crc=crc)
    if spoiler is not None:
        record = sealed(replace(record, **spoiler))  # type: ignore[arg-type]
    if mark is not None:
        record = sealed(replace(record, properties=mark + record.properties))
    raw = reference.encode(record)
    taken = check(raw, crc=crc)
    try:
        validate(raw, crc=crc)
    except TroveError:
        assert not taken
    else:
        assert taken == must_be_plain(record)


@given(st.data(), st.booleans())
def test_spoiled_bytes_are_never_taken_for_one(data: st.DataObject, crc: bool) -> None:
    record = fit(data.draw(records()), ipv6=False, crc=crc)
    check(data.draw(spoiled(reference.encode(record))), crc=crc)
    check(data.draw(st.binary(max_size=200)), crc=crc)


@given(records(), st.booleans(), st.sampled_from([None, *HOSTS.values()]))
def test_patch_writes_what_patch_batch_writes(record: Record, crc: bool, born_host: bytes | None) -> None:
    record = fit(replace(record, sys_flag=0, born_host=bytes(8)), ipv6=False, crc=crc)
    raw = reference.encode(record)
    expected, patched = bytearray(raw), bytearray(raw)
    places = {
        "physical_offset": PhysicalOffset(1 << 50),
        "store_timestamp": EpochMs(1_700_000_000_123),
        "store_host": HOSTS[False],
        "born_host": born_host,
        "append_property_crc": crc,
    }
    batch = patch_batch(expected, validate(raw, crc=crc), first_queue_offset=QueueOffset(1 << 40), **places)  # type: ignore[arg-type]
    patch(memoryview(patched), queue_offset=QueueOffset(1 << 40), **places)  # type: ignore[arg-type]
    assert patched == expected
    row = batch.rows[0]
    one = RecordBatch.of_one(memoryview(patched), row, bytes(patched[row.property_position :]), TOPIC)
    assert (len(one), one.nbytes, one.rows) == (1, batch.nbytes, batch.rows)
    assert (one.property_bytes, one.sizes.tolist()) == (batch.property_bytes, batch.sizes.tolist())
    assert one.queue_offsets.tolist() == batch.queue_offsets.tolist()


@pytest.mark.parametrize("at", range(9))
def test_a_name_that_looks_like_that_of_the_crc_is_left_to_the_batches(at: int) -> None:
    """One byte of it is another: it is refused there, without append_property_crc."""
    name = bytearray(CRC_PROPERTY)
    name[at] ^= 0x20
    block = b"UNIQ_KEY\x01a\x02" + bytes(name)
    record = fit(replace(blank_fields(), properties=block), ipv6=False, crc=False)
    assert not check(reference.encode(record), crc=False)
    with pytest.raises(TroveError, match="CRC property"):
        validate(reference.encode(record))


@pytest.mark.parametrize(("size", "plain"), [(PROPERTIES_SIZE_MAX_PLAIN, True), (512, False)])
def test_a_sector_of_properties_is_left_to_the_batches(size: int, plain: bool) -> None:
    block = b"a\x01" + b"v" * (size - 3) + b"\x02"
    record = fit(replace(blank_fields(), properties=block), ipv6=False, crc=False)
    assert check(reference.encode(record), crc=False) == plain
