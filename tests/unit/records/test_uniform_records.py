"""Uniform records are those that the general checks take, and get the same bytes."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles import patch as oracle_patch
from tests.support.oracles import validate as oracle
from tests.unit.records import reference
from tests.unit.records.reference import Record
from tests.unit.records.strategies import records, sealed
from tests.unit.records.test_validate_patch import (
    BODY_SIZE_MAX,
    CRC_PROPERTY,
    HOSTS,
    QUEUE_ID,
    SPOILERS,
    TOPIC,
    blank_fields,
    fit,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch, patch_batch, uniform_records
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX
from trovemq_proto.records.queue_rules import MARKS as NAMES
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.uniform_records import UniformForms
from trovemq_proto.records.validate import UNIFORM_MIN, read_batch
from trovemq_store.log.sectors import check_properties
from trovemq_store.topics.message_kinds import has_marks

MARKS = tuple(name + b"1\x02" for name in NAMES)
BLOCK = b"UNIQ_KEY\x010123456789AB\x02KEYS\x01k1 k2\x02TAGS\x01paid\x02"
ODD_BLOCKS = (
    b"",
    b"UNIQ_KEY\x010123\x02",
    b"TAGS\x01\xc3\xa9\xc3\xa9\x02",
    b"TAGS\x01\x02",
    b"a\x01b\x01c\x02",
    b"a\x01b\x02c\x02\x02",
    b"aTAGS\x01b\x02TAGS\x01b\x02",
    b"TAGS\x01a\x02TAGS\x01bc\x02",
    b"a\x01TROVEMQ_TX_ID\x02",
    b"TROVEMQ_PRODUCER\x01p\x02",
    b"a\x01__SHARDINGKEY\x02",
    b"v\x01" + b"x" * 600 + b"\x02",
    *MARKS,
)


def new_rules() -> QueueRules:
    return QueueRules(
        TOPIC, QUEUE_ID, body_size_max=BODY_SIZE_MAX, store_host_ipv6=False, append_property_crc=True
    )


def read(raw: bytes, rules: QueueRules | None = None) -> RecordBatch | None:
    """The uniform records that fill the bytes: then the general checks take them, too."""
    try:
        found = read_batch(memoryview(bytearray(raw)), rules or new_rules())
    except TroveError:
        with pytest.raises(TroveError):
            oracle.validate_batch(raw, **QUEUE)
        return None
    batch = oracle.validate_batch(raw, **QUEUE)
    if found.alike is None:
        return None
    assert (len(found), found.alike) == (len(batch), batch.row(0))
    assert not has_marks(batch)
    check_properties(batch)
    return found


QUEUE: dict[str, Any] = {
    "topic": TOPIC,
    "queue_id": QUEUE_ID,
    "body_size_max": BODY_SIZE_MAX,
    "store_host_ipv6": False,
    "append_property_crc": True,
}


def check_patched(raw: bytes, records: RecordBatch, born_host: bytes | None = None) -> None:
    """Both functions that fill in the broker's fields write the same; the batches have the same columns."""
    places: dict[str, Any] = {
        "first_queue_offset": QueueOffset(1 << 40),
        "physical_offset": PhysicalOffset(1 << 50),
        "store_timestamp": EpochMs(1_700_000_000_123),
        "store_host": HOSTS[False],
        "born_host": born_host,
        "append_property_crc": True,
    }
    expected = bytearray(raw)
    batch = oracle_patch.patch_batch(expected, oracle.validate_batch(raw, **QUEUE), **places)
    own = patch_batch(records.data, records, **places)
    assert own.data == expected
    assert own.alike is not None
    assert (len(own), own.nbytes, own.rows) == (len(batch), batch.nbytes, batch.rows)
    for column in ("positions", "sizes", "queue_offsets", "physical_offsets", "sys_flags", "queue_ids"):
        assert getattr(own, column).tolist() == getattr(batch, column).tolist(), column
    assert own.tags_codes().tolist() == batch.tags_codes().tolist()
    entries, known = own.index_entries(), batch.index_entries()
    assert [part.tolist() for part in entries] == [part.tolist() for part in known]


def may_be_first(record: Record) -> bool:
    """Of the records that are fit: whether others may be compared with it."""
    block = record.properties
    return not record.sys_flag and len(block) < 512 and not any(name in block for name in NAMES)


def values_of(block: bytes) -> list[int]:
    """Where the bytes of values lie that the encoder may choose."""
    places, at = list[int](), 0
    for piece in block.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        places += range(at + len(name) + 1, at + len(name) + 1 + len(value))
        at += len(piece) + 1
    return places


