"""Batches are read and filled in as by the former general way: as rows, as columns, of queues."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.oracles import patch as oracle_patch
from tests.support.oracles import validate as oracle
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
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import RecordBatch, columns, patch_batch, validate
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.layout import PROPERTIES_SIZE_MAX
from trovemq_proto.records.queue_rules import MARKS, QueueRules
from trovemq_proto.records.validate import read_batch, read_parts
from trovemq_store.log.sectors import check_properties
from trovemq_store.topics.message_kinds import has_marks

TOPICS = (TOPIC, "order", "0rders", "o" * 200)
FORMS = {"rows": 1_000, "columns": 0}
marks = st.sampled_from([None, None, *(mark + b"1\x02" for mark in MARKS), b"a\x01" + b"v" * 600 + b"\x02"])


@contextmanager
def form_of(records_max: int) -> Iterator[None]:
    """The oracle reads small batches one by one, too."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("ROWS_MAX", "PART_ROWS_MAX"):
            patched.setattr(validate, name, records_max)
        patched.setattr(validate, "UNIFORM_MIN", 1 << 30)
        for module in (columns, oracle, oracle_patch):
            patched.setattr(module, "ROWS_MAX", records_max)
        yield


def rules_of(topic: str, queue_id: int, *, ipv6: bool = False, crc: bool = False) -> QueueRules:
    return QueueRules(
        topic, queue_id, body_size_max=BODY_SIZE_MAX, store_host_ipv6=ipv6, append_property_crc=crc
    )


def read(raw: bytes, parts: Sequence[QueuePart], *, ipv6: bool, crc: bool, old: bool) -> object:
    """The batch, or its refusal."""
    data, one = memoryview(raw), len(parts) == 1
    common = {"body_size_max": BODY_SIZE_MAX, "store_host_ipv6": ipv6, "append_property_crc": crc}
    rules = [rules_of(part.topic, part.queue_id, ipv6=ipv6, crc=crc) for part in parts]
    try:
        if not old:
            return read_batch(data, rules[0]) if one else read_parts(data, parts, rules)
        if one:
            topic, queue_id, _ = parts[0]
            return oracle.validate_batch(data, topic=topic, queue_id=queue_id, **common)  # type: ignore[arg-type]
        return oracle.validate_parts(data, parts, **common)  # type: ignore[arg-type]
    except TroveError as error:
        return error.symbol, str(error), error.fields


def compare(
    raw: bytes, parts: Sequence[QueuePart], born_host: bytes | None = None, *, ipv6: bool, crc: bool
) -> bool:
    """Whether both take the bytes. Then they fill in the same."""
    batch, expected = (read(raw, parts, ipv6=ipv6, crc=crc, old=old) for old in (False, True))
    if not isinstance(batch, RecordBatch) or not isinstance(expected, RecordBatch):
        assert batch == expected
        return False
    assert (len(batch), batch.nbytes, batch.topic, batch.parts) == (
        *(len(expected), expected.nbytes, expected.topic),
        expected.parts,
    )
    assert batch.rows == expected.rows
    assert has_marks(batch) == has_marks(expected)
    places = {
        "first_queue_offset": QueueOffset(1 << 40),
        "physical_offset": PhysicalOffset(1 << 50),
        "store_timestamp": EpochMs(1_700_000_000_123),
        "store_host": HOSTS[ipv6],
        "born_host": born_host,
        "append_property_crc": crc,
    }
    data, old_data = bytearray(raw), bytearray(raw)
    patched = patch_batch(data, batch, **places)  # type: ignore[arg-type]
    old_patched = oracle_patch.patch_batch(old_data, expected, **places)  # type: ignore[arg-type]
    assert data == old_data
    for column in ("positions", "sizes", "queue_offsets", "physical_offsets", "prepared_transaction_offsets"):
        assert getattr(patched, column).tolist() == getattr(old_patched, column).tolist(), column
    assert patched.property_bytes == old_patched.property_bytes
    if not batch.special:
        check_properties(old_patched)  # raises nothing
    return True


