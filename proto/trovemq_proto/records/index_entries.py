"""The entries of a batch of records in the consume queues and the key index.

tagsCode: the Java hash of TAGS, sign-extended; 0 without a tag; for the schedule topic's records with a
delay level the time of delivery. Key index, per record in this order: `topic#UNIQ_KEY`, `topic#key` for each
non-empty piece of KEYS, `topic#T#tags`. Source: RocketMQ 5.4.0, CommitLog, IndexService.buildIndex.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.columns import RecordColumns
from trovemq_proto.records.fields import ROWS_MAX, RecordFields, store_timestamp
from trovemq_proto.records.geometry import strided_rows
from trovemq_proto.records.hash_columns import POWERS, fold_hashes, row_hashes
from trovemq_proto.records.hashes import index_hash, java_hash, prefix_hash, utf16_units
from trovemq_proto.records.layout import (
    DELAY_LEVELS_SECONDS,
    NAME_END,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    VALUE_END,
)
from trovemq_proto.records.properties import parse_properties
from trovemq_proto.records.property_scan import PropertyScan, Slices
from trovemq_proto.records.uniform_properties import Span, UniformProperties

Prefixes = np.uint32 | NDArray[np.uint32]

_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_TAGS: Final = PROPERTY_TAGS.encode()
_TAG_MARK: Final = "T#"  # before a tag, where a key has nothing
_TAGS_BEGIN: Final = _TAGS + bytes([NAME_END])
_VALUE_END: Final = bytes([VALUE_END])
TAGS_KNOWN: Final = 1_024  # tags whose hashes are kept
_INT32_MAX: Final = (1 << 31) - 1
_SCHEDULE_TOPIC_SIZE: Final = len(SCHEDULE_TOPIC)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class IndexEntries(NamedTuple):
    """record_index: int64[m], ascending; hashes: int32[m], 0..2**31-1."""

    record_index: NDArray[np.int64]
    hashes: NDArray[np.int32]


def tags_codes(batch: RecordColumns) -> NDArray[np.int64]:
    """int64[n]."""
    code = _only_tags_code(batch)
    if code is not None:
        return np.full(len(batch), code, np.int64)
    if len(batch) <= ROWS_MAX or batch.has_rows:
        return np.array(row_tags_codes(batch), np.int64)
    unscheduled = _is_unscheduled(batch)
    codes = np.zeros(len(batch), np.int64)
    if unscheduled and _TAGS_BEGIN not in batch.property_bytes:
        return codes
    uniform = batch.uniform_properties
    if uniform is not None and unscheduled:
        span = uniform.values.get(_TAGS)
        if span is None or uniform.is_ascii(span):
            if span is not None:
                codes[uniform.records] = _column_hashes(uniform, span).view(np.int32)
            for index in uniform.odd:
                codes[index] = row_tags_code(batch, batch.row(index))
            return codes
    for scan in batch.property_scans:
        tags = scan.find(_TAGS)
        codes[tags.records] = _hashes(scan, tags, np.uint32(0)).view(np.int32)
    for topic, records in batch.topic_groups():
        if topic == SCHEDULE_TOPIC:
            rows = [batch.row(index) for index in records.tolist()]
            codes[records] = [row_tags_code(batch, row) for row in rows]
    return codes


def row_tags_codes(batch: RecordColumns) -> list[int]:
    """tags_codes() of a batch of few records, or whose rows are known."""
    return [row_tags_code(batch, row) for row in batch.rows]


def _only_tags_code(batch: RecordColumns) -> int | None:
    """The tagsCode of all records, which are alike; None if they are not, or if it takes a closer look."""
    first = batch.alike
    if first is None or batch.topic is None or batch.topic == SCHEDULE_TOPIC:
        return None
    block = plain_block(batch, first)
    at = block.find(_TAGS_BEGIN)
    if at < 0:
        return 0
    tags = _only_tags(block, at)
    value_at = first.property_position + at + len(_TAGS_BEGIN)
    own = strided_rows(batch.data, value_at, len(batch), len(tags), first.size)
    return _tags_hash(tags) if tags and own.tobytes() == tags * len(batch) else None


def _is_unscheduled(batch: RecordColumns) -> bool:
    """Whether it is known, without comparing each topic, that no record is in the schedule topic."""
    topics = {batch.only_topic} if batch.parts is None else {part.topic for part in batch.parts}
    return topics.isdisjoint((None, SCHEDULE_TOPIC))


def index_entries(batch: RecordColumns, tags: bool) -> IndexEntries:
    """All records' entries, in the records' order and in each record in the order above."""
    if len(batch) <= ROWS_MAX:
        found = [(i, h) for i, row in enumerate(batch.rows) for h in plain_index_hashes(batch, row, tags)]
        return IndexEntries(
            np.array([i for i, _ in found], np.int64), np.array([h for _, h in found], np.int32)
        )
    uniform = batch.uniform_properties
    hashes = None if uniform is None else _uniform_hashes(batch, uniform, tags)
    if uniform is None or hashes is None:
        return _scanned_entries(batch, tags)
    records = np.repeat(uniform.records, hashes.shape[1])
    entries = IndexEntries(records, fold_hashes(hashes.ravel()))
    return _with_odd(batch, entries, uniform.odd, tags) if uniform.odd else entries


def _with_odd(batch: RecordColumns, entries: IndexEntries, odd: list[int], tags: bool) -> IndexEntries:
    """The entries of all records: these, and those of the odd ones."""
    more = [(index, found) for index in odd for found in plain_index_hashes(batch, batch.row(index), tags)]
    records = np.concatenate((entries.record_index, np.array([index for index, _ in more], np.int64)))
    hashes = np.concatenate((entries.hashes, np.array([found for _, found in more], np.int32)))
    order = np.argsort(records, kind="stable")
    return IndexEntries(records[order], hashes[order])


def _uniform_hashes(
    batch: RecordColumns, uniform: UniformProperties, tags: bool
) -> NDArray[np.uint32] | None:
    """uint32[m, k]: k hashes of each row; None if the records are not alike enough."""
    key_prefixes = _key_prefixes(batch)
    if len(key_prefixes) > 1 and uniform.odd:
        key_prefixes = key_prefixes[uniform.records]
    spans: list[tuple[Span, NDArray[np.uint32]]] = []
    if _UNIQ_KEY in uniform.values:
        spans.append((uniform.values[_UNIQ_KEY], key_prefixes))
    if _KEYS in uniform.values:
        words = uniform.words(uniform.values[_KEYS])
        if words is None:
            return None
        spans += [(word, key_prefixes) for word in words]
    if tags and _TAGS in uniform.values:
        spans.append((uniform.values[_TAGS], _tag_prefixes(key_prefixes)))
    if not all(uniform.is_ascii(span) for span, _ in spans):
        return None
    if batch.sys_flags[0] & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
        spans = []
    hashes = np.empty((len(uniform.rows), len(spans)), np.uint32)
    for column, (span, prefixes) in enumerate(spans):
        hashes[:, column] = _column_hashes(uniform, span) + prefixes * POWERS[span.end - span.start]
    return hashes


def _key_prefixes(batch: RecordColumns) -> NDArray[np.uint32]:
    """The hash of `topic#` of each record; of all of them, if they have one topic."""
    if batch.only_topic is not None:
        return np.array([prefix_hash(batch.only_topic)], np.uint32)
    return np.fromiter(map(prefix_hash, batch.topics), np.uint32, len(batch))


def _tag_prefixes(key_prefixes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The hashes of `topic#T#`."""
    prefixes: NDArray[np.uint32] = key_prefixes * POWERS[len(_TAG_MARK)] + np.uint32(java_hash(_TAG_MARK))
    return prefixes