def like(first: Record, seed: int) -> Record:
    """A record of the form of the first, with other bytes wherever the form does not say which."""
    numbers = random.Random(seed)
    block = bytearray(first.properties)
    for at in values_of(bytes(block[: -len(CRC_PROPERTY)])):
        if numbers.random() < 0.5 and 0x20 < block[at] < 0x7F:
            block[at] = numbers.choice(b"0123456789ABCXYZ")
    return sealed(
        replace(
            first,
            body=numbers.randbytes(len(first.body)),
            flag=numbers.getrandbits(31),
            queue_offset=numbers.getrandbits(63),
            store_timestamp=numbers.getrandbits(63),
            born_timestamp=(first.born_timestamp >> 40 << 40) + numbers.getrandbits(40),
            born_host=numbers.randbytes(4) + numbers.randrange(1 << 16).to_bytes(4),
            store_host=numbers.randbytes(8),
            properties=bytes(block),
        )
    )


def regular(block: bytes = BLOCK, body: bytes = b"0123456789") -> Record:
    record = replace(blank_fields(), properties=block, body=body, born_timestamp=1_700_000_000_000)
    return fit(record, ipv6=False, crc=True)


def encoded(run: list[Record]) -> bytes:
    return b"".join(map(reference.encode, run))


shapes = st.builds(regular, st.sampled_from((BLOCK, BLOCK, *ODD_BLOCKS)), st.binary(max_size=BODY_SIZE_MAX))
counts = st.integers(UNIFORM_MIN, 40)


@given(shapes, counts, st.integers(0, 1 << 30), st.sampled_from([None, *HOSTS.values()]))
def test_records_of_one_form_are_taken(first: Record, count: int, seed: int, born_host: bytes | None) -> None:
    run = [first] + [like(first, seed + number) for number in range(1, count)]
    raw = encoded(run)
    found = read(raw)
    values = [piece.partition(b"\x01")[2] for piece in first.properties.split(b"\x02")]
    regular_values = not any(b"\x01" in value or b"TROVEMQ_" in value for value in values)
    assert (found is not None) == (may_be_first(first) and regular_values)
    if found is not None:
        check_patched(raw, found, born_host)


@given(shapes, counts, st.data())
def test_one_that_deviates_is_never_taken_for_another(first: Record, count: int, data: st.DataObject) -> None:
    run = [like(first, number) for number in range(count)]
    at = data.draw(st.integers(0, count - 1))
    spoiler = data.draw(SPOILERS | st.sampled_from([{"properties": mark} for mark in MARKS]))
    run[at] = sealed(replace(run[at], **spoiler))
    if data.draw(st.booleans()):
        run[at] = sealed(replace(run[at], properties=run[at].properties + CRC_PROPERTY))
    found = read(encoded(run))
    if found is not None:
        check_patched(encoded(run), found)


@given(st.lists(records(v2=False), min_size=1, max_size=3), counts, st.integers(0, 1 << 20), st.booleans())
def test_any_records_are_read_as_the_general_checks_read_them(
    kinds: list[Record], count: int, seed: int, alone: bool
) -> None:
    kinds = [fit(record, ipv6=False, crc=True) for record in kinds]
    numbers = random.Random(seed)
    run = [kinds[0] if alone else numbers.choice(kinds) for _ in range(count)]
    run = [like(one, seed + number) if not one.sys_flag else one for number, one in enumerate(run)]
    found = read(encoded(run))
    if found is not None:
        check_patched(encoded(run), found)


def learnt_from(run: list[Record], topic: str, queue_id: int) -> QueueRules:
    """A form of the queue, which shares the one that another queue learnt from such records."""
    shared = UniformForms()
    other, own = (
        QueueRules(
            *queue,
            body_size_max=BODY_SIZE_MAX,
            store_host_ipv6=False,
            append_property_crc=True,
            uniform_forms=shared,
        )
        for queue in ((topic, queue_id), (TOPIC, QUEUE_ID))
    )
    raw = encoded([replace(one, topic=topic.encode(), queue_id=queue_id) for one in run])
    with suppress(TroveError):  # of a topic with a name of another length
        read_batch(memoryview(raw), other)
    return own


@given(shapes, counts, st.sampled_from(["0rders", "ORDERS", "order", "orders+", TOPIC]), st.data())
def test_a_form_of_one_queue_serves_others(
    first: Record, count: int, topic: str, data: st.DataObject
) -> None:
    run = [like(first, number) for number in range(count)]
    form = learnt_from(run, topic, data.draw(st.sampled_from([0, QUEUE_ID])))
    if data.draw(st.booleans()):
        spoiler = data.draw(SPOILERS | st.sampled_from([{"properties": mark} for mark in MARKS]))
        at = data.draw(st.integers(0, count - 1))
        run[at] = sealed(replace(run[at], **spoiler))
    raw = encoded(run)
    found = read(raw, form)
    assert (found is None) == (read(raw) is None)
    if found is not None:
        check_patched(raw, found)


def test_the_form_of_another_queue_is_not_learnt_again() -> None:
    run = [like(regular(), number) for number in range(UNIFORM_MIN)]
    form = learnt_from(run, "0rders", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UniformForms, "learn", None)
        patch.setattr(QueueRules, "read", None)
        assert read(encoded(run), form) is not None


