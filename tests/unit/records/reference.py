"""A second, plain codec: one record at a time, struct and loops only. The real one must agree with it.

Written from the byte table and independent of trovemq_proto.records.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass
class Record:
    """A record's fields under the byte table's names, in lower case."""

    position: int
    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: bytes
    properties: bytes


class Reader:
    """Takes fields from the front; raises IndexError when there are not enough bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise IndexError
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self, form: str) -> int:
        value: int = struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0]
        return value


def parse(data: bytes, position: int = 0) -> Record | None:
    """The well-formed record at `position`, or None."""
    try:
        size = Reader(data[position : position + 4]).integer("i")
        if size < 91 or position + size > len(data):
            return None
        reader = Reader(data[position : position + size])
        record = _fields(reader, position)
    except IndexError:
        return None
    return record if reader.at == size and record.magic in (MAGIC_V1, MAGIC_V2) else None


def _fields(reader: Reader, position: int) -> Record:
    total_size, magic = reader.integer("i"), reader.integer("I")
    body_crc, queue_id, flag = reader.integer("i"), reader.integer("i"), reader.integer("i")
    queue_offset, physical_offset, sys_flag = reader.integer("q"), reader.integer("q"), reader.integer("i")
    born_timestamp, born_host = reader.integer("q"), reader.take(20 if sys_flag & 0x10 else 8)
    store_timestamp, store_host = reader.integer("q"), reader.take(20 if sys_flag & 0x20 else 8)
    reconsume_times, prepared_offset = reader.integer("i"), reader.integer("q")
    body = reader.take(reader.integer("i"))
    topic = reader.take(reader.integer("h" if magic == MAGIC_V2 else "b"))
    properties = reader.take(reader.integer("h"))
    return Record(
        position,
        total_size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        topic,
        properties,
    )


def split(data: bytes) -> list[Record] | None:
    """The records that fill `data`, or None."""
    records = []
    position = 0
    while position < len(data):
        record = parse(data, position)
        if record is None:
            return None
        records.append(record)
        position += record.total_size
    return records


def properties(block: bytes) -> dict[str, str]:
    """RocketMQ's parser, step by step."""
    text = block.decode("utf-8", "replace")
    found = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        end = len(text) if end < 0 else end
        if end - index >= 3:
            cut = text.find("\x01", index)
            if index < cut < end - 1:
                found[text[index:cut]] = text[cut + 1 : end]
        index = end + 1
    return found


def java_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) % 2**32
    return value - 2**32 if value >= 2**31 else value


def tags_code(record: Record) -> int:
    found = properties(record.properties)
    level = found.get("DELAY", "")
    is_level = re.fullmatch("[+]?[0-9]{1,10}", level) is not None and 0 < int(level) < 2**31
    if record.topic == b"SCHEDULE_TOPIC_XXXX" and is_level:
        text = LEVELS.split()[min(int(level), 18) - 1]
        return record.store_timestamp + 1000 * int(text[:-1]) * SECONDS[text[-1]]
    return java_hash(found.get("TAGS", ""))


def index_hashes(record: Record, tags: bool = True) -> list[int]:
    if record.sys_flag & 0xC == 0xC:
        return []
    found = properties(record.properties)
    names = [found["UNIQ_KEY"]] if "UNIQ_KEY" in found else []
    names += [key for key in found.get("KEYS", "").split(" ") if key]
    if tags and "TAGS" in found:
        names.append("T#" + found["TAGS"])
    topic = record.topic.decode("utf-8", "replace")
    hashes = [abs(java_hash(f"{topic}#{name}")) for name in names]
    return [0 if value == 2**31 else value for value in hashes]


def state(data: bytes, position: int, physical_offset: int | None, check_crc: bool) -> tuple[str, int]:
    """Recovery's view of `position` of `data`, whose end is the limit: (state, size)."""
    record = parse(data, position)
    if record is not None:
        plausible = 0 < len(record.topic) <= 255 and all(0x21 <= byte < 0x7F for byte in record.topic)
        plausible = plausible and b"/" not in record.topic and record.topic not in (b".", b"..")
        here = physical_offset is None or record.physical_offset == physical_offset
        if plausible and here:
            whole = not check_crc or has_right_crc(data, record)
            return ("record" if whole else "damaged"), record.total_size
        if has_right_crc(data, record):
            return ("stale" if plausible else "torn"), 0
        return ("damaged", record.total_size) if names_crc(record) else ("torn", 0)
    head = data[position : position + 8]
    if head == bytes(len(head)):
        return "zeros", 0
    if len(head) == 8 and struct.unpack(">I", head[4:])[0] == MAGIC_BLANK:
        size = struct.unpack(">i", head[:4])[0]
        if 8 <= size <= len(data) - position:
            return "blank", size
    return "torn", 0


def names_crc(record: Record) -> bool:
    """Whether the properties end with RocketMQ's `__CRC32#`; three damaged bytes of the name are borne."""
    name = record.properties[-20:-11]
    alike = sum(a == b for a, b in zip(name, b"__CRC32#\x01", strict=False))
    return len(record.properties) >= 20 and alike >= 6


def has_right_crc(data: bytes, record: Record) -> bool:
    if names_crc(record):
        before = data[record.position : record.position + record.total_size - 20]
        digits = f"{zlib.crc32(before) & 0x7FFFFFFF:010}"[::-1]
        return record.properties[-20:] == f"__CRC32#\x01{digits}\x02".encode()
    if record.properties.endswith(b"\0"):
        return False
    return not record.body or zlib.crc32(record.body) & 0x7FFFFFFF == record.body_crc


def encode(record: Record) -> bytes:
    """The record's bytes, TOTALSIZE as it is stated."""
    topic_form = "H" if record.magic == MAGIC_V2 else "B"
    return b"".join(
        (
            struct.pack(
                ">iIiii", record.total_size, record.magic, record.body_crc, record.queue_id, record.flag
            ),
            struct.pack(">qqi", record.queue_offset, record.physical_offset, record.sys_flag),
            struct.pack(">q", record.born_timestamp),
            record.born_host,
            struct.pack(">q", record.store_timestamp),
            record.store_host,
            struct.pack(">iqi", record.reconsume_times, record.prepared_offset, len(record.body)),
            record.body,
            struct.pack(">" + topic_form, len(record.topic)),
            record.topic,
            struct.pack(">H", len(record.properties)),
            record.properties,
        )
    )