def _column_hashes(uniform: UniformProperties, span: Span) -> NDArray[np.uint32]:
    return row_hashes(uniform.rows[:, span.start : span.end])


def _scanned_entries(batch: RecordColumns, tags: bool) -> IndexEntries:
    key_prefixes = np.fromiter(map(prefix_hash, batch.topics), np.uint32, len(batch))
    tag_prefixes = _tag_prefixes(key_prefixes)
    parts = [_scan_entries(scan, key_prefixes, tag_prefixes, tags) for scan in batch.property_scans]
    records = np.concatenate([part.record_index for part in parts])
    hashes = np.concatenate([part.hashes for part in parts])
    rolled_back = batch.sys_flags & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK
    if rolled_back.any():
        kept = ~rolled_back[records]
        return IndexEntries(records[kept], hashes[kept])
    return IndexEntries(records, hashes)


def _scan_entries(
    scan: PropertyScan, key_prefixes: Prefixes, tag_prefixes: Prefixes, tags: bool
) -> IndexEntries:
    found = [(scan.find(_UNIQ_KEY), key_prefixes), (scan.words(scan.find(_KEYS)), key_prefixes)]
    if tags:
        found.append((scan.find(_TAGS), tag_prefixes))
    found = [one for one in found if len(one[0].records)] or found[:1]
    if len(found) == 1:
        slices, prefixes = found[0]
        return IndexEntries(slices.records, fold_hashes(_hashes(scan, slices, prefixes)))
    records = np.concatenate([slices.records for slices, _ in found])
    hashes = np.concatenate([_hashes(scan, slices, prefixes) for slices, prefixes in found])
    order = np.argsort(records, kind="stable")
    return IndexEntries(records[order], fold_hashes(hashes[order]))