born_hosts = st.sampled_from([None, *HOSTS.values()])
compressed = st.sampled_from([{}, {}, {"sys_flag": 1, "body": zlib.compress(b"body")[:BODY_SIZE_MAX]}])


@pytest.mark.parametrize("form", FORMS)
@given(
    runs(min_size=1, max_size=6),
    st.booleans(),
    st.booleans(),
    st.none() | SPOILERS,
    st.none() | SPOILERS,
    marks,
    compressed,
    born_hosts,
    st.booleans(),
    st.data(),
)
def test_records_of_a_queue_are_read_and_filled_in_as_before(
    form: str,
    run: list[Record],
    ipv6: bool,
    crc: bool,
    spoiler: dict[str, object] | None,
    other: dict[str, object] | None,
    mark: bytes | None,
    body: dict[str, object],
    born_host: bytes | None,
    hostile: bool,
    data: st.DataObject,
) -> None:
    run = [sealed(replace(fit(record, ipv6=ipv6, crc=crc), **body)) for record in run]  # type: ignore[arg-type]
    if mark is not None:
        run[0] = sealed(replace(run[0], properties=mark + run[0].properties))
    for index, changes in ((len(run) - 1, spoiler), (0, other)):
        if changes is not None:
            run[index] = sealed(replace(run[index], **changes))  # type: ignore[arg-type]
    raw = b"".join(
        reference.encode(
            replace(
                record,
                born_host=record.born_host.ljust(20, b"\0")[: 20 if record.sys_flag & 0x10 else 8],
                store_host=bytes(20 if record.sys_flag & 0x20 else 8),
            )
        )
        for record in run
    )
    if hostile:
        raw = data.draw(spoiled(raw) | st.binary(max_size=200))
    with form_of(FORMS[form]):
        compare(raw, [QueuePart(TOPIC, QUEUE_ID, len(run))], born_host, ipv6=ipv6, crc=crc)


@pytest.mark.parametrize("form", FORMS)
@given(
    st.lists(
        st.tuples(st.sampled_from(TOPICS), st.integers(0, 2), runs(min_size=1, max_size=3)),
        min_size=2,
        max_size=4,
        unique_by=lambda part: part[:2],
    ),
    st.booleans(),
    st.none() | SPOILERS,
    born_hosts,
    st.sampled_from(["", "", "bytes", "count"]),
    st.data(),
)
def test_records_of_queues_are_read_and_filled_in_as_before(
    form: str,
    sent: list[tuple[str, int, list[Record]]],
    crc: bool,
    spoiler: dict[str, object] | None,
    born_host: bytes | None,
    hostile: str,
    data: st.DataObject,
) -> None:
    parts, raw = [], b""
    for topic, queue_id, run in sent:
        parts.append(QueuePart(topic, queue_id, len(run)))
        magic = reference.MAGIC_V2 if len(topic) > 127 else reference.MAGIC_V1
        for record in run:
            own = replace(
                fit(record, ipv6=False, crc=crc), topic=topic.encode(), queue_id=queue_id, magic=magic
            )
            if spoiler is not None and data.draw(st.integers(0, 3)) == 0:
                own = replace(own, **spoiler)  # type: ignore[arg-type]
            hosts = [bytes(20 if own.sys_flag & flag else 8) for flag in (0x10, 0x20)]
            raw += reference.encode(sealed(replace(own, born_host=hosts[0], store_host=hosts[1])))
    if hostile == "bytes":
        raw = data.draw(spoiled(raw))
    if hostile == "count":
        parts[0] = parts[0]._replace(size=parts[0].size + data.draw(st.sampled_from([-1, 1])))
    with form_of(FORMS[form]):
        compare(raw, parts, born_host, ipv6=False, crc=crc)


