"""Random input for the tests of the codec: records, runs of them, and damage to their bytes."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.reference import MAGIC_V1, MAGIC_V2, Record

TOPICS = st.sampled_from(["orders", "T", "SCHEDULE_TOPIC_XXXX", "%RETRY%group", "AaTopic", "x" * 127])
LONG_TOPIC = "%RETRY%" + "g" * 140
KEY_TEXT = st.text(
    st.one_of(st.sampled_from("Aak1Bé日🚀"), st.characters(exclude_characters=" \x01\x02", codec="utf-8")),
    min_size=1,
    max_size=12,
)
VALUE = st.text(st.one_of(st.sampled_from("Aab  Bé日🚀\x01"), st.characters(codec="utf-8")), max_size=12)
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "WAIT", "a", "TAG", "KEYS2", "KEYT", ""])
DELAYS = st.sampled_from(["0", "1", "3", "18", "19", "+2", "-1", "x", "1_0", "4294967297", "9999999999"])


def int32(numbers: random.Random) -> int:
    return numbers.getrandbits(32) - 2**31


def int64(numbers: random.Random) -> int:
    return numbers.getrandbits(64) - 2**63


@st.composite
def property_blocks(draw: st.DrawFn) -> bytes:
    """Mostly regular blocks, with duplicates, empty parts, stray separators and broken UTF-8 now and then."""
    pieces = draw(st.lists(st.tuples(NAMES, VALUE | DELAYS | KEY_TEXT), max_size=6))
    block = "".join(f"{name}\x01{value}\x02" for name, value in pieces).encode()
    spoiled = draw(st.integers(0, 9))
    if spoiled == 0 and block:
        cut = draw(st.integers(0, len(block) - 1))
        block = (
            block[:cut] + draw(st.sampled_from([b"", b"\x01", b"\x02", b"\xff", b"\x00"])) + block[cut + 1 :]
        )
    return block


@st.composite
def records(draw: st.DrawFn, *, v2: bool | None = None) -> Record:
    """A well-formed record with the right CRC."""
    is_v2 = draw(st.booleans()) if v2 is None else v2
    sys_flag = draw(st.sampled_from([0, 0x10, 0x20, 0x30, 0x4, 0x8, 0xC, 0x2]))
    numbers = random.Random(draw(st.integers(0, 2**32)))  # one draw instead of ten keeps the tests fast
    record = Record(
        position=0,
        total_size=0,
        magic=MAGIC_V2 if is_v2 else MAGIC_V1,
        body_crc=0,
        queue_id=int32(numbers),
        flag=int32(numbers),
        queue_offset=int64(numbers),
        physical_offset=int64(numbers),
        sys_flag=sys_flag,
        born_timestamp=int64(numbers),
        born_host=numbers.randbytes(20 if sys_flag & 0x10 else 8),
        store_timestamp=numbers.randrange(2**50),
        store_host=numbers.randbytes(20 if sys_flag & 0x20 else 8),
        reconsume_times=int32(numbers),
        prepared_offset=int64(numbers),
        body=draw(st.binary(max_size=40)),
        topic=draw(st.just(LONG_TOPIC) if is_v2 else TOPICS).encode(),
        properties=draw(property_blocks()),
    )
    return sealed(record)


def sealed(record: Record) -> Record:
    """The record with TOTALSIZE and BODYCRC set right."""
    record = replace(record, body_crc=zlib.crc32(record.body) & 0x7FFFFFFF)
    return replace(record, total_size=len(reference.encode(record)))


@st.composite
def runs(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 9) -> list[Record]:
    """Records of any shapes, or copies of one shape that differ in their fields (uniform batches), perhaps
    with bodies of any size, and with a few of another shape among them."""
    if draw(st.booleans()):
        return draw(st.lists(records(), min_size=min_size, max_size=max_size))
    first = draw(records())
    count = draw(st.integers(min_size, max_size))
    any_size = draw(st.booleans())
    run = [sealed(_like(draw, first, any_size)) for _ in range(count)]
    for at in draw(st.lists(st.integers(0, count - 1), max_size=2)) if count else []:
        run[at] = sealed(replace(run[at], properties=draw(property_blocks())))
    return run


def _like(draw: st.DrawFn, record: Record, any_size: bool) -> Record:
    numbers = random.Random(draw(st.integers(0, 2**32)))
    body = numbers.randbytes(numbers.randrange(40) if any_size else len(record.body))
    block = bytearray(record.properties)
    for _ in range(draw(st.integers(0, 2))):
        if block:
            # A letter, a space, a separator or half a character where the first record has another.
            block[draw(st.integers(0, len(block) - 1))] = draw(st.sampled_from(b"AZ1  \x01\x02\xc3\xa9"))
    changed = replace(record, body=body, properties=bytes(block))
    return replace(changed, queue_offset=int64(numbers), flag=int32(numbers))


def placed(run: list[Record], physical_offset: int) -> tuple[bytes, list[Record]]:
    """The run's bytes, and its records as the log would have them from physical_offset on."""
    data, stored = b"", []
    for record in run:
        stored.append(replace(record, position=len(data), physical_offset=physical_offset + len(data)))
        data += reference.encode(stored[-1])
    return data, stored


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with some bytes overwritten, cut off or added."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(changed) - 1, 0)))
        patch = draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
        )
        changed[at : at + len(patch)] = patch
    tail = draw(st.sampled_from([b"", bytes(4), bytes(40), b"\x00\x00\x00\x10\xcb\xd4\x31\x94", b"\x01"]))
    cut = draw(st.integers(0, len(changed))) if draw(st.integers(0, 4)) == 0 else len(changed)
    return bytes(changed[:cut]) + tail
