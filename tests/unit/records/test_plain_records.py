"""Plain records are those that the checks of batches take, and get the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.reference import Record
from tests.unit.records.strategies import runs, sealed, spoiled
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
from trovemq_proto.records import RecordBatch, SingleRecords, patch_batch, plain_records
from trovemq_proto.records.plain_records import (
    PROPERTIES_SIZE_MAX_PLAIN,
    RECORDS_MAX,
    PlainForm,
    PlainRecords,
    patch,
)
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
    """Whether the bytes are plain records: then validate() takes them, too, with these fields."""
    rows = FORMS[crc].read(memoryview(raw))
    if rows is None:
        return False
    batch = validate(raw, crc=crc)
    assert batch.rows == rows
    assert [FORMS[crc].read_own(memoryview(raw), row.position) for row in batch.rows] == rows
    assert not has_marks(batch)
    check_properties(batch)
    return True


@given(runs(min_size=1, max_size=4), st.booleans(), st.none() | SPOILERS, st.none() | st.sampled_from(MARKS))
def test_they_are_read_where_batches_take_them_and_nowhere_else(
    run: list[Record], crc: bool, spoiler: dict[str, object] | None, mark: bytes | None
) -> None:
    run = [fit(record, ipv6=False, crc=crc) for record in run]
    if spoiler is not None:
        run[-1] = sealed(replace(run[-1], **spoiler))  # type: ignore[arg-type]
    if mark is not None:
        run[0] = sealed(replace(run[0], properties=mark + run[0].properties))
    raw = b"".join(map(reference.encode, run))
    taken = check(raw, crc=crc)
    try:
        validate(raw, crc=crc)
    except TroveError:
        assert not taken
    else:
        assert taken == all(map(must_be_plain, run))


@pytest.mark.parametrize("crc", [False, True])
def test_a_record_of_an_ipv6_sender_was_read_as_one_of_ipv4(crc: bool) -> None:
    """By the short way of the broker's own records: other fields were written over it."""
    form = FORMS[crc]
    for born_host in (b"\x7f\0\0\1\0\0\xc3\xcb", bytes(15) + b"\1\0\0\xc3\xcb"):
        singles = SingleRecords(
            TOPIC, QUEUE_ID, born_host=born_host, store_host=bytes(8), append_property_crc=crc
        )
        raw = memoryview(singles.encode(b"body", b"UNIQ_KEY\x010A\x02", 1))
        own = form.read_own(raw, 0)
        assert own == form.read_one(raw, 0, len(raw))
        assert (own is None) == (len(born_host) == 20)


@given(st.data(), st.booleans())
def test_spoiled_bytes_are_never_taken_for_them(data: st.DataObject, crc: bool) -> None:
    run = [fit(record, ipv6=False, crc=crc) for record in data.draw(runs(min_size=1, max_size=3))]
    check(data.draw(spoiled(b"".join(map(reference.encode, run)))), crc=crc)
    check(data.draw(st.binary(max_size=200)), crc=crc)


@pytest.mark.parametrize("count", [0, 1, RECORDS_MAX, RECORDS_MAX + 1])
def test_more_than_a_few_are_left_to_the_columns(count: int) -> None:
    """Unless they are uniform."""
    blocks = [b"name%d\x01value\x02" % (number % 2) for number in range(count)]
    run = [fit(replace(blank_fields(), properties=block), ipv6=False, crc=True) for block in blocks]
    rows = FORMS[True].read(memoryview(b"".join(map(reference.encode, run))))
    assert len(rows or []) == (count if count <= RECORDS_MAX else 0)


def test_a_small_record_before_large_ones_is_left_to_the_columns() -> None:
    """The count is known only at the end; a record that is small beside the rest ends the reading at once."""
    small = reference.encode(fit(blank_fields(), ipv6=False, crc=True))
    assert FORMS[True].read(memoryview(small + bytes(RECORDS_MAX * len(small)))) is None


def patched_both_ways(
    raw: bytes, records: PlainRecords | None, born_host: bytes | None, *, crc: bool
) -> tuple[RecordBatch, bytearray]:
    """The result of patch_batch(), and the bytes: patch() writes the same. records: None for the rows."""
    expected, patched = bytearray(raw), bytearray(raw)
    places = {
        "first_queue_offset": QueueOffset(1 << 40),
        "physical_offset": PhysicalOffset(1 << 50),
        "store_timestamp": EpochMs(1_700_000_000_123),
        "store_host": HOSTS[False],
        "born_host": born_host,
        "append_property_crc": crc,
    }
    batch = patch_batch(expected, validate(raw, crc=crc), **places)  # type: ignore[arg-type]
    patch(memoryview(patched), records or batch.rows, **places)  # type: ignore[arg-type]
    assert patched == expected
    return batch, patched


@given(runs(min_size=1, max_size=4), st.booleans(), st.sampled_from([None, *HOSTS.values()]))
def test_patch_writes_what_patch_batch_writes(run: list[Record], crc: bool, born_host: bytes | None) -> None:
    run = [fit(replace(one, sys_flag=0, born_host=bytes(8)), ipv6=False, crc=crc) for one in run]
    raw = b"".join(map(reference.encode, run))
    batch, patched = patched_both_ways(raw, None, born_host, crc=crc)
    plain = RecordBatch.of_rows(memoryview(patched), batch.rows, TOPIC)
    assert (len(plain), plain.nbytes, plain.rows) == (len(run), batch.nbytes, batch.rows)
    assert plain.positions.tolist() == batch.positions.tolist()
    assert (plain.property_bytes, plain.sizes.tolist()) == (batch.property_bytes, batch.sizes.tolist())
    assert plain.queue_offsets.tolist() == batch.queue_offsets.tolist()


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


PIECES = (b"UNIQ_KEY\x01", b"_", b"TROVEMQ", b"__SHARDINGKEY", b"TAGS", b"a", b"\x01", b"\x02")


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.booleans())
def test_a_quick_look_finds_each_name_that_another_module_decides_about(
    pieces: list[bytes], id_first: bool
) -> None:
    block = b"UNIQ_KEY\x01" * id_first + b"".join(pieces) + CRC_PROPERTY
    if plain_records._has_marks(block):
        assert plain_records._may_have_marks(block)