@given(runs(min_size=1, max_size=4), st.sampled_from([1, 7, 9, 33]), st.booleans(), marks, st.data())
def test_batches_of_any_size_are_read_as_before(
    run: list[Record], count: int, crc: bool, mark: bytes | None, data: st.DataObject
) -> None:
    """The representation is chosen by their number."""
    run = [fit(record, ipv6=False, crc=crc) for record in run] * count
    at = data.draw(st.integers(0, len(run) - 1))
    if mark is not None:
        run[at] = sealed(replace(run[at], properties=mark + run[at].properties))
    raw = b"".join(map(reference.encode, run))
    if data.draw(st.booleans()):
        raw = data.draw(spoiled(raw))
    compare(raw, [QueuePart(TOPIC, QUEUE_ID, len(run))], ipv6=False, crc=crc)


@pytest.mark.parametrize("at", range(9))
def test_a_name_that_looks_like_that_of_the_crc_is_refused(at: int) -> None:
    """One byte of it is another, without append_property_crc."""
    name = bytearray(CRC_PROPERTY)
    name[at] ^= 0x20
    block = b"UNIQ_KEY\x01a\x02" + bytes(name)
    record = reference.encode(fit(replace(blank_fields(), properties=block), ipv6=False, crc=False))
    with pytest.raises(TroveError, match="CRC property"):
        read_batch(memoryview(record), rules_of(TOPIC, QUEUE_ID))
    assert not compare(record, [QueuePart(TOPIC, QUEUE_ID, 1)], ipv6=False, crc=False)


@pytest.mark.parametrize("form", FORMS)
def test_a_block_of_nothing_but_such_a_name_is_refused(form: str) -> None:
    """Without append_property_crc."""
    block = b"__CRC32$" + CRC_PROPERTY[8:]
    record = reference.encode(fit(replace(blank_fields(), properties=block), ipv6=False, crc=False))
    with form_of(FORMS[form]), pytest.raises(TroveError, match="CRC property"):
        read_batch(memoryview(record * 2), rules_of(TOPIC, QUEUE_ID))


@pytest.mark.parametrize("form", FORMS)
def test_a_compressed_body_of_one_byte_is_refused(form: str) -> None:
    """With the length of a topic's name of one letter it looks like the head of a zlib stream."""
    plain = fit(replace(blank_fields(), body=b"\x78"), ipv6=False, crc=False)
    record = reference.encode(sealed(replace(plain, topic=b"o", sys_flag=1)))
    with form_of(FORMS[form]), pytest.raises(TroveError, match="compressed"):
        read_batch(memoryview(record * 2), rules_of("o", QUEUE_ID))


@pytest.mark.parametrize("form", FORMS)
def test_properties_may_have_32767_bytes(form: str) -> None:
    block = b"UNIQ_KEY\x01" + b"v" * (PROPERTIES_SIZE_MAX - 10) + b"\x02"
    record = reference.encode(fit(replace(blank_fields(), properties=block), ipv6=False, crc=False))
    with form_of(FORMS[form]):
        batch = read_batch(memoryview(record * 2), rules_of(TOPIC, QUEUE_ID))
    assert batch.property_sizes.tolist() == [PROPERTIES_SIZE_MAX] * 2


@pytest.mark.parametrize(("size", "special"), [(511, False), (512, True)])
def test_a_sector_of_properties_is_looked_at_again(size: int, special: bool) -> None:
    for crc in (False, True):
        space = size - (len(CRC_PROPERTY) if crc else 0)
        block = b"UNIQ_KEY\x01" + b"v" * (space - 10) + b"\x02"
        record = fit(replace(blank_fields(), properties=block), ipv6=False, crc=crc)
        batch = read_batch(memoryview(reference.encode(record)), rules_of(TOPIC, QUEUE_ID, crc=crc))
        assert batch.special == special


PIECES = (b"UNIQ_KEY\x01", b"_", b"TROVEMQ", b"__SHARDINGKEY", b"TAGS", b"a", b"\x01", b"\x02")


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.booleans())
def test_each_name_that_another_module_decides_about_is_found(pieces: list[bytes], id_first: bool) -> None:
    block = b"UNIQ_KEY\x01" * id_first + b"".join(pieces) + CRC_PROPERTY
    record = sealed(replace(fit(blank_fields(), ipv6=False, crc=True), properties=block))
    compare(reference.encode(record), [QueuePart(TOPIC, QUEUE_ID, 1)], ipv6=False, crc=True)