def test_the_forms_that_are_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform_records, "FORMS_KNOWN", 2)
    form = new_rules()
    for size in range(5):
        assert read(encoded([regular(body=bytes(size))] * UNIFORM_MIN), form) is not None
    assert len(form.uniform_forms._forms) <= 2


@pytest.mark.parametrize("row", [0, 3, UNIFORM_MIN - 1])
@pytest.mark.parametrize("warm", [False, True])
def test_each_other_byte_of_a_record(row: int, warm: bool) -> None:
    """It is read as before, or left to the general checks, which then decide."""
    first = regular()
    raw = encoded([like(first, number) for number in range(UNIFORM_MIN)])
    form = new_rules()
    assert read(raw, form) is not None
    size = len(raw) // UNIFORM_MIN
    taken = 0
    for at in range(row * size, (row + 1) * size):
        for byte in {raw[at] ^ 1, raw[at] ^ 0x80, 1, 2, 0, ord("_")} - {raw[at]}:
            spoiled = bytearray(raw)
            spoiled[at] = byte
            found = read(bytes(spoiled), form if warm else None)
            if found is not None:
                taken += 1
                check_patched(bytes(spoiled), found)
    assert taken > size, "most bytes of a head and of values may be any"


@pytest.mark.parametrize("text", [b"TROVEMQ_", b"\x02TROVEMQ", b"_\x01_", b"\x01", b"\x02"])
def test_a_value_with_another_structure_is_left_to_the_general_checks(text: bytes) -> None:
    first = regular(b"UNIQ_KEY\x01" + b"0" * 12 + b"\x02")
    run = [first] * UNIFORM_MIN
    block = run[-1].properties.replace(b"0" * len(text), text, 1)
    run[-1] = replace(first, properties=block)
    assert read(encoded(run)) is None


def test_a_form_that_was_learnt_from_other_records_is_learnt_again() -> None:
    """Records of the same sizes, with another name, and back."""
    form = new_rules()
    for name in (b"UNIQ_KEY", b"UNIQ_KEZ", b"UNIQ_KEY"):
        first = regular(name + b"\x01" + b"0" * 12 + b"\x02")
        raw = encoded([like(first, number) for number in range(UNIFORM_MIN)])
        found = read(raw, form)
        assert found is not None
        check_patched(raw, found)


@pytest.mark.parametrize("born_ms", [0, (1 << 40) - 1, BORN_TIMESTAMP_MAX, 0xE6 << 40, (0xE6 << 40) - 1])
def test_times_of_birth_at_their_limits(born_ms: int) -> None:
    first = replace(regular(), born_timestamp=born_ms)
    for other in (-1, 0, born_ms - 1, born_ms + 1, BORN_TIMESTAMP_MAX, BORN_TIMESTAMP_MAX + 1):
        if -(1 << 63) <= other < 1 << 63:
            read(encoded([first] * (UNIFORM_MIN - 1) + [replace(first, born_timestamp=other)]))
    taken = read(encoded([first] * UNIFORM_MIN)) is not None
    assert taken == (born_ms >> 40 < BORN_TIMESTAMP_MAX >> 40)


@pytest.mark.parametrize("port", [0, 65_535, 65_536, -1])
def test_ports_at_their_limits(port: int) -> None:
    first = regular()
    other = replace(first, born_host=bytes(4) + port.to_bytes(4, signed=True))
    assert (read(encoded([first] * (UNIFORM_MIN - 1) + [other])) is not None) == (0 <= port <= 65_535)
    assert (read(encoded([other] * UNIFORM_MIN)) is not None) == (0 <= port <= 65_535)


def test_each_body_that_is_said_to_be_compressed_is_looked_at() -> None:
    first = sealed(replace(regular(), sys_flag=SYS_FLAG_COMPRESSED, body=b"\x78\x9c" + bytes(8)))
    other = sealed(replace(first, body=bytes(10)))
    assert len(read_batch(memoryview(encoded([first] * UNIFORM_MIN)), new_rules())) == UNIFORM_MIN
    with pytest.raises(TroveError, match="compressed"):
        read_batch(memoryview(encoded([first] * (UNIFORM_MIN - 1) + [other])), new_rules())


def test_fewer_are_read_one_by_one() -> None:
    batch = read_batch(memoryview(encoded([regular()] * (UNIFORM_MIN - 1))), new_rules())
    assert batch.has_rows
    assert len(batch) == UNIFORM_MIN - 1


def test_without_the_crc_property_they_are_left_to_others() -> None:
    rules = QueueRules(
        TOPIC, QUEUE_ID, body_size_max=BODY_SIZE_MAX, store_host_ipv6=False, append_property_crc=False
    )
    record = fit(replace(blank_fields(), properties=BLOCK), ipv6=False, crc=False)
    assert read_batch(memoryview(encoded([record] * UNIFORM_MIN)), rules).alike is None