def _hashes(scan: PropertyScan, slices: Slices, prefixes: Prefixes) -> NDArray[np.uint32]:
    """Java hashes (modulo 2 ** 32) of prefix + slice; prefixes: their hashes, one for all or one per
    record."""
    sizes = slices.ends - slices.starts
    hashes = scan.hashes(slices)
    if scan.high_bytes is not None:
        sizes = sizes.copy()
        _hash_wide(scan, slices, hashes, sizes)
    own = prefixes if isinstance(prefixes, np.uint32) else prefixes[slices.records]
    hashes += own * POWERS[sizes]
    return hashes


def _hash_wide(
    scan: PropertyScan, slices: Slices, hashes: NDArray[np.uint32], sizes: NDArray[np.int64]
) -> None:
    """Replaces hash and size (in UTF-16 units) of the slices that are not ASCII."""
    high = scan.high_bytes
    assert high is not None, "called only if there are high bytes"
    assert len(hashes) == len(sizes) == len(slices.starts), "each slice has its hash and its size"
    wide = np.searchsorted(high, slices.starts) != np.searchsorted(high, slices.ends)
    for i in np.flatnonzero(wide).tolist():
        text = scan.joined[int(slices.starts[i]) : int(slices.ends[i])].decode("utf-8", "replace")
        hashes[i] = java_hash(text) & 0xFFFFFFFF
        sizes[i] = len(utf16_units(text))


def plain_topic(batch: RecordColumns, row: RecordFields) -> str:
    if batch.topic is not None:
        return batch.topic
    return str(batch.data[row.topic_position : row.topic_position + row.topic_size], "utf-8", "replace")


def plain_block(batch: RecordColumns, row: RecordFields) -> bytes:
    return bytes(batch.data[row.property_position : row.property_position + row.property_size])


def plain_properties(batch: RecordColumns, row: RecordFields) -> dict[str, str]:
    return parse_properties(plain_block(batch, row))


def row_tags_code(batch: RecordColumns, row: RecordFields) -> int:
    """The tagsCode of one record."""
    begin = row.property_position
    block = bytes(batch.data[begin : begin + row.property_size])
    if row.topic_size == _SCHEDULE_TOPIC_SIZE and plain_topic(batch, row) == SCHEDULE_TOPIC:
        stored = store_timestamp(batch.data, row.position, row.sys_flag)
        delivered = deliver_time(parse_properties(block).get(PROPERTY_DELAY), stored)
        if delivered is not None:
            return delivered
    return _tags_code_of(block)


def _tags_code_of(block: bytes) -> int:
    """The tagsCode of a record with these properties that has no time of delivery for it."""
    at = block.find(_TAGS_BEGIN)
    if at < 0:
        return 0
    if tags := _only_tags(block, at):
        return _tags_hash(tags)
    tag = parse_properties(block).get(PROPERTY_TAGS)
    return java_hash(tag) if tag else 0


def _only_tags(block: bytes, at: int) -> bytes:
    """The value of TAGS, whose name is first at `at`, if it is there once, at the start of a piece: then no
    other piece counts. b"" if it is not as simple."""
    if (at and block[at - 1] != VALUE_END) or block.find(_TAGS_BEGIN, at + 1) >= 0:
        return b""
    end = block.find(_VALUE_END, at)
    return block[at + len(_TAGS_BEGIN) : end if end >= 0 else len(block)]


@lru_cache(maxsize=TAGS_KNOWN)
def _tags_hash(tags: bytes) -> int:
    return java_hash(tags.decode("utf-8", "replace"))


def plain_index_hashes(batch: RecordColumns, row: RecordFields, tags: bool) -> list[int]:
    if row.sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
        return []
    topic, properties = plain_topic(batch, row), plain_properties(batch, row)
    keys = [properties[PROPERTY_UNIQ_KEY]] if PROPERTY_UNIQ_KEY in properties else []
    keys += [key for key in properties.get(PROPERTY_KEYS, "").split(" ") if key]
    if tags and PROPERTY_TAGS in properties:
        keys.append(_TAG_MARK + properties[PROPERTY_TAGS])
    return [index_hash(topic, key) for key in keys]


def deliver_time(level: str | None, store_timestamp: int) -> int | None:
    """When a record of the schedule topic is due (epoch ms); None when its level is not above 0."""
    if level is None or not _INTEGER.fullmatch(level) or int(level) > _INT32_MAX:
        return None
    number = min(int(level), len(DELAY_LEVELS_SECONDS))
    return store_timestamp + 1000 * DELAY_LEVELS_SECONDS[number - 1] if number > 0 else None
